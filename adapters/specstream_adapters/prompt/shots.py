"""The shot list: which sentence begins a shot, which adds to the open one, and which shows nothing."""

from __future__ import annotations

import re
from collections.abc import Callable
from copy import copy
from dataclasses import dataclass, field, replace

from specstream.types import Phrase, Span
from specstream_adapters.prompt.bible import Bible, Subject, pronouns
from specstream_adapters.prompt.speech import MachineText, narration
from specstream_adapters.prompt.visible import language_of, sight

__all__ = ["Sentence", "Shot", "ShotNumbers", "ShotState", "ended"]

_LINES = 3  # sentences that one shot tells
_CHARS = 360  # characters that they have together
_HALF = 3  # least weight of the beginning of a sentence to be shown
_LONGEST = 320  # characters of a sentence that go into a prompt
_ENDED = re.compile(r"[.!?…。！？][\"”»]?$")
_OTHERS = {  # beginnings of a sentence that goes on about the subject before it, in other languages
    "": re.compile(r"^[他她它]"),
    "de": re.compile(
        r"^(?:Er|Sie|Es|Ihm|Ihn|Ihr|Ihre[rmns]?|Sein|Seine[rmns]?|Die(?= \w+te\b)|Der(?= \w+te\b))\b"
    ),
    "es": re.compile(
        r"^(?:Él|Ella|Ellos|Ellas|Su|Sus|Le|Les|Se|"
        r"\w+(?:a|ó|ía|aba|n)(?= (?:una?|el|la|los|las|de|en|con|al|por|que)\b))"
    ),
}
_FIRST = re.compile(
    r"^((?:(?:Then|So|And|But|Now|Suddenly|At last),? )?)((?i:he|she|it|they))(?= [a-z])"
)


@dataclass(frozen=True, slots=True)
class Sentence:
    """A sentence, or the beginning of one, and what was known where it began; boards may share it.

    Attributes:
        machine: Whether text for programs was open where it began.
        spoken_before: Characters spoken before it began, tags and machine text not counted.
        state: What was known; not to be changed.
        phrases: Its phrases so far.
        shot_id: The shot that it began; "" if it began none.
        ended: Whether the sentence is complete.
    """

    machine: MachineText
    spoken_before: int
    state: ShotState
    phrases: tuple[Phrase, ...] = ()
    shot_id: str = ""
    ended: bool = False

    def read(self) -> tuple[str, int, MachineText]:
        """Its spoken text, the characters spoken up to its end, and the machine text's state there."""
        machine, text, spoken = copy(self.machine), "", self.spoken_before
        for phrase in self.phrases:
            shown, hidden = machine.blank(phrase.spoken)
            text += shown
            spoken += len(shown) - hidden - sum(tag.chars.length for tag in phrase.tags)
        return text, spoken, machine

    @property
    def text(self) -> str:
        """The spoken text of ``span``, offsets kept: tags and machine text are spaces."""
        return self.read()[0]

    @property
    def span(self) -> Span:
        """Where it lies in the reply; sentences laid end to end are the reply."""
        return Span(self.phrases[0].chars.start, self.phrases[-1].chars.end)

    @property
    def tokens(self) -> Span:
        """The tokens that wrote its phrases."""
        return Span(self.phrases[0].tokens.start, self.phrases[-1].tokens.end)

    @property
    def tags(self) -> tuple[str, ...]:
        """Names of the directions inside it."""
        return tuple(tag.name for phrase in self.phrases for tag in phrase.tags)


@dataclass(frozen=True, slots=True)
class Shot:
    """What the screen shows for a stretch of the reply.

    Attributes:
        shot_id: Its name.
        span: The characters of the reply that it tells.
        tokens: The tokens of those.
        spoken_before: Characters spoken before it began.
        lines: The sentences that it tells, without quoted speech.
        subject: Who it is about, as introduced; "" where nobody is known.
        others: Who else is meant by a pronoun, as introduced.
        place: Where, as last told; "" where that is unknown.
        moved: Whether it is at another place than the shot before.
        context: A sentence of the shot before, if nobody known is meant by a pronoun.
        tags: Names of the directions in its text.
        first: Whether no shot came before.
    """

    shot_id: str
    span: Span
    tokens: Span
    spoken_before: int
    lines: tuple[str, ...]
    subject: str = ""
    others: tuple[str, ...] = ()
    place: str = ""
    moved: bool = False
    context: str = ""
    tags: tuple[str, ...] = ()
    first: bool = False

    @property
    def text(self) -> str:
        """Its sentences as one text; half a sentence that another follows ends with a full stop."""
        *before, last = self.lines
        return " ".join([*map(ended, before), last])

    @property
    def full(self) -> bool:
        """Whether it tells as many sentences as a shot may."""
        return len(self.lines) >= _LINES


