"""What avatars and prompt adapters may give, and what ends their branch with a clear error."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from specstream.errors import AdapterFailed
from specstream.stages.limits import cues_of, prompts_of
from specstream.stages.pipeline import Pipeline, StageFailed
from specstream.stages.stages import AvatarStage, PromptStage, SegmentStage, VoiceStage
from specstream.testing import chunks_of
from specstream.types import AvatarCue, ScenePrompt, Span, Speech
from tests.support.standins import ToneVoice, stream

CUE = AvatarCue("viseme", "aa", 0.0, 10.0, 1.0, Span(0, 240), Span(0, 1), Span(0, 1))
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
        (cues_of, with_(CUE, duration_ms="1"), "duration_ms must be a finite number, not '1'"),
        (cues_of, with_(CUE, samples=(0.5, 1)), "samples must be a pair of whole numbers"),
        (cues_of, with_(CUE, chars=None), "chars must be a pair of whole numbers, not None"),
        (prompts_of, ["a shot"], "gave str, not ScenePrompt"),
        (prompts_of, with_(SHOT, t_start_ms=float("inf")), "t_start_ms must be a finite"),
        (prompts_of, with_(SHOT, span=3), "span must be a pair"),
    ],
)
def test_what_is_wrong_is_named(
    check: Callable[[Any], Iterator[Any]], given: Any, says: str
) -> None:
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
