"""The best break in a stretch of text without a boundary, by what stands around it."""

from __future__ import annotations

import re
import unicodedata
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from copy import copy
from itertools import takewhile
from typing import NamedTuple

from specstream.errors import ProtocolError
from specstream.text.marks import CLOSERS, LOOK_BACK, OPENERS, WIDE, WIDE_CLAUSE_MARKS, Reason
from specstream.text.stops import STOPS, may_end
from specstream.types import Chunk, Phrase, Span, Tag

__all__ = ["Stretch", "TokenMap", "Whole", "Window"]

_OPEN = re.compile(r"[\[`]")


class _Run(NamedTuple):
    """Tokens ``[first, stop)`` wrote the characters ``[begin, end)``."""

    first: int
    stop: int
    begin: int
    end: int


class TokenMap:
    """The tokens of the characters that wait to be spoken.

    A token that adds no characters (a part of a multi-byte one) belongs with the next token that does,
    unless it is reasoning, which belongs to no text.
    """

    def __init__(self) -> None:
        self._runs: deque[_Run] = deque()
        self._blank: int | None = None  # first of the tokens that still wait for their character
        self._next = 0  # the token that the next chunk should begin with
        self._end: int | None = None  # characters known so far
        self._covered = 0  # end of the tokens that wrote the text before the waiting runs

    def fork(self) -> TokenMap:
        """Make an independent copy that goes on from here."""
        twin = copy(self)
        twin._runs = deque(self._runs)
        return twin

    def add(self, chunk: Chunk) -> None:
        """Note a chunk's tokens; without ``ends``, each of them stands for the whole chunk."""
        first, stop = chunk.tokens
        if chunk.ends and len(chunk.ends) != stop - first:
            raise ProtocolError(f"a chunk of {stop - first} tokens has {len(chunk.ends)} ends")
        if first < self._next:
            self._forget(first)
        if self._end is None:
            self._end = chunk.chars.start
        if self._blank is not None and self._blank < chunk.reasoning_end:
            self._blank = None
        if chunk.ends:
            for token, end in enumerate(chunk.ends, first):
                if end > self._end or token >= chunk.reasoning_end:
                    self._append(token, token + 1, end)
        elif first < stop:
            self._append(first, stop, chunk.chars.end)
        self._next = stop

    def _append(self, first: int, stop: int, end: int) -> None:
        assert self._end is not None
        if self._blank is not None:
            first = self._blank
        if end > self._end:
            self._runs.append(_Run(first, stop, self._end, end))
            self._end, self._blank = end, None
        else:
            self._blank = first

    def _forget(self, token: int) -> None:
        """Drop this token and those after it: the next chunk has them again."""
        while self._runs and self._runs[-1].stop > token:
            run = self._runs.pop()
            if run.first < token:
                self._runs.append(run._replace(stop=token))
        if self._blank is not None and self._blank >= token:
            self._blank = None

    def revoke(self, from_char: int) -> None:
        """Forget which tokens wrote the characters at and past ``from_char``."""
        while self._runs and self._runs[-1].end > from_char:
            run = self._runs.pop()
            if run.begin < from_char:
                self._runs.append(run._replace(end=from_char))
            else:
                self._blank = run.first  # a token that stays may have been half a character
        if self._end is not None:
            self._end = min(self._end, from_char)

    def cover(self, chars: Span) -> Span:
        """Return the tokens that overlap ``chars``; spans must be asked for in order."""
        while self._runs and self._runs[0].end <= chars.start:
            self._covered = self._runs.popleft().stop
        touching = list(takewhile(lambda run: run.begin < chars.end, self._runs))
        if not touching:
            return Span(self._covered, self._covered)
        return Span(touching[0].first, touching[-1].stop)


