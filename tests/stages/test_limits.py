"""What a stage may give and how long it may be silent, and what ends its branch with a clear error."""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator, Callable, Iterator
from dataclasses import replace
from typing import Any, cast

import anyio
import pytest

from specstream.errors import AdapterFailed, ConfigError
from specstream.stages.contract import Inlet
from specstream.stages.interfaces import VoiceCapabilities
from specstream.stages.limits import MAX_MARKS, MAX_RATE, MIN_RATE, Limits, cues_of, marks_of, prompts_of
from specstream.stages.pipeline import Pipeline, StageFailed
from specstream.stages.stages import AvatarStage, PromptStage, SegmentStage, VoiceStage
from specstream.testing import chunks_of
from specstream.types import AvatarCue, Cancel, Mark, Phrase, ScenePrompt, Span, Speech
from tests.support.standins import RATE, Relay, ToneVoice, events_by_source, phrases_of, stream

pytestmark = pytest.mark.virtual_time
LIMITS = Limits()
PHRASES = phrases_of("One. Two. Three. And a fourth one.")
Make = Callable[[int], Any]


class Rogue:
    """Gives ``count`` items of its own making for its first phrase, ``delay`` seconds apart."""

    name = "rogue"

    def __init__(self, make: Make, count: float = 1, delay: float = 0.0) -> None:
        self.make, self.count, self.delay = make, count, delay
        self.given = self.released = 0
        self.taken: list[Any] = []

    async def run(self, items: Inlet[Any]) -> AsyncGenerator[Any, None]:
        try:
            async for item in items:
                self.taken.append(item)
                while isinstance(item, Phrase) and self.given < self.count:
                    if self.delay:
                        await anyio.sleep(self.delay)
                    yield self.make(self.given)
                    self.given += 1
                if isinstance(item, Cancel):
                    yield item
        finally:
            self.released += 1


class Echo(Rogue):
    """A good stage."""

    def __init__(self) -> None:
        super().__init__(str, count=0)

    async def run(self, items: Inlet[Any]) -> AsyncGenerator[Any, None]:
        async for item in items:
            yield item


SPEECH = Speech(b"", RATE, Span(0, 0), (), Span(0, 5), Span(0, 1), 0)


def marks(count: int) -> tuple[Mark, ...]:
    return (Mark("word", "x", Span(0, 0), Span(0, 1)),) * count


async def outcome(stage: Any, limits: Limits = LIMITS) -> tuple[str, float]:
    """How the stage failed and when; the branch beside it has to be whole."""
    start = anyio.current_time()
    ended = math.nan
    found: dict[str, list[Any]] = {}
    line = Pipeline([[stage], [Echo()]], head=Relay(), limits=limits)
    async with line.run(stream(PHRASES)) as run:
        async for event in run:
            found.setdefault(event.source, []).append(event.item)
            if isinstance(event.item, StageFailed):
                ended = anyio.current_time() - start
                assert event.source == "rogue"
    failed = [item for item in found["rogue"] if isinstance(item, StageFailed)]
    assert len(failed) == 1, found
    assert isinstance(failed[0].error, AdapterFailed)
    assert stage.released == 1
    assert found["text"] == PHRASES
    return str(failed[0].error), ended


async def test_a_stage_that_hangs_is_stopped() -> None:
    message, at = await outcome(Rogue(str, delay=math.inf))
    assert "given nor taken anything for 60 s" in message
    assert LIMITS.stall_s <= at <= 1.5 * LIMITS.stall_s


async def test_a_stage_that_never_ends_is_stopped() -> None:
    message, at = await outcome(Rogue(str, count=math.inf, delay=30.0))
    assert "worked 600 s on what it took last" in message
    assert LIMITS.work_s <= at <= 1.1 * LIMITS.work_s


