"""An interrupted turn's face: closed mouth, neutral expression, and nothing from behind the cut."""

import random
from dataclasses import replace

import anyio
import pytest

from specstream.playback.played import AfterStop
from specstream.stages.pipeline import Event, Pipeline
from specstream.stages.stages import AvatarStage, SegmentStage, VoiceStage
from specstream.types import AvatarCue, Phrase, Span, Speech
from specstream_adapters.avatar import Face, VisemeScripter
from tests.support.turns import Stage

TEXT = "Oh [smile] word1 word2. [wave] Word4 word5 [angry] word6 [nod] word7."


def cue(kind: str, name: str, start: int, end: int, **weights: float) -> AvatarCue:
    span, none = Span(start * 24, end * 24), Span(0, 0)
    return AvatarCue(kind, name, start, end - start, 1.0, span, none, none, weights)  # type: ignore[arg-type]


def after(rest: AfterStop, *made: AvatarCue, at_ms: int, late: tuple[object, ...] = ()) -> list[Event]:
    """What comes after a stop at ``at_ms``; ``late`` are made behind it."""
    for seq, item in enumerate(made):
        rest.saw(Event(seq, 0.0, "avatar", item))
    rest.stopped(len(made), at_ms * 24, at_ms)
    given = [rest.late(Event(seq, 0.0, "avatar", item)) for seq, item in enumerate(late, len(made))]
    out = [event for event in given if event is not None]
    seq = len(made) + len(late)
    while (event := rest.last(seq + len(out))) is not None:
        out.append(event)
    assert len({event.seq for event in out}) == len(out)
    return out


def cues(events: list[Event]) -> list[AvatarCue]:
    return [event.item for event in events if isinstance(event.item, AvatarCue)]


@pytest.mark.parametrize("ended", [True, False], ids=["all was made", "the stages go on"])
@pytest.mark.parametrize("at_ms", [10, 130, 300, 500, 700, 900, 1100])
@pytest.mark.virtual_time
async def test_the_face_that_was_shown_comes_to_rest(at_ms: int, ended: bool) -> None:
    stage = Stage(TEXT, ahead_s=30.0)
    stage.pipeline = Pipeline(
        [[VoiceStage(stage.voice), AvatarStage(VisemeScripter())]],
        head=SegmentStage(clock=anyio.current_time),
    )
    async with stage.turn() as turn:
        async with anyio.create_task_group() as group:
            if ended:
                group.start_soon(stage.read, turn)
            else:
                while not stage.items(Speech):
                    stage.events.append(await anext(turn))
            await anyio.sleep(at_ms / 1e3)
            before = len(stage.events)
            played = turn.interrupt().played_ms
            if not ended:
                group.start_soon(stage.read, turn)
    seen, late = (cues(part) for part in (stage.events[:before], stage.events[before:]))
    assert len({event.seq for event in stage.events}) == len(stage.events)
    shown = [old for old in seen if old.kind == "emotion" and old.t_ms < played]
    mouth = [made for made in late if made.kind == "viseme"]
    at = Span(round(played * 24), round(played * 24))
    assert [(made.name, made.samples) for made in mouth] == [("sil", at)]
    assert mouth[0].t_ms == pytest.approx(played)
    assert [made.name for made in late if made.kind == "emotion"] == ["neutral"] * bool(shown)
    assert not [made for made in late if made.kind == "gesture"]
    face = Face()
    face.add(*seen, *late)
    for kept in face.cues():
        assert kept.t_ms < played or kept.name == "neutral"
    left = face.at(played + 600)
    for name in ("jawOpen", "mouthSmileLeft", "browDownLeft"):
        assert left.get(name, 0.0) == pytest.approx(0.0, abs=1e-3)


def test_a_gesture_that_was_not_shown_yet_is_never_given_again() -> None:
    mouth = [cue("viseme", "aa", 0, 400, jawOpen=0.7), cue("viseme", "O", 400, 800)]
    rest = cues(after(AfterStop(), cue("gesture", "nod", 200, 900), *mouth, at_ms=300))
    assert [(made.name, made.t_ms, made.duration_ms) for made in rest] == [("sil", 300, 0)]
    rest = cues(after(AfterStop(), *mouth, cue("gesture", "wave", 700, 900), at_ms=300))
    assert [(made.name, made.samples) for made in rest] == [("sil", Span(7200, 7200))]


def test_a_gesture_behind_the_last_viseme_is_taken_back_too() -> None:
    made = [cue("viseme", "aa", 0, 100), cue("gesture", "wave", 400, 900)]
    for given in (made, made[1:]):
        face, rest = Face(), cues(after(AfterStop(), *given, at_ms=300))
        face.add(*given, *rest)
        assert [kept for kept in face.cues() if kept.t_ms >= 300] == []
        assert rest[-1].name == "sil"


