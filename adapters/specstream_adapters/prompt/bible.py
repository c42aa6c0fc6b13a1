"""The subject bible: a story's subjects, their looks, and the place, as the text introduced them.

It is kept across shots and, on request, turns. It looks words up and knows no grammar: what it misses
is still in the sentence's own words, which go into the prompt.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from specstream_adapters.prompt.visible import gender, is_someone, kind

__all__ = ["Bible", "Subject", "pronouns"]

_SUBJECTS = 32  # most subjects remembered; the one named longest ago is forgotten first
_AT = {  # words that lead to a place, by the word that stands before it in a prompt
    "in": "in inside into entered",
    "on": "on onto",
    "at": "at to reached",
} | {word: word for word in "near beside under through across along behind above outside".split()}
_HOW = {word: how for how, words in _AT.items() for word in words.split()}
_PREPOSITIONS = frozenset(_HOW) | frozenset("from of for by over with like than as beneath".split())
_FUNCTION = _PREPOSITIONS | frozenset(  # no name begins with one of these, no noun phrase holds one
    "the a an and but so when while after before if this that these those there here he she it they "
    "we you i him them his her its their my our your one two three four some all each every no not "
    "nobody everyone everybody someone somebody something everything nothing what who which how why "
    "where then now today tonight yesterday tomorrow once later soon still yes well oh below until "
    "meanwhile instead however perhaps or is was are were be had has have did do only just even "
    "red white black blue green grey".split()
)
_THE = "(?:an?|the|his|her|its|their|my|our)"
_ARTICLES = frozenset(("a", "an", "the", "two", "three"))
_WORD = re.compile(r"[\w’'-]+")
_CAPITAL = r"[A-Z](?:[\w-]|['’](?!s\b))*\w"
_NAME = re.compile(  # "a shy baker called Anselm"; "Mara, a lighthouse keeper"
    rf"(?P<called>\b(?i:{_THE}) (?:(?:of )?(?:the|(?!{_THE}\b)[\w’'-]+) ){{1,6}}?(?:named|called) )?"
    rf"\b(?P<name>(?:(?:Mr|Mrs|Ms|Dr|Prof|St)\. |(?!(?i:{'|'.join(sorted(_FUNCTION))})\b)){_CAPITAL}"
    rf"(?: {_CAPITAL})*)(?P<who>, an? (?:[\w’'-]+ ){{0,5}}?[\w’'-]+(?=[,.;:!?—–]|$))?"
)
_INTRODUCED = re.compile(r"\b(an?|the|two|three|four|some) (?=((?:[\w’-]+ ?){1,4}))", re.I)
_PLACED = re.compile(
    rf"\b(?P<how>(?i:{'|'.join(_HOW)})) (?={_THE} (?P<where>(?:[\w’'-]+(?: |\b)){{1,6}}))"
)
_PRONOUN = re.compile(r"\b(he|she|they|him|his|hers?|them|theirs?|its?)\b", re.I)
_CASES = {"him": "he", "his": "he", "her": "she", "hers": "she", "them": "they", "their": "they",
          "theirs": "they", "its": "it"}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Subject:
    """Somebody or something that a story is about.

    Attributes:
        name: The words by which the text refers to it: "Rusty", "bear".
        look: As introduced: "a brave little fox named Rusty", "a brown bear".
        pronoun: "he", "she", "it" or "they"; "" while the text has not told.
    """

    name: str
    look: str
    pronoun: str = ""

    @property
    def proper(self) -> bool:
        """Whether ``name`` is a proper name."""
        return self.name[:1].isupper()

    @property
    def definite(self) -> str:
        """The words that take the place of a pronoun: "Rusty", "the brown bear"."""
        return self.name if self.proper else re.sub(r"^(?:an?|some) ", "the ", self.look)

    def position(self, text: str) -> int:
        """Where a text first has one of the name's words; -1 where it has none.

        "Ilya" stands for "Captain Ilya Voss", too.
        """
        found = re.search(rf"\b(?:{'|'.join(map(re.escape, self.name.split()))})(?:\b|$)", text)
        return found.start() if found else -1


def pronouns(text: str) -> list[str]:
    """The pronouns of a sentence that stand for somebody or something named outside of it."""
    found = []
    for match in _PRONOUN.finditer(text):
        before = _WORD.findall(text[: match.start()])
        if _nominative(match[0]) in ("he", "she"):
            inside = any(is_someone(word) or _is_name(word) for word in before)
        else:
            inside = any(word in _ARTICLES or word.endswith("s") for word in map(str.lower, before))
        if not inside:
            found.append(match[0])
    return found


def _is_name(word: str) -> bool:
    return word[0].isupper() and word.lower() not in _FUNCTION and not kind(word)


def _nominative(pronoun: str) -> str:
    return _CASES.get(pronoun.lower(), pronoun.lower())


def _oblique(before: str) -> bool:
    """Whether what follows ``before`` is most likely no subject: a preposition leads to it."""
    words = before.lower().removesuffix("the ").split()
    return bool(words) and before[-1:] == " " and words[-1] in _PREPOSITIONS


def _named(text: str) -> Iterator[Subject]:
    """Yield the subjects with a proper name that a sentence introduces."""
    for found in _NAME.finditer(text):
        name, words = found["name"], found["name"].split()
        if found["called"]:
            look = found["called"] + name
            yield Subject(name, look[:1].lower() + look[1:])
        elif kind(words[-1]) in ("something", "site", "doing"):
            continue  # "Baker Street", "Flour"
        elif _is_subject(found):
            yield Subject(name, name + (found["who"] or ""))


def _is_subject(name: re.Match[str]) -> bool:
    """Whether a capitalised word most likely names somebody, by its title or by what somebody does."""
    words = name["name"].split()
    if words[0].endswith(".") or any(map(is_someone, words)):
        return True
    following = _WORD.match(name.string, name.end() + 1)
    acts = following is not None and kind(following[0]) == "doing"
    return (acts or name["who"] is not None) and not _oblique(name.string[: name.start()])


def _described(text: str) -> Iterator[Subject]:
    """Yield the subjects without a name that a sentence introduces: "a small brown dog"."""
    for found in _INTRODUCED.finditer(text):
        article, look = found[1].lower(), found[1].lower()
        for word in found[2].split():
            if word in _FUNCTION or word[0].isupper() or _oblique(text[: found.start()]):
                break
            look += f" {word}"
            if is_someone(word):
                many = article in ("two", "three", "four", "some")
                yield Subject(word, look, "they" if many else "".join(gender(word)))
                break


def _place(text: str) -> str:
    """Where a sentence says that it happens: a preposition and a noun phrase that ends with a site."""
    for found in _PLACED.finditer(text):
        how = found["how"]
        words = found["where"].split()
        article = text[found.end() :].split(maxsplit=1)[0]
        for at, word in enumerate(words):
            follows = kind(words[at + 1]) if at + 1 < len(words) else ""
            if kind(word) == "site" and follows not in ("something", "site"):
                how = _HOW[how] if how in _HOW else how
                return " ".join([how, article, *words[: at + 1]])
            if word in _FUNCTION and "of" not in (word, words[at - 1]):
                break
    return ""


@dataclass(slots=True)
class Bible:
    """The subjects and the place learned from the sentences so far."""

    subjects: dict[str, Subject] = field(default_factory=dict)  # by name; the last named is last
    place: str = ""

    def copy(self) -> Bible:
        """An independent copy."""
        return Bible(dict(self.subjects), self.place)

    @property
    def names(self) -> frozenset[str]:
        """The words of all proper names."""
        return frozenset(w for s in self.subjects.values() if s.proper for w in s.name.split())

    def read(self, text: str) -> bool:
        """Learn from the next sentence; return whether it leads to another place."""
        for subject in (*_named(text), *_described(text)):
            known = any(subject.look in other.look for other in self.subjects.values())
            again = subject.look.startswith("the ") and subject.name in self.subjects
            part = subject.proper and any(subject.name in name for name in self.subjects)
            if not (known or again or part):
                self._put(subject)
        for subject in self.named_in(text):
            self._put(subject)
        place = _place(text)
        self.place = place or self.place
        return bool(place)

    def named_in(self, text: str) -> list[Subject]:
        """The known subjects that a text mentions, in its order."""
        found = [(at, s) for s in self.subjects.values() if (at := s.position(text)) >= 0]
        return [subject for _, subject in sorted(found, key=lambda found: found[0])]

    def meant_by(self, pronoun: str) -> Subject | None:
        """The subject named last for which ``pronoun`` ("her", …) can stand; it keeps the pronoun."""
        pronoun = _nominative(pronoun)
        for subject in reversed(self.subjects.values()):
            unknown = not subject.pronoun and (
                pronoun in ("he", "she") or (pronoun == "it" and kind(subject.name) == "animal")
            )
            if unknown or subject.pronoun == pronoun:
                self.subjects[subject.name] = found = replace(subject, pronoun=pronoun)
                return found
        return None

    def _put(self, subject: Subject) -> None:
        """Make a subject the latest."""
        self.subjects.pop(subject.name, None)
        self.subjects[subject.name] = subject
        if len(self.subjects) > _SUBJECTS:
            del self.subjects[next(iter(self.subjects))]
