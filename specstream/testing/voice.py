"""A scripted voice: a tone for every word, made at a known pace."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator

import anyio

from specstream.pipeline.interfaces import VoiceCapabilities
from specstream.types import Mark, Phrase, Span, SpeechBuffer

__all__ = ["ScriptedVoice"]

_WORD = re.compile(r"\S*[^\W_]\S*")
_BUFFER_S = 0.06
_LOUD = b"\x28\x23"  # one sample of 9000


class ScriptedVoice:
    """A `SpeechSynthesizer` whose words are tones of ``word_ms`` each.

    A phrase's first buffer comes ``first_audio_ms`` after it was asked for; making a second of audio
    takes ``real_time_factor`` seconds. Each phrase begins with ``leading_silence_ms`` of zeros.
    ``spoken`` records the phrases.
    """

    def __init__(
        self,
        *,
        first_audio_ms: float = 0.0,
        real_time_factor: float = 0.0,
        word_ms: float = 250.0,
        leading_silence_ms: float = 0.0,
        sample_rate: int = 24_000,
    ) -> None:
        self.capabilities = VoiceCapabilities(
            "scripted", sample_rate, streaming=True, deterministic=True, words=True
        )
        self._first_s, self._factor = first_audio_ms / 1e3, real_time_factor
        self._word = int(word_ms * sample_rate / 1e3)
        self._silence = int(leading_silence_ms * sample_rate / 1e3)
        self.spoken: list[str] = []

    async def synthesize(self, phrase: Phrase) -> AsyncGenerator[SpeechBuffer, None]:
        """See `SpeechSynthesizer`."""
        self.spoken.append(phrase.spoken)
        words = [
            Span(phrase.chars.start + found.start(), phrase.chars.start + found.end())
            for found in _WORD.finditer(phrase.spoken)
        ]
        if not words:
            return
        rate = self.capabilities.sample_rate
        size, end = int(_BUFFER_S * rate), self._silence + self._word * len(words)
        began, marked = anyio.current_time() + self._first_s, 0
        for at in range(0, end, size):
            until = min(at + size, end)
            await anyio.sleep_until(began + at / rate * self._factor)
            quiet = max(0, min(until, self._silence) - at)
            marks: list[Mark] = []
            while marked < len(words) and self._end(marked) <= until:
                samples = Span(self._end(marked) - self._word, self._end(marked))
                where = slice(*(edge - phrase.chars.start for edge in words[marked]))
                marks.append(Mark("word", phrase.spoken[where], samples, words[marked]))
                marked += 1
            yield SpeechBuffer(bytes(2 * quiet) + _LOUD * (until - at - quiet), tuple(marks))

    def _end(self, word: int) -> int:
        return self._silence + self._word * (word + 1)

    async def aclose(self) -> None:
        """Do nothing: there is nothing to release."""
