"""Maps a stretch of the reply's text to the tokens that it came from."""

from __future__ import annotations

from collections import deque
from copy import copy
from itertools import takewhile
from typing import NamedTuple

from specstream.errors import ProtocolError
from specstream.types import Chunk, Span

__all__ = ["TokenMap"]


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
