"""Convert cues made for ARKit to the shapes and names of other rigs."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from specstream.errors import ConfigError
from specstream.types import AvatarCue
from specstream_adapters.avatar.sounds import names_of
from specstream_adapters.avatar.visemes import VISEMES

__all__ = ["VRM", "VRM_MOUTH", "Rig", "recast"]

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