@pytest.mark.parametrize(
    ("make", "count", "says"),
    [
        (str, math.inf, "items"),
        (lambda n: replace(SPEECH, sample_rate=1), 1, "claims 1 Hz"),
        (lambda n: replace(SPEECH, sample_rate=1_048_573), 1, "claims 1048573 Hz"),
        (lambda n: replace(SPEECH, sample_rate=cast("int", 24000.0)), 1, "claims 24000.0 Hz"),
        (lambda n: replace(SPEECH, marks=marks(MAX_MARKS + 1)), 1, "marks in one piece"),
        (lambda n: replace(SPEECH, marks=marks(100)), math.inf, "marks for"),
        (lambda n: replace(SPEECH, samples=Span(0, 31 * RATE)), 1, "samples in one piece"),
        (
            lambda n: replace(SPEECH, samples=Span(n * RATE, (n + 1) * RATE), pcm=bytes(2 * RATE)),
            math.inf,
            "s of speech",
        ),
        (lambda n: replace(SPEECH, pcm=cast("bytes", None)), 1, "gave None as"),
        (lambda n: replace(SPEECH, pcm=SPEECH.pcm + b"x"), 1, "two a sample"),
        (
            lambda n: replace(SPEECH, marks=(Mark("phoneme", "m", Span(0, 10**8), Span(0, 1)),)),
            1,
            f"{10**8 // RATE} s of speech",
        ),
    ],
)
async def test_a_stage_that_makes_too_much_is_stopped(make: Make, count: float, says: str) -> None:
    stage = Rogue(make, count)
    message, _ = await outcome(stage)
    assert says in message
    assert stage.given < 40_000


async def test_waiting_for_input_or_for_a_reader_is_no_hanging() -> None:
    async def slow() -> AsyncGenerator[Any, None]:
        for phrase in PHRASES:
            await anyio.sleep(3600)
            yield phrase

    line = Pipeline([[VoiceStage(ToneVoice())], [Echo()]], head=Relay(), capacity=1)
    found: list[Any] = []
    async with line.run(slow()) as run:
        async for event in run:
            if not found:
                await anyio.sleep(3600)
            found.append(event.item)
    assert not [item for item in found if isinstance(item, StageFailed)]
    assert found.count(PHRASES[-1]) == 3  # the source's, the head's, the echo's


async def test_work_that_takes_long_but_gets_on_is_no_hanging() -> None:
    stage = Rogue(str, count=8, delay=LIMITS.stall_s - 1)
    line = Pipeline([[stage]], head=Relay())
    async with line.run(stream(PHRASES)) as run:
        found = await events_by_source(run)
    assert found["rogue"] == [str(n) for n in range(8)]


@pytest.mark.parametrize("rate", [1, MIN_RATE - 1, MAX_RATE + 1, 1_048_573, "24000"])
def test_a_voice_with_an_impossible_rate_is_not_taken(rate: Any) -> None:
    class Voice(ToneVoice):
        capabilities = VoiceCapabilities("odd", rate, True, True, True, True)

    with pytest.raises(AdapterFailed, match="'odd' claims"):
        VoiceStage(Voice())


CUE = AvatarCue("viseme", "aa", 0.0, 10.0, 1.0, Span(0, 240), Span(0, 1), Span(0, 1))
MARK = Mark("word", "a", Span(0, 240), Span(0, 1))
SHOT = ScenePrompt("a", 0, 0.0, Span(0, 5), Span(0, 1), *[""] * 7)


def with_(item: Any, **changes: Any) -> list[Any]:
    return [replace(item, **changes)]


def test_pairs_become_spans_and_sound_items_pass_as_they_are() -> None:
    assert list(cues_of(iter([CUE])))[0] is CUE
    (cue,) = cues_of(with_(CUE, samples=(0, 240), chars=[0, True]))
    assert cue == CUE
    assert (cue.samples.length, type(cue.chars.end)) == (240, int)
    (shot,) = prompts_of(with_(SHOT, span=(0, 5)))
    assert shot.span.end == 5


