"""Curves are smooth and close the lips; a clock that jitters is followed."""

import random
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import pytest

from specstream.errors import ConfigError
from specstream.types import AvatarCue, Mark, Span, Speech
from specstream_adapters.avatar import Face, PlayClock, VisemeScripter, frames
from specstream_adapters.avatar.curves import VRM, CurveRig
from specstream_adapters.avatar.directions import ARKIT_SHAPES, SHAPES, VISEMES

RATE = 16_000
SOUNDS = "p b m f v t d k s z ʃ tʃ θ n l ɹ h aɪ oʊ ə iː uː ɑː _".split()


def script(*sounds: tuple[str, float], tags: Sequence[str] = ()) -> list[AvatarCue]:
    """The cues of sounds that last so many milliseconds, with tags at the beginning."""
    marks = [Mark("tag", tag, Span(0, 0), Span(0, 1)) for tag in tags]
    at = 0
    for sound, ms in sounds:
        marks.append(Mark("phoneme", sound, Span(at, at + round(16 * ms)), Span(0, 1)))
        at += round(16 * ms)
    phrase = (tuple(marks), Span(0, 1), Span(0, 1), 0, True)
    track = VisemeScripter().open(RATE)
    return [*track.add(Speech(bytes(2 * at), RATE, Span(0, at), *phrase)), *track.close()]


def babble(seed: int) -> list[AvatarCue]:
    rng = random.Random(seed)
    sounds = [(rng.choice(SOUNDS), rng.choice([15, 30, 60, 90, 200])) for _ in range(40)]
    return script(*sounds, tags=["smile", "nod"])


@pytest.mark.parametrize("fps", [24.0, 25.0, 30.0, 60.0])
def test_lips_meet_in_a_frame_of_every_closure(fps: float) -> None:
    for seed in range(6):
        cues = babble(seed)
        arkit, oculus = list(frames(cues, fps)), list(frames(cues, fps, "oculus"))
        for cue in cues:
            if cue.name not in ("PP", "FF"):
                continue
            middle = cue.t_ms + cue.duration_ms / 2
            at = min(range(len(oculus)), key=lambda i: abs(oculus[i][0] - middle))
            reach = [oculus[i][1].get(cue.name, 0.0) for i in (at - 1, at, at + 1) if i >= 0]
            assert max(reach[:2]) >= 0.9 or max(reach) >= 0.9, (seed, cue)
            if cue.name == "PP":
                open_lips = min(
                    w.get("jawOpen", 0.0) - w.get("mouthClose", 0.0)
                    for _, w in arkit[max(0, at - 1) : at + 2]
                )
                assert open_lips <= 0.04


def test_lips_round_for_a_vowel_before_it_begins_and_stay_round_in_a_closure() -> None:
    before = [("_", 100.0), ("s", 80.0), ("t", 60.0)]

    def at(ms: float, *sounds: tuple[str, float]) -> dict[str, float]:
        face = Face()
        face.add(*script(*sounds))
        return face.at(ms)

    shoe, tea = at(200, *before, ("uː", 150)), at(200, *before, ("iː", 150))
    assert shoe["mouthPucker"] > 0.2 > 5 * tea.get("mouthPucker", 0.0)
    assert abs(shoe["jawOpen"] - tea["jawOpen"]) < 0.02  # the jaw is still with the "t"
    boom = at(200, ("uː", 170), ("b", 60), ("uː", 170))
    assert boom["mouthPucker"] > 0.25
    assert boom["mouthPressLeft"] > 0.9 * SHAPES["PP"]["mouthPressLeft"]


def test_curves_are_smooth_and_within_bounds() -> None:
    names = {"arkit": ARKIT_SHAPES, "oculus": VISEMES, "vrm": VRM}
    for rig in ("arkit", "oculus", "vrm"):
        sampled = list(frames(babble(3), 240.0, rig))
        for (_, a), (_, b) in pairwise(sampled):
            assert set(a) <= set(names[rig])
            assert all(-1e-9 <= weight <= 1.0 + 1e-9 for weight in a.values())
            if rig != "arkit":
                continue
            # A jaw takes some 40 ms to open; a step would be 0.6 within 4 ms.
            for shape in ("jawOpen", "mouthPucker", "mouthFunnel"):
                assert abs(a.get(shape, 0.0) - b.get(shape, 0.0)) < 0.16


