"""A voice that needs nothing but numpy and always says the same phrase with the same samples."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Sequence
from functools import partial
from itertools import groupby, pairwise

from specstream.errors import AdapterFailed, ConfigError
from specstream.pipeline.interfaces import VoiceCapabilities
from specstream.types import PAUSE, Mark, Phrase, Span, SpeechBuffer
from specstream_adapters.voice.prosody import Clause, clauses
from specstream_adapters.voice.synth import FormantSynth
from specstream_adapters.voice.text import plain, speakable

__all__ = ["ReferenceVoice"]


class ReferenceVoice:
    """A `SpeechSynthesizer` that talks English as speech chips did: letter rules, then formants.

    For tests, for machines without a speech library, and wherever equal bytes matter: the samples
    depend only on the phrase's spoken text and the options (and on the machine's floating-point
    arithmetic), not on the consumer's pace. Other scripts are read by the Unicode names of their
    letters or as neutral syllables, never left out.

    Args:
        sample_rate: Samples a second, 8,000 to 48,000.
        speed: 1 is about 165 words a minute; 0.5 to 2.
        pitch_hz: The voice's mean pitch, 60 to 300.
        seed: Of the noise in the consonants.

    Raises:
        ConfigError: an option is out of range.
    """

    def __init__(
        self,
        *,
        sample_rate: int = 24_000,
        speed: float = 1.0,
        pitch_hz: float = 110.0,
        seed: int = 0,
    ) -> None:
        if not isinstance(sample_rate, int) or not 8_000 <= sample_rate <= 48_000:
            raise ConfigError(
                f"sample_rate must be a whole number from 8000 to 48000, not {sample_rate}"
            )
        if not 0.5 <= speed <= 2.0:
            raise ConfigError(f"speed must be between 0.5 and 2, not {speed}")
        if not 60.0 <= pitch_hz <= 300.0:
            raise ConfigError(f"pitch_hz must be between 60 and 300, not {pitch_hz}")
        if not isinstance(seed, int) or seed < 0:
            raise ConfigError(f"seed must be a whole number of at least 0, not {seed}")
        self._sample_rate = sample_rate
        self._speed = speed
        self._make_synth = partial(FormantSynth, sample_rate, pitch_hz, seed)
        self._closed = False

    @property
    def capabilities(self) -> VoiceCapabilities:
        """Fixed facts about this voice."""
        return VoiceCapabilities(
            name="reference",
            sample_rate=self._sample_rate,
            streaming=True,
            deterministic=True,
            words=True,
            phonemes=True,
        )

    async def synthesize(self, phrase: Phrase) -> AsyncGenerator[SpeechBuffer, None]:
        """Speak ``phrase.spoken`` in buffers of 60 ms; nothing if it has no letter and no digit.

        A buffer is made when it is asked for (about a millisecond), so closing the generator or
        cancelling the task stops the voice at once.

        Raises:
            AdapterFailed: the voice was closed.
        """
        if self._closed:
            raise AdapterFailed("the voice is closed; make a new one")
        text = plain(phrase.spoken)
        if not speakable(text):
            return
        synth = self._make_synth()
        marks = _Marks(text, phrase.chars.start)
        for clause in clauses(text, self._speed):
            marks.add(clause, synth.starts(clause.sounds))
            for block in synth.render(clause):
                yield SpeechBuffer(block.astype("<i2").tobytes(), marks.until(len(block)))
                await asyncio.sleep(0)
                if self._closed:
                    return

    async def aclose(self) -> None:
        """Stop what is being spoken; idempotent."""
        self._closed = True


class _Marks:
    """The marks of a phrase, given out with the buffers in which they end."""

    def __init__(self, text: str, first_char: int) -> None:
        self._text = text
        self._first_char = first_char
        self._clause_start = 0
        self._given = 0
        self._last_token = Span(-1, -1)
        self._waiting: deque[Mark] = deque()

    def add(self, clause: Clause, starts: Sequence[int]) -> None:
        """Take a clause whose sounds begin at ``starts``; the last entry is where it ends."""
        at = [self._clause_start + start for start in starts]
        self._clause_start = at[-1]
        numbered = zip(clause.sounds, pairwise(at), strict=True)
        for token, group in groupby(numbered, key=lambda entry: entry[0].token):
            timed = [(sound.phone, Span(*samples)) for sound, samples in group]
            chars = Span(self._first_char + token.start, self._first_char + token.end)
            for phone, samples in timed:
                self._waiting.append(Mark("phoneme", phone, samples, chars))
            # A token so long that it takes several clauses gets its mark with the first of them.
            if timed[0][0] != PAUSE and token != self._last_token:
                said = Span(timed[0][1].start, timed[-1][1].end)
                self._waiting.append(Mark("word", self._text[slice(*token)], said, chars))
            self._last_token = token

    def until(self, samples: int) -> tuple[Mark, ...]:
        """The marks that end within the next ``samples``."""
        self._given += samples
        done = []
        while self._waiting and self._waiting[0].samples.end <= self._given:
            done.append(self._waiting.popleft())
        return tuple(done)
