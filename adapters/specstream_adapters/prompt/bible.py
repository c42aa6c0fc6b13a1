"""The subject bible: a story's subjects, their looks, and the place, as the text introduced them.

It is kept across shots and, on request, turns. Subjects and places are recognised in English only.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace

from specstream_adapters.prompt.subjects import (
    Subject,
    described,
    first_pronoun,
    introduced,
    nominative,
    position,
)
from specstream_adapters.prompt.visible import is_animal, is_thing

__all__ = ["Bible"]

_SUBJECTS = 32  # most subjects remembered; the one named longest ago is forgotten first
_SITES = "|".join(
    (
        "beach island ship deck boat hill hillside roof bridge road street alley square platform "
        "mountain cliff pier harbour harbor farm barn stable stage shore bank riverside river lake "
        "pond meadow train station plain prairie terrace balcony raft ferry planet desert coast pass "
        "lawn ice tower bay sea ocean porch path trail village town city market forest woods? jungle "
        "cave valley garden park orchard vineyard swamp marsh canyon library church chapel temple "
        "castle palace fort office bakery kitchen hall corridor cellar attic cabin cottage hut tent "
        "cockpit inn tavern bar cafe café restaurant hotel school hospital prison cell museum theatre "
        "theater factory mill mine tunnel gate cemetery graveyard churchyard ruins bus car carriage "
        "tram plane spaceship lighthouse clearing glade snow dunes? stairs landing ledge dome saloon "
        "pub diner lobby camp dock quay jetty crater gallery staircase "
        r"\w*(?:house|(?<![bg])room|shop|yard|field|store|way)|\w*(?:hill|lake|sea|river|road|water)side"
    ).split()
)
_THE = r"(?:an?|the|his|her|its|their)"
_SITE = rf"(?:[a-z]+ of {_THE} )?(?:[\w’'-]+ ){{0,3}}?(?:{_SITES})s?"
_OF = rf"(?: (?:of|by|in) {_THE} (?:[\w’'-]+ ){{0,2}}?[\w’'-]+)?"
# What follows the last noun of a phrase: another noun would make the site a part of its name.
_ENDS = (
    r"(?=[,.;:!?—–]|$| (?:and|or|but|as|while|when|until|where|which|that|with|without|to|from|for|into|"
    r"onto|at|near|by|above|below|behind|beyond|between|under|before|after|like|there|he|she|it|they|\w+ed)\b)"
)
_PLACE = re.compile(
    r"\b(?:in|inside|on|at|near|beside|beneath|under|through|across|along|behind|above|outside)"
    rf" {_THE} {_SITE}{_OF}{_ENDS}"
)
_STANDS = (
    "was|were|is|are|stood|stands|sat|sits|lay|lies|lived|lives|hung|hangs|slept|waited|grew|rose"
)
_FRONTED = re.compile(  # "In the observation dome the old robot turned", "In a hut lived a witch"
    rf"^(?P<where>(?:In|Inside|On|At|Under|Outside|Behind|Across|Beside) {_THE} (?:[\w’'-]+ ){{0,2}}?"
    rf"(?P<head>[\w’'-]+)(?: of {_THE} (?:[\w’'-]+ )??(?P<of>[\w’'-]+))?"
    rf"(?: (?:by|in|near|behind|beside) {_THE} (?:[\w’'-]+ )??[\w’'-]+)?)"
    rf"(?:,| (?=(?:{_THE}|two|three|some|he|she|it|they|there|somebody|[A-Z][\w’'-]+"
    rf"|(?P<stands>{_STANDS}))\b))"
)
_WITHIN = ("In", "On", "At")
_MOVED = re.compile(  # "She walked to the mill": there she is in the next sentences
    rf"\b(?P<how>into|onto|to|entered|reached) (?P<where>{_THE} {_SITE}){_ENDS}"
)
_ARRIVED = {"into": "in", "entered": "in", "onto": "on", "to": "at", "reached": "at"}
_SUBJECT = re.compile(  # "The street was empty", "The kitchen windows had gone white"
    rf"^(?P<where>The (?:[\w’'-]+ ){{0,2}}?(?:{_SITES})s?)(?:{_OF}|(?: [a-z]+))"
    r" (?:was|were|is|are|had|lay|lies|stood|stands|hung|smelled|stretched|spread|opened)\b"
)


def _place(text: str) -> tuple[str, bool]:
    """The place that a sentence names or leads to ("" if none), and whether the story stays there."""
    if fronted := _FRONTED.match(text):
        head = fronted["of"] or fronted["head"]
        site = re.fullmatch(f"(?:{_SITES})s?", head) is not None
        if site or (is_thing(head) and not fronted["stands"]):
            return fronted["where"], site and text.startswith(_WITHIN)
    if found := _PLACE.search(text):
        return found[0], True
    if found := _SUBJECT.search(text):
        return found["where"], True
    found = _MOVED.search(text)
    return (f"{_ARRIVED[found['how']]} {found['where']}", True) if found else ("", False)


@dataclass(slots=True)
class Bible:
    """The subjects and the place learned from the sentences so far.

    ``place`` is that of the story; ``here`` that of the last sentence: "On the table" lies a letter, but
    nobody stays there.
    """

    subjects: dict[str, Subject] = field(default_factory=dict)  # by name; the last named is last
    place: str = ""
    here: str = ""

    def copy(self) -> Bible:
        """An independent copy."""
        return Bible(dict(self.subjects), self.place, self.here)

    @property
    def names(self) -> frozenset[str]:
        """The words of all proper names."""
        return frozenset(w for s in self.subjects.values() if s.proper for w in s.name.split())

    def read(self, text: str) -> bool:
        """Learn from the next sentence; return whether it leads to another place."""
        for subject in introduced(text):
            if not any(subject.name in other for other in self.subjects if other[:1].isupper()):
                self._put(subject)
        for subject in described(text):
            proper = [other.look for other in self.subjects.values() if other.proper]
            again = subject.look.startswith("the ") and subject.name in self.subjects
            if not again and not any(subject.look in look for look in proper):
                self.subjects.pop(subject.name, None)
                self._put(subject)
        named = [(at, s) for s in self.subjects.values() if (at := position(text, s)) >= 0]
        # The first in the sentence becomes the latest: a later pronoun most likely means that one.
        for _, subject in sorted(named, key=lambda found: -found[0]):
            self._put(self.subjects.pop(subject.name))
        self._learn_pronoun(text)
        place, stays = _place(text)
        if stays:
            self.place = place
        self.here = place or self.place
        return stays

    @property
    def latest(self) -> Subject | None:
        """The subject that was named last."""
        return next(reversed(self.subjects.values()), None)

    def first_named(self, text: str) -> Subject | None:
        """The known subject that a text mentions first."""
        places = {at: s for s in self.subjects.values() if (at := position(text, s)) >= 0}
        return places[min(places)] if places else None

    def meant_by(self, pronoun: str) -> Subject | None:
        """The subject named last for which ``pronoun`` ("her", …) can stand; it keeps the pronoun."""
        pronoun = nominative(pronoun)
        for subject in reversed(self.subjects.values()):
            unknown = not subject.pronoun and (
                pronoun in ("he", "she") or (pronoun == "it" and is_animal(subject.name))
            )
            if unknown or subject.pronoun == pronoun:
                self.subjects[subject.name] = found = replace(subject, pronoun=pronoun)
                return found
        return None

    def mentions(self, text: str, subject: Subject) -> bool:
        """Whether a text has one of a name's words: "Ilya" stands for "Captain Ilya Voss", too."""
        return position(text, subject) >= 0

    def _learn_pronoun(self, text: str) -> None:
        """Record a sentence's first pronoun for the one subject before it: "Alice and her cat"."""
        before, pronoun = first_pronoun(text)
        meant = [s for s in self.subjects.values() if self.mentions(before, s)]
        if len(meant) == 1 and not meant[0].pronoun:
            self.subjects[meant[0].name] = replace(meant[0], pronoun=pronoun)

    def _put(self, subject: Subject) -> None:
        self.subjects[subject.name] = subject
        if len(self.subjects) > _SUBJECTS:
            del self.subjects[next(iter(self.subjects))]
