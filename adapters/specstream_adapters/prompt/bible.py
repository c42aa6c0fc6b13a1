"""The subject bible: who is in the story, in the words that introduced them."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from specstream_adapters.prompt.lexicon import (
    FEELING,
    FEMALE,
    MALE,
    PERCEPTION,
    PLACES,
    PREPOSITIONS,
    SPEECH,
)
from specstream_adapters.prompt.nouns import NounPhrase

__all__ = ["Bible", "Subject"]

_CAPACITY = 48
_CLASS = {
    "he": "he", "him": "he", "his": "he", "she": "she", "her": "she", "it": "it", "its": "it",
    "they": "they", "them": "they", "their": "they", "these": "they", "those": "they",
    "this": "it", "that": "it", "who": "",
}  # fmt: skip
_SPEAKER = frozenset("i me my we us our you your".split())
_LIVELY = SPEECH | FEELING | PERCEPTION
_AFTER_CORE = re.compile(
    r"(?:,| with | without | in | of | on | at | who | named | called | known ).*"
)


@dataclass(slots=True)
class Subject:
    """Somebody or something that a shot can show; ``description`` is carried word for word."""

    description: str
    heads: set[str]
    name: str = ""
    pronoun: str = ""
    animate: bool = False
    plural: bool = False
    used: int = 0
    shown: int = 0

    @property
    def short(self) -> str:
        """A name, or the description without its details: "Mara", "the snow leopard"."""
        if self.name:
            return self.name
        return re.sub(r"^(?:an?|some|another) ", "the ", _AFTER_CORE.sub("", self.description))


@dataclass(slots=True)
class Bible:
    """Finds the subject that a noun phrase means, or takes it in as a new one."""

    speaker: Subject
    subjects: list[Subject] = field(default_factory=list)
    clock: int = 0

    @property
    def names(self) -> frozenset[str]:
        """Every word of every name so far, in lower case."""
        return frozenset(w.lower() for s in self.subjects for w in s.name.split())

    @property
    def characters(self) -> list[Subject]:
        """Who is surely alive, the latest first."""
        alive = [s for s in self.subjects if s.animate]
        return sorted(alive, key=lambda s: s.used, reverse=True)

    @property
    def lead(self) -> Subject | None:
        """The character that was shown most often; of equals the one that came first."""
        alive = [s for s in self.subjects if s.animate]
        return max(alive, key=lambda s: s.shown, default=None)

    def resolve(self, phrase: NounPhrase, verb: str = "") -> Subject | None:
        """Whom ``phrase`` means in a clause with ``verb``; None for an unclear pronoun."""
        found = self._find(phrase, verb)
        if found is None:
            return None
        self.touch(found)
        acts = bool(found.name) and verb not in ("", "be") or verb in _LIVELY
        found.animate = found.animate or (acts and not found.heads & PLACES)
        return found

    def _find(self, phrase: NounPhrase, verb: str) -> Subject | None:
        if phrase.kind == "pronoun":
            return self._pronoun(phrase.head, verb)
        parts = re.split(r",? and ", phrase.text)
        if phrase.plural and len(parts) > 1:
            return self._joined([self._part(part) for part in parts])
        known = self._known(phrase)
        if known is not None:
            self._learn(known, phrase)
            return known
        return self._add(phrase)

    def _pronoun(self, pronoun: str, verb: str = "") -> Subject | None:
        if pronoun in _SPEAKER:
            return self.speaker
        wanted = _CLASS.get(pronoun, "")
        latest = sorted(self.subjects, key=lambda s: s.used, reverse=True)
        if wanted == "they":
            if latest and latest[0].plural:
                return latest[0]
            pair = self.characters[:2]
            return self._joined(sorted(pair, key=lambda s: -s.shown)) if len(pair) == 2 else None
        fitting = [s for s in latest if s.pronoun == wanted]
        unknown = [s for s in latest if not s.pronoun and not s.plural]
        alive = [s for s in unknown if s.animate]
        if wanted in ("he", "she"):
            unknown = alive or [s for s in unknown if s.name]
        elif verb in _LIVELY:
            fitting, unknown = [s for s in fitting if s.animate], alive or unknown
        if not (fitting or unknown):
            return None
        chosen = (fitting or unknown)[0]
        chosen.pronoun = wanted
        chosen.animate = chosen.animate or wanted != "it"
        return chosen

    def _known(self, phrase: NounPhrase) -> Subject | None:
        names = {w.lower() for w in phrase.name.split()}
        words = _content(phrase.text)
        for subject in sorted(self.subjects, key=lambda s: s.used, reverse=True):
            if names and names & subject.heads and (phrase.kind == "name" or not subject.name):
                return subject
            if phrase.name and subject.name:
                continue
            if phrase.text == subject.description:
                return subject
            same_head = phrase.head in subject.heads and phrase.kind == "definite"
            if same_head and words <= _content(subject.description) | {phrase.head}:
                return subject
        return None

    def _learn(self, subject: Subject, phrase: NounPhrase) -> None:
        """A name gets its first description, a description its first name."""
        if (
            phrase.described
            and phrase.name
            and (not subject.name or subject.description == subject.name)
        ):
            subject.description = phrase.text
        subject.name = subject.name or phrase.name
        subject.heads |= _heads(phrase)

    def _add(self, phrase: NounPhrase) -> Subject:
        text = phrase.text
        if phrase.kind == "possessive" and " " in text:
            owner = self.owner(phrase)
            text = text if owner is None else f"{owner.short}'s {text.partition(' ')[2]}"
        heads = _heads(phrase)
        gender = "she" if heads & FEMALE else "he" if heads & MALE else ""
        subject = Subject(
            text, heads, phrase.name, gender, phrase.animate, phrase.plural, used=self.clock
        )
        self.subjects.append(subject)
        if len(self.subjects) > _CAPACITY:
            self.subjects.remove(min(self.subjects, key=lambda s: (s.animate, s.used)))
        return subject

    def _part(self, text: str) -> Subject:
        """One side of "Mara and the owl": somebody known, or new."""
        words = set(text.lower().split())
        for subject in sorted(self.subjects, key=lambda s: s.used, reverse=True):
            if words & {w.lower() for w in subject.name.split()}:
                return subject
            if text.split()[-1].lower() in subject.heads and not text.startswith(("a ", "an ")):
                return subject
        name = text if text[:1].isupper() else ""
        return self._add(NounPhrase(text, text.split()[-1].lower(), "bare", name))

    @staticmethod
    def _joined(parts: list[Subject]) -> Subject:
        """Several at once; not an entry of its own."""
        texts = [p.description + ("," if "," in p.description else "") for p in parts[:-1]]
        text = " ".join(texts) + f" and {parts[-1].description}"
        animate = any(p.animate for p in parts)
        return Subject(text, set(), pronoun="they", animate=animate, plural=True)

    def find(self, phrase: NounPhrase) -> Subject | None:
        """Whom ``phrase`` means, if that is somebody known; takes in nobody."""
        return self._pronoun(phrase.head) if phrase.kind == "pronoun" else self._known(phrase)

    def enter(self, subject: Subject) -> None:
        """Make ``subject`` (the speaker, who tells their own story) one of the characters."""
        if subject not in self.subjects:
            self.subjects.append(subject)

    def owner(self, phrase: NounPhrase) -> Subject | None:
        """Whose thing "her lantern" is."""
        determiner = phrase.text.split()[0].lower()
        return self._pronoun(_CLASS.get(determiner, determiner))

    def touch(self, subject: Subject) -> None:
        """Make ``subject`` the one that was spoken of last."""
        self.clock += 1
        subject.used = self.clock

    def rename(self, name: str, subject: Subject) -> None:
        """Take in "Her name was Mara": the description gets a name."""
        subject.name = name
        subject.heads |= {w.lower() for w in name.split()}
        subject.description = f"{name}, {subject.description}"
        subject.animate = True

    def describe(self, subject: Subject, text: str) -> None:
        """Take in "Mara was a lighthouse keeper": the name gets a description."""
        if subject.description == subject.name:
            subject.description = f"{subject.name}, {text}"
            subject.heads.add(_AFTER_CORE.sub("", text).split()[-1].lower())
            subject.animate = True


def _content(text: str) -> set[str]:
    skipped = PREPOSITIONS | {"a", "an", "the", "this", "that", "and", "named", "called"}
    return {w.strip(",").lower() for w in text.split()} - skipped


def _heads(phrase: NounPhrase) -> set[str]:
    """The nouns that it answers to: "keeper" and "mara" for "Mara, a lighthouse keeper"."""
    parts = [_AFTER_CORE.sub("", part.strip()) for part in phrase.text.split(",")]
    heads = {part.split()[-1].lower() for part in parts if part.split()}
    return heads | {phrase.head} | {w.lower() for w in phrase.name.split()}
