"""Speech of an answer that nobody wanted, for an answer that begins with the same phrase."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace

from specstream.pipeline.interfaces import SpeechSynthesizer, VoiceCapabilities
from specstream.types import Phrase, Span, SpeechBuffer

__all__ = ["FirstPhrase"]


class FirstPhrase:
    """A voice that doesn't speak the first phrase of an answer twice.

    Kept is one phrase, if all of it was spoken while ``ahead`` was set; it is given to the next answer
    whose first phrase is the very same text, and forgotten with any other.

    Attributes:
        ahead: Whether the answer that is spoken now may not be wanted.
        reused: How often kept speech was used.
        reused_s: Its length.
    """

    def __init__(self, voice: SpeechSynthesizer) -> None:
        self._voice = voice
        self._kept: tuple[Phrase, list[SpeechBuffer]] | None = None
        self.ahead = False
        self.reused = 0
        self.reused_s = 0.0

    @property
    def capabilities(self) -> VoiceCapabilities:
        """Those of the voice."""
        return self._voice.capabilities

    def forget(self) -> None:
        """The answer that was spoken is wanted."""
        self.ahead, self._kept = False, None

    async def synthesize(self, phrase: Phrase) -> AsyncGenerator[SpeechBuffer, None]:
        """See `SpeechSynthesizer`."""
        first = phrase.index == 0
        same = replace(phrase, tokens=Span(0, 0), t_ms=0.0, reason="sentence")
        kept, buffers = self._kept, []
        if first:
            self._kept = None
        if first and kept is not None and kept[0] == same:
            self.reused += 1
            for buffer in kept[1]:
                self.reused_s += len(buffer.pcm) / 2 / self.capabilities.sample_rate
                yield buffer
            buffers = kept[1]
        else:
            async with aclosing(self._voice.synthesize(phrase)) as spoken:
                async for buffer in spoken:
                    if first and self.ahead:
                        buffers.append(buffer)
                    yield buffer
        if first and self.ahead:
            self._kept = same, buffers

    async def aclose(self) -> None:
        """Close the voice."""
        await self._voice.aclose()
