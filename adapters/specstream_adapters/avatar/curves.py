"""Turn cues into smooth, overlapping curves, for the rig at hand, and estimate where the audio is.

Each segment of the mouth pulls towards its shape with a dominance that falls off exponentially around
it, and the shape at a moment is the mean of all, weighted by dominance (Cohen and Massaro, "Modeling
coarticulation in synthetic visual speech", 1993). As there, jaw and lips have dominances of their own:
lips round early for a vowel while tongue and jaw are still with the consonants before it.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Literal, NamedTuple

from specstream.errors import ConfigError
from specstream.types import AvatarCue, Span
from specstream_adapters.avatar.directions import CLOSURES, SHAPES, SILENCE, VISEMES, both_sides
from specstream_adapters.avatar.sounds import names_of
from specstream_adapters.checks import in_range, one_of

__all__ = [
    "VRM",
    "VRM_MOUTH",
    "CurveRig",
    "Face",
    "PlayClock",
    "Rig",
    "frames",
    "joined",
    "recast",
    "settled",
]

Rig = Literal["arkit", "oculus", "microsoft", "vrm", "rhubarb"]

VRM = (
    *("aa", "ih", "ou", "ee", "oh", "happy", "angry", "sad", "relaxed", "surprised", "neutral"),
    *("blink", "blinkLeft", "blinkRight", "lookUp", "lookDown", "lookLeft", "lookRight"),
)
"""The preset expressions of VRM 1.0."""
VRM_MOUTH: dict[str, dict[str, float]] = {
    "sil": {}, "PP": {}, "FF": {"ih": 0.1}, "TH": {"ih": 0.25}, "DD": {"ih": 0.3},
    "kk": {"ee": 0.3}, "CH": {"ou": 0.45}, "SS": {"ih": 0.3}, "nn": {"ih": 0.25},
    "RR": {"oh": 0.25, "ou": 0.15}, "aa": {"aa": 1.0}, "E": {"ee": 1.0}, "I": {"ih": 1.0},
    "O": {"oh": 1.0}, "U": {"ou": 1.0},
}  # fmt: skip
"""Oculus visemes as VRM's five vowels. A closed mouth is all of them at 0."""

_VRM_MOODS = {
    "smile": {"happy": 0.5}, "happy": {"happy": 0.8}, "excited": {"happy": 0.8, "surprised": 0.2},
    "laugh": {"happy": 1.0}, "love": {"happy": 0.4, "relaxed": 0.4}, "proud": {"happy": 0.4},
    "calm": {"relaxed": 0.8}, "sad": {"sad": 0.8}, "cry": {"sad": 1.0}, "worried": {"sad": 0.5},
    "afraid": {"surprised": 0.5, "sad": 0.4}, "surprised": {"surprised": 0.9},
    "wide eyes": {"surprised": 0.7}, "angry": {"angry": 0.8}, "disgusted": {"angry": 0.5},
    "confused": {"surprised": 0.25}, "serious": {"angry": 0.25}, "shy": {"relaxed": 0.4},
    "tired": {"relaxed": 0.5}, "neutral": {},
    "wink": {"blinkRight": 1.0}, "blink": {"blink": 1.0}, "look up": {"lookUp": 0.7},
    "look down": {"lookDown": 0.7}, "think": {"lookUp": 0.5}, "sigh": {"relaxed": 0.5, "blink": 0.4},
    "gasp": {"surprised": 0.8},
}  # fmt: skip


