"""The subject bible: who a story is about, how they look, where it plays, as the text introduced them.

Kept across shots and, on request, turns. Subjects and places are recognised in English only.
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
from specstream_adapters.prompt.visible import is_animal

__all__ = ["Bible"]

_SUBJECTS = 32  # remembered at once; the one that was named longest ago is forgotten first
_WORDS = r"(?:[\w’'-]+ ){0,5}?[\w’'-]+"
_END = r"(?=[,.;:!?—–]|$| and | where | with )"
_GROUND = "|".join(
    "beach island ship deck boat hill hillside roof bridge road street square platform mountain "
    "cliff pier field farm stage shore river lake meadow train plain terrace balcony raft ferry "
    "planet desert coast pass bench lawn ice tower bay sea bed rooftop porch path trail".split()
)
_SPOT = "edge|top|foot|bottom|end|gates?|window|table|station|counter|market|corner"
_PLACE = re.compile(
    rf"\b(?:(?:in|inside|at|near|beside|beneath|under|through|across|along|behind|above|outside) an?"
    rf"|in(?:side)? (?:the|his|her|its|their)|at the (?:{_SPOT})(?: of (?:an?|the))?) {_WORDS}{_END}"
    rf"|\b(?:on|across) an? (?:[\w’'-]+ ){{0,3}}(?:{_GROUND})(?: of {_WORDS})?{_END}"
)
_NOWHERE = "|".join(
    "moment minutes? hours? days? nights? mornings? evenings? afternoons? years? times? end "
    "beginning way while hurry whisper voice first last same side heart minds? eyes hands? arms? "
    "face head panic silence dark distance air sky sun wind rain row line once fashion case tone "
    "manner look glance rest truth joy state fact water foam noise sound sight book fear delight "
    r"eagerness like \w*coat hat dress cloak uniform pyjamas suit gown boots scarf hood".split()
)
_NO_PLACE = re.compile(rf"\b(?:{_NOWHERE})\b")


@dataclass(slots=True)
class Bible:
    """Learns from each sentence; bounded."""

    subjects: dict[str, Subject] = field(default_factory=dict)  # by name; named last, comes last
    place: str = ""

    def copy(self) -> Bible:
        """An independent copy."""
        return Bible(dict(self.subjects), self.place)

    @property
    def names(self) -> frozenset[str]:
        """The words of all proper names."""
        return frozenset(w for s in self.subjects.values() if s.proper for w in s.name.split())

    def read(self, text: str) -> bool:
        """Learn from the next sentence; return whether it names a place."""
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
        for _, subject in sorted(named, key=lambda found: -found[0]):  # the first is meant most
            self._put(self.subjects.pop(subject.name))
        self._learn_pronoun(text)
        place = next((p[0] for p in _PLACE.finditer(text) if not _NO_PLACE.search(p[0])), "")
        self.place = place or self.place
        return bool(place)

    @property
    def latest(self) -> Subject | None:
        """The subject that was named last."""
        return next(reversed(self.subjects.values()), None)

    def first_named(self, text: str) -> Subject | None:
        """The known subject that a text mentions first."""
        places = {at: s for s in self.subjects.values() if (at := position(text, s)) >= 0}
        return places[min(places)] if places else None

    def meant_by(self, pronoun: str) -> Subject | None:
        """The subject named last for which a pronoun ("he", "her", …) can stand; it is remembered."""
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
        """The one subject before the first pronoun of a sentence is meant by it: "Alice and her cat"."""
        before, pronoun = first_pronoun(text)
        meant = [s for s in self.subjects.values() if self.mentions(before, s)]
        if len(meant) == 1 and not meant[0].pronoun:
            self.subjects[meant[0].name] = replace(meant[0], pronoun=pronoun)

    def _put(self, subject: Subject) -> None:
        self.subjects[subject.name] = subject
        if len(self.subjects) > _SUBJECTS:
            del self.subjects[next(iter(self.subjects))]
