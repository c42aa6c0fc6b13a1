"""Rules for `specstream.text.wording`: written forms that the library doesn't read by itself.

A rule rewrites a form into one that the library reads ("10-20" to "10 to 20"), or, where digits are
said one by one, into words. Rules run in order, each on what the one before left. A language's rules
are in its file, such as ``wording_en.toml``, which says how they are written.
"""

from __future__ import annotations

import importlib
import re
import tomllib
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import chain
from os.path import commonprefix
from pathlib import Path
from typing import Any, NamedTuple

from specstream.text.marks import SPOKEN
from specstream.types import Span

__all__ = [
    "Edit",
    "Mapped",
    "Row",
    "Speak",
    "address",
    "any_of",
    "each_digit",
    "everywhere",
    "fraction",
    "link",
    "numerals",
    "plain_digit",
    "rows",
    "rule",
    "say",
    "value_of",
    "words",
]


class Edit(NamedTuple):
    """``text`` takes the place of the characters from ``start`` to ``end``."""

    start: int
    end: int
    text: str = ""


@dataclass(frozen=True, slots=True)
class Mapped:
    """A text, and for each of its characters the written ones that it stands for.

    ``sources`` is empty as long as the text is the written one. The starts of its spans never decrease.
    """

    text: str
    sources: tuple[Span, ...] = ()

    def edited(self, edits: Iterable[Edit]) -> Mapped:
        """Return the text with ``edits`` made, which are in order and don't overlap."""
        todo = list(edits)
        if not todo:
            return self
        text, at, sources = "", 0, list[Span]()
        for edit in todo:
            sources += self._sources_of(at, edit.start)
            text += self.text[at : edit.start] + edit.text
            if edit.text:
                sources += [self.written(edit.start, edit.end)] * len(edit.text)
            at = edit.end
        sources += self._sources_of(at, len(self.text))
        return Mapped(text + self.text[at:], tuple(sources))

    def written(self, start: int, end: int) -> Span:
        """Return the written characters that those from ``start`` to ``end`` stand for."""
        if not self.sources:
            return Span(start, end)
        if start < end:
            return Span(self.sources[start].start, self.sources[end - 1].end)
        edge = self.sources[start - 1].end if start > 0 else 0  # behind the character before it
        return Span(edge, edge)

    def _sources_of(self, start: int, end: int) -> Iterable[Span]:
        if self.sources:
            return self.sources[start:end]
        return (Span(at, at + 1) for at in range(start, end))


_HEXADECIMAL = r"(?<![\w.])0[xX][0-9A-Fa-f]{1,16}\b|(?<![\w.])0[bB][01]{1,16}\b"
_SCIENTIFIC = r"(?<![\w.,])(\d+(?:[.,]\d+)?)[eE]\+?(-?)0*(\d{1,3})(?!\w|[.,]\d)"
_TIMESTAMP = (
    r"(?<=\d{4}-\d\d-\d\d)(?P<T>[T ])(?P<time>\d\d:\d\d)(?::(?P<seconds>\d\d)(?:[.,]\d+)?)?"
    r"(?P<zone>Z|[+-]\d\d:?\d\d)?(?![\w:])(?: Uhr)?"
)

Speak = Callable[[re.Match[str]], Iterator[Edit]]
Row = tuple[str, str | Mapping[str, str] | Speak]
"""A pattern, and what is said for it: a template (`re.Match.expand`), or words for the only group."""


def rule(row: Row) -> Callable[[str], Iterator[Edit]]:
    """Return what yields the changes that a row makes to a text, in order."""
    pattern, said = re.compile(row[0]), row[1]
    if isinstance(said, str):
        said = say(said)
    speak = _look_up(said) if isinstance(said, Mapping) else said

    def edits(text: str) -> Iterator[Edit]:
        for found in pattern.finditer(text):
            for edit in speak(found):
                yield _narrowed(text, edit)

    return edits


def _narrowed(text: str, edit: Edit) -> Edit:
    """The edit without the words at its ends that stay: a phrase may end between them and the others."""
    start, end, said = edit
    lead = commonprefix([text[start:end], said]).rfind(" ") + 1
    start, said = start + lead, said[lead:]
    same = commonprefix([text[start:end][::-1], said[::-1]])
    tail = same.rfind(" ") + 1
    return Edit(start, end - tail, said[: len(said) - tail])