def recast(cue: AvatarCue, rig: Rig) -> AvatarCue:
    """Convert a cue made for ARKit to ``rig``; times, ``sound`` and ``weight`` stay.

    A viseme's ``name``: in ``oculus`` the Oculus name, in ``microsoft`` the id as text, in ``rhubarb`` a
    letter; its ``weights`` then have this name alone. In ``vrm`` the name is the vowel that weighs most
    (``"neutral"`` for a closed mouth) and the weights are the vowels'. Emotions and gestures keep their
    name; in ``vrm`` their weights are expressions, in the others, which are only mouths, they are empty.
    """
    if rig == "arkit":
        return cue
    if cue.kind != "viseme":
        weights = _VRM_MOODS.get(cue.name, {}) if rig == "vrm" else {}
        return replace(cue, weights=dict(weights))
    if cue.name not in VISEMES:
        raise ConfigError(f"viseme {cue.name!r:.40} is not Oculus's: the cue is for a rig already")
    if rig == "vrm":
        weights = {n: round(value * cue.weight, 3) for n, value in VRM_MOUTH[cue.name].items()}
        name = max(weights, key=weights.__getitem__, default="neutral")
        return replace(cue, name=name, weights=weights)
    name = str(getattr(names_of(cue.name, cue.sound), rig))
    return replace(cue, name=name, weights={name: cue.weight})


CurveRig = Literal["arkit", "oculus", "vrm"]
"""The rigs whose cues have weights that can be drawn as curves."""


class _Pull(NamedTuple):
    """A dominance: its height, and how fast it falls before and after the segment, per ms."""

    height: float
    before: float
    behind: float


_SLACK = _Pull(0.5, 0.03, 0.03)  # of the visemes that `_JAW` doesn't name
_JAW: dict[str, _Pull] = {
    **dict.fromkeys(("aa", "E", "I", "O", "U"), _Pull(1.0, 0.025, 0.025)),
    **dict.fromkeys(CLOSURES, _Pull(60.0, 0.15, 0.15)),  # lips must meet, whatever is around them
    "SS": _Pull(1.5, 0.05, 0.05), "CH": _Pull(1.2, 0.04, 0.04), "TH": _Pull(1.0, 0.04, 0.04),
    "DD": _Pull(0.8, 0.04, 0.04), "RR": _Pull(0.8, 0.03, 0.03), "sil": _Pull(0.8, 0.03, 0.03),
}  # fmt: skip
_LIPS: dict[str, _Pull] = {
    "U": _Pull(1.0, 0.008, 0.02), "O": _Pull(1.0, 0.010, 0.02), "CH": _Pull(0.6, 0.015, 0.02),
    "RR": _Pull(0.3, 0.02, 0.02), "I": _Pull(0.6, 0.015, 0.02), "E": _Pull(0.5, 0.02, 0.02),
    "aa": _Pull(0.5, 0.02, 0.02), "SS": _Pull(0.15, 0.02, 0.02), "FF": _Pull(0.1, 0.02, 0.02),
    "sil": _Pull(0.5, 0.02, 0.02),
}  # fmt: skip
# Of the visemes that `_LIPS` doesn't name: most consonants leave rounding and spreading to their vowels.
_SLACK_LIPS = _Pull(0.05, 0.02, 0.02)
_OF_LIPS = frozenset(
    both_sides(mouthPucker=1, mouthFunnel=1, mouthStretch=1, mouthSmile=1, mouthDimple=1)
)
_GOALS: dict[CurveRig, dict[str, dict[str, float]]] = {
    "arkit": SHAPES, "oculus": {name: {name: 1.0} for name in VISEMES}, "vrm": VRM_MOUTH,
}  # fmt: skip
_MAX_MS = 24 * 3_600_000.0
"""Latest end of a cue. No turn is longer; it keeps a wrong number from making curves without end."""
_MAX_FRAMES = 1_000_000
_REACH_MS = 400.0  # segments further ahead have no influence; 100 ms further back they are dropped
_EDGE_MS = 40.0  # a long segment has its full dominance from this far inside its edges on
_CLOSE_MS = 100.0  # away from all segments the mouth is closed from this distance on
_ATTACK_MS, _RELEASE_MS = 150.0, 250.0  # of an emotion or a gesture


