"""What of a written phrase is read out: Markdown by what it says, code by a word, emoji by an option.

Each change keeps account of the characters that it stands for: so what a voice says about the text
that it was given can be told of the text that was written.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from specstream.errors import ConfigError
from specstream.types import Phrase, Span, Tag

__all__ = ["LINE_START", "Place", "Reading", "Readout"]

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
    | (?<![\w*_`~])[*_`~]++(?=\S) | (?<=\S)(?<![*_`~])[*_`~]++(?!\w)
    | (?<=[^\W\d_])\*\*(?=[^\W\d_])
    """,
    re.VERBOSE,
)
_PICTURE = "[\u2600-\u27bf\u2b00-\u2bff\U0001f000-\U0001faff]"
_PARTS = "[\u200d\u20e3\ufe0e\ufe0f\U0001f3fb-\U0001f3ff\U000e0020-\U000e007f]"
_JOINED = f"(?<=\u200d){_PICTURE}{_PARTS}*"
_EMOJI = re.compile(
    f"[\U0001f1e6-\U0001f1ff]{{2}}|{_PICTURE}{_PARTS}*(?:{_JOINED})*|[\u20e3\ufe0f]"
)
_FLAG_A = 0x1F1E6  # the regional indicator for the letter A


class Place(NamedTuple):
    """Where reading has come to in a reply, as far as Markdown goes.

    Attributes:
        fence: What opened the block of code that it is inside of; empty outside of code.
        row: Whether it is in a table's row.
        fresh: Whether nothing but white space stands before it on its line.
    """

    fence: str = ""
    row: bool = False
    fresh: bool = True


LINE_START = Place()


class _Edit(NamedTuple):
    """``text`` is read instead of what is written from ``start`` to ``end``."""

    start: int
    end: int
    text: str = ""


@dataclass(frozen=True, slots=True)
class Reading:
    """A phrase as a voice is given it, and where reading has come to after it."""

    phrase: Phrase
    place: Place
    edits: tuple[_Edit, ...] = ()

    def written(self, chars: Span) -> Span:
        """The characters of the reply that ``chars`` of the given phrase stand for."""
        origin = self.phrase.chars.start
        start, end = chars.start - origin, chars.end - origin
        first, last = self._written(start), self._written(max(start, end - 1))
        if start >= end:  # between two characters: behind the first of them
            edge = self._written(start - 1).end if start > 0 else 0
            return Span(origin + edge, origin + edge)
        return Span(origin + first.start, origin + last.end)

    def _written(self, index: int) -> Span:
        shift = 0  # from the given text to what is written
        for edit in self.edits:
            given = edit.start - shift
            if index < given:
                break
            if index < given + len(edit.text):
                return Span(edit.start, edit.end)
            shift += edit.end - edit.start - len(edit.text)
        return Span(index + shift, index + shift + 1)


@dataclass(frozen=True, slots=True)
class Readout:
    """How a reply is read out.

    A link is read as its text, a table as its cells, headings, bullets, quotes and emphasis without
    their marks.

    Attributes:
        code: Whether a block of code is read as the word "code", or not at all.
        emoji: Whether an emoji is not read, or read by its Unicode name.

    Raises:
        ConfigError: an option has no such value.
    """

    code: Literal["word", "silent"] = "word"
    emoji: Literal["silent", "name"] = "silent"

    def __post_init__(self) -> None:
        if self.code not in ("word", "silent"):
            raise ConfigError(f"code must be 'word' or 'silent', not {self.code!r}")
        if self.emoji not in ("silent", "name"):
            raise ConfigError(f"emoji must be 'silent' or 'name', not {self.emoji!r}")

    def read(self, phrase: Phrase, place: Place = LINE_START) -> Reading:
        """``phrase`` as it is read out if reading has come to ``place`` before it."""
        text, edits = phrase.spoken, list[_Edit]()
        for line in _LINE.finditer(text):
            place = self._line(text, Span(*line.span()), place, edits)
        return Reading(_edited(phrase, edits) if edits else phrase, place, tuple(edits))

    def _line(self, text: str, line: Span, place: Place, edits: list[_Edit]) -> Place:
        """Read a line, or a part of one; returns where that ends."""
        fresh = text[line.end - 1] == "\n" or (place.fresh and text[slice(*line)].isspace())
        fence = _FENCE.match(text, *line) if place.fresh else None
        if place.fence:
            first = edits.pop() if edits and edits[-1].end == line.start else _Edit(*line, " ")
            edits.append(first._replace(end=line.end))  # the word stands for all of the block
            closed = fence is not None and not fence[2].strip() and fence[1].startswith(place.fence)
            return Place("" if closed else place.fence, fresh=fresh)
        if fence is not None and "`" not in fence[2]:
            word = " code. " if self.code == "word" else " "
            edits.append(_Edit(fence.start(1), line.end, word))
            return Place(fence[1], fresh=fresh)
        at, row = line.start, place.row
        if place.fresh:
            row = text[slice(*line)].lstrip().startswith("|")
            if opening := _OPENING.match(text, *line):
                at = opening.end()
                edits.append(_Edit(line.start, at))
        edits += self._inline(text, at, line.end, row=row)
        return Place(row=row and not fresh, fresh=fresh)

    def _inline(self, text: str, start: int, end: int, *, row: bool) -> Iterator[_Edit]:
        first = end - len(text[start:end].lstrip(" \t|"))
        last = start + len(text[start:end].rstrip(" \t|\n"))
        at = start
        for found in _INLINE.finditer(text, start, end):
            yield from self._pictures(text, at, found.start())
            at = found.end()
            inner = found.span("code") if found["code"] else found.span("label")
            if inner[0] >= 0:
                yield _Edit(found.start(), inner[0])
                if not found["code"]:
                    yield from self._inline(text, *inner, row=False)
                yield _Edit(inner[1], at)
            elif found["bar"]:
                between = row and first < found.start() and at < last  # two cells
                yield _Edit(at - 1, at, ", " if between else " ")
            else:
                yield _Edit(found.start(), at)
        yield from self._pictures(text, at, end)

    def _pictures(self, text: str, start: int, end: int) -> Iterator[_Edit]:
        for found in _EMOJI.finditer(text, start, end):
            yield _Edit(*found.span(), f" {_name(found[0])} " if self.emoji == "name" else " ")


def _name(emoji: str) -> str:
    """The Unicode names of what an emoji is joined from, without its colours."""
    if _FLAG_A <= ord(emoji[0]) < _FLAG_A + 26:
        return "flag " + " ".join(chr(ord(letter) - _FLAG_A + ord("A")) for letter in emoji)
    pictures = [char for char in emoji if re.match(_PICTURE, char) and not re.match(_PARTS, char)]
    return " ".join(unicodedata.name(char, "").lower().removesuffix(" sign") for char in pictures)


def _edited(phrase: Phrase, edits: Sequence[_Edit]) -> Phrase:
    """The phrase with other text; its offsets are those of that text, its tags move along."""
    text, at, tags = "", 0, list(phrase.tags)
    origin, moved = phrase.chars.start, list[Tag]()
    for edit in [*edits, _Edit(len(phrase.text), len(phrase.text))]:
        while tags and tags[0].chars.end - origin <= edit.start:
            shift = len(text) - at
            chars = tags[0].chars
            moved.append(replace(tags.pop(0), chars=Span(chars.start + shift, chars.end + shift)))
        tags = [tag for tag in tags if tag.chars.start - origin >= edit.end]
        text += phrase.text[at : edit.start] + edit.text
        at = edit.end
    return replace(phrase, text=text, chars=Span(origin, origin + len(text)), tags=tuple(moved))
