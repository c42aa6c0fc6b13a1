"""Names of visemes, and tags such as ``[smile]`` as gestures and emotions."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

from specstream_adapters.checks import stems

__all__ = [
    "ARKIT_SHAPES",
    "CLOSURES",
    "DIRECTIONS",
    "NEUTRAL",
    "SHAPES",
    "SILENCE",
    "VISEMES",
    "Direction",
    "both_sides",
    "direct",
]

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
ARKIT_SHAPES = tuple(sorted([*_SINGLE, *(f"{s}{side}" for s in _SIDED for side in ("Left", "Right"))]))
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


Kind = Literal["viseme", "emotion", "gesture"]
_EMOTION_MS, _GESTURE_MS = 4000, 1200


@dataclass(frozen=True, slots=True)
class Direction:
    """What a face or body is to do. ``weights`` are ARKit blend shapes at their final values."""

    kind: Kind
    name: str
    duration_ms: int
    weight: float = 1.0
    weights: dict[str, float] = field(default_factory=dict)


def _emotion(name: str, duration_ms: int = _EMOTION_MS, **shapes: float) -> Direction:
    return Direction("emotion", name, duration_ms, 0.8, both_sides(**shapes))


def _gesture(name: str, duration_ms: int = _GESTURE_MS, **shapes: float) -> Direction:
    return Direction("gesture", name, duration_ms, 1.0, both_sides(**shapes))


NEUTRAL = Direction("emotion", "neutral", _EMOTION_MS, 1.0)
"""The face at rest: every expression's blend shapes go back to 0."""