@dataclass(slots=True)
class _Part:
    """A cue with its times in milliseconds; ``end_ms`` becomes earlier when its end is taken back."""

    cue: AvatarCue
    start_ms: float
    end_ms: float

    def dominance(self, ms: float, pull: _Pull) -> float:
        middle, half = (self.start_ms + self.end_ms) / 2, (self.end_ms - self.start_ms) / 2
        away = max(0.0, abs(ms - middle) - max(half / 2, half - _EDGE_MS))
        return pull.height * math.exp(-(pull.before if ms < middle else pull.behind) * away)

    def cut(self) -> AvatarCue:
        """The cue with the duration that it really has."""
        length, cue = self.end_ms - self.start_ms, self.cue
        if cue.kind != "viseme" or length >= cue.duration_ms - 1e-6:
            return cue
        samples = round(cue.samples.length * length / cue.duration_ms)
        span = Span(cue.samples.start, cue.samples.start + samples)
        return replace(cue, duration_ms=length, samples=span)

    def envelope(self, ms: float) -> float:
        """The strength at ``ms``, from 0 to 1: a smooth attack, and a smooth release after the end."""
        # Of the cue as it was given: taking back its end changes nothing of its past.
        attack = min(_ATTACK_MS, self.cue.duration_ms / 2)
        up = (min(ms, self.end_ms) - self.start_ms) / max(attack, 1e-9)
        down = (self.end_ms + _RELEASE_MS - ms) / _RELEASE_MS
        return _smooth(up) * _smooth(down)


def _smooth(x: float) -> float:
    x = max(0.0, min(1.0, x))
    return x * x * (3 - 2 * x)


class Face:
    """The weights of a face at any moment, from cues as they come.

    It takes cues made for ARKit (the default of `VisemeScripter`), applies what they take back, and
    keeps half a second of the past. Ask for moments in increasing order, by the position of the audio
    that is heard. If the cues of the next 100 ms have not come yet, only their anticipation is missing.
    Where there are no segments, as after the last one, the mouth closes within 100 ms.
    ``arkit`` gives blend shapes, ``oculus`` the 15 visemes, ``vrm`` expressions; weights that are not
    named are 0.

    Raises:
        ConfigError: the rig has no curves.
    """

    def __init__(self, rig: CurveRig = "arkit") -> None:
        one_of("rig with curves", rig, _GOALS)
        self._rig = rig
        self._mouth: deque[_Part] = deque()
        self._directions: deque[_Part] = deque()

    def add(self, *cues: AvatarCue) -> None:
        """Take the next cues.

        Raises:
            ConfigError: a cue was made for another rig, or its times are not within a day.
        """
        for cue in cues:
            part = _Part(cue, cue.t_ms, cue.t_ms + cue.duration_ms)
            if not 0.0 <= part.start_ms <= part.end_ms <= _MAX_MS:
                raise ConfigError(
                    f"the cue {cue.name!r:.40} has t_ms {cue.t_ms:g} and duration_ms "
                    f"{cue.duration_ms:g}; a cue lies between 0 and {_MAX_MS:.0f} ms"
                )
            if cue.kind != "viseme":
                self._direct(part)
                continue
            if cue.name not in VISEMES:
                raise ConfigError(
                    f"viseme {cue.name!r:.40} is not Oculus's: curves are made of the cues of rig "
                    "'oculus', which is the default of --avatar viseme"
                )
            self._take_back(cue.t_ms)
            if cue.duration_ms > 0:
                self._mouth.append(part)

    def at(self, ms: float) -> dict[str, float]:
        """The weights at ``ms`` of the turn's audio, each from 0 to 1."""
        for parts in (self._mouth, self._directions):
            while parts and parts[0].end_ms < ms - _REACH_MS - 100:
                parts.popleft()
        near = [part for part in self._mouth if part.start_ms <= ms + _REACH_MS]
        weights = _drawn(near, ms, self._rig)
        for part in self._directions:
            level = part.envelope(ms)
            cue = part.cue if self._rig == "arkit" else recast(part.cue, self._rig)
            for name, weight in cue.weights.items():
                if level > 0:
                    weights[name] = max(weights.get(name, 0.0), level * weight)
        return weights

    def cues(self) -> list[AvatarCue]:
        """The cues that are kept, without revoked ones: visemes, then emotions and gestures."""
        return [part.cut() for part in (*self._mouth, *self._directions)]

    def next_closure(self, start_ms: float, end_ms: float) -> float | None:
        """The middle of a closure that lies in ``[start_ms, end_ms)``, if there is one."""
        for part in self._mouth:
            middle = (part.start_ms + part.end_ms) / 2
            if part.cue.name in CLOSURES and start_ms <= middle < end_ms:
                return middle
        return None

    def _take_back(self, ms: float) -> None:
        if not self._mouth or self._mouth[-1].end_ms <= ms + 1e-6:
            return
        while self._mouth and self._mouth[-1].start_ms >= ms:
            self._mouth.pop()
        # Gestures and emotions each come in order of time, but not the ones with the others.
        self._directions = deque(part for part in self._directions if part.start_ms < ms)
        self._end_emotions()
        if self._mouth:
            self._mouth[-1].end_ms = min(self._mouth[-1].end_ms, ms)

    def _direct(self, part: _Part) -> None:
        self._directions.append(part)
        self._end_emotions()

    def _end_emotions(self) -> None:
        """Let each emotion last until the next one, or as long as it does by itself."""
        emotions = [part for part in self._directions if part.cue.kind == "emotion"]
        emotions.sort(key=lambda part: part.start_ms)
        for part, following in zip_longest(emotions, emotions[1:]):
            part.end_ms = part.start_ms + part.cue.duration_ms
            if following is not None:
                part.end_ms = min(part.end_ms, following.start_ms)


