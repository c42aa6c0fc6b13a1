"""The 15 Oculus visemes, ARKit's 52 blend shapes, and each viseme as blend shapes."""

from __future__ import annotations

__all__ = ["ARKIT_SHAPES", "CLOSURES", "SHAPES", "SILENCE", "VISEMES", "both_sides"]

SILENCE = "sil"
VISEMES = (
    "sil", "PP", "FF", "TH", "DD", "kk", "CH", "SS", "nn", "RR", "aa", "E", "I", "O", "U",
)  # fmt: skip
CLOSURES = frozenset({"PP", "FF"})
"""Visemes in which the lips touch something: an eye sees at once when they don't."""

_SIDED = (
    "browDown", "browOuterUp", "cheekSquint", "eyeBlink", "eyeLookDown", "eyeLookIn", "eyeLookOut",
    "eyeLookUp", "eyeSquint", "eyeWide", "mouthDimple", "mouthFrown", "mouthLowerDown",
    "mouthPress", "mouthSmile", "mouthStretch", "mouthUpperUp", "noseSneer",
)  # fmt: skip
_SINGLE = (
    "browInnerUp", "cheekPuff", "jawForward", "jawLeft", "jawOpen", "jawRight", "mouthClose",
    "mouthFunnel", "mouthLeft", "mouthPucker", "mouthRight", "mouthRollLower", "mouthRollUpper",
    "mouthShrugLower", "mouthShrugUpper", "tongueOut",
)  # fmt: skip
ARKIT_SHAPES = tuple(
    sorted([*_SINGLE, *(f"{s}{side}" for s in _SIDED for side in ("Left", "Right"))])
)
"""The 52 blend shapes of ARKit's face anchor."""


def both_sides(**weights: float) -> dict[str, float]:
    """Blend shapes by name; one that has a left and a right half is set on both.

    >>> both_sides(jawOpen=0.2, mouthSmile=0.5)
    {'jawOpen': 0.2, 'mouthSmileLeft': 0.5, 'mouthSmileRight': 0.5}
    """
    out: dict[str, float] = {}
    for name, value in weights.items():
        names = (f"{name}Left", f"{name}Right") if name in _SIDED else (name,)
        out.update(dict.fromkeys(names, value))
    return out


# ARKit's mouthClose shuts the lips by as much as the jaw has opened, so the two go together in PP.
SHAPES: dict[str, dict[str, float]] = {
    "sil": both_sides(jawOpen=0.0, mouthClose=0.0),
    "PP": both_sides(
        jawOpen=0.08, mouthClose=0.08, mouthPress=0.45, mouthRollLower=0.3, mouthRollUpper=0.25
    ),
    "FF": both_sides(jawOpen=0.1, mouthRollLower=0.5, mouthUpperUp=0.25, mouthShrugUpper=0.1),
    "TH": both_sides(jawOpen=0.18, tongueOut=0.35, mouthLowerDown=0.2, mouthUpperUp=0.1),
    "DD": both_sides(jawOpen=0.16, mouthLowerDown=0.25, mouthUpperUp=0.15, mouthStretch=0.1),
    "kk": both_sides(jawOpen=0.24, mouthLowerDown=0.2, mouthUpperUp=0.1, mouthStretch=0.12),
    "CH": both_sides(jawOpen=0.12, mouthFunnel=0.5, mouthPucker=0.25, mouthUpperUp=0.15),
    "SS": both_sides(
        jawOpen=0.06, mouthStretch=0.3, mouthSmile=0.15, mouthLowerDown=0.25, mouthUpperUp=0.2
    ),
    "nn": both_sides(jawOpen=0.15, mouthLowerDown=0.2, mouthUpperUp=0.1),
    "RR": both_sides(jawOpen=0.17, mouthFunnel=0.3, mouthPucker=0.2),
    "aa": both_sides(jawOpen=0.7, mouthLowerDown=0.35, mouthUpperUp=0.2, mouthStretch=0.1),
    "E": both_sides(
        jawOpen=0.4, mouthStretch=0.25, mouthSmile=0.15, mouthLowerDown=0.3, mouthUpperUp=0.2
    ),
    "I": both_sides(
        jawOpen=0.2, mouthSmile=0.3, mouthStretch=0.3, mouthLowerDown=0.2, mouthUpperUp=0.15
    ),
    "O": both_sides(jawOpen=0.5, mouthFunnel=0.55, mouthPucker=0.2),
    "U": both_sides(jawOpen=0.22, mouthPucker=0.7, mouthFunnel=0.35),
}