def test_an_emotion_rises_and_falls_and_the_next_one_replaces_it() -> None:
    cues = script(("ɑː", 6000), tags=["happy"])
    face = Face()
    face.add(*cues)
    smile = {ms: face.at(ms).get("mouthSmileLeft", 0.0) for ms in (0, 100, 300, 3000)}
    assert smile[0] < smile[100] < smile[300] == pytest.approx(smile[3000], abs=0.02)
    sad = next(c for c in script(("ɑː", 100), tags=["sad"]) if c.kind == "emotion")
    face.add(replace(sad, t_ms=3100.0, samples=Span(49_600, 113_600)))
    later = face.at(3500)
    assert later.get("mouthSmileLeft", 0.0) < 0.1


@pytest.mark.parametrize("end_ms", [0.0, 60.0, 140.0, 1000.0])
def test_an_emotion_that_is_cut_short_does_not_flash(end_ms: float) -> None:
    """It fades from where it has risen to."""
    face = Face()
    face.add(*script(("ɑː", 3000), tags=["smile"]))
    shown = [face.at(ms).get("mouthSmileLeft", 0.0) for ms in range(0, round(end_ms) + 1, 4)]
    neutral = next(c for c in script(("ɑː", 100), tags=["neutral"]) if c.kind == "emotion")
    face.add(replace(neutral, t_ms=end_ms, samples=Span(0, 0)))
    risen = shown[-1]
    shown += [face.at(end_ms + 4 * step).get("mouthSmileLeft", 0.0) for step in range(1, 75)]
    assert max(shown) <= risen + 0.05 and shown[-1] == 0.0
    assert max(abs(a - b) for a, b in pairwise(shown)) < 0.05


def test_an_emotion_lasts_on_when_the_one_that_replaced_it_is_taken_back() -> None:
    face, none = Face(), Span(0, 0)
    for kind, name, start, lasts in [
        *(("viseme", "aa", 0, 900), ("emotion", "smile", 0, 4000), ("emotion", "sad", 500, 4000)),
        ("viseme", "sil", 400, 0),
    ]:
        span = Span(16 * start, 16 * (start + lasts))
        weights = {"mouthSmileLeft": 1.0} if name == "smile" else {}
        face.add(AvatarCue(kind, name, start, lasts, 1.0, span, none, none, weights))  # type: ignore[arg-type]
    assert face.at(3000)["mouthSmileLeft"] == 1.0


@pytest.mark.parametrize("rig", ["arkit", "oculus", "vrm"])
@pytest.mark.parametrize("cut", [False, True], ids=["ended", "cut off"])
def test_the_mouth_closes_behind_its_last_segment(cut: bool, rig: CurveRig) -> None:
    face = Face(rig)
    face.add(*(cue for cue in script(("ɑː", 300)) if cue.samples.length))
    end = 300.0
    if cut:
        end, span = 200.0, Span(3200, 3200)
        face.add(AvatarCue("viseme", "sil", 200.0, 0.0, 1.0, span, Span(0, 1), Span(0, 1)))
    name = "jawOpen" if rig == "arkit" else "aa"
    drawn = [face.at(end - 4 + 4 * step).get(name, 0.0) for step in range(100)]
    assert drawn[0] > 0.4
    assert max(abs(a - b) for a, b in pairwise(drawn)) < 0.1, "it does not jump"
    assert max(drawn[26:]) < 1e-6, "closed after 100 ms"
    if rig == "oculus":
        assert face.at(end + 300) == {"aa": 0.0, "sil": 1.0}


@pytest.mark.parametrize("ms", [0.0, 350.0])
def test_the_mouth_is_closed_where_there_are_no_segments(ms: float) -> None:
    face = Face()
    for start in (200, 500):
        span = Span(16 * start, 16 * start)
        face.add(AvatarCue("viseme", "aa", start, 50.0, 1.0, span, Span(0, 1), Span(0, 1)))
    assert face.at(ms)["jawOpen"] == 0.0
    assert face.at(ms + 190)["jawOpen"] > 0.5