def _shares(parts: Sequence[_Part], ms: float, pulls: dict[str, _Pull], slack: _Pull) -> list[float]:
    found = [part.dominance(ms, pulls.get(part.cue.name, slack)) for part in parts]
    total = sum(found) or 1.0
    return [dominance / total for dominance in found]


def _moved(parts: Sequence[_Part], ms: float) -> float:
    """How far the mouth follows its segments at ``ms``: 1 in them, down to 0 away from all."""
    away = min((max(part.start_ms - ms, ms - part.end_ms, 0.0) for part in parts), default=0.0)
    return _smooth(1.0 - away / _CLOSE_MS)


def _drawn(parts: Sequence[_Part], ms: float, rig: CurveRig) -> dict[str, float]:
    """The mouth's weights at ``ms``: what each segment pulls towards, by its share of the dominance."""
    jaw = _shares(parts, ms, _JAW, _SLACK)
    lips = _shares(parts, ms, _LIPS, _SLACK_LIPS)
    moved = _moved(parts, ms)
    weights: dict[str, float] = {}
    for part, of_jaw, of_lips in zip(parts, jaw, lips, strict=True):
        for name, value in _GOALS[rig][part.cue.name].items():
            share = of_lips if name in _OF_LIPS else of_jaw
            weights[name] = weights.get(name, 0.0) + moved * share * value * part.cue.weight
    if rig == "oculus" and moved < 1.0:
        weights[SILENCE] = weights.get(SILENCE, 0.0) + 1.0 - moved
    return {name: min(1.0, weight) for name, weight in weights.items()}  # a mean may round up


def settled(cues: Iterable[AvatarCue]) -> list[AvatarCue]:
    """A turn's cues without revoked ones: visemes, which cover the turn, then emotions and gestures."""
    face = Face()
    face.add(*cues)
    return face.cues()


