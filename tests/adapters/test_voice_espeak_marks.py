"""Events to marks, on made-up events: no library needed."""

import random
from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from specstream.types import PAUSE, Mark, Span
from specstream_adapters.voice.espeak_library import LibraryEvent
from specstream_adapters.voice.espeak_marks import MarkTracker

SIZE = 100


def sound(sample: int, name: str) -> LibraryEvent:
    return LibraryEvent("phoneme", sample, name=name)


def word(sample: int, at: int) -> LibraryEvent:
    return LibraryEvent("word", sample, at)


def end(sample: int, at: int) -> LibraryEvent:
    return LibraryEvent("end", sample, at)


def follow(
    text: str, events: Sequence[LibraryEvent], wave: np.ndarray, offset: tuple[int, int] = (0, 0)
) -> list[Mark]:
    """Feed the events with the buffers that hold them; check that marks come with their buffers."""
    tracker = MarkTracker(text, *offset)
    marks, given, position = list[Mark](), b"", 0
    ended = offset[1]
    for start in range(0, len(wave), SIZE):
        part = wave[start : start + SIZE]
        inside = [e for e in events if start <= e.sample < start + len(part)]
        if start + len(part) == len(wave):
            inside += [e for e in events if e.sample >= len(wave)]
        tracker.feed(part.astype("<i2").tobytes(), inside)
        for buffer in tracker.ready():
            given += buffer.pcm
            for mark in buffer.marks:
                assert ended <= mark.samples.start < offset[1] + len(given) // 2 + SIZE
            ended = offset[1] + len(given) // 2
            marks += buffer.marks
    for buffer in tracker.finish():
        given += buffer.pcm
        marks += buffer.marks
    assert given == wave.astype("<i2").tobytes()
    for mark in marks:
        if mark.kind == "phoneme":
            assert mark.samples.start == offset[1] + position < mark.samples.end
            position = mark.samples.end - offset[1]
    assert position == len(wave)
    return marks


def loud(length: int, *silent: tuple[int, int]) -> np.ndarray:
    wave = np.full(length, 3000, dtype=np.int16)
    for start, stop in silent:
        wave[start:stop] = 0
    return wave


def of(kind: str, marks: list[Mark]) -> list[tuple[str, int, int]]:
    return [(m.text, *m.samples) for m in marks if m.kind == kind]


def test_two_words_and_a_pause() -> None:
    events = [word(0, 0), sound(20, "h"), sound(60, "\u02c8a\u026a"), word(150, 3),
              sound(170, "j"), sound(220, "u\u02d0"), sound(310, ""), end(450, 6)]  # fmt: skip
    marks = follow("hi you", events, loud(450, (310, 450)), (7, 1000))
    assert of("phoneme", marks) == [
        ("h", 1000, 1060), ("a\u026a", 1060, 1150), ("j", 1150, 1220), ("u\u02d0", 1220, 1310),
        (PAUSE, 1310, 1450),
    ]  # fmt: skip
    assert of("word", marks) == [("hi", 1000, 1150), ("you", 1150, 1310)]
    assert [m.chars for m in marks if m.kind == "word"] == [Span(7, 9), Span(10, 13)]
    assert next(m for m in marks if m.text == "h").chars == Span(7, 9)
    assert next(m for m in marks if m.text == PAUSE).chars == Span(13, 13)


def test_a_long_pause_is_held_until_it_is_known_that_the_word_is_over() -> None:
    events = [word(0, 0), sound(0, "a"), sound(120, ""), word(870, 2), sound(870, "b")]
    marks = follow("a b", events, loud(1000, (120, 870)))
    assert of("word", marks) == [("a", 0, 120), ("b", 870, 1000)]
    same_word = [word(0, 0), sound(0, "a"), sound(120, ""), sound(870, "b")]
    assert of("word", follow("ab", same_word, loud(1000, (120, 870)))) == [("ab", 0, 1000)]


