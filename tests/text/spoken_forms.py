"""Reads written forms, and the files of forms with the ways in which each may be read."""

import re
from pathlib import Path
from typing import NamedTuple

from specstream.text.spoken import Readout
from specstream.types import Phrase, Span, Tag

ENGLISH = Readout(language="en-us")
_CHOICE = re.compile(r"\(([^()]*)\)")


class Form(NamedTuple):
    """A written form and every accepted reading of it."""

    category: str
    written: str
    accepted: frozenset[str]


def plain(spoken: str) -> str:
    """The words alone: case, punctuation and hyphens don't count."""
    words = re.sub(r"[-\u2010-\u2015]", " ", spoken.lower())
    return " ".join(re.sub(r"[^\w\s/$€£¥°%#@&=+<>*~^]", "", words).split())


def _readings(pattern: str) -> set[str]:
    """All readings of a pattern; choices may be nested."""
    todo, done = [pattern], set[str]()
    while todo:
        text = todo.pop()
        if found := _CHOICE.search(text):
            todo += [text[: found.start()] + way + text[found.end() :] for way in found[1].split("|")]
        else:
            done.update(plain(way) for way in text.split(" | "))
    return done


def forms(name: str) -> list[Form]:
    """The forms of a file beside this module."""
    category, made = "", list[Form]()
    for line in Path(__file__).with_name(name).read_text("utf-8").splitlines():
        if line.startswith("## "):
            category = line[3:]
        elif "=>" in line and not line.startswith("#"):
            written, _, pattern = line.partition("=>")
            made.append(Form(category, written.strip(), frozenset(_readings(pattern.strip()))))
    return made


def phrase(text: str, start: int = 0, tags: tuple[Tag, ...] = ()) -> Phrase:
    return Phrase(text, Span(start, start + len(text)), Span(0, 1), tags=tags)


def said(text: str, language: str = "en") -> str:
    return Readout(language=language).read(phrase(text)).phrase.spoken


def words(text: str, readout: Readout = ENGLISH) -> list[tuple[str, str]]:
    """Every spoken word, and the written text that it stands for."""
    read = readout.read(phrase(text, 50))
    pairs = []
    for found in re.finditer(r"[\w']+", read.phrase.spoken):
        chars = read.written(Span(50 + found.start(), 50 + found.end()))
        pairs.append((found[0], text[chars.start - 50 : chars.end - 50]))
    return pairs
