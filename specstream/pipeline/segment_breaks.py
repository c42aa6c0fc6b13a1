"""Where to cut if no boundary comes in time: finds the best break in a window without one."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from specstream.pipeline.segment_marks import CLOSERS, OPENERS, WIDE_CLAUSE_MARKS
from specstream.pipeline.segment_stops import STOPS, may_end

__all__ = ["Stretch", "Whole"]

_JOINER = "\u200d"
_LONGEST_CHARACTER = 16  # code points of an emoji made of several
_CLOSED = f"[{re.escape(CLOSERS)}]*"
_WIDE_MARKS = WIDE_CLAUSE_MARKS + "。！？｡"
_WORD = re.compile(r"[^\W_]")
_BREAK = re.compile(rf"\s+|[{_WIDE_MARKS}]{_CLOSED}\s*")
_SOFT_BREAK = re.compile(
    rf"[,;:،؛]{_CLOSED}\s+|[{_WIDE_MARKS}]{_CLOSED}\s*|\s[–—-]+\s+|—(?!\d)|\n\s*"
)
_NUMBER = re.compile(r"[(+−$€£¥₹#-]*\d[\d.,:/()+–-]*")
_FINISHED = re.compile(
    rf"[{re.escape(OPENERS)}]*[^\W\d_]{{2,}}(?:['’-][^\W\d_]+)*{_CLOSED}[.!?…,;]+{_CLOSED}"
)


class Whole(NamedTuple):
    """A stretch of the window that is never cut: a direction, a link, code."""

    start: int
    end: int
    tag: str | None


class Stretch(NamedTuple):
    """A window of text that may be cut between ``head`` and ``limit``."""

    text: str
    head: int
    limit: int
    wholes: Sequence[Whole]

    def has_words(self, end: int) -> bool:
        """Whether there is a letter or a digit outside directions up to ``end``."""
        head = self.head
        for whole in self.wholes:
            if whole.tag is not None and whole.start < end:
                if _WORD.search(self.text, head, whole.start):
                    return True
                head = whole.end
        return _WORD.search(self.text, head, end) is not None

    def quiet_break(self) -> int:
        """Return the last break that splits no unit; ``head`` if there is none.

        A word without white space after it may still be growing, so it stays behind, unless a comma or
        a stop has closed it. A title, a number, a direction or a list's bullet stays with the next word.
        """
        if _finished(self.text[self.head : self.limit]) and self.has_words(self.limit):
            return self.limit
        return next(self._breaks(), self.head)

    def length_break(self) -> int:
        """Return where to cut a window that is full.

        After a clause or a line in its second half if there is one, else between words (where a word may
        be parted from what belongs to it if need be), else anywhere between two characters.
        """
        text, head = self.text, self.head
        if text[-1].isspace() and _finished(text[head:].rstrip()):
            return len(text)
        for end in self._soft_breaks(head + (len(text) - head) // 2, self.limit):
            return end
        return next(self._breaks(), 0) or next(self._breaks(loose=True), 0) or self._hard_break()

    def paced_break(self, fits: Callable[[int], bool], enough: Callable[[int], bool]) -> int:
        """Return where to cut a phrase at a deadline; ``head``: nowhere.

        That is the last break between words at which the phrase ``fits``, or a break behind a clause in
        the second half before it if the phrase is then long ``enough``. If none fits, it is the first
        break.
        """
        last = self.quiet_break()
        if last > self.head and not fits(last):
            cuts = list(self._breaks())
            last = next((cut for cut in cuts if fits(cut)), min(cuts, default=last))
        soft = filter(enough, self._soft_breaks((self.head + last) // 2, last))
        return next(soft, last)

    def _breaks(self, *, loose: bool = False) -> Iterator[int]:
        """The breaks between words behind which something can be spoken, from the last to the first.

        A ``loose`` one may part a word from what belongs to it.
        """
        text = self.text
        for found in reversed(list(_BREAK.finditer(text, self.head, self.limit))):
            start, end = found.span()
            if self._torn(end) or any(w.tag is not None and w.end == start for w in self.wholes):
                continue
            if loose or not (text[start].isspace() and _belongs_to_next(text, self.head, start)):
                if not self.has_words(end):
                    return
                yield end

    def _soft_breaks(self, start: int, limit: int) -> Iterator[int]:
        """The breaks behind a clause or a line, from the last to the first."""
        for found in reversed(list(_SOFT_BREAK.finditer(self.text, start, limit))):
            if not self._torn(found.end()) and self.has_words(found.end()):
                yield found.end()

    def _torn(self, at: int) -> Whole | None:
        """The whole that a cut at ``at`` would split, if there is one."""
        return next((whole for whole in self.wholes if whole.start < at < whole.end), None)

    def _hard_break(self) -> int:
        """Return where to cut a window without white space: between characters, beside a whole."""
        text, head, limit = self.text, self.head, self.limit
        if head < limit < len(text):
            return limit  # before a bracket or code that has not ended
        for at in range(len(text) - 1, max(head, len(text) - _LONGEST_CHARACTER), -1):
            if _JOINER not in text[at - 1 : at + 1] and not _modifies(text[at]):
                break
        else:
            at = len(text)
        whole = self._torn(at)
        if whole is None:
            return at
        return whole.start if whole.start > head else whole.end


def _belongs_to_next(text: str, head: int, end: int) -> bool:
    """Whether the last thing before ``end`` should not be spoken without what follows it."""
    words = text[head:end].rsplit(None, 1)
    if not words:
        return False
    word = words[-1]
    if word[-1] == "." and not may_end(text, end - 1):
        return True
    bare = not _WORD.search(word) and word[-1] not in STOPS + CLOSERS
    return bare or _NUMBER.fullmatch(word) is not None


def _finished(text: str) -> bool:
    """Whether ``text`` ends with a word that a stop or a comma has closed."""
    words = text.rsplit(None, 1)
    if not words or text[-1].isspace() or not _FINISHED.fullmatch(words[-1]):
        return False
    dot = words[-1].find(".")
    return dot < 0 or may_end(words[-1], dot)


def _modifies(char: str) -> bool:
    return unicodedata.category(char)[0] == "M" or "\U0001f3fb" <= char <= "\U0001f3ff"
