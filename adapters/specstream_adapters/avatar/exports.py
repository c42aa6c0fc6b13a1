"""Export a turn's cues in the formats of other players of faces, TalkingHead's among them."""

from __future__ import annotations

import base64
import csv
import io
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from specstream.types import AvatarCue, Speech
from specstream_adapters.avatar.curves import VRM, CurveRig, frames, joined, settled
from specstream_adapters.avatar.directions import ARKIT_SHAPES, VISEMES
from specstream_adapters.avatar.sounds import names_of
from specstream_adapters.checks import one_of

__all__ = [
    "FORMATS",
    "GESTURES",
    "MOODS",
    "export",
    "microsoft_events",
    "rhubarb_cues",
    "talking_head",
    "vrm_clip",
]

MOODS = {
    "smile": "happy", "happy": "happy", "excited": "happy", "laugh": "happy", "proud": "happy",
    "love": "love", "calm": "neutral", "sad": "sad", "cry": "sad", "worried": "fear",
    "afraid": "fear", "surprised": "fear", "wide eyes": "fear", "angry": "angry", "serious": "neutral",
    "disgusted": "disgust", "confused": "neutral", "shy": "love", "tired": "sleep",
    "neutral": "neutral",
}  # fmt: skip
"""The mood of ``setMood`` for each emotion."""
GESTURES: dict[str, tuple[str, bool]] = {
    "wave": ("handup", False), "point": ("index", False), "thumbs up": ("thumbup", False),
    "shrug": ("shrug", False), "open arms": ("side", False), "bow": ("namaste", False),
    "think": ("🤔", False), "nod": ("yes", False), "shake head": ("no", False),
    "wink": ("😉", False), "gasp": ("😳", False),
}  # fmt: skip
"""The name in ``playGesture`` for each gesture, and whether it is mirrored; an emoji moves the face."""
_TRANSITION_MS = 300


def talking_head(
    cues: Sequence[AvatarCue],
    speech: Iterable[Speech] = (),
    *,
    blendshapes: bool = False,
    fps: float = 30.0,
) -> dict[str, Any]:
    """The argument of ``streamAudio``, as JSON data, for a stretch of a turn.

    ``visemes``, ``vtimes``, ``vdurations`` (or, with ``blendshapes``, for ``lipsyncType:
    "blendshapes"``, ``anims`` with sampled ARKit curves), ``words``, ``wtimes``, ``wdurations``: times
    in milliseconds from the turn's first sample, as TalkingHead counts them. ``audio`` is PCM in
    base64, which the page turns into an ``ArrayBuffer``. ``calls`` is not for ``streamAudio``: it lists
    the methods that the page is to call at ``t_ms`` for moods and gestures,
    ``[{"t_ms", "method", "args"}]``, without gestures that TalkingHead doesn't have.

    Data passed to ``streamAudio`` can't be revoked: call ``streamInterrupt`` on a revoke.

    Raises:
        ConfigError: the cues are for another rig, or ``fps`` is out of range.
    """
    kept = settled(cues)
    mouth = [cue for cue in kept if cue.kind == "viseme"]
    payload: dict[str, Any] = {}
    pieces = list(speech)
    if pcm := b"".join(piece.pcm for piece in pieces):
        payload["audio"] = base64.b64encode(pcm).decode()
    if blendshapes:
        payload["anims"] = _anims(cues, fps)
    else:
        spoken = [cue for cue in joined(mouth) if cue.name != "sil"]
        payload["visemes"] = [cue.name for cue in spoken]
        payload["vtimes"] = [round(cue.t_ms, 3) for cue in spoken]
        payload["vdurations"] = [round(cue.duration_ms, 3) for cue in spoken]
    words = [(m, p.sample_rate) for p in pieces for m in p.marks if m.kind == "word"]
    if words:
        payload["words"] = [mark.text for mark, _ in words]
        payload["wtimes"] = [round(m.samples.start * 1000 / rate, 3) for m, rate in words]
        payload["wdurations"] = [round(m.samples.length * 1000 / rate, 3) for m, rate in words]
    if calls := [call for cue in kept if (call := _call(cue)) is not None]:
        payload["calls"] = calls
    return payload


def _anims(cues: Sequence[AvatarCue], fps: float) -> list[dict[str, Any]]:
    first = min((cue.t_ms for cue in cues if cue.kind == "viseme"), default=0.0)
    sampled = [(ms, weights) for ms, weights in frames(cues, fps) if ms >= first - 1000 / fps]
    if not sampled:
        return []
    names = {name for _, weights in sampled for name, w in weights.items() if w > 0.0005}
    values = {n: [round(weights.get(n, 0.0), 4) for _, weights in sampled] for n in sorted(names)}
    steps = [0.0, *([round(1000 / fps, 4)] * (len(sampled) - 1))]
    return [{"name": "blendshapes", "delay": round(sampled[0][0], 3), "dt": steps, "vs": values}]


def _call(cue: AvatarCue) -> dict[str, Any] | None:
    at = round(cue.t_ms, 3)
    if cue.kind == "emotion":
        return {"t_ms": at, "method": "setMood", "args": [MOODS.get(cue.name, "neutral")]}
    if cue.kind == "gesture" and cue.name in GESTURES:
        name, mirror = GESTURES[cue.name]
        args = [name, round(cue.duration_ms / 1000, 3), mirror, _TRANSITION_MS]
        return {"t_ms": at, "method": "playGesture", "args": args}
    return None


