"""A test voice that needs nothing but numpy: one sound a letter, the same samples every time."""

from __future__ import annotations

import asyncio
import math
import unicodedata
from collections.abc import AsyncGenerator
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from specstream.errors import AdapterFailed
from specstream.stages.interfaces import VoiceCapabilities
from specstream.types import PAUSE, Mark, Phrase, Span, SpeechBuffer
from specstream_adapters.checks import delivery, in_range
from specstream_adapters.voice.shared import plain, speakable, take_marks, tokens

__all__ = ["ReferenceVoice"]

_BUFFER_MS = 60
_PITCH_HZ = 110.0
_FADE_MS = 5  # at both ends of a sound, so that neighbours join without a click
_VOWELS = {  # IPA: the first two formants in Hz (Peterson and Barney 1952)
    "ɑ": (730, 1090), "ɛ": (530, 1840), "ɪ": (390, 1990), "ɔ": (570, 840), "ʊ": (440, 1020),
    "i": (270, 2290), "ə": (490, 1350),
}  # fmt: skip
_HISSES = {
    "s": 1.0, "z": 0.7, "f": 0.35, "h": 0.2, "θ": 0.25, "v": 0.3, "k": 0.5, "t": 0.6, "p": 0.3,
}  # fmt: skip
_LETTERS = dict(zip("aeiouybcdfghjklmnpqrstvwxz", "ɑɛɪɔʊibkdfghʒklmnpkɹstvwsz", strict=True))
_DIGITS = ("zɪɹɔ", "wən", "tʊ", "θɹi", "fɔɹ", "fɑɪv", "sɪks", "sɛvən", "ɛɪt", "nɑɪn")
_SIGNS = {
    "$": "dɑləɹ", "€": "jʊɹɔ", "£": "pɑʊnd", "%": "pəsɛnt", "&": "ɛnd", "@": "ɛt", "+": "pləs",
}  # fmt: skip
_PAUSES_MS = dict.fromkeys(",;:–—", 160) | dict.fromkeys(".!?…", 340)
_VOWEL_MS, _CONSONANT_MS = 85, 60

Samples = NDArray[np.int16]