_KNOWN = (
    NEUTRAL,
    _emotion("smile", mouthSmile=0.5, cheekSquint=0.25),
    _emotion("happy", mouthSmile=0.7, cheekSquint=0.45, browOuterUp=0.15),
    _emotion("excited", mouthSmile=0.75, eyeWide=0.35, browInnerUp=0.3, browOuterUp=0.3),
    _emotion("laugh", 2000, mouthSmile=0.9, cheekSquint=0.7, eyeSquint=0.5, mouthDimple=0.3),
    _emotion("love", mouthSmile=0.45, eyeSquint=0.25, browInnerUp=0.3),
    _emotion("proud", mouthSmile=0.35, browOuterUp=0.2, mouthShrugLower=0.2),
    _emotion("calm", mouthSmile=0.2, eyeBlink=0.15),
    _emotion("sad", mouthFrown=0.6, browInnerUp=0.7, eyeSquint=0.15, mouthShrugLower=0.25),
    _emotion("cry", mouthFrown=0.8, browInnerUp=0.8, eyeSquint=0.55, cheekSquint=0.3),
    _emotion("worried", browInnerUp=0.75, mouthFrown=0.3, mouthStretch=0.2, eyeWide=0.15),
    _emotion("afraid", browInnerUp=0.8, eyeWide=0.6, mouthStretch=0.4, browOuterUp=0.2),
    _emotion("surprised", 2500, browInnerUp=0.7, browOuterUp=0.7, eyeWide=0.7),
    _emotion("wide eyes", 2000, eyeWide=0.85, browOuterUp=0.4),
    _emotion("angry", browDown=0.8, noseSneer=0.4, eyeSquint=0.35, mouthPress=0.3),
    _emotion("disgusted", noseSneer=0.8, mouthUpperUp=0.3, browDown=0.4, mouthFrown=0.3),
    _emotion("confused", 3000, browDown=0.3, browInnerUp=0.4, mouthFrown=0.15, eyeSquint=0.2),
    _emotion("serious", browDown=0.35, mouthPress=0.15),
    _emotion("shy", mouthSmile=0.25, eyeLookDown=0.4, browInnerUp=0.25),
    _emotion("tired", eyeBlink=0.4, browInnerUp=0.2, mouthFrown=0.15),
    _gesture("sigh", 1500, browInnerUp=0.35, eyeBlink=0.5, mouthFrown=0.2),
    _gesture("wink", 350, eyeBlinkRight=1.0, cheekSquintRight=0.4),
    _gesture("blink", 200, eyeBlink=1.0),
    _gesture("think", 2000, eyeLookUp=0.45, browDown=0.25, mouthPress=0.2),
    _gesture("gasp", 800, eyeWide=0.7, browInnerUp=0.6, browOuterUp=0.5),
    _gesture("whisper", 2500, browInnerUp=0.15, eyeSquint=0.15),
    _gesture("shout", 1500, browDown=0.3, eyeWide=0.3),
    _gesture("shrug", 1200, browOuterUp=0.35, mouthShrugLower=0.35),
    _gesture("look up", eyeLookUp=0.6),
    _gesture("look down", eyeLookDown=0.6),
)
_BODY_MS = {  # gestures without blend shapes, and how long they take
    "nod": 900, "shake head": 1200, "point": 1200, "tilt head": 1500, "look away": 1500,
    "lean in": 1500, "lean back": 1500, "wave": 1500, "clap": 1500, "thumbs up": 1500, "bow": 1800,
    "open arms": 1800, "look around": 2000, "cross arms": 2000, "pause": 500,
}  # fmt: skip
DIRECTIONS = {known.name: known for known in _KNOWN}
DIRECTIONS |= {name: _gesture(name, ms) for name, ms in _BODY_MS.items()}
_SAME = {
    "grin": "smile", "chuckle": "laugh", "giggle": "laugh", "laughter": "laugh", "joy": "happy",
    "joyful": "happy", "cheerful": "happy", "delighted": "happy", "glad": "happy",
    "enthusiastic": "excited", "loving": "love", "tender": "love", "relaxed": "calm",
    "sadness": "sad", "unhappy": "sad", "frown": "sad", "sob": "cry", "tearful": "cry",
    "worry": "worried", "concerned": "worried", "anxious": "worried", "nervous": "worried",
    "fear": "afraid", "scared": "afraid", "fearful": "afraid", "frightened": "afraid",
    "surprise": "surprised", "shocked": "surprised", "astonished": "surprised",
    "amazed": "surprised", "eyes wide": "wide eyes", "anger": "angry", "furious": "angry",
    "annoyed": "angry", "disgust": "disgusted", "puzzled": "confused", "stern": "serious",
    "embarrassed": "shy", "sleepy": "tired", "thinking": "think", "thoughtful": "think",
    "ponder": "think", "hmm": "think", "head shake": "shake head", "headshake": "shake head",
    "yell": "shout", "gesture": "point", "tilt": "tilt head", "head tilt": "tilt head",
    "glance around": "look around", "lean forward": "lean in", "lean closer": "lean in",
    "thumb up": "thumbs up", "applaud": "clap", "wait": "pause", "beat": "pause",
    "silence": "pause",
}  # fmt: skip
_SCALES = dict.fromkeys("slightly softly gently faintly small little weakly quietly".split(), 0.6)
_SCALES |= dict.fromkeys("very big broadly widely brightly strongly really extremely".split(), 1.25)
_FILLERS = frozenset("a an the his her its their my your with again slowly quickly once".split())


def _look_up(words: list[str]) -> Direction | None:
    if not words:
        return None
    rest = " ".join(words[1:])
    for stem in stems(words[0]):
        name = f"{stem} {rest}".strip()
        name = _SAME.get(name, name)
        if name in DIRECTIONS:
            return DIRECTIONS[name]
    return None


def direct(tag: str) -> Direction:
    """Return the emotion or gesture that ``tag`` (without brackets) asks for.

    Verb forms and words such as "his", "her" and "the" don't matter; words of degree scale the result:
    ``[smiling softly]`` is a weak "smile". An unknown tag is a gesture of that name without weights.
    """
    plain = " ".join(tag.casefold().replace("_", " ").replace("-", " ").split())
    words = [word for word in plain.split() if word not in _FILLERS]
    factor = 1.0
    for word in words:
        factor *= _SCALES.get(word, 1.0)
    found = _look_up(words) or _look_up([word for word in words if word not in _SCALES])
    if found is None:
        return Direction("gesture", plain or tag, _GESTURE_MS)
    if factor == 1.0:
        return found
    weights = {shape: round(min(1.0, w * factor), 3) for shape, w in found.weights.items()}
    return replace(found, weight=round(min(1.0, found.weight * factor), 3), weights=weights)
