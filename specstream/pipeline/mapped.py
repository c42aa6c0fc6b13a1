"""Text that is rewritten step by step and knows which written characters each of its own stands for."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from specstream.types import Span

__all__ = ["Edit", "Mapped"]


class Edit(NamedTuple):
    """``text`` takes the place of the characters from ``start`` to ``end``."""

    start: int
    end: int
    text: str = ""


@dataclass(frozen=True, slots=True)
class Mapped:
    """A text, and for each of its characters the written ones that it stands for.

    ``sources`` is empty as long as the text is the written one. Their starts never fall.
    """

    text: str
    sources: tuple[Span, ...] = ()

    def edited(self, edits: Iterable[Edit]) -> Mapped:
        """The text with ``edits``, which are in order and don't overlap."""
        todo = list(edits)
        if not todo:
            return self
        text, at, sources = "", 0, list[Span]()
        for edit in todo:
            sources += self._of(at, edit.start)
            text += self.text[at : edit.start] + edit.text
            if edit.text:
                sources += [self.written(edit.start, edit.end)] * len(edit.text)
            at = edit.end
        sources += self._of(at, len(self.text))
        return Mapped(text + self.text[at:], tuple(sources))

    def written(self, start: int, end: int) -> Span:
        """The written characters that those from ``start`` to ``end`` stand for."""
        if not self.sources:
            return Span(start, end)
        if start < end:
            return Span(self.sources[start].start, self.sources[end - 1].end)
        edge = self.sources[start - 1].end if start > 0 else 0  # behind the character before it
        return Span(edge, edge)

    def _of(self, start: int, end: int) -> Iterable[Span]:
        if self.sources:
            return self.sources[start:end]
        return (Span(at, at + 1) for at in range(start, end))