class ShotNumbers:
    """Numbers for shots: none comes twice, but numbers for drafted text that was revoked are reused."""

    def __init__(self) -> None:
        self._last = self._others = 0  # the last number, and the last that another turn took
        self._turn: object = None  # the turn whose board took the last number

    def after(self, used: int, turn: object) -> int:
        """The next number for a board of ``turn`` whose own last number is ``used``."""
        self.back(used, turn)
        if self._turn is not turn:
            self._turn, self._others = turn, self._last
        self._last += 1
        return self._last

    def back(self, used: int, turn: object) -> None:
        """Give back the numbers after ``used``, unless another turn has taken some since.

        They were taken by copies of the board, on drafted text that was revoked.
        """
        if self._turn is turn:
            self._last = max(used, self._others)


@dataclass(slots=True)
class ShotState:
    """What is known before a sentence: the bible, the open shot, the number of shots, the language."""

    bible: Bible = field(default_factory=Bible)
    open: Shot | None = None
    count: int = 0
    language: str = ""

    def copy(self) -> ShotState:
        """An independent copy."""
        return replace(self, bible=self.bible.copy())

    def take(self, sentence: Sentence, name: Callable[[], str], max_shots: int) -> Shot | None:
        """The shot that a sentence begins or changes; None where there is nothing to see.

        ``name`` gives the id of a shot that begins. After ``max_shots`` the last one is changed instead.
        """
        text = narration(sentence.text)
        if not text:
            return None
        self.language = language_of(text) or self.language or "en" * text.isascii()
        words = self._pronouns(text)
        meant, others = self._meant(words)
        moved = self.language == "en" and self.bible.read(text)
        weight = sight(text, self.language, self.bible.names, known=meant is not None)
        if weight == 0 or (not sentence.ended and weight < _HALF):
            return None
        line, old = _shorten(text), self.open
        if old is not None and self._goes_on(old, line, words, meant, weight):
            looks = dict.fromkeys(old.others + others)
            self.open = replace(
                old,
                span=Span(old.span.start, sentence.span.end),
                tokens=Span(old.tokens.start, sentence.tokens.end),
                lines=(*old.lines, line),
                others=tuple(look for look in looks if look != old.subject),
                place=self.bible.place if moved or not old.place else old.place,
                tags=old.tags + sentence.tags,
            )
            return self.open
        if weight < 2 and (old is None or not old.full):
            return None
        who, context = meant, ""
        if not words:
            who = next(iter(self.bible.named_in(text)), None)
        elif who is not None:
            line = _named(line, who)
        elif old is not None:
            context = old.context or old.lines[0]
        last = old if self.count >= max_shots else None  # the shot to be revised
        since = last or sentence
        self.open = Shot(
            last.shot_id if last else name(),
            Span(since.span.start, sentence.span.end),
            Span(since.tokens.start, sentence.tokens.end),
            since.spoken_before,
            (line,),
            subject=who.look if who is not None else "",
            others=others,
            place=self.bible.place,
            moved=moved and old is not None,
            context=context,
            tags=sentence.tags,
            first=last.first if last else self.count == 0,
        )
        self.count += last is None
        return self.open

    def _pronouns(self, text: str) -> list[str]:
        """The words that stand for somebody outside of the sentence."""
        if self.language == "en":
            return pronouns(text)
        other = _OTHERS.get(self.language)
        return other.findall(text) if other is not None else []

    def _meant(self, words: list[str]) -> tuple[Subject | None, tuple[str, ...]]:
        """The subject that the first pronoun stands for, and the looks of those of the others."""
        if not words or self.language != "en":
            return None, ()
        first, *rest = map(self.bible.meant_by, words)
        looks = dict.fromkeys(s.look for s in rest if s is not None and s != first)
        return first, tuple(looks)

    def _goes_on(
        self, shot: Shot, line: str, words: list[str], meant: Subject | None, weight: int
    ) -> bool:
        """Whether a sentence adds to the open shot: its subject is the same, or its weight too small."""
        if shot.full or len(shot.text) + len(line) >= _CHARS:
            return False
        if meant is not None:
            return meant.position(f"{shot.text} {shot.subject}") >= 0
        return bool(words) or weight == 1


def _named(line: str, who: Subject) -> str:
    """The line with ``who`` named in place of the pronoun at its beginning, if it is ``who.pronoun``."""
    found = _FIRST.match(line)
    if found is None or found[2].lower() != who.pronoun:
        return line
    named = f"{found[1]}{who.definite}"
    return named[:1].upper() + named[1:] + line[found.end() :]


def ended(text: str) -> str:
    """The text, with a full stop if it doesn't end like a sentence."""
    return text if _ENDED.search(text) else f"{text}."


def _shorten(text: str) -> str:
    """At most `_LONGEST` characters, cut where a clause or at least a word ends."""
    text = text.rstrip(" ,;:")
    if len(text) <= _LONGEST:
        return text
    head = text[: _LONGEST + 1]
    cut = max(head.rfind(mark) for mark in (", ", "; ", ". "))
    end = cut if cut > _LONGEST // 2 else head.rfind(" ")
    return head[: end if end > 0 else _LONGEST].rstrip(" ,;") + "."