@pytest.mark.parametrize(
    ("check", "given", "says"),
    [
        (cues_of, None, "gave NoneType, not a list of AvatarCue"),
        (cues_of, CUE, "gave AvatarCue, not a list"),
        (cues_of, "aa", "gave str, not a list"),
        (cues_of, [SHOT], r"gave ScenePrompt, not AvatarCue\(...\)"),
        (cues_of, with_(CUE, t_ms=float("nan")), "t_ms must be a finite number, not nan"),
        (cues_of, with_(CUE, t_ms=-5.0), "t_ms can't be negative, as -5.0 is"),
        (cues_of, with_(CUE, duration_ms=-1.0), "duration_ms can't be negative"),
        (cues_of, with_(CUE, kind="foo"), "kind must be one of viseme, gesture, emotion, not 'foo'"),
        (cues_of, with_(CUE, name=7), "name must be text, not 7"),
        (cues_of, with_(CUE, name="a\ud83d"), "name has half a character"),
        (cues_of, with_(CUE, weights=None), "weights must be a dict, not None"),
        (cues_of, with_(CUE, weights={"a": math.nan}), r"weights\['a'\] must be a finite number"),
        (cues_of, with_(CUE, weights={3: 1.0}), "weights must be text, not 3"),
        (cues_of, with_(CUE, samples=Span(9, 3)), "samples can't be 9 to 3"),
        (cues_of, with_(CUE, chars=Span(-1, 3)), "chars can't be -1 to 3"),
        (prompts_of, with_(SHOT, prompt=None), "prompt must be text, not None"),
        (prompts_of, with_(SHOT, prompt="\ud83d"), "prompt has half a character"),
        (prompts_of, with_(SHOT, rev="1"), "rev must be a whole number"),
        (prompts_of, with_(SHOT, supersedes=1), "supersedes must be text"),
        (marks_of, with_(MARK, text="\ud83d"), "text has half a character"),
        (cues_of, with_(CUE, duration_ms="1"), "duration_ms must be a finite number, not '1'"),
        (cues_of, with_(CUE, samples=(0.5, 1)), "samples must be a pair of whole numbers"),
        (cues_of, with_(CUE, chars=None), "chars must be a pair of whole numbers, not None"),
        (prompts_of, ["a shot"], "gave str, not ScenePrompt"),
        (prompts_of, with_(SHOT, t_start_ms=float("inf")), "t_start_ms must be a finite"),
        (prompts_of, with_(SHOT, span=3), "span must be a pair"),
    ],
)
def test_what_is_wrong_is_named(check: Callable[[Any], Iterator[Any]], given: Any, says: str) -> None:
    with pytest.raises(AdapterFailed, match=says):
        list(check(given))


class Wrong:
    """A face and a board that give whatever they were made with."""

    def __init__(self, given: Any) -> None:
        self.given = given

    def open(self, sample_rate: int = 0) -> Wrong:
        return self

    def add(self, item: Any) -> Any:
        async def later() -> Any:
            return self.given

        return self.given if isinstance(item, Speech) else later()

    def close(self) -> tuple[()]:
        return ()


async def test_a_branch_that_gives_wrong_things_ends_alone() -> None:
    face, board = Wrong(with_(CUE, samples="x")), Wrong(["a shot"])
    pipeline = Pipeline(
        [[VoiceStage(ToneVoice()), AvatarStage(face)], [PromptStage(board)]],  # type: ignore[arg-type]
        head=SegmentStage(),
    )
    async with pipeline.run(stream(chunks_of("Hello there."))) as run:
        events = [event async for event in run]
    failed = {event.source for event in events if isinstance(event.item, StageFailed)}
    assert failed == {"avatar", "prompt"}
    assert any(isinstance(event.item, Speech) and event.item.last for event in events)


@pytest.mark.parametrize("wrong", [{"stall_s": 0.0}, {"work_s": -1.0}, {"stall_s": math.nan}])
def test_limits_are_times(wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        Limits(**wrong)


@pytest.mark.parametrize("wrong", [0, -1, math.nan, "x"])
def test_a_capacity_is_a_number_of_items(wrong: Any) -> None:
    with pytest.raises(ConfigError, match="capacity"):
        Pipeline([], head=Relay(), capacity=wrong)
    with pytest.raises(ConfigError, match="branches are lists"):
        Pipeline([Echo()], head=Relay())  # type: ignore[list-item]