def joined(mouth: Iterable[AvatarCue]) -> list[AvatarCue]:
    """Join adjacent viseme cues that are slices of one sound."""
    out: list[AvatarCue] = []
    for cue in mouth:
        last = out[-1] if out else None
        same = last is not None and (last.name, last.sound) == (cue.name, cue.sound)
        if last is not None and same and last.samples.end == cue.samples.start:
            samples = Span(last.samples.start, cue.samples.end)
            ms = last.duration_ms + cue.duration_ms
            out[-1] = replace(last, samples=samples, duration_ms=ms)
        else:
            out.append(cue)
    return out


def frames(
    cues: Iterable[AvatarCue], fps: float, rig: CurveRig = "arkit"
) -> Iterator[tuple[float, dict[str, float]]]:
    """Whole curves, sampled: ``(ms, weights)`` from 0 to the end of the cues, ``fps`` times a second.

    The frame nearest to the middle of a closure is sampled at that middle, so that the lips meet in one
    frame at every frame rate.

    Raises:
        ConfigError: the frame rate is not from 1 to 240, there are more than a million frames, or a cue
            is refused by `Face.add`.
    """
    in_range("fps", fps, 1, 240)
    face = Face(rig)
    face.add(*cues)
    end = max((part.end_ms for part in face._mouth), default=0.0)
    step = 1000.0 / fps
    count = math.ceil(end / step) + 1 if end else 0
    if count > _MAX_FRAMES:
        raise ConfigError(
            f"the cues end at {end / 1000:.0f} s: at {fps:g} frames a second these are {count} frames, "
            f"and at most {_MAX_FRAMES} are made; lower fps, or convert the cues in parts"
        )
    for number in range(count):
        ms = number * step
        closed = face.next_closure(ms - step / 2, ms + step / 2)
        yield ms, face.at(ms if closed is None else closed)


_JUMP_MS = 120.0  # an error above this is no jitter: the audio stood still, or was moved
_PULL = 0.08  # share of the error that each report corrects
_DRIFT_PULL = 0.002  # change of the rate for each second of error and second between reports
_MAX_DRIFT = 0.005  # most deviation of the rate from 1: clocks of sound cards differ by less


class PlayClock:
    """Estimates the position of the audio at a time of the drawing clock, from reports with jitter.

    A renderer that can ask its audio device for the position doesn't need this class: it draws
    `Face.at` that position. This is for a renderer that is told positions now and then, a varying few
    milliseconds late, by an audio clock that runs a little faster or slower than the drawing clock. It
    is a phase-locked loop of second order; positions never run backwards except in a jump.
    """

    def __init__(self) -> None:
        self._at = 0.0  # drawing clock at the last report
        self._ms: float | None = None  # estimated position then
        self._rate = 1.0
        self._floor = 0.0  # the last position given

    @property
    def rate(self) -> float:
        """Estimated milliseconds of audio for each millisecond of the drawing clock."""
        return self._rate

    def report(self, now_ms: float, audio_ms: float) -> None:
        """The audio was at ``audio_ms`` when the drawing clock showed ``now_ms``."""
        if self._ms is None or abs(error := audio_ms - self._predict(now_ms)) > _JUMP_MS:
            self._at, self._ms = now_ms, audio_ms
            self._floor = max(0.0, audio_ms)
            return
        seconds = max(0.0, now_ms - self._at) / 1000
        self._ms = self._predict(now_ms) + _PULL * error
        self._at = now_ms
        drift = self._rate - 1.0 + _DRIFT_PULL * min(seconds, 1.0) * error / 1000
        self._rate = 1.0 + min(_MAX_DRIFT, max(-_MAX_DRIFT, drift))

    def position(self, now_ms: float) -> float:
        """Milliseconds of the turn's audio that have been heard; 0 before the first report."""
        if self._ms is None:
            return 0.0
        self._floor = max(self._floor, self._predict(now_ms))
        return self._floor

    def _predict(self, now_ms: float) -> float:
        assert self._ms is not None
        return self._ms + (now_ms - self._at) * self._rate
