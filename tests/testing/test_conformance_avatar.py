"""The avatar that ships keeps its contract, and each broken one is found by the check for its fault."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from specstream.testing import check_avatar
from specstream.types import AvatarCue, Span, Speech
from specstream_adapters.avatar import VisemeScripter


@pytest.mark.slow
@pytest.mark.parametrize("rig", ["arkit", "oculus", "microsoft", "vrm", "rhubarb"])
async def test_the_avatar_that_ships_passes(rig: Any) -> None:
    report = await check_avatar(lambda: VisemeScripter(rig=rig))
    report.assert_passed()
    assert report.skipped == ("rest_when_cancelled",)


@pytest.mark.slow
async def test_an_avatar_that_waits_for_marks_passes() -> None:
    (await check_avatar(lambda: VisemeScripter(patience_ms=200))).assert_passed()


class AlteredTrack:
    """A track of the avatar that ships; a subclass of `Altered` breaks one thing."""

    def __init__(self, owner: Altered, rate: int) -> None:
        self.owner, self.rate = owner, rate
        self.track = VisemeScripter().open(rate)
        self.inside = False

    def add(self, speech: Speech) -> Sequence[AvatarCue]:
        self.inside = not speech.last
        return self.owner.alter(self.track.add(self.owner.hear(speech)))

    def close(self) -> Sequence[AvatarCue]:
        return self.owner.end(self.track.close(), inside=self.inside)


class Altered:
    copies = True

    def open(self, sample_rate: int) -> AlteredTrack:
        return AlteredTrack(self, sample_rate)

    def hear(self, speech: Speech) -> Speech:
        return speech

    def alter(self, cues: Sequence[AvatarCue]) -> Sequence[AvatarCue]:
        return cues

    def end(self, cues: Sequence[AvatarCue], *, inside: bool) -> Sequence[AvatarCue]:
        return self.alter(cues)


class InSeconds(Altered):
    """Its times are seconds."""

    def alter(self, cues: Sequence[AvatarCue]) -> Sequence[AvatarCue]:
        return [replace(cue, t_ms=cue.t_ms / 1e3) for cue in cues]


class Backwards(Altered):
    """The cues of one call come last first."""

    def alter(self, cues: Sequence[AvatarCue]) -> Sequence[AvatarCue]:
        return list(reversed(cues))


class NoText(Altered):
    """It takes samples for characters."""

    def alter(self, cues: Sequence[AvatarCue]) -> Sequence[AvatarCue]:
        return [replace(cue, chars=cue.samples) for cue in cues]


class OpenMouth(Altered):
    """It leaves the mouth as it was when the speech is cut off in a word."""

    def end(self, cues: Sequence[AvatarCue], *, inside: bool) -> Sequence[AvatarCue]:
        return [] if inside else cues


class Unnamed(Altered):
    """Its cues last less than no time."""

    def alter(self, cues: Sequence[AvatarCue]) -> Sequence[AvatarCue]:
        return [replace(cue, duration_ms=-1.0) for cue in cues]


class Deaf(Altered):
    """It hears nothing where no sound is marked."""

    def alter(self, cues: Sequence[AvatarCue]) -> Sequence[AvatarCue]:
        return [cue for cue in cues if cue.sound or cue.kind != "viseme" or cue.name == "sil"]

    def hear(self, speech: Speech) -> Speech:
        return speech if speech.marks else replace(speech, pcm=bytes(len(speech.pcm)))


class SharedTrack(AlteredTrack):
    def __deepcopy__(self, memo: object) -> SharedTrack:
        return self


class Shared(Altered):
    """A copy of a track is the track."""

    def open(self, sample_rate: int) -> AlteredTrack:
        return SharedTrack(self, sample_rate)


class Strict(Altered):
    """It knows its own sounds only."""

    def hear(self, speech: Speech) -> Speech:
        for mark in speech.marks:
            if mark.kind == "phoneme" and not mark.text:
                raise KeyError(mark.text)
        return speech


class OneRate(Altered):
    """It is written for 24 kHz."""

    def open(self, sample_rate: int) -> AlteredTrack:
        if sample_rate != 24_000:
            raise ValueError(sample_rate)
        return super().open(sample_rate)


class Flood(Altered):
    """It gives a cue for every sample of a sound that lasts."""

    def alter(self, cues: Sequence[AvatarCue]) -> Sequence[AvatarCue]:
        return [cue for cue in cues for _ in range(60)]


class Strong(Altered):
    """It counts in percent."""

    def alter(self, cues: Sequence[AvatarCue]) -> Sequence[AvatarCue]:
        return [replace(cue, weight=100 * cue.weight) for cue in cues]


class Forward(Altered):
    """It has no cues for speech that was replaced."""

    end_sample = 0

    def open(self, sample_rate: int) -> AlteredTrack:
        self.end_sample = 0
        return super().open(sample_rate)

    def alter(self, cues: Sequence[AvatarCue]) -> Sequence[AvatarCue]:
        kept = [cue for cue in cues if cue.samples.end >= self.end_sample]
        self.end_sample = max([self.end_sample, *(cue.samples.end for cue in cues)])
        return kept


class Late(Altered):
    """It gives all cues at the end."""

    def open(self, sample_rate: int) -> AlteredTrack:
        self.held: list[AvatarCue] = []
        return super().open(sample_rate)

    def alter(self, cues: Sequence[AvatarCue]) -> Sequence[AvatarCue]:
        self.held += cues
        return []

    def end(self, cues: Sequence[AvatarCue], *, inside: bool) -> Sequence[AvatarCue]:
        held, self.held = self.held, []
        return [*held, *cues]


class Lazy(Altered):
    """It leaves out a word."""

    def alter(self, cues: Sequence[AvatarCue]) -> Sequence[AvatarCue]:
        word = range(27_000, 36_000)
        return [c for c in cues if c.kind != "viseme" or c.samples.start not in word]


class Beyond(Altered):
    """Its last cue comes a second after the speech."""

    def end(self, cues: Sequence[AvatarCue], *, inside: bool) -> Sequence[AvatarCue]:
        late = [replace(cue, samples=Span(10**7, 10**7), t_ms=10**7 / 24) for cue in cues[-1:]]
        return [*cues, *late]


BROKEN: list[tuple[Callable[[], Altered], str]] = [
    (InSeconds, "clock"),
    (Backwards, "time_order"),
    (NoText, "in_text"),
    (OpenMouth, "rest_when_cut"),
    (Unnamed, "cues"),
    (Deaf, "no_marks"),
    (Shared, "copies"),
    (Strict, "unusual_marks"),
    (OneRate, "rates"),
    (Flood, "bounded"),
    (Beyond, "in_audio"),
    (Strong, "weights"),
    (Lazy, "each_word"),
]


@pytest.mark.parametrize(("broken", "found"), [(Forward, "replaced"), (Late, "punctual")])
async def test_a_fault_that_breaks_other_promises_too_is_found(
    broken: Callable[[], Altered], found: str
) -> None:
    report = await check_avatar(broken, only=[found])
    assert report.failed == (found,), report.lines()


@pytest.mark.slow
@pytest.mark.parametrize(("broken", "found"), BROKEN)
async def test_a_broken_avatar_is_found_by_the_check_for_its_fault(
    broken: Callable[[], Altered], found: str
) -> None:
    report = await check_avatar(broken)
    assert report.failed == (found,), report.lines()


@pytest.mark.slow
async def test_an_honest_one_of_the_same_make_passes() -> None:
    (await check_avatar(Altered)).assert_passed()