def test_what_is_taken_back_is_not_drawn() -> None:
    face, plain = Face(), Face()
    first = script(("ɑː", 200), ("p", 60), ("iː", 300))
    face.add(*first)
    kept = [cue for cue in first if cue.t_ms < 200]
    again = script(("ɑː", 200), ("uː", 200))
    plain.add(*again)
    span = Span(3200, 3200)
    face.add(AvatarCue("viseme", "sil", 200.0, 0.0, 1.0, span, Span(0, 1), Span(0, 1)))
    face.add(*again[len(kept) :])
    assert [c.name for c in face.cues()] == [c.name for c in plain.cues()]
    assert face.at(300) == pytest.approx(plain.at(300))


def test_a_gesture_is_taken_back_whatever_came_behind_it() -> None:
    """Gestures and emotions are each in order, but an emotion may come behind a later gesture."""
    face, none = Face(), Span(0, 0)
    cues = [("viseme", "aa", 0, 400), ("gesture", "wave", 600, 500), ("emotion", "smile", 100, 900)]
    for kind, name, start, lasts in [*cues, ("viseme", "sil", 300, 0)]:
        span = Span(16 * start, 16 * (start + lasts))
        face.add(AvatarCue(kind, name, start, lasts, 1.0, span, none, none))  # type: ignore[arg-type]
    assert [cue.name for cue in face.cues()] == ["aa", "smile"]


def test_memory_is_bounded_and_wrong_use_is_refused() -> None:
    face = Face("oculus")
    for number in range(2000):
        span = Span(1600 * number, 1600 * number + 1600)
        face.add(AvatarCue("viseme", "aa", 100.0 * number, 100.0, 1.0, span, span, span))
        face.at(100.0 * number)
    assert len(face.cues()) < 10
    with pytest.raises(ConfigError, match="fps"):
        list(frames([], 0.0))
    with pytest.raises(ConfigError, match="no rig with curves"):
        Face("microsoft")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="rig 'oculus'|of another"):
        face.add(AvatarCue("viseme", "21", 0.0, 1.0, 1.0, span, span, span))


def test_cues_and_samples_are_one_clock_for_ten_minutes() -> None:
    rate = 22_050
    track = VisemeScripter().open(rate)
    rng = random.Random(rate)
    at = 600 * rate - rng.randint(0, rate)
    cues: list[AvatarCue] = []
    for _ in range(20):
        end = at + rng.randint(1, rate // 10)  # pieces arrive in any size
        mark = Mark("phoneme", "s", Span(at, end), Span(0, 1))
        piece = Speech(bytes(2 * (end - at)), rate, Span(at, end), (mark,), Span(0, 1), Span(0, 1), 0)
        cues += track.add(piece)
        at = end
    for cue in cues:
        wire = -(-cue.samples.start * 24_000 // rate)  # as the server counts at 24 kHz
        assert abs(cue.t_ms - wire / 24) <= 0.05


@pytest.mark.parametrize("drift", [-500e-6, 0.0, 1000e-6])
@pytest.mark.parametrize("every_ms", [20.0, 250.0])
def test_a_drifting_clock_is_followed_through_jitter(drift: float, every_ms: float) -> None:
    """Ten minutes of reports that are off by up to 30 ms; the audio stands still once for a second."""
    rng, clock = random.Random(1), PlayClock()
    worst, paused, last = [0.0, 0.0, 0.0], 0.0, 0.0
    assert clock.position(5.0) == 0.0
    for step in range(int(600_000 / every_ms)):
        now = step * every_ms
        stands = 300_000 <= now < 301_000
        paused += every_ms * stands
        true = (now - paused) * (1 + drift)
        clock.report(now, true + rng.uniform(-30.0, 30.0))
        seen = clock.position(now)
        if not 300_000 <= now < 306_000:
            assert seen >= last - 1e-9
            worst[int(now // 200_001)] = max(worst[int(now // 200_001)], abs(seen - true))
        last = seen
    assert max(worst) <= 40.0
    assert worst[2] <= 20.0
