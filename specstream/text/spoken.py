"""Turns written into spoken text: no Markdown marks, code as one word, emoji silent or by name.

Numbers, dates and other written forms become words in `specstream.text.wording`. Each change
records the written characters that it stands for, so a voice's marks can be mapped back.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from specstream.errors import ConfigError
from specstream.text.rules import Edit, Mapped
from specstream.text.wording import wording_for
from specstream.types import Phrase, Span, Tag

__all__ = ["LINE_START", "Reading", "ReadingState", "Readout"]

_LINE = re.compile(r"[^\n]*\n|[^\n]+")
_FENCE = re.compile(r"[ \t>]*(`{3,}|~{3,})[ \t]*([^\n]*)")
_OPENING = re.compile(  # of a line: a ruled line; a table's divider; headings, bullets, quotes
    r"""
    [ \t]*([-*_=])(?:[ \t]*\1){2,}[ \t]*$
    | [ \t]*\|[ \t:|-]*-[ \t:|-]*$
    | [ \t]*(?:(?:\#{1,6}|>+|[-+*•])(?=\s)[ \t]*)+(?:\[[ xX]\](?=\s))?
    """,
    re.VERBOSE | re.MULTILINE,
)
_INLINE = re.compile(
    r"""
    (?P<ticks>`+)(?P<code>[^`\n]+)(?P=ticks)(?!`)
    | !?\[(?P<label>[^\[\]\n]*)\](?:\((?:[^()\s]|\([^()\s]*\))*(?:\s+"[^"\n]*")?\)|\[[^\[\]\n]*\])
    | \[\^[^\[\]\s]+\]:?
    | (?P<bar>\|)
    | (?<![\w*_`~])(?!~(?:[$€£]?\d|/))[*_`~]++(?=\S) | (?<=\S)(?<![*_`~])[*_`~]++(?!\w)
    | (?<=[^\W\d_])\*\*(?=[^\W\d_])
    """,
    re.VERBOSE,
)
_PICTURE = "[\u2600-\u27bf\u2b00-\u2bff\U0001f000-\U0001faff]"
_PARTS = "[\u200d\u20e3\ufe0e\ufe0f\U0001f3fb-\U0001f3ff\U000e0020-\U000e007f]"
_JOINED = f"(?<=\u200d){_PICTURE}{_PARTS}*"
_EMOJI = re.compile(f"[\U0001f1e6-\U0001f1ff]{{2}}|{_PICTURE}{_PARTS}*(?:{_JOINED})*|[\u20e3\ufe0f]")
_TAIL = 40  # characters of earlier text that may decide how a form is read
_FLAG_A = 0x1F1E6  # the regional indicator for the letter A


class ReadingState(NamedTuple):
    """The state of reading at some place of a reply.

    Attributes:
        fence: The mark that opened the block of code around it; empty outside of code.
        row: Whether it is in a table's row.
        fresh: Whether only white space stands before it on its line.
        before: The end of the text before it, without Markdown, if a sentence goes on here.
    """

    fence: str = ""
    row: bool = False
    fresh: bool = True
    before: str = ""


LINE_START = ReadingState()


@dataclass(frozen=True, slots=True)
class Reading:
    """A phrase as a voice is given it, and the state after it.

    ``sources`` has the written characters for each spoken one; empty if nothing was changed.
    """

    phrase: Phrase
    place: ReadingState
    sources: tuple[Span, ...] = ()

    def written(self, chars: Span) -> Span:
        """Return the characters of the reply that ``chars`` of the spoken phrase stand for."""
        if not self.sources:
            return chars
        origin, last = self.phrase.chars.start, len(self.sources)
        start, end = (min(max(0, char - origin), last) for char in chars)
        there = Mapped(self.phrase.text, self.sources).written(start, max(start, end))
        return Span(origin + there.start, origin + there.end)


@dataclass(frozen=True, slots=True)
class Readout:
    """How a reply is read out.

    A link is read as its text, a table as its cells, headings, bullets, quotes and emphasis without
    their marks. Numbers, dates and other written forms are read in the words of ``language``.

    Attributes:
        code: Whether a block of code is read as the word "code", or not at all.
        emoji: Whether an emoji is not read, or read by its Unicode name.
        language: A language tag such as ``"en-us"``; None stands for the voice's own. Forms of a
            language without a `specstream.text.wording.Wording` are left to the voice.

    Raises:
        ConfigError: an option has no such value.
    """

    code: Literal["word", "silent"] = "word"
    emoji: Literal["silent", "name"] = "silent"
    language: str | None = None

    def __post_init__(self) -> None:
        if self.code not in ("word", "silent"):
            raise ConfigError(f"code must be 'word' or 'silent', not {self.code!r}")
        if self.emoji not in ("silent", "name"):
            raise ConfigError(f"emoji must be 'silent' or 'name', not {self.emoji!r}")
        if self.language is not None and not isinstance(self.language, str):
            raise ConfigError(f"language must be a tag such as 'en-us', not {self.language!r}")

    def for_language(self, language: str) -> Readout:
        """Return the same in ``language``, unless a language is set; loads what is needed to read it."""
        readout = self if self.language is not None else replace(self, language=language)
        wording_for(readout.language or "")
        return readout

    def read(self, phrase: Phrase, place: ReadingState = LINE_START) -> Reading:
        """Return ``phrase`` as it is read out; ``place`` is the state before it."""
        text = _without_tags(phrase) if _rewritten(phrase) else phrase.spoken
        edits, before = list[Edit](), place.before
        for line in _LINE.finditer(text):
            place = self._line(text, Span(*line.span()), place, edits)
        read = Mapped(text).edited(edits)
        wording = wording_for(self.language or "")
        if wording is not None:
            goes_on = phrase.reason not in ("sentence", "end")
            place = place._replace(before=_tail(before + read.text) if goes_on else "")
            read = wording.read(read, before)
        return _reading(phrase, place, read)

    def _line(self, text: str, line: Span, place: ReadingState, edits: list[Edit]) -> ReadingState:
        """Add the edits of a line, or of a part of one; return the state after it."""
        fresh = text[line.end - 1] == "\n" or (place.fresh and text[slice(*line)].isspace())
        fence = _FENCE.match(text, *line) if place.fresh else None
        if place.fence:
            first = edits.pop() if edits and edits[-1].end == line.start else Edit(*line, " ")
            edits.append(first._replace(end=line.end))  # the word stands for all of the block
            closed = fence is not None and not fence[2].strip() and fence[1].startswith(place.fence)
            return ReadingState("" if closed else place.fence, fresh=fresh)
        if fence is not None and "`" not in fence[2]:
            word = " code. " if self.code == "word" else " "
            edits.append(Edit(fence.start(1), line.end, word))
            return ReadingState(fence[1], fresh=fresh)
        at, row = line.start, place.row
        if place.fresh:
            row = text[slice(*line)].lstrip().startswith("|")
            if opening := _OPENING.match(text, *line):
                at = opening.end()
                edits.append(Edit(line.start, at))
        edits += self._inline(text, at, line.end, row=row)
        return ReadingState(row=row and not fresh, fresh=fresh)

    def _inline(self, text: str, start: int, end: int, *, row: bool) -> Iterator[Edit]:
        first = end - len(text[start:end].lstrip(" \t|"))
        last = start + len(text[start:end].rstrip(" \t|\n"))
        at = start
        for found in _INLINE.finditer(text, start, end):
            yield from self._pictures(text, at, found.start())
            at = found.end()
            inner = found.span("code") if found["code"] else found.span("label")
            if inner[0] >= 0:
                yield Edit(found.start(), inner[0])
                if not found["code"]:
                    yield from self._inline(text, *inner, row=False)
                yield Edit(inner[1], at)
            elif found["bar"]:
                between = row and first < found.start() and at < last  # two cells
                yield Edit(at - 1, at, ", " if between else " ")
            else:
                yield Edit(found.start(), at)
        yield from self._pictures(text, at, end)

    def _pictures(self, text: str, start: int, end: int) -> Iterator[Edit]:
        for found in _EMOJI.finditer(text, start, end):
            yield Edit(*found.span(), f" {_name(found[0])} " if self.emoji == "name" else " ")


def _tail(text: str) -> str:
    """The last words of a text, at most `_TAIL` characters."""
    return text if len(text) <= _TAIL else text[-_TAIL:].partition(" ")[2]


def _name(emoji: str) -> str:
    """The Unicode names of what an emoji is joined from, without its colours."""
    if _FLAG_A <= ord(emoji[0]) < _FLAG_A + 26:
        return "flag " + " ".join(chr(ord(letter) - _FLAG_A + ord("A")) for letter in emoji)
    pictures = [char for char in emoji if re.match(_PICTURE, char) and not re.match(_PARTS, char)]
    return " ".join(unicodedata.name(char, "").lower().removesuffix(" sign") for char in pictures)


def _rewritten(phrase: Phrase) -> bool:
    """Whether a stage gave the phrase another text, such as a translation.

    None of its words has a place in the reply, so each stands for the whole phrase.
    """
    return len(phrase.text) != phrase.chars.length


def _without_tags(phrase: Phrase) -> str:
    """The text of a rewritten phrase, with spaces where its tags still stand."""
    text = phrase.text
    for tag in phrase.tags:
        text = text.replace(f"[{tag.name}]", " " * (len(tag.name) + 2), 1)
    return text


def _reading(phrase: Phrase, place: ReadingState, read: Mapped) -> Reading:
    """The phrase with other text; its offsets are those of that text, its tags move along."""
    if _rewritten(phrase):
        whole = (Span(0, phrase.chars.length),) * len(read.text)
        chars = Span(phrase.chars.start, phrase.chars.start + len(read.text))
        return Reading(replace(phrase, text=read.text, chars=chars, tags=()), place, whole)
    if not read.sources:
        return Reading(phrase, place)
    text, origin, moved = read.text, phrase.chars.start, list[Tag]()
    for tag in phrase.tags:
        start, end = tag.chars.start - origin, tag.chars.end - origin
        if (start, start + 1) in read.sources and (end - 1, end) in read.sources:  # not inside code
            now = read.sources.index(Span(start, start + 1))
            text = text[:now] + phrase.text[start:end] + text[now + end - start :]
            moved.append(replace(tag, chars=Span(origin + now, origin + now + end - start)))
    chars = Span(origin, origin + len(text))
    spoken = replace(phrase, text=text, chars=chars, tags=tuple(moved))
    return Reading(spoken, place, read.sources)
