"""Marks of a voice that don't fit its phrase or its audio, and inaccuracies that are tolerated."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from dataclasses import replace
from typing import Any, Literal

import pytest

from specstream.errors import AdapterFailed
from specstream.stages.limits import ROUNDING_MS, MarkCheck, most_audio_s
from specstream.stages.pipeline import Pipeline, StageFailed
from specstream.stages.stages import AvatarStage, VoiceStage
from specstream.types import Mark, Phrase, Span, SpeechBuffer
from tests.support.standins import (
    RATE,
    Face,
    Relay,
    ToneVoice,
    events_by_source,
    feed,
    phrases_of,
    stream,
)

PHRASES = phrases_of("One two. Three four.")
SECOND = PHRASES[1].chars.start
HALF = RATE // 2
NO_KIND: Any = "viseme"
SLACK = RATE * ROUNDING_MS // 1000


def mark(
    start: Any,
    end: Any,
    chars: tuple[int, int] = (0, 3),
    kind: Literal["word", "phoneme", "tag"] = "word",
) -> Mark:
    return Mark(kind, "x", Span(start, end), Span(*chars))


class Marked(ToneVoice):
    """Half a second of audio a phrase, in two pieces; the last phrase's have the given marks."""

    def __init__(self, *marks: Any) -> None:
        super().__init__()
        self._given = marks

    async def synthesize(self, phrase: Phrase) -> AsyncGenerator[SpeechBuffer, None]:
        for at in range(2):
            given = self._given[at] if phrase == PHRASES[1] and at < len(self._given) else ()
            yield SpeechBuffer(bytes(HALF), given)


WRONG: list[tuple[Sequence[Any], str]] = [
    ([[mark(0, 10, (0, SECOND + 2))]], "covers characters 0 to"),
    ([[mark(0, 10, (SECOND, 10_000))]], "covers characters"),
    ([[mark(0, 10, (SECOND + 3, SECOND))]], "covers characters"),
    ([[mark(0, 10, (-3, -1))]], "covers characters -3"),
    ([[mark(-1, 10, (SECOND, SECOND))]], "covers samples -1 to 10"),
    ([[mark(10, 9, (SECOND, SECOND))]], "covers samples 10 to 9"),
    ([[mark(0, 10**8, (SECOND, SECOND), "phoneme")]], "longer than such a text takes"),
    ([[mark(0, 11 * RATE, (SECOND, SECOND), "phoneme")]], "longer than such a text takes"),
    ([[mark(10**8, 10**8, (SECOND, SECOND))]], "longer than such a text takes"),
    ([[mark(0, HALF + SLACK + 1, (SECOND, SECOND))]], f"audio ends at {HALF}"),
    ([[], [mark(2 * HALF, 2 * HALF, (SECOND, SECOND), "tag")]], f"audio ends at {HALF}"),
    ([[mark(900, 950, (SECOND, SECOND)), mark(300, 350, (SECOND, SECOND))]], "at sample 300 came"),
    ([[mark(900, 950, (SECOND, SECOND))], [mark(300, 350, (SECOND, SECOND))]], "at sample 300 came"),
    ([[mark(0.5, 10, (SECOND, SECOND))]], "must be a pair of whole numbers"),
    ([[mark(0, float("nan"), (SECOND, SECOND))]], "must be a pair of whole numbers"),
    ([[mark("0", "1", (SECOND, SECOND))]], "must be a pair of whole numbers"),
    ([[Mark("word", "x", 5, Span(SECOND, SECOND))]], "must be a pair of whole numbers"),  # type: ignore[arg-type]
    ([["x"]], "the adapter gave str, not Mark(...)"),
    ([[replace(mark(0, 10, (SECOND, SECOND)), text=None)]], "Mark.text must be text, not None"),  # type: ignore[arg-type]
    ([[Mark(NO_KIND, "x", Span(0, 1), Span(SECOND, SECOND))]], "Mark.kind must be one of word, "),
]


