"""How a shot looks: its camera, its mood, and the prompt that says it all."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from specstream_adapters.prompt.lexicon import FEELING, MOTION, PERCEPTION, SPEECH

__all__ = ["Draft", "camera_for", "compose", "mood_of"]

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
_LONGEST_SPEECH = 100


def mood_of(tags: tuple[str, ...]) -> str:
    """The mood that the last telling tag gives ("" for none): "[wide eyes]" is "astonished"."""
    for tag in reversed(tags):
        for word in re.findall(r"[a-z]+", tag.lower()):
            for stem in (word, word.removesuffix("s"), word.removesuffix("ing"), word.removesuffix("ed")):
                if stem in _MOOD_OF:
                    return _MOOD_OF[stem]
    return ""


@dataclass(slots=True)
class Draft:
    """What is known of a shot before it is put into one prompt.

    ``action`` is in the text's own words; ``shown`` is the same as a caption would say it.
    """

    subject: str
    action: str
    shown: str
    place: str
    time: str
    camera: str
    mood: str = ""
    atmosphere: str = ""
    extras: list[str] = field(default_factory=list)

    @property
    def setting(self) -> str:
        """Where and when."""
        return ", ".join(part for part in (self.place, self.time) if part)


def camera_for(
    verb: str,
    *,
    first: bool,
    talk: bool = False,
    speech: bool = False,
    arrives: bool = False,
    new_place: bool = False,
    animate: bool = True,
    plural: bool = False,
    action: str = "",
    mood: str = "",
) -> str:
    """The shot size and angle that a story calls for at this point."""
    if first:
        return "medium shot" if talk else "establishing wide shot"
    if talk:
        return "medium close-up"
    if arrives:
        return "over-the-shoulder shot"
    if speech or verb in SPEECH:
        return "close-up"
    if new_place:
        return "wide shot"
    if verb in PERCEPTION and re.search(r"\bup\b", action):
        return "low-angle shot"
    if verb in MOTION and animate:
        return "tracking shot"
    if verb in FEELING or mood in _CLOSE_MOODS:
        return "close-up"
    if verb in PERCEPTION:
        return "medium close-up"
    if not animate:
        return "insert shot"
    return "wide shot" if plural else "medium shot"


def compose(draft: Draft, style: str) -> str:
    """One line for a picture or video model: shot, subject, action, place, air, mood, style."""
    subject = draft.subject + ("," if "," in draft.subject and draft.shown else "")
    lines = [_sentence(f"{draft.camera} of {subject} {_shorten(draft.shown, _LONGEST_ACTION)}".strip())]
    shown = " ".join([draft.shown, *draft.extras]).lower()
    more = [part for part in draft.extras if part]
    more += [part for part in (draft.place, draft.time) if part and part.lower() not in shown]
    if more:
        lines[0] = ", ".join([lines[0], *more])
    lines += [_sentence(part) for part in (draft.atmosphere, draft.mood and f"{draft.mood} mood", style) if part]
    text = " ".join(line if line[-1] in ".!?…" else f"{line}." for line in lines)
    return re.sub(r"\s+([,.!?;:])", r"\1", re.sub(r"\s+", " ", text)).strip()


def speech(verb: str, words: str) -> str:
    """Somebody says something, without quotation marks (models would draw them)."""
    return f"{verb}: {_shorten(words.strip(' ,'), _LONGEST_SPEECH)}"


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


def _shorten(text: str, limit: int) -> str:
    """At most ``limit`` characters, cut where a clause or at least a word ends."""
    text = re.sub(r"\s+", " ", text).strip()
    if len(text) <= limit:
        return text
    head = text[: limit + 1]
    cut = max(head.rfind(mark) for mark in (", ", "; ", ". "))
    return head[: cut if cut > limit // 2 else head.rfind(" ")].rstrip(" ,;")
