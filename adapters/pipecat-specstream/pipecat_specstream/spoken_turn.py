"""One turn of speech: its text on the way to the voice."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import anyio
from specstream import Chunk, Span

__all__ = ["SpokenTurn"]

_WAITING = 64  # pieces of text at most; then whoever gives them waits


class SpokenTurn:
    """The text of an audio context, given piece by piece and read as a stream of chunks.

    Attributes:
        text: What was given so far.
        made_s: Seconds of audio that the voice has made.
        worded: Whether its first word was given to the transport.
        began: When the transport began to play it, on the event loop's clock; None: not yet.
        task: Speaks the turn.
    """

    def __init__(self, context_id: str) -> None:
        self.context_id = context_id
        self.text = ""
        self.made_s = 0.0
        self.worded = False
        self.began: float | None = None
        self.task: asyncio.Task[None] | None = None
        self._send, self._receive = anyio.create_memory_object_stream[Chunk](_WAITING)

    async def add(self, text: str) -> None:
        """Give more text; waits while much of it is unread. Text for an ended turn is dropped."""
        start, self.text = len(self.text), self.text + text
        await self._give(Chunk(text, (), Span(0, 0), Span(start, len(self.text))))

    async def close(self) -> None:
        """Say that no more text will come; idempotent."""
        end = len(self.text)
        await self._give(Chunk("", (), Span(0, 0), Span(end, end), finish_reason="stop"))
        self._send.close()

    async def _give(self, chunk: Chunk) -> None:
        try:
            await self._send.send(chunk)
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            return  # the turn has ended, and has told why

    async def chunks(self) -> AsyncGenerator[Chunk, None]:
        """The text as if a model wrote it, to its end."""
        async for chunk in self._receive:
            yield chunk

    def drop(self) -> None:
        """The turn has ended: text that comes now, or waits, is dropped; idempotent."""
        self._send.close()
        self._receive.close()

    def played_s(self) -> float:
        """Seconds of its audio that were played, estimated: the transport tells its beginning only."""
        if self.began is None:
            return 0.0
        return min(self.made_s, asyncio.get_running_loop().time() - self.began)