def test_a_face_that_rests_or_never_moved_is_left_alone() -> None:
    assert after(AfterStop(), at_ms=300) == []
    still = [cue("viseme", "aa", 0, 100), cue("viseme", "sil", 100, 300)]
    assert after(AfterStop(), *still, at_ms=300) == []
    calm = [cue("emotion", "smile", 0, 4000), cue("emotion", "neutral", 100, 100)]
    assert after(AfterStop(), *calm, at_ms=300) == []
    late = cue("viseme", "aa", 300, 400), cue("viseme", "sil", 400, 400)
    assert cues(after(AfterStop(), at_ms=200, late=late)) == []


def test_an_earlier_cut_brings_the_face_to_rest_there() -> None:
    rest, given = AfterStop(), [cue("emotion", "sad", 50, 4050), cue("viseme", "aa", 0, 900)]
    face = Face()
    face.add(*given, *cues(after(rest, *given, at_ms=500)))
    rest.stopped(2, 200 * 24, 200)
    again: list[AvatarCue] = []
    while (event := rest.last(9 + len(again))) is not None:
        assert isinstance(event.item, AvatarCue)
        again.append(event.item)
    assert [(made.name, made.t_ms) for made in again] == [("sil", 200), ("neutral", 200)]
    face.add(*again)
    ends = [kept.t_ms + kept.duration_ms for kept in face.cues() if kept.kind == "viseme"]
    assert ends == [200]


@pytest.mark.parametrize(
    ("closing", "name"), [("0", "0"), ("X", "X"), ("neutral", "neutral"), ("mine", "mine")]
)
def test_the_closed_mouth_is_the_avatars_own(closing: str, name: str) -> None:
    """The rig's name for it comes with the cues that the avatar ends with."""
    late = cue("viseme", "12", 800, 900), cue("viseme", closing, 900, 900)
    rest = cues(after(AfterStop(), cue("viseme", "21", 0, 800), at_ms=300, late=late))
    assert [(made.name, made.t_ms, made.duration_ms) for made in rest] == [(name, 300, 0)]


def test_the_avatars_own_closed_mouth_may_have_come_before() -> None:
    shown = [cue("viseme", "X", 0, 100), cue("viseme", "D", 100, 800)]
    rest = cues(after(AfterStop(), *shown, at_ms=300))
    assert [(made.name, made.t_ms, made.duration_ms) for made in rest] == [("X", 300, 0)]


def random_cues(rng: random.Random) -> list[AvatarCue]:
    made, end = list[AvatarCue](), 0
    for _ in range(rng.randrange(12)):
        if rng.random() < 0.6:
            start = max(0, end - 60 * rng.choice([0, 0, 0, 1]))  # may take back the one before
            end = start + rng.choice([0, 50, 80])
            made.append(cue("viseme", rng.choice(["aa", "sil", "E"]), start, end))
        else:
            start = max(0, end + rng.choice([-30, 0, 100, 400]))
            kind, name = rng.choice([("gesture", "nod"), ("emotion", "smile"), ("emotion", "neutral")])
            made.append(cue(kind, name, start, start + rng.choice([0, 500])))
    return made


def test_whatever_was_shown_the_face_comes_to_rest_and_no_cue_is_left_behind_the_stop() -> None:
    for seed in range(2000):
        rng = random.Random(seed)
        made, late = random_cues(rng), [cue("viseme", "sil", 2000, 2000)] * rng.randrange(3)
        stop = rng.randrange(1000)
        rest = cues(after(AfterStop(), *made, at_ms=stop, late=tuple(late)))
        face = Face()
        face.add(*made, *rest)
        assert len(rest) <= 4
        kept = face.cues()
        assert all(one.t_ms + one.duration_ms <= stop for one in kept if one.kind == "viseme")
        assert all(one.t_ms <= stop for one in kept)
        moods = [one.name for one in kept if one.kind == "emotion"]
        assert not moods or moods[-1] == "neutral"


def test_an_avatar_that_gives_no_closed_mouth_gets_one() -> None:
    moved = cue("viseme", "aa", 0, 800, jawOpen=0.7)
    late = replace(moved, t_ms=800.0, samples=Span(19200, 20000))
    rest = cues(after(AfterStop(), moved, at_ms=300, late=(late,)))
    assert [(made.name, made.weights) for made in rest] == [("sil", {"jawOpen": 0.0})]


def test_text_and_speech_of_a_stopped_turn_are_not_given() -> None:
    phrase, none = Phrase("a", Span(0, 1), Span(0, 1)), Span(0, 0)
    speech = Speech(b"", 24000, none, (), none, none, 0)
    assert after(AfterStop(), at_ms=300, late=(phrase, speech)) == []
