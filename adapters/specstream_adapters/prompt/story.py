"""The shot list: which sentence begins a shot, which adds to the open one, and which shows nothing."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TypeAlias

from specstream.text.spoken import Readout
from specstream.types import Phrase, Span
from specstream_adapters.prompt.bible import Bible, Pronoun, Subject, only_mentioned, pronouns
from specstream_adapters.prompt.visible import (
    is_someone,
    language_of,
    machine_text,
    narration,
    open_quote,
    sight,
    unquoted,
)

__all__ = ["Sentence", "Shot", "Story", "ended"]

_LINES = 3  # sentences that one shot tells
_CHARS = 360  # characters that they have together
_HALF = 3  # least weight of the beginning of a sentence to be shown
_LONGEST = 320  # characters of a sentence that go into a prompt
_MAX_CHARS = 600  # a sentence is cut after the phrase with which it gets this long
_MAX_MACHINE = 20_000  # the same with text for programs that is open
_UNMARKED = Readout(code="silent", language="und")  # no numbers in words
_OF_MACHINES = re.compile(r"```|~~~|<\|")
_ITEM = re.compile(r"^\s*\d{1,3}[.)]\s+(?=\S)", re.MULTILINE)  # of a list
_ENDED = re.compile(r"[.!?…。！？][\"”»]?$")
_THEY = frozenset("they them their theirs".split())
_Found: TypeAlias = tuple[Pronoun, list[Subject]]  # a pronoun, and for whom it can stand
_OTHERS = {  # beginnings of a sentence that goes on about the subject before it, in other languages
    "": re.compile(r"^[他她它]"),
    "de": re.compile(r"^(?:Er|Sie|Es|Ihm|Ihn|Ihr|Ihre|Sein|Seine)\b"),
    "es": re.compile(r"^(?:Él|Ella|Ellos|Ellas|Su|Sus|Le|Les|Se)\b"),
}


@dataclass(frozen=True)
class Sentence:
    """A sentence, or the beginning of one, and what was known where it began; boards may share it.

    Attributes:
        story: What was known; not to be changed.
        spoken_before: Characters spoken before it began, tags and machine text not counted.
        phrases: Its phrases so far.
        shot_id: The shot that it began; "" if it began none.
        ended: Whether the sentence is complete.
    """

    story: Story
    spoken_before: int
    phrases: tuple[Phrase, ...] = ()
    shot_id: str = ""
    ended: bool = False

    @cached_property
    def _plain(self) -> str:
        """The spoken text without Markdown, filled up with spaces."""
        text = "".join(phrase.spoken for phrase in self.phrases)
        if _OF_MACHINES.search(text):  # what is found by its marks
            return text
        whole = Phrase(text, Span(0, len(text)), Span(0, 0), 0)
        return _ITEM.sub("", _UNMARKED.read(whole).phrase.text)[: len(text)].ljust(len(text))

    @cached_property
    def _machine(self) -> list[tuple[int, int]]:
        return machine_text(self._plain)

    @cached_property
    def text(self) -> str:
        """The spoken text of ``span``, as long as that: tags and machine text are spaces."""
        text = self._plain
        for start, end in self._machine:
            text = text[:start] + " " * len(text[start:end]) + text[end:]
        return text

    @property
    def spoken_after(self) -> int:
        """Characters spoken up to its end."""
        length = len(self.text)
        hidden = sum(min(end, length) - start for start, end in self._machine)
        tags = sum(tag.chars.length for phrase in self.phrases for tag in phrase.tags)
        return self.spoken_before + length - hidden - tags

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

    def add(self, phrase: Phrase) -> Sentence:
        """The sentence with its next phrase.

        It ends with a phrase that the segmenter cut at the end of a sentence, unless a quotation or text
        for programs is open.
        """
        longer = replace(self, phrases=(*self.phrases, phrase))
        length = len(longer.text)
        if longer._machine and longer._machine[-1][1] > length:
            return replace(longer, ended=length >= _MAX_MACHINE)
        closed = phrase.reason in ("sentence", "end") and not open_quote(longer.text)
        says = bool(longer.text.strip())
        return replace(longer, ended=says and (closed or length >= _MAX_CHARS))

    def until(self, char: int) -> Sentence:
        """The sentence up to an offset of the reply, under way again."""
        kept = tuple(_until(char, p) for p in self.phrases if p.chars.start < char)
        return replace(self, phrases=kept, shot_id=self.shot_id if kept else "", ended=False)


def _until(char: int, phrase: Phrase) -> Phrase:
    """The phrase up to an offset of the reply."""
    if phrase.chars.end <= char:
        return phrase
    tags = tuple(tag for tag in phrase.tags if tag.chars.end <= char)
    text = phrase.text[: char - phrase.chars.start]
    return replace(phrase, text=text, chars=Span(phrase.chars.start, char), tags=tags)


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


@dataclass(slots=True)
class Story:
    """What is known before a sentence: the bible, the open shot, the number of shots, the language.

    ``told`` is the sentence before it, with those that its pronouns refer to; ``both`` are the two
    that were named last in one sentence.
    """

    bible: Bible = field(default_factory=Bible)
    open: Shot | None = None
    count: int = 0
    language: str = ""
    told: str = ""
    both: tuple[Subject, ...] = ()

    def copy(self) -> Story:
        """An independent copy."""
        return replace(self, bible=self.bible.copy())

    def take(
        self, sentence: Sentence, begun: bool, name: Callable[[], str], max_shots: int
    ) -> Shot | None:
        """The shot that a sentence begins or changes; None where there is nothing to see.

        ``begun``: its beginning was shown as a shot, so it stays one. ``name`` gives the id of a shot
        that begins. After ``max_shots`` the last one is changed instead.
        """
        text = narration(sentence.text)
        if not text:
            if self.language in ("", "en"):
                self.bible.read(unquoted(sentence.text))  # who speaks is somebody who is there
            return None
        self.language = language_of(text) or self.language or "en" * text.isascii()
        words, who, others, found = self._meant(text)
        named = _with_names(text, found)
        told, self.told = self.told, named
        if words and who is None and told:
            self.told = f"{told[-_LONGEST:]} {named}"
        moved = self.language == "en" and self.bible.read(text)
        both = tuple(self.bible.named_in(text))
        self.both = both if len(both) == 2 else self.both
        known = self.bible.names.union(words if who is not None else ())
        weight = max(sight(text, self.language, known), 2 * begun)
        line, old = _shorten(named.rstrip(" ,;:")), self.open
        goes_on = not begun and old is not None and _goes_on(old, line, words, who, weight)
        if weight == 1 and not goes_on and old is not None and who is None:
            # No room is left in the shot: somebody who comes now begins one.
            weight += any(one.position(old.text) < 0 for one in self.bible.named_in(text))
        if weight < (1 if goes_on else 2) or (weight == 1 and only_mentioned(text)):
            return None
        enough = 2 if sentence.shot_id else _HALF
        if not sentence.ended and (weight < enough or goes_on or self.count >= max_shots):
            return None
        if goes_on and old is not None:
            line = _shorten(_with_names(text, found, f"{old.text} {old.subject}").rstrip(" ,;:"))
            self.open = self._longer(old, sentence, line, others, moved)
            return self.open
        lost = any(pronoun.acted_on and not subjects for pronoun, subjects in found)
        context = self._context(told) if lost or (words and who is None) else ""
        if lost and not (begun or any(map(is_someone, re.findall(r"\w+", context)))):
            return None  # "A cat watches them": nobody knows whom
        if not words:
            who = next(iter(self.bible.named_in(text)), None)
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

    def _longer(
        self, shot: Shot, sentence: Sentence, line: str, others: tuple[str, ...], moved: bool
    ) -> Shot:
        """The open shot with a sentence that goes on about it."""
        looks = dict.fromkeys(shot.others + others)
        return replace(
            shot,
            span=Span(shot.span.start, sentence.span.end),
            tokens=Span(shot.tokens.start, sentence.tokens.end),
            lines=(*shot.lines, line),
            others=tuple(look for look in looks if look != shot.subject),
            place=self.bible.place if moved or not shot.place else shot.place,
            tags=shot.tags + sentence.tags,
        )

    def _context(self, told: str) -> str:
        """What a pronoun of somebody unknown refers to; ``told`` is the sentence before it."""
        if self.open is not None:
            return self.open.context or self.open.lines[0]
        return "" if only_mentioned(told) else told

    def _meant(self, text: str) -> tuple[list[str], Subject | None, tuple[str, ...], list[_Found]]:
        """The words that go on about somebody; whom the first means; other looks; all pronouns."""
        if self.language != "en":
            other = _OTHERS.get(self.language)
            return other.findall(text) if other is not None else [], None, (), []
        leading, later = pronouns(text)
        shown = self.open.subject if self.open is not None else ""
        found = [(one, self._whom(one, shown)) for one in leading + later]
        who = found[0][1][0] if leading and len(found[0][1]) == 1 else None
        looks = (subject.look for _, meant in found for subject in meant if subject != who)
        return [one.word for one in leading], who, tuple(dict.fromkeys(looks)), found

    def _whom(self, pronoun: Pronoun, shown: str) -> list[Subject]:
        """For whom a pronoun can stand; "them" also for the two that were named last in one sentence."""
        meant = self.bible.meant_by(pronoun.word, shown)
        return meant or (list(self.both) if pronoun.word.lower() in _THEY else [])


def _goes_on(shot: Shot, line: str, words: list[str], who: Subject | None, weight: int) -> bool:
    """Whether a sentence adds to the open shot: its subject is the same, or its weight too small."""
    if len(shot.lines) >= _LINES or len(shot.text) + len(line) >= _CHARS:
        return False
    if who is not None:
        return who.position(f"{shot.text} {shot.subject}") >= 0
    return bool(words) or weight == 1


def _with_names(text: str, found: list[_Found], told: str = "") -> str:
    """The sentence with whoever is surely meant named once, unless it or ``told`` does so."""
    named, out, at = told + text, "", 0
    for pronoun, subjects in sorted(found, key=lambda one: one[0].start):
        sure = len(subjects) == 1 or (subjects and pronoun.word.lower() in _THEY)
        if pronoun.word == "that" or not sure or subjects[0].position(named) >= 0:
            continue
        if not (subjects[0].clear or pronoun.start == 0):
            continue  # it stays, and the look is added
        said = pronoun.named(subjects)
        out, at = out + text[at : pronoun.start] + said, pronoun.end
        named += f" {said}"
    return out + text[at:]


def ended(text: str) -> str:
    """The text, with a full stop if it doesn't end like a sentence."""
    return text if _ENDED.search(text) else f"{text}."


def _shorten(text: str) -> str:
    """At most `_LONGEST` characters and an ellipsis, cut where a word ends."""
    if len(text) <= _LONGEST:
        return text
    head = text[:_LONGEST]
    return f"{head.rpartition(' ')[0] or head} …"
