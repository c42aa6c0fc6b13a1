"""How a shot looks: its camera, its mood, and the prompt that says it all."""

from __future__ import annotations

import re
from dataclasses import dataclass

from specstream_adapters.prompt.lexicon import FEELING, MOTION, PERCEPTION, SPEECH

__all__ = ["Draft", "Moment", "camera_for", "compose", "mood_of"]

_MOODS = {
    "warm": "smile happy laugh grin joy joyful love proud wink wave cheerful glad chuckle giggle",
    "sombre": "sad cry sob tearful sorrow frown grief lonely",
    "tense": "worried afraid fear scared nervous anxious panic shiver tremble",
    "weary": "sigh tired sleepy",
    "astonished": "surprised surprise wide gasp shocked amazed",
    "fierce": "angry anger furious shout yell",
    "hushed": "whisper quiet quietly pause silence",
    "pensive": "think thinking thoughtful serious ponder hmm",
    "curious": "lean look point tilt confused puzzled",
    "determined": "nod determined brave confident",
}
_MOOD_OF = {tag: mood for mood, tags in _MOODS.items() for tag in tags.split()}
_CLOSE_MOODS = frozenset(("astonished", "sombre", "tense", "hushed", "fierce", "weary"))
_LONGEST_ACTION = 170
_LONGEST_LINE = 160


def mood_of(tags: tuple[str, ...]) -> str:
    """The mood that the last telling tag gives ("" for none): "[wide eyes]" is "astonished"."""
    for tag in reversed(tags):
        for word in re.findall(r"[a-z]+", tag.lower()):
            stems = (word, *(word.removesuffix(end) for end in ("s", "ing", "ed", "d")))
            for stem in stems:
                if stem in _MOOD_OF:
                    return _MOOD_OF[stem]
    return ""


@dataclass(frozen=True, slots=True)
class Moment:
    """What a shot is about, before it has a camera.

    ``action`` is in the text's own words, ``shown`` the same as a caption says it, ``line`` what is
    spoken. ``local`` says that the action itself names where it is.
    """

    action: str
    shown: str
    verb: str = ""
    line: str = ""
    mood: str = ""
    extras: tuple[str, ...] = ()
    local: bool = False
    new_place: bool = False
    arrives: bool = False
    talk: bool = False
    order: bool = False


@dataclass(frozen=True, slots=True)
class Draft:
    """A shot in parts; `compose` puts them into one prompt."""

    subject: str
    moment: Moment
    camera: str
    place: str
    time: str = ""
    air: str = ""
    extras: tuple[str, ...] = ()
    mood: str = ""

    @property
    def setting(self) -> str:
        """Where and when."""
        return ", ".join(part for part in (self.place, self.time) if part)


def camera_for(moment: Moment, *, first: bool, animate: bool, plural: bool, large: bool) -> str:
    """The shot size and angle that a story calls for at this point.

    ``animate``, ``plural`` and ``large`` describe the subject; ``first`` opens the shot list.
    """
    verb = moment.verb
    if moment.order:
        return "overhead close-up"
    if moment.talk:
        return "medium shot" if first else "medium close-up"
    if first:
        return "establishing wide shot"
    if moment.arrives:
        return "over-the-shoulder shot"
    if moment.line or verb in SPEECH:
        return "close-up"
    if moment.new_place or large:
        return "wide shot"
    if verb in PERCEPTION and re.search(r"\bup\b", moment.action):
        return "low-angle shot"
    if verb in MOTION and animate:
        return "tracking shot"
    if animate and (verb in FEELING or moment.mood in _CLOSE_MOODS):
        return "close-up"
    if verb in PERCEPTION:
        return "medium close-up"
    if plural:
        return "wide shot"
    return "medium shot" if animate else "insert shot"


def compose(draft: Draft, style: str) -> str:
    """One line for a picture or video model: shot, action, place, air, spoken line, mood, style."""
    moment = draft.moment
    shown = _shorten(moment.shown, _LONGEST_ACTION)
    comma = "," if "," in draft.subject and shown else ""
    parts = [f"{draft.camera} of {draft.subject}{comma} {shown}".strip(), *draft.extras]
    told = " ".join(parts)
    parts += [w for w in ("" if moment.local else draft.place, draft.time) if not _says(told, w)]
    line = f"Dialogue: {_shorten(moment.line.strip(' ,'), _LONGEST_LINE)}" if moment.line else ""
    mood = f"{draft.mood} mood" if draft.mood else ""
    sentences = [", ".join(part for part in parts if part), draft.air, line, mood, style]
    text = " ".join(_sentence(s) for s in sentences if s)
    return re.sub(r"\s+([,.!?;:])", r"\1", re.sub(r"\s+", " ", text)).strip()


def _says(told: str, where: str) -> bool:
    """Whether the place or time is in the text already; "into the bar" says "in the bar" too."""
    core = where.partition(" ")[2] or where
    return re.search(rf"\b{re.escape(core)}\b", told, re.IGNORECASE) is not None


def _sentence(text: str) -> str:
    text = text.strip(" ,")
    return text[:1].upper() + text[1:] + ("" if text[-1:] in ".!?…" else ".")


def _shorten(text: str, limit: int) -> str:
    """At most ``limit`` characters, cut where a clause or at least a word ends."""
    text = re.sub(r"\s+", " ", text).strip()
    if len(text) <= limit:
        return text
    head = text[: limit + 1]
    cut = max(head.rfind(mark) for mark in (", ", "; ", ". "))
    return head[: cut if cut > limit // 2 else head.rfind(" ")].rstrip(" ,;")
