"""What a user says between two pauses, on the way to the recogniser."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from specstream.listening import RecognizerStream, Transcript

__all__ = ["HeardSpeech"]


class HeardSpeech:
    """A recogniser's stream, and when to ask it.

    Args:
        stream: Of the recogniser, for this utterance only.
        every: Bytes of audio between two interim transcripts; 0: none are made.
        user_id: Who speaks.
    """

    def __init__(self, stream: RecognizerStream, every: int, user_id: str) -> None:
        self.user_id = user_id
        self._stream, self._every = stream, every
        self._unheard = 0  # bytes since the last interim transcript
        self._more = asyncio.Event()
        self._ended = asyncio.Event()

    def add(self, pcm: bytes) -> None:
        """Take the next audio."""
        self._stream.add(pcm)
        self._unheard += len(pcm)
        if self._every and self._unheard >= self._every:
            self._more.set()

    def end(self) -> None:
        """No more audio comes; idempotent."""
        self._ended.set()
        self._more.set()

    async def interim(self) -> Transcript | None:
        """The next interim transcript; None at the end. Cancelling loses no audio.

        Raises:
            AdapterFailed: the recogniser broke.
        """
        await self._more.wait()
        if self._ended.is_set():
            return None
        self._more.clear()
        self._unheard = 0
        asked = asyncio.ensure_future(self._stream.partial())
        ended = asyncio.ensure_future(self._ended.wait())
        try:
            await asyncio.wait((asked, ended), return_when=asyncio.FIRST_COMPLETED)
            return asked.result() if asked.done() else None  # the last words matter more
        finally:
            ended.cancel()
            if asked.cancel():
                with suppress(asyncio.CancelledError):
                    await asked  # calls of a stream don't overlap

    async def finish(self) -> Transcript:
        """What was said in all of it. Cancelling gives up the wait.

        Raises:
            AdapterFailed: the recogniser broke.
        """
        return await self._stream.finish()

    async def aclose(self) -> None:
        """Release the stream; idempotent."""
        await self._stream.aclose()
