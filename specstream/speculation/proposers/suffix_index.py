"""An index of repetitions in a text: hash chains over tokens and pairs of tokens. Plain Python."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import NamedTuple

__all__ = ["BORDER", "LONGEST", "Place", "ReplyStore", "SuffixIndex"]

BORDER = -1
"""Separates two texts of an index; no token, and no continuation runs across it."""

LONGEST = 16
"""Largest number of tokens of a match that are compared."""

_PAIRS, _SINGLES = 16, 8  # number of places compared, the latest first, by pair and by single token


class Place(NamedTuple):
    """A match of the end of a text: its last ``match`` tokens also stand right before ``text[end]``."""

    match: int
    end: int
    text: list[int]


class SuffixIndex:
    """An append-only text, with links from each place to the previous one with the same token or pair.

    A search walks the chain of the text's last pair (of its last token, if the pair is new) and compares
    backwards: at most 16 places of `LONGEST` tokens each, so its time is bounded. Takes about 180 bytes
    a token.
    """

    __slots__ = ("_before", "_before_pair", "_last", "_last_pair", "text")

    def __init__(self) -> None:
        self.text: list[int] = []
        self._last: dict[int, int] = {}
        self._last_pair: dict[int, int] = {}
        self._before, self._before_pair = array("i"), array("i")

    def extend(self, tokens: Sequence[int]) -> None:
        """Append tokens. A place is indexed once its next token is known: no end matches itself."""
        text, last, pairs = self.text, self._last, self._last_pair
        add, add_pair = self._before.append, self._before_pair.append
        end = len(text)
        latest = text[-1] if text else BORDER
        earlier = text[-2] if end > 1 else BORDER
        for token in tokens:
            if token == BORDER or latest == BORDER:
                add(-1)
                add_pair(-1)
            else:
                add(last.get(latest, -1))
                last[latest] = end
                if earlier == BORDER:
                    add_pair(-1)
                else:
                    pair = earlier << 32 | latest
                    add_pair(pairs.get(pair, -1))
                    pairs[pair] = end
            text.append(token)
            earlier, latest = latest, token
            end += 1

    def places(self, ids: Sequence[int], shortest: int = 1) -> list[Place]:
        """Return the places that match the end of ``ids``, the latest first."""
        size = len(ids)
        if not size:
            return []
        match, left, chain = 2, _PAIRS, self._before_pair
        end = self._last_pair.get(ids[-2] << 32 | ids[-1], -1) if size > 1 else -1
        if end < 0:
            match, left, chain = 1, _SINGLES, self._before
            end = self._last.get(ids[-1], -1)
        text, found = self.text, []
        tail = ids[: -LONGEST - 1 : -1]  # backwards
        compared = len(tail)
        while end >= 0 and left:
            same, most = match, compared if compared < end else end
            while same < most and text[end - 1 - same] == tail[same]:
                same += 1
            if same >= shortest:
                found.append(Place(same, end, text))
            end = chain[end]
            left -= 1
        return found


class ReplyStore:
    """Past replies, at most ``tokens`` tokens: when the newer half is full, the older one is dropped."""

    def __init__(self, tokens: int) -> None:
        self._half = tokens // 2
        self._halves = [SuffixIndex(), SuffixIndex()]

    def add(self, reply: Sequence[int]) -> None:
        """Store a reply; only its end if it is longer than half of the store."""
        if self._half < 2 or not reply:
            return
        reply = [BORDER, *reply[1 - self._half :]]
        if len(self._halves[0].text) + len(reply) > self._half:
            self._halves = [SuffixIndex(), self._halves[0]]
        self._halves[0].extend(reply)

    def places(self, ids: Sequence[int], shortest: int = 1) -> list[Place]:
        """Return the places that match the end of ``ids``, the latest first."""
        new, old = self._halves
        return new.places(ids, shortest) + old.places(ids, shortest)

    def __len__(self) -> int:
        return sum(len(half.text) for half in self._halves)
