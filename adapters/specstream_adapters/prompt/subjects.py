"""Find the subjects that a sentence introduces ("a fox named Rusty", "an old man"), and its pronouns.

A few patterns of English, no parser. Subjects that they miss are still in the sentence's own words,
which go into the prompt.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from specstream_adapters.prompt.visible import is_someone, is_something

__all__ = [
    "Subject",
    "described",
    "first_pronoun",
    "gender",
    "introduced",
    "nominative",
    "position",
    "pronouns",
]


def _any(words: str) -> str:
    return "|".join(words.split())


_NO_FIRST = _any(  # capitalised words with which no name begins
    "The An? In On At From To Of By For And But So When After Before As If This That These Those "
    "There He She It They We You His Her Its Their My Our Your Two Three One Some All Each Every "
    "No Nobody Everyone Everybody Someone Somebody Something Everything Nothing What Mr Mrs Ms Dr God "
    "Monday Tuesday Wednesday Thursday Friday Saturday Sunday"
)
_STOP = rf"(?!(?:{_NO_FIRST})\b)"
_TITLE = r"(?:(?:Mr|Mrs|Ms|Dr|Prof|St)\. )"
_CAPITALISED = r"[A-Z][\w’'-]*\w"
_NAME = rf"{_STOP}{_CAPITALISED}(?: {_CAPITALISED})*|{_TITLE}{_CAPITALISED}(?: {_CAPITALISED})*"
_WORDS = r"(?:[\w’'-]+ ){0,5}?[\w’'-]+"
_DETERMINER = "(?i:an?|the|his|her|my|our|their)"
_PART = rf"(?:of {_DETERMINER} )?(?!{_DETERMINER}\b)[\w’'-]+"
_NOUN = rf"(?:{_PART} ){{0,5}}?{_PART}"  # "In the forest a king": no second article but after "of"
_PREPOSITIONS = (
    "In In On on At at From from To to Of of Near near For for The the By by Through through "
    "Over Into like"
).split()
_FREE = "".join(rf"(?<!\b{word} )" for word in _PREPOSITIONS)  # not the name of a place or a time
_NOT_PLACED = "".join(
    rf"(?<!\b{word} )(?<!\b{word} the )" for word in _PREPOSITIONS if word.islower()
)
_VERB = r"was|had|is|has|did|sat|stood|lay|ran|[a-z]+ed|[a-z]+s"
_NAMED = re.compile(rf"\b(?P<all>{_DETERMINER} {_NOUN} (?:named|called) (?P<name>{_NAME}))")
_INTRODUCTIONS = (
    _NAMED,
    re.compile(rf"{_FREE}\b(?P<all>(?P<name>{_NAME}), an? {_WORDS})(?=[,.;:!?—–]|$)"),
    re.compile(rf"{_FREE}\b(?P<all>(?P<name>(?={_TITLE}|{_CAPITALISED} [A-Z])(?:{_NAME})))\b"),
    re.compile(rf"(?<=[a-z,] ){_NOT_PLACED}(?P<all>(?P<name>{_NAME}))(?=['’]s\b| (?:{_VERB})\b)"),
    re.compile(rf"^(?P<all>(?P<name>{_NAME}))(?= (?:{_VERB})\b.* (?:he|she|his|her|him)\b)"),
)
_CALLED = re.compile(rf"\b(?P<name>{_NAME})\b")  # somebody, if the word list knows the name
_NO_SUBJECT = _any(
    r"\w+ly Then Now Today Tonight Yesterday Tomorrow Once Later Soon There Here Still And But So "
    "Yes No Well Oh Outside Inside Above Below Meanwhile Instead However Perhaps When While As "
    "If I Monday Tuesday Wednesday Thursday Friday Saturday Sunday January February March April "
    "May June July August September October November December Christmas Easter English French "
    "German Spanish Indian"
)
_COLOUR = _any("Red White Black Blue Green Golden Grey Gray Old Young Little Big Small Great")
_SITE = _any(
    "Street Road Lane Square Park Hall House Hill River Sea Lake Bay Eve Mountains? Inn Church "
    "Station Avenue Island City Town College Ocean Fields?"
)
_NO_NAME = re.compile(rf"^(?:{_NO_SUBJECT})\b|^(?:{_COLOUR})$|\b(?:{_SITE})$")
_ARTICLE = re.compile(
    r"\b(an?|the|two|three|four|some) (?=((?:[\w’-]+[ ,.;:!?]*){1,4}))", re.IGNORECASE
)
_CLOTHES = _any("coat raincoat hat dress cloak uniform pyjamas suit gown")
_LOOK = re.compile(rf" in (?:(?:an?|the) )?(?:[\w-]+ ){{0,2}}(?:{_CLOTHES})\b")
_HERD = re.compile(
    r" of (?:[\w-]+ )?(?:sheep|deer|cattle|men|women|children|people|geese|fish)\b"
    r"| of (?:(?:the|their|his|her) )?(?:[\w-]+ ){0,2}?\w+s\b"
)
_FEMALE = frozenset(
    "woman girl lady mother sister wife daughter queen princess aunt grandmother nun widow actress "
    "waitress hostess maid witch mare hen".split()
)
_MALE = frozenset(
    "man boy gentleman father brother husband son king prince uncle grandfather monk nephew "
    "actor waiter fisherman policeman soldier sailor knight".split()
)
_PRONOUN = re.compile(r"\b(he|she|they|him|his|hers?|them|theirs?|its?)\b", re.IGNORECASE)
_CASES = {"him": "he", "his": "he", "her": "she", "hers": "she", "them": "they", "their": "they",
          "theirs": "they", "its": "it"}  # fmt: skip
_EXPLETIVE = re.compile(
    r"\b[Ii]t(?:'s| (?:(?:was|is)(?! an? | the | \w+ed | built | made )|"
    r"(?:had|has) been(?! an? | the | (?!rain|snow)\w+ing\b)|"
    r"may|might|could|would|will|seem(?:s|ed)|rain(?:s|ed)|snow(?:s|ed)))\b"
)
_OBJECTIVE = re.compile(  # not the possessive "her"
    r"(?i:him|them|her(?=\W*$|[,.;:!?]| (?:and|but|to|with|in|into|on|onto|at|from|up|down|away|back|"
    r"as|by|for|out|off|over|through|an?|the|his|its|their)\b))\b"
)
_CLAUSE = re.compile(
    r"[,;:—–]|\b(?:and|but|as|while|when|who|which|that|where|until|because|so|then|to|\w+ing)\b"
)
_OBLIQUE = frozenset("to of for by with at from like than as in on".split())
_BREAKS = _OBLIQUE | set("a an the his her their my our its this that and or which who".split())
_OBJECT = re.compile(rf"\b(?i:{'|'.join(sorted(_OBLIQUE))}) (?:[A-Z][\w’-]+(?: |$))+$")


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
        if self.proper:
            return self.name
        return re.sub(r"^(?:an?|this|that|some) ", "the ", self.look)


def gender(text: str) -> set[str]:
    """Which of "he" and "she" a text speaks of, by its nouns and pronouns."""
    words = {word.lower() for word in re.findall(r"[^\W\d_]+", text)}
    he = words & (_MALE | {"he", "him", "his", "men"})
    she = words & (_FEMALE | {"she", "her", "hers", "women"})
    return {n for n, w in (("he", he), ("she", she)) if w}


def pronouns(text: str) -> list[re.Match[str]]:
    """The pronouns of a sentence that stand for somebody or something named outside of it."""
    found = []
    for match in _PRONOUN.finditer(text):
        word, before = match[0].lower(), text[: match.start()]
        if _EXPLETIVE.match(text, match.start()):
            continue
        if word in ("it", "its", "they", "them", "their", "theirs"):
            inside = re.search(r"\b(?:an?|the|\w+s|two|three) ", before.lower()) is not None
        else:
            inside = _names_somebody(before) and not _object_of(text, match)
        if not inside:
            found.append(match)
    return found


def nominative(pronoun: str) -> str:
    """Return "he" for "his" and the like."""
    return _CASES.get(pronoun.lower(), pronoun.lower())


def first_pronoun(text: str) -> tuple[str, str]:
    """Return the text before the first pronoun of a sentence, and that pronoun as "he" or "she".

    Both are "" if the first pronoun is another or the object of that text's verb ("The dog lay beside
    him"), or if the text before it ends with a name after a preposition, which isn't who is meant:
    "To Holmes she is the woman."
    """
    found = _PRONOUN.search(text)
    pronoun = nominative(found[0]) if found is not None else ""
    if found is None or pronoun in ("it", "they"):
        return "", ""
    before = text[: found.start()]
    another = _OBJECT.search(before) or _object_of(text, found)
    return ("", "") if another else (before, pronoun)


def _object_of(text: str, pronoun: re.Match[str]) -> bool:
    """Whether a pronoun is the object of the first clause: "The dog lay beside him" isn't the dog."""
    before = text[: pronoun.start()]
    return bool(_OBJECTIVE.match(text, pronoun.start()) and not _CLAUSE.search(before))