def say(words: str | Callable[[str], str], group: int | str = 0) -> Speak:
    """Put ``words`` in the place of a group: a template, or what the function makes of the group."""

    def speak(found: re.Match[str]) -> Iterator[Edit]:
        said = found.expand(words) if isinstance(words, str) else words(found[group])
        yield Edit(*found.span(group), said)

    return speak


def everywhere(language: str, after_minutes: str, seconds: str, times: str) -> tuple[Row, ...]:
    """Return the rows of figures that are written alike in all languages.

    Args:
        language: Of the words for 0 to 9.
        after_minutes: What is said behind the hours and minutes of a timestamp.
        seconds: What is said for its seconds, a template.
        times: The word for a multiplication.
    """
    return (
        (r"(?![0-9])\d", say(plain_digit)),
        (r"(?<=\d)[⁻⁰¹²³⁴-⁹]+", say(_power)),
        (_HEXADECIMAL, _each_sign(language)),
        (_TIMESTAMP, _timestamp(after_minutes, seconds)),
        (_SCIENTIFIC, rf"\1 {times} 10^\2\3"),
    )


@cache
def _file(language: str) -> dict[str, Any]:
    file = Path(__file__).with_name(f"wording_{language}.toml")
    return tomllib.loads(file.read_text("utf-8"))


def words(language: str) -> dict[str, Any]:
    """The lists of words in a language's file, and of its abbreviations, by their names."""
    lists = _file(language)["words"] | SPOKEN[language]
    return {name: it.split() if isinstance(it, str) else it for name, it in lists.items()}


_NAME = re.compile(r"\{([a-z_]+)\}")


def rows(language: str, speak: Mapping[str, Speak]) -> Iterator[Row]:
    """Yield the rules in a language's file, in order; ``speak`` has the functions that they call."""
    file, lists = _file(language), words(language)
    known = {name: any_of(texts) for name, texts in lists.items()}

    def whole(pattern: str) -> str:
        joined = "".join(map(str.lstrip, pattern.splitlines()))
        return _NAME.sub(lambda found: f"(?:{known[found[1]]})", joined)

    for name, pattern in file["patterns"].items():
        known[name] = whole(pattern)
    for pattern, said in chain.from_iterable(file["rules"].values()):
        match said:
            case {"call": name}:
                yield whole(pattern), speak[name]
            case {"words": name}:
                yield whole(pattern), lists[name]
            case _:
                yield whole(pattern), said


def any_of(texts: Iterable[str]) -> str:
    """A pattern of any of these, the longest first."""
    return "|".join(map(re.escape, sorted(texts, key=len, reverse=True)))


@cache
def numerals(language: str) -> Any:
    """The library's `Language`: numbers in words. This module can be imported without the library."""
    return importlib.import_module("normt2s.langs").get_language(language)


def each_digit(language: str) -> Speak:
    """Read the digits of the group ``digits`` one by one."""

    def speak(found: re.Match[str]) -> Iterator[Edit]:
        start, end = found.span("digits")
        text, spoken, names = found.string, False, numerals(language).digit_words
        for part in re.finditer(r"\d|\+|[^\d+]+", text[start:end]):
            at, to = start + part.start(), start + part.end()
            if part[0].isdecimal():
                again = to < end and text[to].isdecimal()
                yield Edit(at, to, names[int(part[0])] + (" " if again else ""))
                spoken = True
            elif part[0] == "+":
                yield Edit(at, to, "plus ")
            else:
                yield Edit(at, to, ", " if spoken and to < end else "")

    return speak


def _each_sign(language: str) -> Speak:
    """Read digits and letters one by one."""

    def speak(found: re.Match[str]) -> Iterator[Edit]:
        names = numerals(language).digit_words
        for at in range(*found.span()):
            sign = found.string[at]
            name = names[int(sign)] if sign.isdigit() else sign.upper()
            yield Edit(at, at + 1, name + " " * (at + 1 < found.end()))

    return speak


