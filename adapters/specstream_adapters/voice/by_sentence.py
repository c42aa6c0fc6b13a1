"""Speech of a voice that makes a sentence as a whole, on a library's thread, as buffers with marks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator
from dataclasses import dataclass

import numpy as np

from specstream.errors import AdapterFailed
from specstream.types import Mark, Span, SpeechBuffer
from specstream_adapters.voice.hibari_marks import Spoken
from specstream_adapters.voice.shared import LibraryThread, take_marks

__all__ = ["Made", "WaveSound", "by_sentence"]

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
