"""The shot list: which sentence begins a shot, which adds to the open one, and which shows nothing."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from specstream.types import Span
from specstream_adapters.prompt.bible import Bible
from specstream_adapters.prompt.reading import Sentence, is_code
from specstream_adapters.prompt.speech import narration
from specstream_adapters.prompt.subjects import Subject, pronouns
from specstream_adapters.prompt.visible import is_someone, language_of, sight

__all__ = ["Shot", "ShotNumbers", "ShotState", "ended"]

_LINES = 3  # sentences that one shot tells
_CHARS = 360  # characters that they have together
_HALF = 3  # least weight of the beginning of a sentence to be shown
_LONGEST = 320  # characters of a sentence that go into a prompt
_NARRATOR = re.compile(r"\b(?:I|me|my|we|us|our|you|your)\b")
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
_SOME = re.compile(
    r"^(?:Some|Others?|Another|Both|Many|Most|Each|All)(?: of (?:them|these))? "
    r"(?:\w+ing|\w+ed|are|were|is|was|had)\b"
)
_FIRST = re.compile(
    r"^(?P<lead>(?:(?:Then|So|And|But|Now|Suddenly|At last),? )?)"
    r"(?P<who>He|She|It|They|he|she|it|they)(?= [a-z])"
)


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
    def first_person(self) -> bool:
        """Whether a narrator tells what happens to himself or herself, or to the listener."""
        return bool(_NARRATOR.search(self.text))


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
        return ShotState(self.bible.copy(), self.open, self.count, self.language)

    def take(self, sentence: Sentence, name: Callable[[], str], max_shots: int) -> Shot | None:
        """The shot that a sentence begins or changes; None where there is nothing to see.

        ``name`` gives the id of a shot that begins. After ``max_shots`` the last one is changed instead.
        """
        text = narration(sentence.text)
        if not text or is_code(sentence.text):
            return None
        self.language = language_of(text) or self.language or "en" * text.isascii()
        dangling = self._dangling(text)
        meant, others = self._meant(text, dangling)
        before = self.bible.first_named(text)
        moved = self.bible.read(text) if self.language == "en" else False
        seen = sight(text, self.language, self.bible.names)
        weight = seen.weight + (seen.doing and meant is not None)  # the pronoun shows somebody
        if weight == 0 or (not sentence.ended and weight < _HALF):
            return None
        line = _shorten(text)
        if self._goes_on(line, dangling, meant, weight):
            self.open = self._added(sentence, line, others, moved=moved)
        elif weight > 1:
            who = meant if dangling else before or self.bible.first_named(text)
            context = self.open if dangling and who is None else None
            shot = Shot(
                name(),
                sentence.span,
                sentence.tokens,
                sentence.spoken_before,
                (_named(line, who) if dangling and who is not None else line,),
                subject=who.look if who is not None else "",
                others=others,
                place=self.bible.here,
                moved=moved and self.open is not None,
                context=context.context or context.lines[0] if context is not None else "",
                tags=sentence.tags,
                first=self.count == 0,
            )
            self.open = self._begun(shot, max_shots)
        else:
            return None
        return self.open

    def _goes_on(self, line: str, dangling: str, meant: Subject | None, weight: int) -> bool:
        """Whether a sentence adds to the open shot: its subject is the same, or its weight too small."""
        shot = self.open
        if shot is None or len(shot.lines) >= _LINES or len(shot.text) + len(line) >= _CHARS:
            return False
        if dangling and meant is not None:
            return self.bible.mentions(f"{shot.text} {shot.subject}", meant)
        return bool(dangling) or weight == 1

    def _dangling(self, text: str) -> str:
        """The first word that stands for somebody outside of the sentence; "" if there is none."""
        other = _OTHERS.get(self.language)
        if other is not None:
            return found[0] if (found := other.search(text)) else ""
        if self.language != "en":
            return ""
        if _SOME.search(text):
            return "they"
        words = pronouns(text)
        return words[0][0] if words else ""

    def _added(
        self, sentence: Sentence, line: str, others: tuple[str, ...], *, moved: bool
    ) -> Shot:
        assert self.open is not None
        old = self.open
        return replace(
            old,
            span=Span(old.span.start, sentence.span.end),
            tokens=Span(old.tokens.start, sentence.tokens.end),
            lines=(*old.lines, line),
            others=tuple(
                look for look in dict.fromkeys(old.others + others) if look != old.subject
            ),
            place=self.bible.place if moved or not old.place else old.place,
            tags=old.tags + sentence.tags,
        )

    def _begun(self, shot: Shot, max_shots: int) -> Shot:
        old = self.open
        if self.count >= max_shots and old is not None:  # revise the last shot to show this
            return replace(
                shot,
                shot_id=old.shot_id,
                span=Span(old.span.start, shot.span.end),
                tokens=Span(old.tokens.start, shot.tokens.end),
                spoken_before=old.spoken_before,
                first=old.first,
            )
        self.count += 1
        return shot

    def _meant(self, text: str, dangling: str) -> tuple[Subject | None, tuple[str, ...]]:
        """The subject of a sentence's first pronoun, and the looks of the other pronouns' subjects."""
        if not dangling or self.language != "en":
            return None, ()
        first = self.bible.meant_by(dangling)
        shown = self.open.text if self.open is not None else ""
        if first is None and not any(map(is_someone, shown.split())):
            first = self.bible.latest  # the most likely subject, though the pronoun doesn't fit
        others = []
        for found in pronouns(text)[1:]:
            other = self.bible.meant_by(found[0])
            if other is not None and other != first and other.look not in others:
                others.append(other.look)
        return first, tuple(others)


def _named(line: str, who: Subject) -> str:
    """The line with ``who`` named in place of the pronoun at its beginning, if it is ``who.pronoun``."""

    def instead(found: re.Match[str]) -> str:
        if found["who"].lower() != who.pronoun:
            return found[0]
        name = who.definite
        return found["lead"] + (name if found["lead"] else name[:1].upper() + name[1:])

    return _FIRST.sub(instead, line, count=1)


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
