"""Export a turn's cues in the formats that other players of faces read."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from specstream.types import AvatarCue
from specstream_adapters.avatar.curves import CurveRig, frames, settled
from specstream_adapters.avatar.rigs import VRM
from specstream_adapters.avatar.sounds import names_of
from specstream_adapters.avatar.talkinghead import talking_head
from specstream_adapters.avatar.visemes import ARKIT_SHAPES, VISEMES
from specstream_adapters.checks import one_of

__all__ = ["FORMATS", "export", "microsoft_events", "rhubarb_cues", "vrm_clip"]

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
