"""Speech through espeak-ng: small, quick, about 100 languages, with word and phoneme times."""

from __future__ import annotations

import asyncio
import math
import weakref
from collections.abc import AsyncGenerator, Callable, Sequence
from concurrent.futures import Future
from contextlib import aclosing
from typing import TypeVar

from specstream.errors import AdapterError, AdapterFailed, ConfigError
from specstream.stages.interfaces import VoiceCapabilities
from specstream.types import Phrase, SpeechBuffer
from specstream_adapters.checks import delivery
from specstream_adapters.voice.espeak_library import USUAL_PITCH, USUAL_WPM, EspeakLibrary, LibraryEvent
from specstream_adapters.voice.espeak_marks import MarkTracker
from specstream_adapters.voice.shared import once, pieces, plain, speakable, thread_of

__all__ = ["EspeakVoice", "on_library", "shared_library"]

PIECE = 300
"""Most characters given to the library at once: bounds the audio that is made ahead of a consumer."""

_OCTAVE, _HIGHEST = 50, 99  # steps of the scale of pitch
T = TypeVar("T")


class EspeakVoice:
    """A `SpeechSynthesizer` on libespeak-ng, from the extra ``espeak`` or the system.

    Audio is 22,050 Hz. It is not ``deterministic``: the library's pitch flutter goes on from phrase
    to phrase. The text is always read as plain text, never as SSML or phoneme input. Phonemes are
    IPA without stress marks; two phonemes that the library speaks as one sound share a mark. All voices
    of a process share one library thread, and none waits for the consumer of another.

    Args:
        voice: A language or voice name, perhaps with a variant: ``"en-us"``, ``"de"``, ``"fr+f3"``.
        speed: 1 is 175 words a minute; 0.5 to 2.
        pitch: 1 is the voice's own; 0.5 to 2 (an octave down and up).

    Raises:
        AdapterUnavailable: the library is missing, or it has no such voice.
        ConfigError: an option is out of range.
    """

    named_by = "voice"

    def __init__(self, *, voice: str = "en-us", speed: float = 1.0, pitch: float = 1.0) -> None:
        if not isinstance(voice, str) or not 0 < len(voice) <= 60 or not voice.isprintable():
            raise ConfigError(f"voice must be a short name such as 'en-us', not {voice!r:.80}")
        delivery(speed, pitch)
        steps = round(USUAL_PITCH + _OCTAVE * math.log2(pitch))
        self._settings = (voice, round(USUAL_WPM * speed), min(steps, _HIGHEST))
        on_library(lambda library: library.choose(*self._settings)).result()  # milliseconds
        self.capabilities = VoiceCapabilities(
            f"espeak:{voice}",
            shared_library().sample_rate,
            streaming=True,
            words=True,
            phonemes=True,
            language=voice.partition("+")[0],
        )
        self._speaking: weakref.WeakSet[_Piece] = weakref.WeakSet()
        self._closed = False

    @staticmethod
    def voices() -> list[str]:
        """The language codes that ``voice`` may be.

        Raises:
            AdapterUnavailable: the library is missing.
        """
        return sorted(on_library(lambda library: library.voices()).result())

    async def synthesize(self, phrase: Phrase) -> AsyncGenerator[SpeechBuffer, None]:
        """Speak ``phrase.spoken`` in buffers of 60 ms; nothing if it has no letter and no digit.

        Closing the generator or cancelling the task that waits for it stops the library within one
        buffer and leaves it ready for the next phrase.

        Raises:
            AdapterFailed: the library broke, or the voice was closed.
        """
        if self._closed:
            raise AdapterFailed("the voice is closed; make a new one")
        text, samples = plain(phrase.spoken), 0
        for span in pieces(text, PIECE):
            part = text[slice(*span)]
            if not speakable(part):
                continue
            piece = _Piece(self._settings, part, phrase.chars.start + span.start, samples)
            self._speaking.add(piece)
            on_library(piece.speak)
            async with aclosing(piece.buffers()) as buffers:
                async for buffer in buffers:
                    samples += len(buffer.pcm) // 2
                    yield buffer
            if self._closed:
                return

    async def aclose(self) -> None:
        """Stop what is being spoken; idempotent. The library stays, for the other voices."""
        self._closed = True
        for piece in list(self._speaking):
            piece.stop()


class _Piece:
    """One call of the library, and its audio on the way to a consumer on the running event loop.

    Args:
        settings: Voice, words a minute, pitch.
        text: What to speak, as `plain` left it.
        first_char: Where ``text`` lies in the reply.
        first_sample: How many samples of the phrase were spoken before.
    """

    def __init__(
        self, settings: tuple[str, int, int], text: str, first_char: int, first_sample: int
    ) -> None:
        self._settings = settings
        self._text = text
        self._tracker = MarkTracker(text, first_char, first_sample)
        self._loop = asyncio.get_running_loop()
        self._arrived: asyncio.Queue[SpeechBuffer | BaseException | None] = asyncio.Queue()
        self._stopped = False

    async def buffers(self) -> AsyncGenerator[SpeechBuffer, None]:
        """The audio as it comes; closing the generator stops the library."""
        try:
            while (item := await self._arrived.get()) is not None and not self._stopped:
                if isinstance(item, AdapterError):
                    raise item
                if isinstance(item, BaseException):
                    raise AdapterFailed(f"espeak-ng broke: {item}") from item
                yield item
        finally:
            self._stopped = True

    def stop(self) -> None:
        """Stop speaking within one buffer; audio that was not read is dropped. Idempotent."""
        self._stopped = True
        self._arrived.put_nowait(None)

    def speak(self, library: EspeakLibrary) -> None:
        """Speak the piece unless it was stopped. Runs on the library's thread."""
        error: BaseException | None = None
        try:
            if not self._stopped:
                library.choose(*self._settings)
                library.speak(self._text, self._take)
                for buffer in self._tracker.finish():
                    self._put(buffer)
        except BaseException as caught:
            error = caught
        self._put(error)

    def _take(self, pcm: bytes, events: Sequence[LibraryEvent]) -> bool:
        self._tracker.feed(pcm, events)
        for buffer in self._tracker.ready():
            self._put(buffer)
        return not self._stopped

    def _put(self, item: SpeechBuffer | BaseException | None) -> None:
        try:
            self._loop.call_soon_threadsafe(self._arrived.put_nowait, item)
        except RuntimeError:  # the loop was closed: nobody listens any more
            self._stopped = True


@once
def shared_library() -> EspeakLibrary:
    """The process's one library, loaded on first use; only jobs of `on_library` may call it.

    Raises:
        AdapterUnavailable: no usable library was found.
    """
    return EspeakLibrary()


def on_library(job: Callable[[EspeakLibrary], T]) -> Future[T]:
    """Run ``job`` on the only thread that may use the library, after the jobs before it.

    Raises:
        AdapterUnavailable: no usable library was found.
    """
    return thread_of("espeak-ng").submit(job, shared_library())