@pytest.mark.parametrize(("marks", "why"), WRONG)
async def test_wrong_marks_end_the_voice_and_nothing_else(marks: Any, why: str) -> None:
    line = Pipeline([[VoiceStage(Marked(*marks)), AvatarStage(Face())]], head=Relay())
    async with line.run(stream(PHRASES)) as run:
        found = await events_by_source(run)
    failed = found["voice"].pop()
    assert isinstance(failed, StageFailed)
    assert isinstance(failed.error, AdapterFailed)
    assert "voice 'tone' gave " in str(failed.error)
    assert why in str(failed.error)
    assert found["text"] == PHRASES
    assert [piece.phrase for piece in found["voice"] if piece.last] == [0]
    for cue in found["avatar"]:
        assert cue.samples.end <= 4 * HALF


@pytest.mark.parametrize(
    "marks",
    [
        [[mark(0, HALF + SLACK, (SECOND, SECOND + 5))]],  # rounded up
        [[mark(900, 950, (SECOND, SECOND)), mark(900 - SLACK, 950, (SECOND, SECOND))]],
        [[mark(0, 10, (SECOND + 6, SECOND + 10)), mark(10, 20, (SECOND, SECOND + 5))]],  # as "£5m"
        [[mark(0, HALF, (SECOND, SECOND + 5)), mark(HALF, HALF, (SECOND, SECOND))]],  # all at once
        [[], [mark(0, 20, (SECOND, SECOND + 5))]],  # late
        [[mark(30, 60, (SECOND, SECOND), "phoneme"), mark(0, 60, (SECOND, SECOND))]],  # sounds first
    ],
)
async def test_inaccurate_marks_pass(marks: Any) -> None:
    spoken = await feed(VoiceStage(Marked(*marks)), PHRASES)
    given = [one for piece in spoken for one in piece.marks]
    assert len(given) == sum(map(len, marks))


async def test_numbers_of_any_whole_type_become_plain_ones() -> None:
    class Whole:
        def __init__(self, value: int) -> None:
            self.value = value

        def __index__(self) -> int:
            return self.value

    one = Mark("word", "x", (Whole(1), Whole(2)), (Whole(SECOND), Whole(SECOND)))  # type: ignore[arg-type]
    spoken = await feed(VoiceStage(Marked([one])), PHRASES)
    (placed,) = (mark for piece in spoken for mark in piece.marks)
    assert placed.samples == Span(HALF + 1, HALF + 2)
    assert {type(number) for number in (*placed.samples, *placed.chars)} == {int}


def test_a_pause_lasts_at_most_ten_seconds_and_speech_as_long_as_its_text_may() -> None:
    def fault(*marks: Mark) -> str:
        return MarkCheck(Span(0, 9), 0, RATE).fault(marks)

    longest = most_audio_s(9) * RATE
    assert fault(mark(5, 5 + 10 * RATE, (0, 0), "phoneme")) == ""
    assert "longer" in fault(mark(5, 6 + 10 * RATE, (0, 0), "phoneme"))
    assert fault(mark(longest - 9, longest)) == ""
    assert "longer" in fault(mark(longest - 9, longest + 1))
    later = MarkCheck(Span(0, 9), 700, RATE)
    assert later.fault([mark(longest, 700 + longest)]) == ""
    assert "longer" in later.fault([mark(longest, 701 + longest)])


def test_many_marks_take_one_look_each() -> None:
    looks = 0

    class Counted(Span):
        def __new__(cls, start: int, end: int) -> Counted:
            return super().__new__(cls, start, end)

        def __iter__(self) -> Any:
            nonlocal looks
            looks += 1
            return super().__iter__()

    check = MarkCheck(Span(0, 9), 0, RATE)
    for at in range(1000):
        assert check.fault([Mark("word", "x", Span(at, at + 1), Counted(0, 3))]) == ""
    assert check.end_fault(1000) == ""
    assert looks == 1000
