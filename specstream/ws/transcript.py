"""The spoken side of a reply's text: what is left once the inline tags are taken out."""

from __future__ import annotations

import re

from specstream.types import Span

__all__ = ["SpokenText", "spoken_text"]

_TAG = re.compile(r"\[[A-Za-z][A-Za-z0-9_:. -]{0,38}\]")
_PREFIX = re.compile(r"\[([A-Za-z][A-Za-z0-9_:. -]{0,38})?$")


class SpokenText:
    """Takes tags such as ``[smile]`` out of a text that arrives in pieces.

    What comes out, laid end to end, does not depend on how the text was cut. A tag goes with the
    white space behind it if there is white space (or nothing) before it, so that no gap is left.
    """

    def __init__(self) -> None:
        self._held = ""
        self._taken = 0
        self._gap = True  # what was said last is white space, or nothing was said yet
        self._closing = False  # a tag stood in a gap: the white space behind it goes, too

    def add(self, text: str) -> tuple[str, Span]:
        """Take more text; return what can be said for certain, and where in the text it lies."""
        return self._release(self._held + text, final=False)

    def close(self) -> tuple[str, Span]:
        """The text has ended: return the rest."""
        return self._release(self._held, final=True)

    def _release(self, text: str, *, final: bool) -> tuple[str, Span]:
        start = self._taken
        half = None if final else _PREFIX.search(text)
        self._held = half.group() if half else ""
        ready = text[: len(text) - len(self._held)]
        out, at = "", 0
        for tag in _TAG.finditer(ready):
            out += self._say(ready[at : tag.start()])
            self._closing = self._gap
            at = tag.end()
        out += self._say(ready[at:])
        self._taken += len(ready)
        return out, Span(start, self._taken)

    def _say(self, text: str) -> str:
        if self._closing:
            text = text.lstrip()
        if text:
            self._closing, self._gap = False, text[-1].isspace()
        return text


def spoken_text(text: str) -> str:
    """``text`` without its tags, as `SpokenText` would say it."""
    speaker = SpokenText()
    return speaker.add(text)[0] + speaker.close()[0]