def _names_somebody(text: str) -> bool:
    words = re.findall(r"[\w’-]+", text)
    if any(w[0].isupper() and w not in ("I", "Mr", "Mrs") for w in words[1:]):
        return True
    first = re.fullmatch(_NAME, words[0]) if len(words) > 1 else None
    if first is not None and not _NO_NAME.search(words[0]) and _is_verb(words[1:2]):
        return True
    return any(map(is_someone, words))


def introduced(text: str) -> Iterator[Subject]:
    """Yield the subjects with a proper name that a sentence introduces."""
    for name, look in _names(text):
        if name.endswith(("'s", "’s")):
            name, look = name[:-2], look.removesuffix("'s").removesuffix("’s")
        if not (_NO_NAME.search(name) or (name == look and is_something(name))):
            yield Subject(name, look)


def _names(text: str) -> Iterator[tuple[str, str]]:
    for pattern in _INTRODUCTIONS:
        for found in pattern.finditer(text):
            name, look = found["name"], found["all"]
            yield name, look if look.startswith(name) else look[:1].lower() + look[1:]
    for found in _CALLED.finditer(text):
        following = text[found.end() :].split(" ")[1:2]
        doing = not found.start() and any(map(is_something, following))
        house = text[: found.start()].endswith(("the ", "The ")) and not _is_verb(following)
        if doing or (not house and any(map(is_someone, found["name"].split()))):
            yield found["name"], found["name"]