def _timestamp(after: str, seconds: str) -> Speak:
    """Separate the time of an ISO timestamp from its date; ``after`` follows hours and minutes."""

    def speak(found: re.Match[str]) -> Iterator[Edit]:
        if found["T"] == "T":
            yield Edit(*found.span("T"), ", ")
        count, zone = int(found["seconds"] or 0), found["zone"] or ""
        digits = zone[1:].replace(":", "")
        offset = "" if not digits.strip("0") else " plus" if zone[0] == "+" else " minus"
        if offset:
            offset += f" {int(digits[:2])}" + f" {digits[2:]}" * (digits[2:] != "00")
        exactly = seconds.format(count) if count else ""
        yield Edit(found.end("time"), found.end(), after + exactly + f" UTC{offset}" * bool(zone))

    return speak


def fraction(joint: str) -> Speak:
    """Turn a sign such as "⅔" into "2/3", with ``joint`` between it and a whole number before it."""

    def speak(found: re.Match[str]) -> Iterator[Edit]:
        mixed = found.string[found.start() - 1 : found.start()].isdigit()
        parts = unicodedata.normalize("NFKC", found["sign"]).replace("\u2044", "/")
        yield Edit(*found.span(), joint * mixed + parts)

    return speak


def _look_up(table: Mapping[str, str]) -> Speak:
    """Read the table's word for the only group, with a space between it and a word beside it."""

    def speak(found: re.Match[str]) -> Iterator[Edit]:
        start, end = found.span(1)
        after, before = (found.string[at : at + 1].isalnum() for at in (start - 1, end))
        yield Edit(start, end, " " * after + table[found[1].strip(" .")] + " " * before)

    return speak


def plain_digit(digit: str) -> str:
    """Turn a digit of another script, or a subscript, into one that the library knows."""
    return str(unicodedata.digit(digit))


def _power(superscript: str) -> str:
    """Turn a superscript, as in "10⁻³", into a power that the library knows."""
    return "^" + unicodedata.normalize("NFKC", superscript).replace("\u2212", "-")


_URL_END = r"[^\s<>\"]*[^\s<>\".,;:!?)\]'*]"


def address(domains: Iterable[str]) -> str:
    """Return a pattern of URLs, e-mail addresses, and hosts in ``domains``, such as ``"org"``."""
    return (
        rf"(?:https?://|www\.){_URL_END}|(?<![\w.+-])[\w.+-]+@[\w-]+(?:\.[\w-]+)+"
        rf"|(?<![\w.@/-])[A-Za-z0-9][\w-]*(?:\.[\w-]+)*\.(?:{any_of(domains)})\b(?:/{_URL_END})?"
    )


_SIGN = re.compile(r"[^\w\s]|_|[a-zA-Z0-9]+")
_WORDS_OF_TWO = frozenset("co go me my so to in on at is it be by do an or no we hi".split())


def link(signs: Mapping[str, str]) -> Speak:
    """Read an address: words as such, ``signs`` by name, and letters that form no word one by one."""

    def speak(found: re.Match[str]) -> Iterator[Edit]:
        start, end = found.span()
        silent = re.match(r"(?:https?://)?(?:www\.)?", found[0])
        last = end - 1 if found[0].endswith("/") else end
        if silent and silent.end():
            yield Edit(start, start + silent.end())
            start += silent.end()
        for part in _SIGN.finditer(found.string, start, last):
            if part[0] in signs:
                yield Edit(*part.span(), f" {signs[part[0]]} ")
            elif not part[0].isalnum():
                yield Edit(*part.span(), " ")
            elif part[0].isalpha() and not _speakable(part[0].lower()):
                yield Edit(*part.span(), " ".join(part[0].upper()))
        if last < end:
            yield Edit(last, end)

    return speak


def _speakable(part: str) -> bool:
    if len(part) <= 2:
        return part in _WORDS_OF_TWO
    return not set(part).isdisjoint("aeiouy") or len(part) > 5


def value_of(numeral: str) -> int:
    """Return the value of a Roman numeral."""
    worth = [_ROMAN[letter] for letter in numeral]
    return sum(-one if one < max(worth[at:]) else one for at, one in enumerate(worth))


_ROMAN = {"I": 1, "V": 5, "X": 10, "L": 50, "C": 100}
