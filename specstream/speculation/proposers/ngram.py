"""Prompt lookup (Saxena 2023): what followed the same words last time."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import NamedTuple

import torch

from specstream.methods import NgramProposerConfig
from specstream.model.transfer import to_device
from specstream.speculation.policy.records import Candidate, Offer
from specstream.speculation.proposal import Capabilities, Proposal, SpecRequest, Verdict
from specstream.speculation.proposers.candidate import Drafted, Task
from specstream.speculation.proposers.parts import Parts

__all__ = ["PROMPT_LOOKUP", "Lookup", "NgramProposer", "build", "lookup_offer"]

_BORDER = -1  # no token: a continuation stops here
_WALK = 64  # places that are compared, the latest first


# Evidence of a lookup: its first token's acceptance by support and length of the match, a later
# token's by the length matched before it. A token at position i after a match of m tokens is as good
# as the first one after a match of m + i: if it is reached at all, the match has grown by i.
_EDGES = (2, 3, 4, 5, 7, 10, 16, 24)
_BUCKET = [bisect_right(_EDGES, length) for length in range(_EDGES[-1] + 1)]
_FIRST = (
    (0.25, 0.6, 0.68, 0.73, 0.76, 0.85),
    (0.2, 0.35, 0.5, 0.62, 0.68, 0.7),
    (0.5, 0.8, 0.86, 0.88, 0.9, 0.93),
)
_LATER = (0.6, 0.62, 0.68, 0.74, 0.78, 0.82, 0.83, 0.88, 0.88)
PROMPT_LOOKUP = Candidate(
    "ngram", "prompt lookup", "none", priors=(*_FIRST[0], *_FIRST[1], *_FIRST[2], *_LATER)
)


def lookup_offer(tokens: Sequence[int], match: int, support: int) -> Offer:
    """An offer of ``tokens`` after a match of that length."""
    if not tokens:
        return Offer(0)
    width, longest = len(_FIRST[0]), _EDGES[-1]
    first = support * width + min(_BUCKET[min(match, longest)], width - 1)
    later = [len(_FIRST) * width + _BUCKET[min(match + i, longest)] for i in range(1, len(tokens))]
    return Offer(len(tokens), (first, *later), ids=tokens)


class Lookup(NamedTuple):
    """What followed the ``match`` latest tokens when they occurred before.

    Attributes:
        tokens: The offer; empty where nothing was found.
        match: Length of the suffix that was found again; 0: none.
        support: How another place that is like the end of the text went on: 0 there is none, 1
            otherwise, 2 with the same token.
    """

    tokens: list[int]
    match: int
    support: int = 0


_NOTHING = Lookup([], 0)


class _Index:
    """Where each n-gram of the shortest length ended, in one request's text.

    Longer matches are found by comparing backwards from there. Holds one entry per token, so its
    size is bounded by the context's; looks at the `_WALK` latest places only, so a search is bounded,
    too.
    """

    def __init__(self, request: SpecRequest, shortest: int, longest: int) -> None:
        self.request_id = request.id
        self._shortest, self._longest = shortest, longest
        self._ends: dict[int | tuple[int, ...], list[int]] = {}
        self._text: list[int] = []
        self._read = 0
        if request.reference_ids:
            # The last prompt token in front lets the very first token of the reply find its place.
            last = request.token_ids[request.prompt_length - 1]
            self._extend([last, *request.reference_ids, _BORDER])

    def _key(self, end: int) -> int | tuple[int, ...]:
        n = self._shortest
        return self._text[end - 1] if n == 1 else tuple(self._text[end - n : end])

    def _extend(self, tokens: Sequence[int]) -> None:
        text, ends, shortest = self._text, self._ends, self._shortest
        end = len(text)
        for token in tokens:
            # Entered only now that it has a successor, so the text's own end never finds itself.
            if end >= shortest and token != _BORDER:
                key = text[-1] if shortest == 1 else tuple(text[-shortest:])
                known = ends.get(key)
                if known is None:
                    ends[key] = [end]
                else:
                    known.append(end)
            text.append(token)
            end += 1

    def catch_up(self, token_ids: list[int]) -> None:
        self._extend(token_ids[self._read :])
        self._read = len(token_ids)

    def continuation(self, count: int) -> Lookup:
        """What followed the longest known suffix, at its latest occurrence."""
        text, size = self._text, len(self._text)
        if size < self._shortest:
            return _NOTHING
        ends = self._ends.get(self._key(size))
        if ends is None:
            return _NOTHING
        best, match = 0, 0
        shortest, most = self._shortest, self._longest
        for end in reversed(ends[-_WALK:]):
            if match and (end <= match or text[end - 1 - match] != text[size - 1 - match]):
                continue  # no longer than what was found
            n, longest = shortest, most if most < end else end
            while n < longest and text[end - 1 - n] == text[size - 1 - n]:
                n += 1
            if n > match:
                best, match = end, n
                if n == most:
                    break
        found = text[best : best + count]
        if _BORDER in found:
            found = found[: found.index(_BORDER)]
        support = 0
        if len(ends) > 1:
            other = ends[-1] if ends[-1] != best else ends[-2]
            support = 2 if text[other] == text[best] else 1
        return Lookup(found, match, support)


class NgramProposer:
    """Looks for the longest suffix of the text that occurred before; the latest occurrence wins.

    No model, no training, next to no cost: earns its keep where a reply repeats its context (tool
    results, rewriting, code). Deterministic, so the verifier needs no probabilities.
    """

    name = "ngram"
    candidate = PROMPT_LOOKUP
    capabilities = Capabilities()

    def __init__(self, config: NgramProposerConfig, device: torch.device) -> None:
        self._config = config
        self.device = device
        self._indexes: dict[int, _Index] = {}

    def propose(self, requests: Sequence[SpecRequest], budget: Sequence[int]) -> list[Proposal]:
        """Up to ``num_tokens`` each; nothing where no suffix of ``min_ngram`` tokens is known."""
        return [
            self.proposal(self.look_up(r, b).tokens) for r, b in zip(requests, budget, strict=True)
        ]

    def look_up(self, request: SpecRequest, count: int) -> Lookup:
        """What the request's text offers now, at most ``count`` or ``num_tokens``; in plain Python."""
        count = min(count, self._config.num_tokens)
        index = self._indexes.get(request.slot)
        if index is None or index.request_id != request.id:
            index = _Index(request, self._config.min_ngram, self._config.max_ngram)
            self._indexes[request.slot] = index
        index.catch_up(request.token_ids)
        return index.continuation(count) if count > 0 else _NOTHING

    def offer(self, request: SpecRequest, budget: int) -> Offer:
        """What the text offers now."""
        return lookup_offer(*self.look_up(request, budget))

    def draft(self, tasks: Sequence[Task]) -> list[Drafted]:
        """Propose what was offered."""
        return [Drafted(self.proposal(task.offer.ids[: task.count])) for task in tasks]

    def proposal(self, tokens: Sequence[int]) -> Proposal:
        """Found tokens as a proposal."""
        return Proposal(to_device(tokens, self.device), source="ngram")

    def observe(self, requests: Sequence[SpecRequest], verdicts: Sequence[Verdict]) -> None:
        """Committed tokens are read at the next proposal."""

    def release(self, slot: int) -> None:
        """Drop the index."""
        self._indexes.pop(slot, None)


def build(config: NgramProposerConfig, parts: Parts) -> NgramProposer:
    """Lookup on the target's device."""
    return NgramProposer(config, parts.target.device)
