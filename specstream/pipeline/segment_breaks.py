"""Where to cut if no boundary comes in time: finds the best break in a window without one."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from specstream.pipeline.abbreviations import Stop, stop_after
from specstream.pipeline.segment_marks import CLOSERS, OPENERS, WIDE_CLAUSE_MARKS
from specstream.pipeline.segment_stops import STOPS, word_before

__all__ = ["Whole", "has_words", "length_break", "paced_break", "quiet_break"]

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


def has_words(text: str, head: int, end: int, wholes: Sequence[Whole]) -> bool:
    """Whether ``text[head:end]`` has a letter or a digit outside its directions."""
    for whole in wholes:
        if whole.tag is not None and whole.start < end:
            if _WORD.search(text, head, whole.start):
                return True
            head = whole.end
    return _WORD.search(text, head, end) is not None


def quiet_break(text: str, head: int, limit: int, wholes: Sequence[Whole]) -> int:
    """Return the last break up to ``limit`` that splits no unit; ``head`` if there is none.

    A word without white space after it may still be growing, so it stays behind, unless a comma or
    a stop has closed it. A title, a number, a direction or a list's bullet stays with the next word.
    """
    if _finished(text[head:limit]) and has_words(text, head, limit, wholes):
        return limit
    return _last_break(text, head, limit, wholes)


def length_break(text: str, head: int, limit: int, wholes: Sequence[Whole]) -> int:
    """Return where to cut a window that is full.

    After a clause or a line in its second half if there is one, else between words, else anywhere
    between two characters.
    """
    if text[-1].isspace() and _finished(text[head:].rstrip()):
        return len(text)
    half = head + (len(text) - head) // 2
    for found in reversed(list(_SOFT_BREAK.finditer(text, half, limit))):
        end = found.end()
        if not _torn(end, wholes) and has_words(text, head, end, wholes):
            return end
    between = (_last_break(text, head, limit, wholes, loose=loose) for loose in (False, True))
    return next((cut for cut in between if cut > head), 0) or _hard_break(text, head, limit, wholes)


def _last_break(
    text: str, head: int, limit: int, wholes: Sequence[Whole], *, loose: bool = False
) -> int:
    """The last break between words; a ``loose`` one may part a word from what belongs to it."""
    return next(_breaks(text, head, limit, wholes, loose=loose), head)


def _breaks(
    text: str, head: int, limit: int, wholes: Sequence[Whole], *, loose: bool = False
) -> Iterator[int]:
    """The breaks between words behind which something can be spoken, from the last to the first."""
    for found in reversed(list(_BREAK.finditer(text, head, limit))):
        start, end = found.span()
        if _torn(end, wholes) or any(w.tag is not None and w.end == start for w in wholes):
            continue
        if loose or not (text[start].isspace() and _belongs_to_next(text, head, start)):
            if not has_words(text, head, end, wholes):
                return
            yield end


def paced_break(
    text: str,
    head: int,
    limit: int,
    wholes: Sequence[Whole],
    fits: Callable[[int], bool],
    enough: Callable[[int], bool],
) -> int:
    """Return where to cut a phrase at a deadline; ``head``: nowhere.

    That is the last break between words at which the phrase ``fits``, or a break behind a clause in the
    second half before it if the phrase is then long ``enough``. If none fits, it is the first break.
    """
    last = quiet_break(text, head, limit, wholes)
    if last > head and not fits(last):
        cuts = list(_breaks(text, head, limit, wholes))
        last = next((cut for cut in cuts if fits(cut)), min(cuts, default=last))
    for found in reversed(list(_SOFT_BREAK.finditer(text, (head + last) // 2, last))):
        end = found.end()
        if enough(end) and not _torn(end, wholes) and has_words(text, head, end, wholes):
            return end
    return last


def _torn(at: int, wholes: Sequence[Whole]) -> Whole | None:
    """The whole that a cut at ``at`` would split, if there is one."""
    return next((whole for whole in wholes if whole.start < at < whole.end), None)


def _belongs_to_next(text: str, head: int, end: int) -> bool:
    """Whether the last thing before ``end`` should not be spoken without what follows it."""
    words = text[head:end].rsplit(None, 1)
    if not words:
        return False
    word = words[-1]
    if word[-1] == "." and stop_after(word_before(text, end - 1)) not in (Stop.PLAIN, Stop.MAY_END):
        return True
    bare = not _WORD.search(word) and word[-1] not in STOPS + CLOSERS
    return bare or _NUMBER.fullmatch(word) is not None


def _finished(text: str) -> bool:
    """Whether ``text`` ends with a word that a stop or a comma has closed."""
    words = text.rsplit(None, 1)
    if not words or text[-1].isspace() or not _FINISHED.fullmatch(words[-1]):
        return False
    dot = words[-1].find(".")
    return dot < 0 or stop_after(word_before(words[-1], dot)) in (Stop.PLAIN, Stop.MAY_END)


def _hard_break(text: str, head: int, limit: int, wholes: Sequence[Whole]) -> int:
    """Return where to cut a window without white space: between characters, beside a whole."""
    if head < limit < len(text):
        return limit  # before a bracket or code that has not ended
    for at in range(len(text) - 1, max(head, len(text) - _LONGEST_CHARACTER), -1):
        if _JOINER not in text[at - 1 : at + 1] and not _modifies(text[at]):
            break
    else:
        at = len(text)
    whole = _torn(at, wholes)
    if whole is None:
        return at
    return whole.start if whole.start > head else whole.end


def _modifies(char: str) -> bool:
    return unicodedata.category(char)[0] == "M" or "\U0001f3fb" <= char <= "\U0001f3ff"