def described(text: str) -> Iterator[Subject]:
    """Yield the subjects without a name that a sentence describes: "an old man in a yellow raincoat"."""
    for found in _ARTICLE.finditer(text):
        words = re.findall(r"[\w’-]+", found[2])
        at = next((i for i, word in enumerate(words) if word in _BREAKS or is_someone(word)), 0)
        if not words[at].islower() or words[at] in _BREAKS or _oblique(text, found.start()):
            continue
        if found[1].lower() == "the" and at == 0 and found.start():
            continue
        look = f"{found[1].lower()} {' '.join(words[: at + 1])}"
        if not is_someone(words[at]) or not text[found.start() :].lower().startswith(look.lower()):
            continue
        end = found.start() + len(look)
        more = _LOOK.match(text, end) or _HERD.match(text, end)
        pronoun = _pronoun_of(found[1].lower(), words[at])
        yield Subject(words[at], look + (more[0] if more else ""), pronoun)


def _is_verb(words: list[str]) -> bool:
    return bool(words) and bool(re.fullmatch(_VERB, words[0]))


def _oblique(text: str, at: int) -> bool:
    """Whether a preposition stands before an offset."""
    return text[:at].rstrip().rpartition(" ")[2].lower() in _OBLIQUE


def _pronoun_of(article: str, head: str) -> str:
    if article in ("two", "three", "four") or head in ("people", "men", "women", "children"):
        return "they"
    return "she" if head in _FEMALE else "he" if head in _MALE else ""


def position(text: str, subject: Subject) -> int:
    """Where a text first has one of a subject's words; -1 where it has none.

    "Ilya" stands for "Captain Ilya Voss", too.
    """
    words = subject.name.split() if subject.proper else [subject.name]
    found = [m.start() for w in words if (m := re.search(rf"\b{re.escape(w)}(?:\b|$)", text))]
    return min(found, default=-1)
