"""Speech of a voice that makes a sentence as a whole: its wave trimmed, its durations as marks.

The durations place each phoneme to a frame, but don't tell where silence begins: the duration of a
clause's last phoneme includes the silence after it. Pauses are therefore found in the wave.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from itertools import accumulate, pairwise

import numpy as np
from numpy.typing import NDArray

from specstream.errors import AdapterFailed
from specstream.types import PAUSE, Mark, Phrase, Span, SpeechBuffer
from specstream_adapters.voice.phonemes import PUNCTUATION, Script
from specstream_adapters.voice.shared import LibraryThread, plain, speakable, take_marks, thread_of

__all__ = [
    "FRAME",
    "SAMPLE_RATE",
    "FrameClock",
    "Made",
    "SentenceVoice",
    "Spoken",
    "Wave",
    "WaveSound",
    "by_sentence",
    "timed",
]

SAMPLE_RATE = 24_000
FRAME = 600
"""Samples of one frame of a duration: 25 ms."""

Wave = NDArray[np.float32]

_STEPS = 200  # in a second: loudness is measured every 5 ms
_SURE = 20  # in a second: 50 ms of a phoneme are sound, even if its duration includes silence
_AUDIBLE = 10 ** (-52 / 20)  # least RMS of an audible step: -52 dB
_SHORTEST_PAUSE, _SHORTEST_REST = 8, 24  # steps: at punctuation, and between other words
_BEFORE, _AFTER = 2, 3  # steps kept before and after audible ones
# Silence after a phrase. Within a long text the model itself pauses for 340, 420 and 430 ms (medians),
# but it says a short phrase a little more slowly when it stands alone. With these shorter pauses, a text
# takes the same time either way.
_PAUSES_MS = {",": 300} | dict.fromkeys(";:\u2014", 360) | dict.fromkeys(".!?\u2026", 400)
_BETWEEN_MS = 60  # silence without punctuation: the sentence goes on in the next phrase


@dataclass(frozen=True, slots=True)
class FrameClock:
    """How a model counts time.

    Attributes:
        rate: Samples in a second.
        frame: Samples of one frame of a duration.
        early: Samples by which the wave runs ahead of the durations.
    """

    rate: int
    frame: int
    early: int = 0

    @property
    def step(self) -> int:
        """Samples of one measurement of loudness."""
        return self.rate // _STEPS

    @property
    def sure(self) -> int:
        """Samples at a phoneme's start and end that are sound."""
        return self.rate // _SURE


_HIBARI = FrameClock(SAMPLE_RATE, FRAME, 2 * FRAME)
"""With this shift, the spectra of vowels and sibilants fit the marks best."""