def test_a_sound_without_length_joins_its_neighbour() -> None:
    events = [word(0, 0), sound(0, "\u0254\u02d0"), sound(90, "l"), word(90, 4), sound(90, "\u026a")]
    assert of("phoneme", follow("all is", events, loud(200))) == [
        ("\u0254\u02d0l", 0, 90), ("\u026a", 90, 200),
    ]  # fmt: skip
    first = [word(0, 0), sound(0, "\u0294"), sound(0, "a")]
    assert of("phoneme", follow("a", first, loud(50))) == [("\u0294a", 0, 50)]


def test_a_sound_without_name_is_a_pause_only_if_it_is_silent() -> None:
    events = [word(0, 0), sound(0, "f"), sound(80, ""), sound(120, "r"), sound(200, "")]
    phonemes = of("phoneme", follow("fr", events, loud(300, (200, 300))))
    assert [text for text, *_ in phonemes] == ["f", "\u0259", "r", PAUSE]
    assert of("word", follow("fr", events, loud(300, (200, 300)))) == [("fr", 0, 200)]


def test_names_are_cleaned_to_ipa() -> None:
    names = ["(en)", "\u02cctS", "a:", "s.", "d[", "\u03b5", "n^", "#", "i5"]
    events = [word(0, 0), *(sound(40 * i, name) for i, name in enumerate(names))]
    phonemes = of("phoneme", follow("x", events, loud(400)))
    expected = ["ts", "a\u02d0", "s", "d", "\u025b", "n", "\u0259", "i"]
    assert [text for text, *_ in phonemes] == expected


def test_positions_that_stray_inside_a_number_stay_with_it() -> None:
    text = "cost $3.50 at"
    positions = [0, 5, 6, 7, 7, 7, 11]
    events = [e for i, at in enumerate(positions) for e in (word(50 * i, at), sound(50 * i, "a"))]
    assert of("word", follow(text, events, loud(400))) == [
        ("cost", 0, 50), ("$3.50", 50, 300), ("at", 300, 400),
    ]  # fmt: skip


def test_a_one_letter_word_reported_in_the_word_before_is_found() -> None:
    positions = [0, 1, 9]
    events = [e for i, at in enumerate(positions) for e in (word(50 * i, at), sound(50 * i, "a"))]
    marks = follow("Questa \u00e8 una", events, loud(150))
    assert [text for text, *_ in of("word", marks)] == ["Questa", "\u00e8", "una"]


def test_words_said_as_one_are_marked_as_one() -> None:
    events = [word(0, 0), sound(0, "a"), word(50, 7), sound(50, "b"), end(90, 15), sound(90, "")]
    marks = follow("in the end now. so", events, loud(200, (90, 200)))
    assert of("word", marks) == [("in the", 0, 50), ("end now", 50, 90)]


def test_no_events_at_all() -> None:
    assert of("phoneme", follow("a", [], loud(250, (0, 250)))) == [(PAUSE, 0, 250)]
    assert follow("", [], loud(0)) == []


def test_any_stream_of_events_tiles_the_audio() -> None:
    rng = random.Random(3)
    for _ in range(400):
        text = "".join(rng.choice("ab 1.,\u4e2d") for _ in range(rng.randrange(1, 20)))
        length = rng.randrange(1, 900)
        wave = np.array([rng.choice((0, 0, 900)) for _ in range(9)]).repeat(100)[:length]
        samples = sorted(rng.randrange(length + 1) for _ in range(rng.randrange(12)))
        makers = (
            lambda s: word(s, rng.randrange(-1, 25)),
            lambda s: sound(s, rng.choice(["", "a", "\u02c8t", "(de)", "5"])),
            lambda s: end(s, rng.randrange(25)),
        )
        offset = rng.randrange(50), rng.randrange(5000)
        marks = follow(text, [rng.choice(makers)(s) for s in samples], wave, offset)
        words = [mark for mark in marks if mark.kind == "word"]
        for mark in words:
            first, last = (char - offset[0] for char in mark.chars)
            assert text[first:last] == mark.text
            assert mark.samples.start < mark.samples.end
        for one, other in pairwise(words):
            assert one.samples.end <= other.samples.start
            assert one.chars.end <= other.chars.start
