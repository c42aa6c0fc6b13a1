"""Input buffer of incremental parsers, which are generators.

A parser yields when it needs text that the model has not written yet, so its result doesn't depend on
how the reply is split into tokens.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TypeAlias, TypeVar

from specstream.engine.stops import held_back

__all__ = ["Inlet", "Step", "first_of"]

T = TypeVar("T")
Step: TypeAlias = Generator[None, None, T]


class Inlet:
    """Text that was fed and not read yet. At the end of the reply, reads return ``""``.

    Attributes:
        ended: Set by the owner once no more text will be fed.
    """

    def __init__(self) -> None:
        self._text = ""
        self._at = 0
        self._mark: int | None = None
        self.ended = False

    def feed(self, text: str) -> None:
        """Add text; text that was read is dropped, except from a mark on."""
        kept = self._at if self._mark is None else self._mark
        self._text = self._text[kept:] + text
        self._at -= kept
        self._mark = None if self._mark is None else 0

    @property
    def pending(self) -> str:
        """The text that can be read without waiting."""
        return self._text[self._at :]

    def skip(self, count: int) -> None:
        """Read characters that are pending; a negative number makes them pending again."""
        self._at += count

    def mark(self) -> None:
        """Keep the text that is read from here on, for `since_mark` or `rewind`."""
        self._mark = self._at

    def since_mark(self) -> str:
        """The text that was read since the mark."""
        assert self._mark is not None
        return self._text[self._mark : self._at]

    def rewind(self) -> None:
        """Make the text that was read since the mark pending again."""
        assert self._mark is not None
        self._at = self._mark
        self.release()

    def release(self) -> None:
        """Forget the mark."""
        self._mark = None

    def peek(self) -> Step[str]:
        """Return the next character without reading it."""
        while self._at == len(self._text):
            if self.ended:
                return ""
            yield
        return self._text[self._at]

    def space(self) -> Step[str]:
        """Read white space; return the character after it without reading that."""
        while (char := (yield from self.peek())).isspace():
            self._at += 1
        return char

    def takes(self, mark: str) -> Step[bool]:
        """Read ``mark`` if it comes next; return whether it did."""
        while not self.pending.startswith(mark):
            if self.ended or not mark.startswith(self.pending):
                return False
            yield
        self._at += len(mark)
        return True

    def until(self, *marks: str) -> Step[tuple[str, str]]:
        """Read up to the first of ``marks`` and past it; return the text and the mark.

        If none of them comes, return the text up to the reply's end and ``""``.
        """
        while True:
            at, mark = first_of(marks, self.pending)
            if mark or self.ended:
                break
            yield
        text = self.pending[:at] if mark else self.pending
        self._at += len(text) + len(mark)
        return text, mark


def first_of(marks: tuple[str, ...], text: str) -> tuple[int, str]:
    """Return where the first of ``marks`` begins in ``text``, and that mark.

    If there is none: where the longest suffix begins that may become a mark, and ``""``.
    """
    found = [(at, -len(mark), mark) for mark in marks if (at := text.find(mark)) >= 0]
    if found:
        at, _, mark = min(found)
        return at, mark
    return len(text) - held_back(text, marks), ""
