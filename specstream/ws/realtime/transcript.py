"""The spoken side of a reply's text: what is left once the inline tags are taken out."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Generic, TypeVar

from specstream.types import Phrase, Span

__all__ = ["SpokenText", "spoken_text"]

O = TypeVar("O")  # noqa: E741 - the origin of a piece of text


class _Eraser:
    """Takes tags out. The white space behind a tag goes with it if there was some before it."""

    def __init__(self) -> None:
        self._gap = True  # what was kept last is white space, or nothing was kept yet
        self._closing = False

    def erase(self, text: str, start: int, tags: Sequence[Span]) -> str:
        """``text`` begins at offset ``start``; a tag lies in it, or reaches over its edges."""
        kept, at, end = "", start, start + len(text)
        for tag in tags:
            if tag.start < end and tag.end > start:
                kept += self._keep(text[at - start : max(at, tag.start) - start])
                self._closing, at = self._gap, max(at, min(tag.end, end))
        return kept + self._keep(text[at - start :])

    def _keep(self, text: str) -> str:
        if self._closing:
            text = text.lstrip()
        if text:
            self._closing, self._gap = False, text[-1].isspace()
        return text


class SpokenText(Generic[O]):
    """Lets a growing text out as soon as it is certain that no tag is in it.

    Text goes straight through up to a bracket; from there it waits until the phrase that it belongs
    to says whether the bracket was a tag. That is always before the phrase's audio. Each piece
    keeps its origin, and what comes out does not depend on how the text was cut.
    """

    def __init__(self) -> None:
        self.tags: list[Span] = []
        self._pieces: deque[tuple[int, str, O]] = deque()
        self._end = 0
        self._known = 0
        self._eraser = _Eraser()

    def add(self, text: str, origin: O) -> list[tuple[str, Span, O]]:
        """Take more text; returns what may go: text, where it lies in the reply, its origin."""
        self._pieces.append((self._end, text, origin))
        self._end += len(text)
        return self._release()

    def learn(self, phrase: Phrase) -> list[tuple[str, Span, O]]:
        """The tags up to the end of ``phrase`` are known now."""
        self.tags += [tag.chars for tag in phrase.tags]
        self._known = max(self._known, phrase.chars.end)
        return self._release()

    def close(self) -> list[tuple[str, Span, O]]:
        """There will be no more text and no more phrases: let the rest out."""
        self._known = self._end
        return self._release()

    def _release(self) -> list[tuple[str, Span, O]]:
        out: list[tuple[str, Span, O]] = []
        while self._pieces:
            start, text, origin = self._pieces[0]
            stop = text.find("[", max(0, self._known - start))
            ready = text if stop < 0 else text[:stop]
            kept = self._eraser.erase(ready, start, self.tags)
            if kept:
                out.append((kept, Span(start, start + len(ready)), origin))
            if stop >= 0:
                self._pieces[0] = (start + stop, text[stop:], origin)
                break
            self._pieces.popleft()
        return out


def spoken_text(text: str, tags: Sequence[Span]) -> str:
    """``text`` without its tags, as `SpokenText` lets it out."""
    return _Eraser().erase(text, 0, tags)