class Window:
    """At most ``max_chars`` characters of the text that waits, and `LOOK_BACK` of the text before it."""

    def __init__(self, max_chars: int) -> None:
        self._max_chars = max_chars
        self._tokens = TokenMap()
        self._index, self._t_ms = 0, 0.0
        self._origin: int | None = None  # offset of the reply's first character
        self._start = 0  # offset of text[head]
        # The end of the text that was spoken (rules look back at it), then the text that waits. The
        # newline: a reply begins like a line does.
        self._text = "\n"
        self._head = 1
        # Text for which there was no room when it came, and how much of it is in the window by now.
        self._overflow, self._taken = "", 0
        self._fenced = False  # whether head is inside a block of code
        self._rewind()

    def _rewind(self) -> None:
        """Forget the marks that were found after head."""
        self._seen = self._head  # every mark before it has been decided
        self._wholes: list[Whole] = []
        self._fences: list[int] = []
        self._passed: list[tuple[int, Reason]] = []  # boundaries that ended no phrase

    @property
    def pending(self) -> bool:
        """Whether text waits unspoken."""
        return len(self._text) > self._head or self._crowded

    def known_tags(self) -> tuple[list[Span], int]:
        """The directions in the text that waits, and up to which offset there are no others."""
        shift = self._start - self._head
        tags = [
            Span(whole.start + shift, whole.end + shift)
            for whole in self._wholes
            if whole.tag is not None
        ]
        undecided = self._text.find("[", self._seen)
        return tags, shift + (undecided if undecided >= 0 else len(self._text))

    @property
    def _crowded(self) -> bool:
        """Whether text waits for which there is no room."""
        return self._taken < len(self._overflow)

    def revoke(self, from_char: int) -> None:
        """Forget pending text at or past this offset; the next chunk goes on from there.

        Phrases that were returned stay as they are, but the next one begins at the offset. No two
        phrases have the same number.
        """
        if self._origin is None or from_char >= self._end:
            return
        from_char = max(from_char, self._origin)
        back = self._end - from_char
        self._overflow, self._taken = self._overflow[self._taken :][:-back], 0
        keep = self._head + from_char - self._start
        self._text = self._text[: max(keep, 0)] or ("\n" if from_char == self._origin else " ")
        self._head = min(self._head, len(self._text))
        self._start = min(self._start, from_char)
        self._tokens.revoke(from_char)
        self._rewind()

    @property
    def _end(self) -> int:
        """Where the text so far ends, in the reply."""
        return self._start + len(self._text) - self._head + len(self._overflow) - self._taken

    def _join(self, chunk: Chunk) -> None:
        expected = self._end
        if self._origin is None:
            self._origin = self._start = expected = chunk.chars.start
        if chunk.text and chunk.chars != (expected, expected + len(chunk.text)):
            raise ProtocolError(
                f"a chunk of {len(chunk.text)} characters says that it covers {tuple(chunk.chars)},"
                f" but the text so far ends at {expected}: pass every chunk once, in order"
            )
        self._tokens.add(chunk)
        self._t_ms = chunk.t_ms
        self._overflow, self._taken = self._overflow[self._taken :] + chunk.text, 0

    def _fill(self) -> None:
        # Never more than a full window, else a cut would depend on the text beyond it.
        room = self._max_chars - (len(self._text) - self._head)
        self._text += self._overflow[self._taken : self._taken + room]
        self._taken = min(self._taken + room, len(self._overflow))

    def _without_wholes(self, end: int) -> str:
        """The text that waits, up to ``end``, without directions, links and code."""
        parts, at = list[str](), self._head
        for whole in self._wholes:
            parts += self._text[at : whole.start], "" if whole.tag is not None else "x"
            at = whole.end
        return "".join(parts) + self._text[at:end]

    def _weight(self, end: int) -> int:
        """Estimate how long the text up to ``end`` sounds, in Latin letters."""
        tags = (whole for whole in self._wholes if whole.tag is not None and whole.end <= end)
        silent = sum(tag.end - tag.start for tag in tags)
        return end - self._head - silent + 2 * len(WIDE.findall(self._text, self._head, end))

    def _stretch(self) -> Stretch:
        """The text that waits; a bracket or code that has not ended yet must not be cut."""
        unfinished = _OPEN.search(self._text, self._seen)
        limit = unfinished.start() if unfinished else len(self._text)
        return Stretch(self._text, self._head, limit, self._wholes)

    def _take(self, cut: int, reason: Reason) -> Phrase:
        """Take the phrase that ends at ``cut`` out of the window."""
        text = self._text[self._head : cut]
        chars = Span(self._start, self._start + len(text))
        shift = self._start - self._head
        tags = tuple(
            Tag(whole.tag, Span(whole.start + shift, whole.end + shift))
            for whole in self._wholes
            if whole.tag is not None and whole.end <= cut
        )
        tokens = self._tokens.cover(chars)
        phrase = Phrase(text, chars, tokens, self._index, tags, self._t_ms, reason)
        self._fenced ^= sum(at < cut for at in self._fences) % 2 == 1
        self._text = self._text[max(0, cut - LOOK_BACK) :]
        self._head = min(cut, LOOK_BACK)
        self._start = chars.end
        self._index += 1
        self._rewind()
        return phrase


_JOINER = "\u200d"
_LONGEST_CHARACTER = 16  # code points of an emoji made of several
_CLOSED = f"[{re.escape(CLOSERS)}]*"
_WIDE_MARKS = WIDE_CLAUSE_MARKS + "。！？｡"
_WORD = re.compile(r"[^\W_]")
_BREAK = re.compile(rf"\s+|[{_WIDE_MARKS}]{_CLOSED}\s*")
_SOFT_BREAK = re.compile(rf"[,;:،؛]{_CLOSED}\s+|[{_WIDE_MARKS}]{_CLOSED}\s*|\s[–—-]+\s+|—(?!\d)|\n\s*")
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
