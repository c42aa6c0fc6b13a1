"""Prompt lookup (Saxena 2023): what followed the same words last time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from specstream.config import NgramProposerConfig
from specstream.spec.proposal import Capabilities, Proposal, SpecRequest, Verdict

__all__ = ["Lookup", "NgramProposer"]

_BORDER = -1  # no token: a continuation stops here


class Lookup(NamedTuple):
    """What followed the ``match`` latest tokens when they occurred before."""

    tokens: list[int]
    match: int


class _Index:
    """Where each n-gram was last followed by something, in one request's text.

    Holds one entry per n-gram length and token, so its size is bounded by the context's.
    """

    def __init__(self, request: SpecRequest, shortest: int, longest: int) -> None:
        self.request_id = request.id
        self._lengths = range(longest, shortest - 1, -1)
        self._after: dict[tuple[int, ...], int] = {}
        self._text: list[int] = []
        self._read = 0
        if request.reference_ids:
            # The last prompt token in front lets the very first token of the reply find its place.
            last = request.token_ids[request.prompt_length - 1]
            self._extend([last, *request.reference_ids, _BORDER])

    def _extend(self, tokens: Sequence[int]) -> None:
        text, after = self._text, self._after
        for token in tokens:
            end = len(text)
            # Entered only now that it has a successor, so the text's own end never finds itself.
            for n in self._lengths:
                if n <= end:
                    after[tuple(text[end - n : end])] = end
            text.append(token)

    def catch_up(self, token_ids: list[int]) -> None:
        self._extend(token_ids[self._read :])
        self._read = len(token_ids)

    def continuation(self, count: int) -> Lookup:
        """What followed the longest known suffix, at its latest occurrence."""
        text = self._text
        for n in self._lengths:
            at = self._after.get(tuple(text[-n:])) if n <= len(text) else None
            if at is not None:
                found = text[at : at + count]
                if _BORDER in found:
                    found = found[: found.index(_BORDER)]
                return Lookup(found, n if found else 0)
        return Lookup([], 0)


class NgramProposer:
    """Looks for the longest suffix of the text that occurred before; the latest occurrence wins.

    No model, no training, next to no cost: earns its keep where a reply repeats its context (tool
    results, rewriting, code). Deterministic, so the judge needs no probabilities.
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
        return index.continuation(count) if count > 0 else Lookup([], 0)

    def proposal(self, tokens: Sequence[int]) -> Proposal:
        """Found tokens as a proposal."""
        found = torch.tensor(tokens, dtype=torch.int64, device=self.device)
        return Proposal(found, source="ngram")

    def observe(self, requests: Sequence[SpecRequest], verdicts: Sequence[Verdict]) -> None:
        """Committed tokens are read at the next proposal."""

    def release(self, slot: int) -> None:
        """Drop the index."""
        self._indexes.pop(slot, None)