_TICKS_PER_MS = 10_000  # of 100 ns


def microsoft_events(cues: Iterable[AvatarCue]) -> list[dict[str, int]]:
    """Azure's viseme events: ``audio_offset`` in ticks of 100 ns, ``viseme_id`` from 0 to 21.

    A viseme lasts until the next event; the last event is viseme 0, silence.
    """
    events: list[dict[str, int]] = []
    end = 0.0
    for cue in _mouth(cues):
        number = names_of(cue.name, cue.sound).microsoft
        end = cue.t_ms + cue.duration_ms
        if not events or events[-1]["viseme_id"] != number:
            events.append({"audio_offset": round(cue.t_ms * _TICKS_PER_MS), "viseme_id": number})
    if events and events[-1]["viseme_id"] != 0:
        events.append({"audio_offset": round(end * _TICKS_PER_MS), "viseme_id": 0})
    return events


def rhubarb_cues(cues: Iterable[AvatarCue], sound_file: str = "speech.wav") -> dict[str, Any]:
    """Rhubarb's JSON: ``metadata`` and ``mouthCues`` in seconds, on its grid of 10 ms."""
    rows: list[dict[str, Any]] = []
    end = 0.0
    for cue in _mouth(cues):
        value = names_of(cue.name, cue.sound).rhubarb
        start, end = (round(ms / 1000, 2) for ms in (cue.t_ms, cue.t_ms + cue.duration_ms))
        if rows and rows[-1]["value"] == value:
            rows[-1]["end"] = end
        elif end > start:
            rows.append({"start": start, "end": end, "value": value})
    metadata = {"soundFile": sound_file, "duration": end}
    return {"metadata": metadata, "mouthCues": rows}


def vrm_clip(cues: Iterable[AvatarCue], fps: float = 30.0, name: str = "speech") -> dict[str, Any]:
    """The JSON of a three.js ``AnimationClip`` that plays a VRM's expressions.

    ``THREE.AnimationClip.parse`` reads it; the tracks have the names that three-vrm's
    ``getExpressionTrackName`` gives them on the expressions' own nodes.
    """
    sampled = list(frames(cues, fps, "vrm"))
    tracks = [
        {
            "name": f"VRMExpression_{expression}.weight",
            "type": "number",
            "times": [round(ms / 1000, 4) for ms, _ in sampled],
            "values": [round(weights.get(expression, 0.0), 4) for _, weights in sampled],
        }
        for expression in VRM
        if any(weights.get(expression, 0.0) > 0.0005 for _, weights in sampled)
    ]
    duration = round(sampled[-1][0] / 1000, 4) if sampled else 0
    return {"name": name, "duration": duration, "tracks": tracks, "blendMode": 2500}


def _mouth(cues: Iterable[AvatarCue]) -> Iterator[AvatarCue]:
    return (cue for cue in settled(cues) if cue.kind == "viseme")


def _table(cues: Sequence[AvatarCue], fps: float, rig: CurveRig, names: Sequence[str]) -> str:
    out = io.StringIO()
    rows = csv.writer(out, lineterminator="\n")
    rows.writerow(["ms", *names])
    for ms, weights in frames(cues, fps, rig):
        rows.writerow([f"{ms:.1f}", *(f"{weights.get(name, 0.0):.3f}" for name in names)])
    return out.getvalue()


def _rhubarb_tsv(cues: Sequence[AvatarCue], fps: float) -> str:
    made = rhubarb_cues(cues)
    rows = [f"{cue['start']:.2f}\t{cue['value']}\n" for cue in made["mouthCues"]]
    return "".join(rows) + f"{made['metadata']['duration']:.2f}\tX\n"


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False) + "\n"


FORMATS: dict[str, Callable[[Sequence[AvatarCue], float], str]] = {
    "arkit": lambda cues, fps: _table(cues, fps, "arkit", ARKIT_SHAPES),
    "oculus": lambda cues, fps: _table(cues, fps, "oculus", VISEMES),
    "vrm": lambda cues, fps: _json(vrm_clip(cues, fps)),
    "microsoft": lambda cues, fps: _json(microsoft_events(cues)),
    "rhubarb": lambda cues, fps: _json(rhubarb_cues(cues)),
    "rhubarb-tsv": _rhubarb_tsv,
    "talkinghead": lambda cues, fps: _json(talking_head(cues, fps=fps)),
}
"""Functions that write cues as text. ``arkit`` and ``oculus``: CSV, one row a frame; the others: see the
functions that they call."""


def export(cues: Sequence[AvatarCue], to: str, fps: float = 60.0) -> str:
    """A turn's cues, made for ARKit, as the text of a file in the format ``to`` (see `FORMATS`).

    Raises:
        ConfigError: there is no such format, ``fps`` is out of range, the cues are for another rig, or
            their times are out of bounds (see `Face.add` and `frames`).
    """
    one_of("format", to, FORMATS)
    return FORMATS[to](cues, fps)
