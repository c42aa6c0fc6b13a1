"""Text without the tags in it (stage directions), released as soon as that is certain."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from copy import copy
from typing import Generic, TypeVar

from specstream.types import Phrase, Span

__all__ = ["SpokenText", "spoken_text"]

O = TypeVar("O")  # noqa: E741 - the origin of a piece of text


class _TagRemover:
    """Removes tags, and the white space after a tag if there was white space before the tag."""

    def __init__(self) -> None:
        self._gap = True  # the last kept character is white space, or nothing was kept yet
        self._after_tag = False

    def remove(self, text: str, start: int, tags: Sequence[Span]) -> str:
        """Strip ``tags`` (they may overlap its edges) from ``text`` at offset ``start`` of the reply."""
        kept, at, end = "", start, start + len(text)
        for tag in tags:
            if tag.start < end and tag.end > start:
                kept += self._keep(text[at - start : max(at, tag.start) - start])
                self._after_tag, at = self._gap, max(at, min(tag.end, end))
        return kept + self._keep(text[at - start :])

    def _keep(self, text: str) -> str:
        if self._after_tag:
            text = text.lstrip()
        if text:
            self._after_tag, self._gap = False, text[-1].isspace()
        return text


class SpokenText(Generic[O]):
    """Releases a growing text as soon as it is certain that it contains no tag.

    Text passes straight through up to a bracket; from there it waits for its phrase, which says
    whether the bracket was a tag, and always comes before the phrase's audio. Each piece keeps its
    origin, and the result does not depend on how the text was cut.
    """

    def __init__(self) -> None:
        self.tags: list[Span] = []
        self._pieces: deque[tuple[int, str, O]] = deque()
        self._end = 0
        self._known = 0  # the tags before this offset are known
        self._remover = _TagRemover()

    def go_on(self, text: str, tags: Sequence[Span]) -> str:
        """Begin behind this text, which has these tags and was released; returns it without them."""
        self._end = self._known = len(text)
        self.tags += tags
        return self._remover.remove(text, 0, tags)

    def add(self, text: str, origin: O) -> list[tuple[str, Span, O]]:
        """Append text; returns the released pieces: text, its place in the reply, its origin."""
        self._pieces.append((self._end, text, origin))
        self._end += len(text)
        return self._release()

    def peek(self, text: str) -> str:
        """Return what `add` would release of ``text``, without adding it; empty while text waits."""
        if self._pieces:
            return ""
        ready, _, _ = text.partition("[")
        return copy(self._remover).remove(ready, self._end, self.tags)

    def learn(self, phrase: Phrase) -> list[tuple[str, Span, O]]:
        """Take note of the tags up to the end of ``phrase``; returns the released pieces."""
        return self.know([tag.chars for tag in phrase.tags], phrase.chars.end)

    def know(self, tags: Sequence[Span], end: int) -> list[tuple[str, Span, O]]:
        """Take note of further tags: there are no others before ``end``."""
        self.tags += tags
        self._known = max(self._known, end)
        return self._release()

    def close(self) -> list[tuple[str, Span, O]]:
        """Release the rest: there will be no more text and no more phrases."""
        self._known = self._end
        return self._release()

    def _release(self) -> list[tuple[str, Span, O]]:
        out: list[tuple[str, Span, O]] = []
        while self._pieces:
            start, text, origin = self._pieces[0]
            stop = text.find("[", max(0, self._known - start))
            ready = text if stop < 0 else text[:stop]
            kept = self._remover.remove(ready, start, self.tags)
            if kept:
                out.append((kept, Span(start, start + len(ready)), origin))
            if stop >= 0:
                self._pieces[0] = (start + stop, text[stop:], origin)
                break
            self._pieces.popleft()
        return out


def spoken_text(text: str, tags: Sequence[Span]) -> str:
    """Return ``text`` without its tags, as `SpokenText` releases it."""
    return _TagRemover().remove(text, 0, tags)
