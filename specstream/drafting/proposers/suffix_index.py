"""Finds where the end of a text stands before, and chooses the continuation to draft by a vote."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import NamedTuple

__all__ = [
    "ALIGNED",
    "BORDER",
    "FOLLOWED",
    "LONGEST",
    "STORED",
    "Lookup",
    "ReplyStore",
    "RequestText",
    "SuffixIndex",
    "SuffixMatch",
]

BORDER = -1
"""Separates two texts of an index; no token, and no continuation runs across it."""

LONGEST = 16
"""Largest number of tokens of a match that are compared."""

_PAIRS, _SINGLES = 16, 8  # number of places compared, the latest first, by pair and by single token


class SuffixMatch(NamedTuple):
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

    def places(self, ids: Sequence[int], shortest: int = 1) -> list[SuffixMatch]:
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
                found.append(SuffixMatch(same, end, text))
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

    def places(self, ids: Sequence[int], shortest: int = 1) -> list[SuffixMatch]:
        """Return the places that match the end of ``ids``, the latest first."""
        new, old = self._halves
        return new.places(ids, shortest) + old.places(ids, shortest)

    def __len__(self) -> int:
        return sum(len(half.text) for half in self._halves)


STORED, FOLLOWED, ALIGNED = 3, 6, 9  # of `Lookup.support`
_WEIGHT = [4.0**match for match in range(LONGEST + 2)]
_NEAR = 12  # reference tokens within which the reply is expected to resume after an edit
_LOST = 1  # tokens off the reference up to which a replacement of single tokens is assumed


class Lookup(NamedTuple):
    """The continuation of the place that was chosen.

    Attributes:
        tokens: The offered tokens; empty where nothing was found.
        match: Length of the matching suffix, in tokens; 0: no match.
        support: Continuation of the latest other matching place: 0 there is no other place, 1 it goes on
            with another token, 2 with the same token. `STORED` is added for an offer from a past reply,
            `FOLLOWED` for one from the reference near the reply's position in it. `ALIGNED`: nothing
            matches, and the reference is continued as if the latest token had replaced one of its own.
        agreed: Number of offered tokens with which another place goes on, too; -1: none goes on with the
            first.
    """

    tokens: list[int]
    match: int
    support: int = 0
    agreed: int = -1


_NOTHING = Lookup([], 0)


class RequestText:
    """The texts that one request may repeat: its reference, its prompt and its reply.

    Attributes:
        request_id: The request.
        token_ids: Its prompt and reply.
    """

    def __init__(
        self, request_id: int, token_ids: list[int], prompt_length: int, reference: Sequence[int]
    ) -> None:
        self.request_id = request_id
        self.token_ids = token_ids
        self._prompt_length = prompt_length
        self._index = SuffixIndex()
        self._read = 0
        # The reply's position in the reference, and the number of its tokens since it left that.
        self._at, self._lost, self._end = 1, 0, 0
        if reference:
            # With the last prompt token in front, the first token of the reply finds a match, too.
            self._index.extend([token_ids[prompt_length - 1], *reference, BORDER])
            self._end = 1 + len(reference)

    @property
    def reply(self) -> list[int]:
        """The reply so far."""
        return self.token_ids[self._prompt_length :]

    def look_up(self, count: int, shortest: int, store: ReplyStore | None) -> Lookup:
        """Return the most likely continuation, at most ``count`` tokens."""
        self._catch_up()
        if count < 1:
            return _NOTHING
        ids = self.token_ids
        own = self._index.places(ids, shortest)
        if self._end:
            self._synchronise(own)
        past = store.places(ids, shortest) if store is not None else []
        if own or past:
            return self._vote(own, past, count)
        at = self._at + self._lost
        if self._lost <= _LOST and at < self._end:
            return Lookup(self._index.text[at : min(at + count, self._end)], 0, ALIGNED)
        return _NOTHING

    def _catch_up(self) -> None:
        ids, first = self.token_ids, self._read
        if first == len(ids):
            return
        self._index.extend(ids[first:])
        self._read = len(ids)
        if self._end:
            text = self._index.text
            for token in ids[max(first, self._prompt_length) :]:
                if not self._lost and self._at < self._end and text[self._at] == token:
                    self._at += 1
                else:
                    self._lost += 1

    def _synchronise(self, own: Sequence[SuffixMatch]) -> None:
        """After an edit, set the reply's position in the reference to the nearest matching place."""
        if self._lost:
            near = [p.end for p in own if p.match > 1 and self._is_near(p.end)]
            if near:
                self._at, self._lost = min(near), 0

    def _is_near(self, end: int) -> bool:
        return self._at <= end < min(self._at + _NEAR, self._end)

    def _vote(self, own: Sequence[SuffixMatch], past: Sequence[SuffixMatch], count: int) -> Lookup:
        """Return the continuation of the longest match whose next token got the most votes.

        A place's vote weighs four times as much with each further token of its match.
        """
        votes: dict[int, float] = {}
        for match, end, text in own:
            near = self._end and self._is_near(end)
            votes[text[end]] = votes.get(text[end], 0.0) + _WEIGHT[match + 1 if near else match]
        for match, end, text in past:
            votes[text[end]] = votes.get(text[end], 0.0) + _WEIGHT[match - 1]
        token = max(votes, key=votes.__getitem__)
        places = [*own, *past]
        alike = [place for place in places if place.text[place.end] == token]
        best = max(alike, key=lambda place: place.match)
        other = next((place for place in places if place is not best), None)
        support = 0 if other is None else 1 + (other.text[other.end] == token)
        tokens = best.text[best.end : best.end + count]
        if BORDER in tokens:
            del tokens[tokens.index(BORDER) :]
        if best.text is not self._index.text:
            support += STORED
        elif self._end and self._is_near(best.end):
            support += FOLLOWED
        return Lookup(tokens, best.match, support, _agreed(tokens, best, alike))


def _agreed(tokens: Sequence[int], best: SuffixMatch, alike: Sequence[SuffixMatch]) -> int:
    """Return for how many tokens the second-longest match goes on like the best one."""
    rest = [place for place in alike if place is not best]
    if not rest:
        return -1
    _, end, text = max(rest, key=lambda place: place.match)
    same, most = 1, min(len(tokens), len(text) - end)
    while same < most and text[end + same] == tokens[same]:
        same += 1
    return same
