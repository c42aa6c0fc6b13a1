"""The subject bible: a story's subjects, their looks, and the place, as the text introduced them.

It is kept across shots and, on request, turns. It looks words up and knows no grammar: what it misses
is still in the sentence's own words, which go into the prompt.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from specstream_adapters.prompt.visible import gender, is_someone, kind, stem

__all__ = ["Bible", "Pronoun", "Subject", "only_mentioned", "pronouns"]

_SUBJECTS = 32  # most subjects remembered; the one named longest ago is forgotten first
_AT = {  # words that lead to a place, by the word that stands before it in a prompt
    "in": "in inside into through entered",
    "on": "on onto",
    "at": "at to reached",
} | {word: word for word in "near beside under across along behind above outside".split()}
_HOW = {word: how for how, words in _AT.items() for word in words.split()}
_PREPOSITIONS = frozenset(_HOW) | frozenset(
    "from of for by over with like than as beneath after".split()
)
_FUNCTION = _PREPOSITIONS | frozenset(  # no noun phrase holds one of these
    "the a an and but so when while after before if this that these those there here he she it they "
    "we you i him them his her its their my our your one two three four some all each every no not "
    "nobody everyone everybody someone somebody something everything nothing what who which how why "
    "where then now today tonight yesterday tomorrow once later soon still yes well oh below until "
    "meanwhile instead however perhaps or is was are were be had has have did do only just even".split()
)
_NO_NAMES = _FUNCTION | frozenset("red white black blue green grey".split())  # none begins with one
_THE = "(?:an?|the|his|her|its|their|my|our)"
_ARTICLES = frozenset(("a", "an", "the", "two", "three"))
_WORD = re.compile(r"[\w’'-]+")
_BEGINS = re.compile(r"^\W*$|(?:[,;:—]|\b(?:and|but|when|while|as|then)) $")
_CAPITAL = r"[A-Z](?:[\w-]|['’](?!s\b))*\w"
_NAME = re.compile(  # "a shy baker called Anselm"; "Mara, a lighthouse keeper"
    rf"(?P<called>\b(?i:{_THE}) (?:(?:of )?(?:the|(?!{_THE}\b)[\w’'-]+) ){{1,6}}?(?:named|called) )?"
    rf"\b(?P<name>(?:(?:Mr|Mrs|Ms|Dr|Prof|St)\. |(?!(?i:{'|'.join(sorted(_NO_NAMES))})\b)){_CAPITAL}"
    rf"(?: {_CAPITAL})*)(?P<who>, an? (?:[\w’'-]+ ){{0,5}}?[\w’'-]+(?=[,.;:!?—–]|$))?"
)
_INTRODUCED = re.compile(r"\b(an?|the|two|three|four|some) (?=((?:[\w’-]+ ?){1,4}))", re.I)
_PLACED = re.compile(
    rf"\b(?P<how>(?i:{'|'.join(_HOW)})) (?={_THE} (?P<where>(?:[\w’'-]+(?: |\b)){{1,6}}))"
)
_CLAUSE = re.compile(rf"[,;:—–.!?]|\b(?:and|but|while|as|when|then|until|before|after)\b(?! {_THE}\b)")
_MENTIONED = re.compile(  # what is thought, wished, told or painted is elsewhere
    r"\b(?:if|never|would|should|might|will|shall|was not|were not|wasn['’]t|weren['’]t|thought|thinks?"
    r"|thinking|dream(?:s|ed|t|ing)?|imagin\w+|remember\w*|recall\w*|want(?:s|ed)|wish(?:es|ed)|hope[sd]|miss(?:es|ed)"
    r"|long(?:s|ed)|plan(?:s|ned)|knew|knows?|promise[sd]"
    r"|(?:spoke|speaks?|talk\w*|told|tells?|heard|hears?|read|reads|wrote|writes?|sang|sings?|stor(?:y|ies)"
    r"|tales?|books?|songs?|poems?|letters?|pictures?|paintings?|photos?|photographs?|postcards?|maps?|films?"
    r"|news|drawings?|sketch|posters?|portraits?)\b.* (?:of|about))\b",
    re.IGNORECASE,
)
_IS = frozenset("is was has had".split())
_RECENT = 4  # subjects named last for which a pronoun can stand
_LEADS = frozenset("at to for from after before against over by with of around towards".split())
_LOOKS_AT = re.compile(  # "looked at the castle": what is looked at is seen, not where one is
    r"\b(?:look|star|gaz|glanc|point|wav|shout|laugh|peer|smil)(?:s|es|e|ed|ing)? $", re.IGNORECASE
)
_GAVE = frozenset(  # "brought her coffee": not her own
    "gave brought offered handed showed told threw sent passed poured gives brings offers hands shows "
    "tells throws sends passes pours".split()
)
_TIMES = frozenset(
    "spring summer autumn winter christmas easter "
    "monday tuesday wednesday thursday friday saturday sunday january february march april may june "
    "july august september october november december".split()
)
_CASES = {
    pronoun: nominative
    for nominative, forms in {
        "he": "he him his",
        "she": "she her hers",
        "they": "they them their theirs",
        "it": "it its",
    }.items()
    for pronoun in forms.split()
}


_WHOSE = frozenset("his her its their".split())


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
        return (
            self.name
            if self.proper
            else re.sub(r"^(?:(?:an?|some) |(?=two |three |four ))", "the ", self.look)
        )

    @property
    def clear(self) -> bool:
        """Whether its pronoun is known from its words, or it has a name: no guess."""
        counted = self.look.startswith(("two ", "three ", "four "))
        return self.proper or counted or len(gender(self.look)) == 1

    def can_be(self, pronoun: str) -> bool:
        """Whether "he", "she", "it" or "they" can stand for it."""
        if self.pronoun:
            return self.pronoun == pronoun
        return pronoun in ("he", "she") or (pronoun == "it" and kind(self.name) == "animal")

    def position(self, text: str) -> int:
        """Where a text first has one of the name's words; -1 where it has none.

        "Ilya" stands for "Captain Ilya Voss", too.
        """
        found = re.search(rf"\b(?:{'|'.join(map(re.escape, self.name.split()))})(?:\b|$)", text)
        return found.start() if found else -1


class Pronoun(NamedTuple):
    """A pronoun in a sentence: the word ("that" for an "it" that is most likely a thing), and where.

    ``whose``: it stands before what somebody has ("her hat"). ``acted_on``: a verb leads to it, so it
    is somebody else than who acts ("a cat watches him", "looks at him").
    """

    word: str
    start: int
    end: int
    whose: bool
    acted_on: bool

    def named(self, who: list[Subject]) -> str:
        """What says instead who is meant."""
        said = " and ".join(subject.definite for subject in who)
        if self.start == 0:
            said = said[:1].upper() + said[1:]
        if not self.whose:
            return said
        several = not who[-1].proper and re.search(r"[^su]s$", said)  # "the two brothers"
        return f"{said}'" if several else f"{said}'s"


def pronouns(text: str) -> tuple[list[Pronoun], list[Pronoun]]:
    """The pronouns of a sentence that stand for somebody or something named outside of it.

    First those before which nobody is named: the sentence goes on about whom they stand for. "that"
    stands for an "it" that is most likely a thing: "He ran after it."
    """
    leading, later = list[Pronoun](), list[Pronoun]()
    found = list(_WORD.finditer(text))
    words = [match[0] for match in found]
    people, can_be = 0, Counter[str]()  # named so far, and how many of them "he" and "she" can be
    article = plural = thing = False
    for at, word in enumerate(words):
        near = at + 1 < len(words) and found[at + 1].start() == found[at].end() + 1
        then = words[at + 1] if near else ""
        said = re.split("['’]", word, maxsplit=1)[0]  # "he's"
        if pronoun := _CASES.get(said.lower()):
            before = [earlier.lower() for earlier in words[:at]]
            is_object = _is_object(said.lower(), before, then.lower())
            if pronoun in ("he", "she"):  # who gives is not who is given something
                inside = can_be[pronoun] > is_object
            elif pronoun == "they":
                inside = people > 1 or plural
            else:
                inside = thing if is_object else article
            if not inside:
                other = later if people or article else leading
                whose = said.lower() in _WHOSE and not (said.lower() == "her" and is_object)
                start, name = found[at].start(), "that" if pronoun == "it" and is_object else said
                many = pronoun == "they" and any(map(_may_be_many, before))
                acts = _led_to(before) and said.lower() in ("him", "her", "them")
                acted_on = acts and not whose and not many
                other.append(Pronoun(name, start, start + len(said), whose, acted_on))
        elif is_someone(word) or _is_name(word, then, first=at == 0):
            people += 1
            can_be.update(gender(word) or ("he", "she"))
        article |= word.lower() in _ARTICLES
        plural |= _is_plural(word)
        thing |= kind(word) in ("something", "site", "animal")
    return leading, later


def _is_object(pronoun: str, before: list[str], then: str) -> bool:
    """Whether a pronoun between words is most likely the object of the verb before it."""
    last = before[-1] if before else ""
    if pronoun == "her":  # "her hat" is possessive
        return last in _GAVE or not then or then in _FUNCTION
    verb = _acts(last)
    if pronoun == "it":
        return verb or last in _PREPOSITIONS
    led = last in ("at", "to", "for", "from", "of", "by") or _led_to(before)
    return pronoun == "him" and led


def _led_to(before: list[str]) -> bool:
    """Whether words end with a verb, or with one and a preposition, that may have an object."""
    *earlier, last = before or [""]
    return _acts(last) or (last in _LEADS and bool(earlier) and _acts(earlier[-1]))


def _acts(word: str) -> bool:
    return kind(word) == "doing" or word.endswith("ed") or word in _GAVE


def _may_be_many(word: str) -> bool:
    """Whether a word that names nobody known can be a plural: "spectacles"."""
    return re.fullmatch(r"[a-z]{2,}[^su]s", word) is not None and not _acts(word)


def _is_plural(word: str) -> bool:
    return kind(word) not in ("", "doing") and stem(word.lower()) != word.lower()


def _is_name(word: str, then: str, *, first: bool) -> bool:
    if not word[0].isupper() or word.lower() in _NO_NAMES or word.lower() in _TIMES or kind(word):
        return False
    acts = kind(then) == "doing" or then in _IS or then.endswith("ed")
    return acts or not first  # "Halfway up the hill he stops"


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
            yield _subject(name, look[:1].lower() + look[1:])
        elif kind(words[-1]) in ("something", "site", "doing") or words[0].lower() in _TIMES:
            continue  # "Baker Street", "Flour", "April"
        elif _is_subject(found):
            yield _subject(name, name + (found["who"] or ""))


def _subject(name: str, look: str, *, many: bool = False) -> Subject:
    genders = {"they"} if many else gender(look)
    return Subject(name, look, genders.pop() if len(genders) == 1 else "")


def _is_subject(name: re.Match[str]) -> bool:
    """Whether a capitalised word most likely names somebody, by its title or by what somebody does."""
    words = name["name"].split()
    if words[0].endswith(".") or any(map(is_someone, words)):
        return True
    following = _WORD.match(name.string, name.end() + 1)
    acts = following is not None and (kind(following[0]) == "doing" or following[0] in _IS)
    acts |= re.match(r" and [A-Z]", name.string[name.end() :]) is not None  # "Ana and Tom sat"
    return (acts or name["who"] is not None) and not _oblique(name.string[: name.start()])


def _described(text: str) -> Iterator[Subject]:
    """Yield the subjects without a name that a sentence introduces: "a small brown dog"."""
    for found in _INTRODUCED.finditer(text):
        article, look = found[1].lower(), found[1].lower()
        words, before = found[2].split(), text[: found.start()]
        if article == "the" and not _BEGINS.search(before):
            continue  # somebody to whom something is done
        for word, following in zip(words, [*words[1:], ""], strict=True):
            if word in _FUNCTION or word[0].isupper() or _oblique(before):
                break
            look += f" {word}"
            if is_someone(word):
                noun = kind(following) not in ("", "doing") and not following.endswith(("s", "ed"))
                if not noun:  # "a pheasant feather"; "crosses" is also a noun
                    many = article in ("two", "three", "four", "some") or _is_plural(word)
                    yield _subject(word, look, many=many)
                break


def only_mentioned(text: str) -> bool:
    """Whether what follows a beginning of a sentence is thought or told of, but not there."""
    return _MENTIONED.search(_CLAUSE.split(text.rstrip(".!?… "))[-1]) is not None


def _place(text: str) -> str:
    """Where a sentence says that it happens: a preposition and a noun phrase that ends with a site."""
    for found in _PLACED.finditer(text):
        how = found["how"]
        if how == "at" and _LOOKS_AT.search(text[: found.start()]):
            continue
        words = found["where"].split()
        article = text[found.end() :].split(maxsplit=1)[0]
        for at, word in enumerate(words):
            follows = kind(words[at + 1]) if at + 1 < len(words) else ""
            if kind(word) == "site" and follows not in ("something", "site"):
                if only_mentioned(text[: found.end()] + " ".join([article, *words[:at]])):
                    break
                how = _HOW[how] if how in _HOW else how
                return " ".join([how, article, *words[: at + 1]])
            if word.endswith(("'s", "’s")):  # "on the mayor's car"
                break
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

    def meant_by(self, pronoun: str, shown: str = "") -> list[Subject]:
        """For whom ``pronoun`` ("her", …) can stand: one subject, which keeps it, or two if in doubt.

        ``shown`` is the look of whoever is shown: the one who is meant where that is possible.
        """
        pronoun = _nominative(pronoun)
        fit = [s for s in reversed(self.subjects.values()) if s.can_be(pronoun)][:_RECENT]
        sure = fit[:1] if fit and fit[0].pronoun else [s for s in fit if s.look == shown]
        meant = sure or fit[:2]
        if len(meant) == 1:
            meant = [replace(meant[0], pronoun=pronoun)]
            self.subjects[meant[0].name] = meant[0]
        return meant

    def _put(self, subject: Subject) -> None:
        """Make a subject the latest."""
        self.subjects.pop(subject.name, None)
        self.subjects[subject.name] = subject
        if len(self.subjects) > _SUBJECTS:
            del self.subjects[next(iter(self.subjects))]