_STRESS, _LENGTH = "\u02c8\u02cc", "\u02d0\u02b0\u02b2\u0303"
_IPA = {
    "A": "eɪ", "I": "aɪ", "O": "oʊ", "Q": "əʊ", "W": "aʊ", "Y": "ɔɪ", "T": "ɾ", "ᵊ": "ə",
    "ʤ": "dʒ", "ʧ": "tʃ",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Spoken:
    """Trimmed audio (float32 from -1 to 1) and its marks, in order of their ends.

    Samples count from the first one of ``wave``, characters from that of the text.
    """

    wave: Wave
    marks: tuple[Mark, ...]


@dataclass(slots=True)
class _Sound:
    """A phoneme; ``after`` tells what precedes it: "" nothing, " " a space, "." punctuation."""

    name: str
    word: int
    start: int
    end: int
    after: str

    def core(self, pace: FrameClock) -> Span:
        """Limits of silence beside it: after it from ``start`` on, before it up to ``end``."""
        sure = min((self.end - self.start) // 2, pace.sure)
        return Span(self.start + sure, self.end - sure)


def timed(
    script: Script, wave: Wave, frames: Sequence[int], text: str, pace: FrameClock = _HIBARI
) -> Spoken:
    """Trim the silence around ``wave`` and mark its words, phonemes and pauses.

    Args:
        script: What was synthesized.
        wave: The model's audio.
        frames: The frames that each symbol takes, with one more entry at both ends for the silence.
        text: The text that ``script`` is part of.
        pace: How the model counts time; hibari's unless given.
    """
    sounds, step = _sounds(script, frames, pace), pace.step
    if not sounds:
        return Spoken(wave[:0], ())
    loud = _loud(wave, step)
    for left, right in pairwise(sounds):
        _separate(left, right, loud, pace)
    first, last = sounds[0], sounds[-1]
    heard = np.flatnonzero(loud[: max(1, first.core(pace).end // step)])
    if len(heard):
        first.start = max(0, int(heard[0]) - _BEFORE) * step
    sure = -(-last.core(pace).start // step)
    heard = np.flatnonzero(loud[sure:])
    last.end = (sure + (int(heard[-1]) + 1 if len(heard) else 0) + _AFTER) * step
    end = last.end + _final_pause(script.symbols) * pace.rate // 1000
    marks = _marks(sounds, script.words, end, text)
    return Spoken(_cut(wave, Span(first.start, end), step), tuple(marks))


def _sounds(script: Script, frames: Sequence[int], pace: FrameClock) -> list[_Sound]:
    """The phonemes where the durations put them; a stress mark's time belongs to what it stresses."""
    edges = [pace.frame * edge for edge in accumulate(frames)]
    early = min(pace.early, edges[0])
    sounds, after, stress = list[_Sound](), "", -1
    for symbol, owner, (start, end) in zip(script.symbols, script.owners, pairwise(edges), strict=False):
        start, end = start - early, end - early
        if symbol in PUNCTUATION or symbol == " ":
            after, stress = max(after, symbol if symbol == " " else "."), -1
        elif symbol in _STRESS:
            stress = start if stress < 0 else stress
        elif symbol in _LENGTH or not symbol.isalpha():
            if sounds:
                sounds[-1].end = end
        else:
            start = start if stress < 0 else stress
            sounds.append(_Sound(_IPA.get(symbol, symbol), owner, start, end, after))
            after, stress = "", -1
    return sounds


def _loud(wave: Wave, step: int) -> NDArray[np.bool_]:
    """Whether each step of the wave is audible."""
    steps = wave[: len(wave) // step * step].reshape(-1, step)
    loud: NDArray[np.bool_] = np.sqrt((steps * steps).mean(1)) > _AUDIBLE
    return loud


def _separate(left: _Sound, right: _Sound, loud: NDArray[np.bool_], pace: FrameClock) -> None:
    """Set the end of one phoneme and the start of the next, with the pause between them if any."""
    if right.after:
        step = pace.step
        start, least = -(-left.core(pace).start // step), _SHORTEST_PAUSE
        if right.after == " ":
            least = _SHORTEST_REST
        quiet = _longest_quiet(loud[start : right.core(pace).end // step])
        if quiet.length >= least:
            left.end = (start + quiet.start + _AFTER) * step
            right.start = (start + quiet.end - _BEFORE) * step
            return
    left.end = right.start = (left.end + right.start) // 2


def _longest_quiet(loud: NDArray[np.bool_]) -> Span:
    edges = [-1, *np.flatnonzero(loud).tolist(), len(loud)]
    start, end = max(pairwise(edges), key=lambda pair: pair[1] - pair[0])
    return Span(start + 1, end)


def _final_pause(symbols: str) -> int:
    """Milliseconds of silence after the last sound, by the punctuation that follows it."""
    for symbol in reversed(symbols):
        if symbol in _PAUSES_MS:
            return _PAUSES_MS[symbol]
        if symbol.isalpha():
            break
    return _BETWEEN_MS


def _cut(wave: Wave, samples: Span, step: int) -> Wave:
    """The wave at ``samples``, with silence past its end, faded in and out over 5 ms."""
    out = np.zeros(samples.length, np.float32)
    kept = wave[samples.start : samples.end]
    out[: len(kept)] = kept
    ramp = np.linspace(0, 1, step, endpoint=False, dtype=np.float32)
    out[:step] *= ramp
    out[max(0, len(kept) - step) : len(kept)] *= ramp[::-1][-len(kept) :]
    return out


def _marks(sounds: Sequence[_Sound], words: Sequence[Span], end: int, text: str) -> Iterator[Mark]:
    origin, word_start = sounds[0].start, 0
    following = [(sound.start, sound.word) for sound in sounds[1:]] + [(end, len(words))]
    for number, (sound, (then, next_word)) in enumerate(zip(sounds, following, strict=True)):
        chars = words[sound.word]
        samples = Span(sound.start - origin, sound.end - origin)
        if number == 0 or sounds[number - 1].word != sound.word:
            word_start = samples.start
        yield Mark("phoneme", sound.name, samples, chars)
        if next_word != sound.word:
            yield Mark("word", text[slice(*chars)], Span(word_start, samples.end), chars)
        if then > sound.end:
            pause = Span(samples.end, then - origin)
            yield Mark("phoneme", PAUSE, pause, Span(chars.end, chars.end))


Made = tuple[Spoken, int, bool]
"""Speech, the character of the phrase that its text begins at, and whether it is the phrase's last."""


@dataclass(frozen=True, slots=True)
class WaveSound:
    """How waves become PCM: ``rate`` in Hz, ``gain`` as a factor; the ``package`` to blame in errors."""

    package: str
    rate: int
    gain: float = 1.0


async def by_sentence(
    thread: LibraryThread, sentences: Iterator[Made], first_char: int, sound: WaveSound
) -> AsyncGenerator[SpeechBuffer, None]:
    """Make one sentence after the other on ``thread`` and give it in buffers of at most 60 ms.

    What other voices of the thread want comes between two sentences. A sentence that is being made
    when this is closed is finished and dropped; the others are not begun.

    Args:
        thread: Where ``sentences`` is advanced.
        sentences: The phrase's speech, part after part.
        first_char: Where the phrase begins in the reply.
        sound: How waves become PCM.

    Raises:
        AdapterFailed: ``sentences`` raised; its exception is the cause.
    """
    samples, last = 0, False
    while not last:
        try:
            made = await asyncio.wrap_future(thread.submit(next, sentences, None))
        except Exception as error:
            raise AdapterFailed(f"{sound.package} broke: {error}") from error
        if made is None:
            return
        spoken, start, last = made
        for buffer in _buffers(spoken, first_char + start, samples, sound):
            yield buffer
        samples += len(spoken.wave)


def _buffers(
    spoken: Spoken, first_char: int, first_sample: int, sound: WaveSound
) -> Iterator[SpeechBuffer]:
    """Audio and marks in pieces of at most 60 ms, placed in the reply and in the phrase.

    A mark comes one buffer ahead of the buffer that it begins in, so that a face can move in time.
    """
    pcm = (np.clip(sound.gain * spoken.wave, -1.0, 1.0) * 32767.0).round().astype("<i2")
    marks, length = [], sound.rate * 60 // 1000
    for mark in spoken.marks:
        samples = Span(mark.samples.start + first_sample, mark.samples.end + first_sample)
        chars = Span(mark.chars.start + first_char, mark.chars.end + first_char)
        marks.append(Mark(mark.kind, mark.text, samples, chars))
    for start in range(0, len(pcm), length):
        ahead = first_sample + start + 2 * length
        yield SpeechBuffer(pcm[start : start + length].tobytes(), take_marks(marks, ahead))


class SentenceVoice(ABC):
    """The part of a voice that gives what `_sentences` makes.

    Args:
        thread: The library whose thread makes it.
        sound: How waves become PCM.
    """

    def __init__(self, thread: str, sound: WaveSound) -> None:
        self._thread, self._sound, self._closed = thread, sound, False

    @abstractmethod
    def _sentences(self, text: str) -> Iterator[Made]:
        """Make the speech part after part, on the thread."""

    async def synthesize(self, phrase: Phrase) -> AsyncGenerator[SpeechBuffer, None]:
        """Speak ``phrase.spoken`` in buffers of 60 ms; nothing if it has no letter and no digit.

        Closing the generator or cancelling the task that waits for it stops the voice within one
        buffer. A sentence that is being synthesized at that moment is still finished and then dropped;
        the next sentence waits until it is.

        Raises:
            AdapterFailed: the model broke, or the voice was closed.
        """
        if self._closed:
            raise AdapterFailed("the voice is closed; make a new one")
        text = plain(phrase.spoken)
        if not speakable(text):
            return
        spoken = by_sentence(
            thread_of(self._thread), self._sentences(text), phrase.chars.start, self._sound
        )
        async with aclosing(spoken) as buffers:
            async for buffer in buffers:
                if self._closed:
                    return
                yield buffer

    async def aclose(self) -> None:
        """Stop what is being spoken; idempotent. The model stays, for the other voices."""
        self._closed = True
