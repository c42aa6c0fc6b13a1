"""Text that is rewritten step by step, and maps each of its characters to the written ones."""

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
