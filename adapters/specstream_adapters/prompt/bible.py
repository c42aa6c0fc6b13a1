"""The subject bible: a story's subjects, their looks, and the place, as the text introduced them.

It is kept across shots and, on request, turns. A few patterns of English, no parser: what they miss is
still in the sentence's own words, which go into the prompt.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from specstream_adapters.prompt.visible import gender, is_someone, is_something, kind

__all__ = ["Bible", "Subject", "pronouns"]

_SUBJECTS = 32  # most subjects remembered; the one named longest ago is forgotten first


def _any(words: str) -> str:
    return f"(?:{'|'.join(words.split())})"


_SITE = _any(
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
    r"\w*(?:house|(?<![bg])room|shop|yard|field|store|way) \w*(?:hill|lake|sea|river|road|water)side"
)
_IS_SITE = re.compile(f"{_SITE}s?", re.I)
_THE = "(?:an?|the|his|her|its|their)"
_STANDS = "was|were|is|are|had|lay|lies|stood|stands|sat|hung|smelled|stretched|spread|opened"
_WORDS = r"(?:[\w’'-]+ ){0,%d}?"
_OF = rf" (?:of|by|in) {_THE} {_WORDS % 2}[\w’'-]+(?![\w’'-]| [A-Z])"
_ENDS = (  # what may follow a place; another noun would make it part of a name ("at the station clock")
    r"(?=[^\w\s]|$| (?:and|or|but|as|while|when|until|where|which|that|with|without|to|from|for|into|"
    r"onto|at|near|by|above|below|behind|beyond|between|under|before|after|like|there|he|she|it|they|"
    rf"an?|the|two|three|some|\w+ed|{_STANDS}|[A-Z][\w’'-]+)\b)"
)
_PLACE = re.compile(  # "in a hut by the sea"; "crossed to the saloon"; "The kitchen windows were"
    r"\b(?P<how>(?i:in|inside|on|at|near|beside|beneath|under|through|across|along|behind|above|outside)"
    rf"|into|onto|to|entered|reached) (?P<where>{_THE} (?:[a-z]+ of {_THE} )?{_WORDS % 3}{_SITE}s?"
    rf"(?:{_OF})?){_ENDS}|^(?P<about>The {_WORDS % 2}{_SITE}s?)(?: [a-z]+)? (?:{_STANDS})\b"
)
_ARRIVED = {"into": "in", "entered": "in", "onto": "on", "to": "at", "reached": "at"}

_NO_NAME = _any(  # capitalised words with which no name begins
    r"The An? In On At From To Of By For With And But So When While After Before Behind As If This "
    r"That These Those There Here He She It They We You I His Her Its Their My Our Your Two Three One "
    r"Some All Each Every No Not Nobody Everyone Everybody Someone Somebody Something Everything "
    r"Nothing What Mr Mrs Ms Dr God \w+ly Then Now Today Tonight Yesterday Tomorrow Once Later Soon "
    r"Still Yes Well Oh Outside Inside Above Below Meanwhile Instead However Perhaps \w+day January "
    r"February March April May June July August September October November December Christmas Easter "
    r"English French German Spanish Indian"
)
_COLOUR = _any("Red White Black Blue Green Golden Grey Gray Old Young Little Big Small Great")
_TITLE = r"(?:Mr|Mrs|Ms|Dr|Prof|St)\. "
_CAPITALISED = r"[A-Z](?:[\w-]|['’](?!s\b))*\w"
_NAME = re.compile(
    rf"\b(?:{_TITLE}|(?!{_NO_NAME}\b|{_COLOUR} [a-z])){_CAPITALISED}(?: {_CAPITALISED})*"
)
_CALLED = re.compile(  # "a shy baker called"; a second article only after "of"
    rf"\b(?i:{_THE}|my|our) (?:(?:of )?(?:the|(?!{_THE}\b)[\w’'-]+) ){{1,6}}(?:named|called) $"
)
_APPOSITION = re.compile(r", an? (?:[\w’'-]+ ){0,5}?[\w’'-]+(?=[,.;:!?—–]|$)")
_VERB = re.compile(r"['’]s\b| (?:was|had|is|has|did|[a-z]+ed)\b")
_HIMSELF = re.compile(r"\b(?:he|she|his|her)\b")
_OBLIQUE = re.compile(  # what follows is most likely no subject
    r"\b(?:in|on|at|from|to|of|near|for|by|through|over|into|like|than|as)(?: the)? $", re.I
)
_DESCRIBED = re.compile(r"\b(an?|the|two|three|four|some)(?=((?: [\w’-]+){1,4}))", re.I)
_BREAKS = frozenset(
    "to of for by with at from like than as in on a an the his her their my its our this that and or "
    "which who".split()
)
_MORE = re.compile(  # what belongs to a look: "an old man in a yellow raincoat", "a herd of blue sheep"
    r" in (?:(?:an?|the) )?(?:[\w-]+ ){0,2}(?:coat|raincoat|hat|dress|cloak|uniform|pyjamas|suit|gown)\b"
    r"| of (?:(?:the|their|his|her) )?(?:[\w-]+ ){0,2}?(?:\w+s|sheep|deer|cattle|men|women|children|"
    r"people|geese|fish)\b"
)
_PRONOUN = re.compile(r"\b(he|she|they|him|his|hers?|them|theirs?|its?)\b", re.I)
_CASES = {"him": "he", "his": "he", "her": "she", "hers": "she", "them": "they", "their": "they",
          "theirs": "they", "its": "it"}  # fmt: skip
_EXPLETIVE = re.compile(  # "it" that stands for nothing: "It was cold"
    r"it(?:'s| (?:was|is|had been|has been|may|might|could|would|will|seem\w*|rain\w*|snow\w*))\b"
    r"(?! an? | the | \w+(?:ed|ing) | built | made )",
    re.I,
)
_OWN = re.compile(rf"(?:he|she|his|her(?= (?!(?:{'|'.join(_BREAKS)})\b)\w))\b", re.I)  # no object
_CLAUSE = re.compile(
    r"[,;:—–]|\b(?:and|but|as|while|when|who|which|that|where|until|because|so|then|to|\w+ing)\b"
)


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
        before = text[: match.start()]
        if _EXPLETIVE.match(text, match.start()):
            continue
        if _nominative(match[0]) in ("it", "they"):
            inside = re.search(r"\b(?:an?|the|\w+s|two|three) ", before.lower()) is not None
        else:
            named = any(m.start() or _acts(m) for m in _NAME.finditer(text, 0, match.start()))
            inside = named or any(map(is_someone, re.findall(r"[\w’-]+", before)))
            if not _OWN.match(text, match.start()) and not _CLAUSE.search(before):
                inside = False  # "The dog lay beside him"
        if not inside:
            found.append(match[0])
    return found


def _nominative(pronoun: str) -> str:
    return _CASES.get(pronoun.lower(), pronoun.lower())


def _acts(name: re.Match[str]) -> bool:
    """Whether a name is followed by what somebody does or has."""
    text = name.string
    word = re.compile(r" ([a-z]+)").match(text, name.end())
    doing = word is not None and kind(word[1]) == "doing"
    if doing or not _VERB.match(text, name.end()):
        return doing
    # A capital proves nothing where a sentence begins: "Hope was a strange thing".
    inside = re.search(r"[\w,;:] $", text[: name.start()]) is not None
    return inside or (name.start() == 0 and _HIMSELF.search(text, name.end()) is not None)


def _named(text: str) -> Iterator[Subject]:
    """Yield the subjects with a proper name that a sentence introduces."""
    for found in _NAME.finditer(text):
        name, before, after = found[0], text[: found.start()], text[found.end() :]
        words = name.split()
        known = any(map(is_someone, words))
        oblique = _OBLIQUE.search(before)
        if called := _CALLED.search(before):
            look = called[0] + name
            yield Subject(name, look[:1].lower() + look[1:])
        elif any(map(is_something, words)) and (not known or _IS_SITE.fullmatch(words[-1])):
            continue  # "Baker Street", "Flour"
        elif (more := _APPOSITION.match(after)) and not oblique:
            yield Subject(name, name + more[0])
        elif before.lower().endswith("the ") and not _acts(found):
            continue  # "the Admiral Benbow inn"
        elif known or (not oblique and (len(words) > 1 or _acts(found))):
            yield Subject(name, name)


def _described(text: str) -> Iterator[Subject]:
    """Yield the subjects without a name that a sentence describes: "an old man in a yellow raincoat"."""
    for found in _DESCRIBED.finditer(text):
        article, words = found[1].lower(), found[2].split()
        at = next((i for i, word in enumerate(words) if word in _BREAKS or is_someone(word)), 0)
        head = words[at]
        if not (is_someone(head) and head.islower()) or _OBLIQUE.search(text[: found.start()]):
            continue
        if article == "the" and at == 0 and found.start():
            continue
        look = " ".join([article, *words[: at + 1]])
        more = _MORE.match(text, found.start() + len(look))
        many = article in ("two", "three", "four") or head in ("people", "men", "women", "children")
        pronoun = "they" if many else "".join(gender(head))
        yield Subject(head, look + (more[0] if more else ""), pronoun)


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
        for subject in _named(text):
            if not any(subject.name in other for other in self.subjects if other[:1].isupper()):
                self._put(subject)
        for subject in _described(text):
            proper = [other.look for other in self.subjects.values() if other.proper]
            again = subject.look.startswith("the ") and subject.name in self.subjects
            if not again and not any(subject.look in look for look in proper):
                self._put(subject)
        # The first in the sentence becomes the latest: a later pronoun most likely means that one.
        for subject in reversed(self.named_in(text)):
            self._put(subject)
        self._learn_pronoun(text)
        found = _PLACE.search(text)
        if found is not None:
            how = found["how"]
            self.place = found["about"] or f"{_ARRIVED.get(how, how)} {found['where']}"
        return found is not None

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

    def _learn_pronoun(self, text: str) -> None:
        """Record a sentence's first pronoun for the one subject before it: "Alice, when she woke"."""
        found = _PRONOUN.search(text)
        if found is None or not _OWN.match(text, found.start()):
            return
        before = text[: found.start()]
        meant = self.named_in(before)
        if len(meant) != 1 or meant[0].pronoun:
            return
        if not _OBLIQUE.search(before[: meant[0].position(before)]):  # "To Holmes she is the woman"
            self.subjects[meant[0].name] = replace(meant[0], pronoun=_nominative(found[0]))

    def _put(self, subject: Subject) -> None:
        """Make a subject the latest."""
        self.subjects.pop(subject.name, None)
        self.subjects[subject.name] = subject
        if len(self.subjects) > _SUBJECTS:
            del self.subjects[next(iter(self.subjects))]