class ReferenceVoice:
    """A `SpeechSynthesizer` that babbles: each letter has one sound, each digit its English name.

    For tests, for machines without a speech library, and where the same samples are needed on every
    run: words, pauses, marks and mouth shapes come as from any voice, but the speech can't be
    understood. The samples depend on the phrase's spoken text and the options alone, not on the
    consumer's pace.

    Args:
        sample_rate: Samples a second, 8,000 to 48,000.
        speed: 1 is about 14 letters a second; 0.5 to 2.
        pitch: 1 is 110 Hz; 0.5 to 2.
        seed: The seed of the noise in the consonants.

    Attributes:
        speed: As given.
        pitch_hz: The pitch of its vowels.

    Raises:
        ConfigError: an option is out of range.
    """

    def __init__(
        self, *, sample_rate: int = 24_000, speed: float = 1.0, pitch: float = 1.0, seed: int = 0
    ) -> None:
        in_range("sample_rate", sample_rate, 8_000, 48_000, whole=True)
        delivery(speed, pitch)
        in_range("seed", seed, 0, math.inf, whole=True)
        self._rate, self.speed = sample_rate, speed
        self.pitch_hz, self._seed = _PITCH_HZ * pitch, seed
        self._closed = False
        self.capabilities = VoiceCapabilities(
            "reference",
            sample_rate,
            streaming=True,
            deterministic=True,
            words=True,
            phonemes=True,
            language="en",
        )

    async def synthesize(self, phrase: Phrase) -> AsyncGenerator[SpeechBuffer, None]:
        """Speak ``phrase.spoken`` in buffers of at most 60 ms; nothing if it has nothing to say.

        A buffer is made when it is asked for, so closing the generator or cancelling the task stops
        the voice at once.

        Raises:
            AdapterFailed: the voice was closed.
        """
        if self._closed:
            raise AdapterFailed("the voice is closed; make a new one")
        text, at = plain(phrase.spoken), 0
        if not speakable(text):
            return
        size = self._rate * _BUFFER_MS // 1000
        marks = self._marks(text, phrase.chars.start)
        sounds = [(mark.text, mark.samples) for mark in marks if mark.kind == "phoneme"]
        for phone, place in sounds:
            samples = sound_of(phone, place.length, self._rate, self.pitch_hz, self._seed)
            for start in range(0, len(samples), size):
                block = samples[start : start + size].astype("<i2").tobytes()
                at += len(block) // 2
                yield SpeechBuffer(block, take_marks(marks, at + size))
                await asyncio.sleep(0)
                if self._closed:
                    return

    def _marks(self, text: str, first_char: int) -> list[Mark]:
        """The marks of a whole phrase; a word's mark comes after those of its sounds."""
        marks: list[Mark] = []
        at = 0
        words = [word for word in tokens(text) if _phones(text[slice(*word)])]
        following = [*(word.start for word in words[1:]), len(text)]
        for word, then in zip(words, following, strict=True):
            chars = Span(first_char + word.start, first_char + word.end)
            first = at
            for phone in _phones(text[slice(*word)]):
                end = at + self._samples(_VOWEL_MS if phone in _VOWELS else _CONSONANT_MS)
                marks.append(Mark("phoneme", phone, Span(at, end), chars))
                at = end
            marks.append(Mark("word", text[slice(*word)], Span(first, at), chars))
            pause_ms = max((_PAUSES_MS.get(sign, 0) for sign in text[word.end : then]), default=0)
            if pause_ms:
                end = at + self._samples(pause_ms)
                marks.append(Mark("phoneme", PAUSE, Span(at, end), chars))
                at = end
        return marks

    def _samples(self, ms: float) -> int:
        return round(ms / self.speed * self._rate / 1000)

    async def aclose(self) -> None:
        """Stop what is being spoken; idempotent."""
        self._closed = True


def _phones(token: str) -> str:
    """The sounds of a word, one IPA symbol each. Letters outside the table become a neutral vowel."""
    out = ""
    for char in unicodedata.normalize("NFKD", token.lower()):
        if char in _LETTERS:
            out += _LETTERS[char]
        elif (digit := unicodedata.decimal(char, None)) is not None:
            out += _DIGITS[digit]
        elif char in _SIGNS:
            out += _SIGNS[char]
        elif char.isalnum():
            out += "ə"
    return out


@lru_cache(maxsize=512)
def sound_of(phone: str, count: int, rate: int, pitch: float, seed: int) -> Samples:
    """``count`` samples of a sound: a vowel's harmonics, noise for a hiss, a hum for the rest."""
    out = np.zeros(count)
    seconds = np.arange(count) / rate
    if phone != PAUSE and phone not in "sfhktpθ":
        formants = _VOWELS.get(phone, (250, 1100))
        loud = 0.5 if phone in _VOWELS else 0.2
        # A vocal tract's response: two resonances, 120 Hz wide, over a falling source.
        hz = pitch * np.arange(1, int(min(4000, 0.4 * rate) / pitch))[:, None]
        peaks = sum(1 / (1 + ((hz - formant) / 120) ** 2) for formant in formants)
        gains = (peaks + 0.02) / (1 + hz / 500)
        gains *= loud / np.sqrt((gains * gains).sum())
        out += (gains * np.sin(2 * np.pi * hz * seconds)).sum(0)
    if phone in _HISSES:
        noise = np.random.Generator(np.random.PCG64([seed, ord(phone)])).standard_normal(count + 1)
        out += 0.1 * _HISSES[phone] * np.diff(noise)
    fade = min(count // 2, rate * _FADE_MS // 1000)
    ramp = np.linspace(0.0, 1.0, fade, endpoint=False)
    out[:fade] *= ramp
    out[count - fade :] *= ramp[::-1]
    return (np.tanh(out) * 32000).astype(np.int16)
