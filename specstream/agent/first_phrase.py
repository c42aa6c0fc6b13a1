"""Reuses the first phrase's speech of a dropped pre-emptive answer, if the next one begins alike."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace

from specstream.pipeline.hold import Hold
from specstream.pipeline.interfaces import SpeechSynthesizer, VoiceCapabilities
from specstream.types import Phrase, Span, SpeechBuffer

__all__ = ["FirstPhrase"]


class FirstPhrase:
    """A voice around another one that doesn't synthesize the first phrase of an answer twice.

    The speech of one first phrase is kept, if it was synthesized completely while its answer was held
    back. The next answer is given that speech if its first phrase has the very same text, else it is
    discarded.

    Attributes:
        hold: Holds back the answer that is spoken now, so that it may be dropped; None: it is wanted.
        reused_s: Seconds of kept speech that were given to later answers.
    """

    def __init__(self, voice: SpeechSynthesizer) -> None:
        self._voice = voice
        self._kept: tuple[Phrase, list[SpeechBuffer]] | None = None
        self.hold: Hold | None = None
        self.reused_s = 0.0

    @property
    def capabilities(self) -> VoiceCapabilities:
        """The capabilities of the voice inside."""
        return self._voice.capabilities

    def forget(self) -> None:
        """Keep nothing: the answer being spoken is wanted, so its first phrase won't be needed again."""
        self._kept = None

    @property
    def _ahead(self) -> bool:
        return self.hold is not None and not self.hold.released

    async def synthesize(self, phrase: Phrase) -> AsyncGenerator[SpeechBuffer, None]:
        """See `SpeechSynthesizer`."""
        first = phrase.index == 0
        same = replace(phrase, tokens=Span(0, 0), t_ms=0.0, reason="sentence")
        kept, buffers = self._kept, []
        if first:
            self._kept = None
        if first and kept is not None and kept[0] == same:
            for buffer in kept[1]:
                self.reused_s += len(buffer.pcm) / 2 / self.capabilities.sample_rate
                yield buffer
            buffers = kept[1]
        else:
            async with aclosing(self._voice.synthesize(phrase)) as spoken:
                async for buffer in spoken:
                    if first and self._ahead:
                        buffers.append(buffer)
                    yield buffer
        if first and self._ahead:
            self._kept = same, buffers

    async def aclose(self) -> None:
        """Close the voice inside."""
        await self._voice.aclose()
