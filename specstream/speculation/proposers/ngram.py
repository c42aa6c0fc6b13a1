"""Prompt lookup (Saxena 2023): what followed the same words last time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from specstream.config import NgramProposerConfig
from specstream.model.transfer import to_device
from specstream.speculation.proposal import Capabilities, Proposal, SpecRequest, Verdict

__all__ = ["Lookup", "NgramProposer"]

_BORDER = -1  # no token: a continuation stops here
_WALK = 64  # places that are compared, the latest first


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
    capabilities = Capabilities()

    def __init__(self, config: NgramProposerConfig, device: torch.device) -> None:
        self._config = config
        self.device = device
        self._indexes: dict[int, _Index] = {}

    def propose(self, requests: Sequence[SpecRequest], budget: Sequence[int]) -> list[Proposal]:
        """Up to ``num_tokens`` each; nothing where no suffix of ``min_ngram`` tokens is known."""
        return [self._one(r, b) for r, b in zip(requests, budget, strict=True)]

    def _one(self, request: SpecRequest, count: int) -> Proposal:
        return self.proposal(self.look_up(request, count).tokens)

    def look_up(self, request: SpecRequest, count: int) -> Lookup:
        """What the request's text offers now, at most ``count`` or ``num_tokens``; in plain Python."""
        count = min(count, self._config.num_tokens)
        index = self._indexes.get(request.slot)
        if index is None or index.request_id != request.id:
            index = _Index(request, self._config.min_ngram, self._config.max_ngram)
            self._indexes[request.slot] = index
        index.catch_up(request.token_ids)
        return index.continuation(count) if count > 0 else _NOTHING

    def proposal(self, tokens: Sequence[int]) -> Proposal:
        """Found tokens as a proposal."""
        return Proposal(to_device(tokens, self.device), source="ngram")

    def observe(self, requests: Sequence[SpecRequest], verdicts: Sequence[Verdict]) -> None:
        """Committed tokens are read at the next proposal."""

    def release(self, slot: int) -> None:
        """Drop the index."""
        self._indexes.pop(slot, None)
