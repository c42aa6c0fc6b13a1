"""Convert cues and speech to the input of TalkingHead (npm ``@met4citizen/talkinghead``)."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Sequence
from typing import Any

from specstream.types import AvatarCue, Speech
from specstream_adapters.avatar.curves import frames, joined, settled

__all__ = ["GESTURES", "MOODS", "talking_head"]

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
