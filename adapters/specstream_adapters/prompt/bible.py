"""The subject bible: who a story is about and where it plays, in the words that introduced them.

No parser of English: a subject is learnt where the text names and describes it ("a fox named Rusty",
"Rusty, a brave little fox"), a place where a short phrase with a preposition of place ends a clause.
Whatever these patterns do not find is not carried; the sentence itself still goes into the prompt.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

__all__ = ["Bible", "Seen"]

_FIRST = r"(?!(?:The|An?|In|On|At|From|To|Of|By|For|And|But|So|When|After|Before|As|If)\b)"
_TITLE = r"(?:(?:Mr|Mrs|Ms|Dr|Prof|St)\. )"
_CAPITALISED = r"[A-Z][\w’'-]*\w"
_NAME = rf"{_FIRST}{_TITLE}?{_CAPITALISED}(?: {_CAPITALISED})*"
_WORDS = r"(?:[\w’'-]+ ){0,5}?[\w’'-]+"
_PREPOSITIONS = "In In On on At at From from To to Of of Near near For for The the By by".split()
_FREE = "".join(rf"(?<!\b{word} )" for word in _PREPOSITIONS)  # not the name of a place or a time
_INTRODUCTIONS = (
    re.compile(
        rf"\b(?P<all>(?i:an?|the|his|her|my|our|their) {_WORDS} (?:named|called) (?P<name>{_NAME}))"
    ),
    re.compile(rf"{_FREE}\b(?P<all>(?P<name>{_NAME}), an? {_WORDS})(?=[,.;:!?—–]|$)"),
    re.compile(rf"{_FREE}\b(?P<all>(?P<name>(?={_TITLE}|{_CAPITALISED} [A-Z]){_NAME}))\b"),
)
_NO_NAME = re.compile(
    r"^(?:\w+ly|Then|Now|Today|Tonight|Yesterday|Tomorrow|Once|Later|Soon|There|Here|Still|And|But|So|"
    r"Yes|No|Well|Oh|Outside|Inside|Above|Below|Meanwhile|Instead|However|Perhaps|When|While|As|If|I)\b"
)
_PLACE = re.compile(
    rf"\b(?:(?:in|inside|on|at|near|beside|beneath|under|through|across|along|behind|above|outside) an?"
    rf"|(?:in|inside|at) (?:the|his|her|its|their)) {_WORDS}(?=[,.;:!?—–]|$| and | where | with )"
)
_NO_PLACE = re.compile(
    r"\b(?:moment|minutes?|hours?|days?|night|morning|evening|years?|times?|end|beginning|way|while|"
    r"hurry|whisper|voice|first|last|same|side|heart|mind|eyes|hands?|arms?|face|head|panic|silence|"
    r"dark|distance|air|sky|sun|wind|rain|row|line)$"
)
_NOMINATIVE = re.compile(r"^(?P<before>[\"“‘(\s]*)(?:He|She|They)(?= [a-z])")
_THIRD_PERSON = re.compile(r"\b(?:he|she|him|his|hers?|they|them|theirs?)\b", re.IGNORECASE)
_SUBJECTS = 32  # remembered at once; the one that was named longest ago is forgotten first


@dataclass(frozen=True, slots=True)
class Seen:
    """What one sentence shows.

    Attributes:
        text: The sentence; a pronoun that began it is replaced by the name it stands for.
        subject: Who it is about, as introduced; "" where nobody is known.
        place: Where, as last told; "" where that is unknown.
        new_place: Whether this sentence names the place.
        anchor: Where a pronoun stands for nobody with a name: the last sentence that had no pronoun.
    """

    text: str
    subject: str
    place: str
    new_place: bool
    anchor: str = ""


@dataclass(slots=True)
class Bible:
    """Learns from each sentence and says what it shows."""

    subjects: dict[str, str] = field(default_factory=dict)  # name → as introduced, newest last
    current: str = ""  # the name that a pronoun stands for
    place: str = ""
    anchor: str = ""

    def copy(self) -> Bible:
        """An independent copy."""
        return Bible(dict(self.subjects), self.current, self.place, self.anchor)

    def read(self, text: str) -> Seen:
        """Take the next sentence of a story."""
        for pattern in _INTRODUCTIONS:
            for found in pattern.finditer(text):
                known = any(found["name"] in name for name in self.subjects)
                if not known and not _NO_NAME.match(found["name"]):
                    self._introduce(found["name"], found["all"])
        named = self._first_named(text)
        if named:
            self.current = named
        elif self.current:
            name = self.current
            text = _NOMINATIVE.sub(lambda found: found["before"] + name, text, count=1)
            named = name if _mentions(text, name) or _THIRD_PERSON.search(text) else ""
        place = next((p[0] for p in _PLACE.finditer(text) if not _NO_PLACE.search(p[0])), "")
        self.place = place or self.place
        unnamed = bool(_THIRD_PERSON.search(text)) and not named
        anchor = self.anchor if unnamed else ""
        if not unnamed:
            self.anchor = text
        return Seen(text, self.subjects.get(named, named), self.place, bool(place), anchor)

    def _introduce(self, name: str, description: str) -> None:
        self.subjects.pop(name, None)
        self.subjects[name] = description[:1].lower() + description[1:]
        if description.startswith(name):
            self.subjects[name] = description
        if len(self.subjects) > _SUBJECTS:
            del self.subjects[next(iter(self.subjects))]

    def _first_named(self, text: str) -> str:
        """The known name whose first word comes first in a text."""
        at = {
            min(text.find(word) for word in name.split() if word in text): name
            for name in self.subjects
            if _mentions(text, name)
        }
        return at[min(at)] if at else ""


def _mentions(text: str, name: str) -> bool:
    """Whether a text has one of a name's words: "Ilya" stands for "Captain Ilya Voss", too."""
    return any(re.search(rf"\b{re.escape(word)}\b", text) for word in name.split())
