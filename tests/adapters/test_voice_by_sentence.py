"""Durations and a wave to marks, on waves made of tones and silence. Needs no package."""

import numpy as np
import pytest

from specstream.types import PAUSE, Mark, Span
from specstream_adapters.voice.by_sentence import FRAME, Spoken, Wave, timed
from specstream_adapters.voice.phonemes import NO_WORD, Script

EARLY = 2 * FRAME
STEP = 120


def wave_of(*spans: tuple[int, int], frames: int) -> Wave:
    """A tone in each span of samples, silence elsewhere."""
    wave = np.zeros(FRAME * frames, np.float32)
    for start, end in spans:
        wave[start:end] = 0.3 * np.sin(np.arange(end - start) * 0.1)
    return wave


def marked(symbols: str, text: str, frames: list[int], *spans: tuple[int, int]) -> Spoken:
    """``symbols`` has the words of ``text``, in order."""
    words, owners, at = list[Span](), list[int](), 0
    for word in text.replace(",", "").replace(".", "").split():
        at = text.index(word, at)
        words.append(Span(at, at + len(word)))
        at += len(word)
    number = 0
    for before, symbol in zip(" " + symbols, symbols):
        number += before == " " and bool(owners)
        owners.append(NO_WORD if symbol in " ,." else number)
    script = Script(symbols, tuple(owners), tuple(words))
    return timed(script, wave_of(*spans, frames=sum(frames)), frames, text)


def phonemes(spoken: Spoken) -> list[Mark]:
    at = 0
    found = [mark for mark in spoken.marks if mark.kind == "phoneme"]
    for mark in found:
        assert mark.samples.start == at < mark.samples.end
        at = mark.samples.end
    assert at == len(spoken.wave)
    return found


def test_the_wave_is_trimmed_to_what_is_heard() -> None:
    frames = [10, 4, 8, 2, 1]
    spoken = marked("at.", "at.", frames, (10 * FRAME - EARLY, 16 * FRAME - EARLY))
    sounds = phonemes(spoken)
    assert [mark.text for mark in sounds] == ["a", "t", PAUSE]
    heard = np.flatnonzero(spoken.wave)
    assert heard[0] <= 3 * STEP
    assert sounds[0].samples.length == pytest.approx(4 * FRAME, abs=3 * STEP)
    # "t" was given 8 frames, of which only 2 are heard
    assert sounds[1].samples.length == pytest.approx(2 * FRAME, abs=4 * STEP)
    assert sounds[1].samples.end >= heard[-1]
    assert sounds[2].samples.length == 24 * 400


def test_silence_at_a_comma_is_a_pause_and_at_a_space_a_closure() -> None:
    frames = [10, 4, 8, 2, 2, 4, 2, 4, 4]
    begin = [FRAME * sum(frames[: n + 1]) - EARLY for n in range(len(frames))]
    gap = 3 * FRAME
    spoken = marked(
        "ab, c d", "ab, c d", frames,
        (begin[0], begin[1] + gap), (begin[4] - STEP, begin[5]), (begin[6], begin[7]),
    )  # fmt: skip
    sounds = phonemes(spoken)
    assert [mark.text for mark in sounds] == ["a", "b", PAUSE, "c", "d", PAUSE]
    pause = sounds[2]
    assert not spoken.wave[slice(*pause.samples)].any()
    assert pause.samples.length == pytest.approx(begin[4] - begin[1] - gap, abs=8 * STEP)
    assert pause.chars == (2, 2)
    words = [mark for mark in spoken.marks if mark.kind == "word"]
    assert [mark.text for mark in words] == ["ab", "c", "d"]
    assert words[0].samples == (0, pause.samples.start)
    assert words[1].samples.end == words[2].samples.start


def test_a_long_silence_without_punctuation_is_a_pause_too() -> None:
    frames = [10, 4, 10, 4, 4]
    start = 10 * FRAME - EARLY
    spoken = marked("a b", "a b", frames, (start, start + 4 * FRAME), (24 * FRAME - EARLY, 27 * FRAME))
    assert [mark.text for mark in phonemes(spoken)] == ["a", PAUSE, "b", PAUSE]


def test_stress_goes_to_its_vowel_and_length_to_the_one_before() -> None:
    frames = [6, 2, 3, 4, 1, 5, 4]
    start = 6 * FRAME - EARLY
    spoken = marked("b\u02c8A\u02d0d", "bad", frames, (start, start + 15 * FRAME))
    sounds = phonemes(spoken)
    assert [mark.text for mark in sounds] == ["b", "e\u026a", "d", PAUSE]
    assert sounds[1].samples.length == 8 * FRAME
    assert {mark.chars for mark in sounds[:3]} == {(0, 3)}


@pytest.mark.parametrize("frames", [[1, 1, 1, 1], [0, 1, 1, 0], [20, 1, 1, 30]])
@pytest.mark.parametrize("spans", [[], [(0, 10_000)]])
def test_marks_tile_whatever_the_wave_is(frames: list[int], spans: list[tuple[int, int]]) -> None:
    spoken = marked("ab", "ab", frames, *((s, min(e, FRAME * sum(frames))) for s, e in spans))
    assert [mark.text for mark in phonemes(spoken)] == ["a", "b", PAUSE]


def test_nothing_to_say_is_no_audio() -> None:
    spoken = timed(Script(". ", (NO_WORD, NO_WORD), ()), wave_of(frames=4), [1, 1, 1, 1], ".")
    assert (len(spoken.wave), spoken.marks) == (0, ())
