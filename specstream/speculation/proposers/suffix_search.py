"""Which earlier place is followed: a vote of all places that are like the end of the text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from specstream.speculation.proposers.suffix_index import (
    BORDER,
    LONGEST,
    Place,
    ReplyStore,
    SuffixIndex,
)

__all__ = ["ALIGNED", "FOLLOWED", "STORED", "Lookup", "RequestText"]

STORED, FOLLOWED, ALIGNED = 3, 6, 9  # of `Lookup.support`
_WEIGHT = [4.0**match for match in range(LONGEST + 2)]
_NEAR = 12  # reference tokens in which the reply is expected to go on after an edit
_LOST = 1  # tokens off the reference until it is no longer guessed that tokens were replaced


class Lookup(NamedTuple):
    """What followed the latest tokens when they occurred before.

    Attributes:
        tokens: The offer; empty where nothing was found.
        match: Length of the suffix that was found again; 0: none.
        support: How the latest other place that is like the end of the text went on: 0 there is none, 1
            otherwise, 2 with the same token; `STORED` more for an offer from a past reply, `FOLLOWED`
            more for one from the reference, near where the reply was in it. `ALIGNED`: nothing matches;
            the reference goes on as if the latest token had replaced one of its own.
        agreed: How many of the tokens followed another place, too; -1: at no other place the first did.
    """

    tokens: list[int]
    match: int
    support: int = 0
    agreed: int = -1


_NOTHING = Lookup([], 0)


class RequestText:
    """What one request may repeat: its reference, its prompt and its own reply.

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
        # Where the reply is in the reference, and how many of its tokens came since it left it.
        self._at, self._lost, self._end = 1, 0, 0
        if reference:
            # The last prompt token in front lets the very first token of the reply find its place.
            self._index.extend([token_ids[prompt_length - 1], *reference, BORDER])
            self._end = 1 + len(reference)

    @property
    def reply(self) -> list[int]:
        """The reply so far."""
        return self.token_ids[self._prompt_length :]

    def look_up(self, count: int, shortest: int, store: ReplyStore | None) -> Lookup:
        """What the most likely continuation offers, at most ``count`` tokens."""
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

    def _synchronise(self, own: Sequence[Place]) -> None:
        """After an edit, find the reply in the reference again: the nearest place that is like it."""
        if self._lost:
            near = [p.end for p in own if p.match > 1 and self._is_near(p.end)]
            if near:
                self._at, self._lost = min(near), 0

    def _is_near(self, end: int) -> bool:
        return self._at <= end < min(self._at + _NEAR, self._end)

    def _vote(self, own: Sequence[Place], past: Sequence[Place], count: int) -> Lookup:
        """What followed the longest match among the places with the token that got the most votes.

        With each token more of its match a place counts four times as much.
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


def _agreed(tokens: Sequence[int], best: Place, alike: Sequence[Place]) -> int:
    """For how many tokens the place with the longest match but one goes on like the best."""
    rest = [place for place in alike if place is not best]
    if not rest:
        return -1
    _, end, text = max(rest, key=lambda place: place.match)
    same, most = 1, min(len(tokens), len(text) - end)
    while same < most and text[end + same] == tokens[same]:
        same += 1
    return same
