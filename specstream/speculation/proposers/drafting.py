"""A draft model's state for one request: its KV cache, and the chain that is being drafted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from specstream.model.kv import KVCache
from specstream.model.sampling import probabilities
from specstream.speculation.proposal import Proposal, SpecRequest
from specstream.types import SamplingParams

__all__ = ["DraftSequence", "Drafting", "Widened"]

Widened = Callable[[Tensor, float], Tensor]
"""Spreads ``[b, draft vocabulary]`` to ``[b, V]``, with a value for tokens that can't be drafted."""


@dataclass(slots=True)
class DraftSequence:
    """The draft model's KV cache for one slot, and the tokens that its rows belong to.

    After a proposal the cache also holds rows of proposed tokens; the verdict decides which of them
    stay.

    Attributes:
        cache: The draft's KV cache.
        request_id: The request whose tokens the cache holds.
        start: Position of the cache's first row in the request; the draft reads only the end of a long
            prompt.
        rows: The tokens from ``start`` on whose rows are certainly in the cache.
    """

    cache: KVCache
    request_id: int
    start: int = 0
    rows: list[int] = field(default_factory=list)
    _cooled: tuple[SamplingParams, SamplingParams] | None = None  # latest argument and result

    def cooled(self, params: SamplingParams, factor: float) -> SamplingParams:
        """``params`` with its temperature times ``factor``; made once for a request, as that is slow."""
        if self._cooled is None or self._cooled[0] is not params:
            self._cooled = params, replace(params, temperature=params.temperature * factor)
        return self._cooled[1]

    @property
    def end(self) -> int:
        """The position up to which the request's tokens have been read or skipped."""
        return self.start + len(self.rows)

    def keep(self, count: int) -> None:
        """Roll the cache back to its first ``count`` rows, or as many as it certainly has."""
        count = min(count, len(self.rows), self.cache.length)
        self.cache.rollback_to(count)
        del self.rows[count:]


@dataclass(slots=True)
class Drafting:
    """One request's chain of drafted tokens while it is being written.

    Every token that is drawn is proposed: whether the chain ends is decided only after a token, so that
    stopping can't bias which tokens are proposed.

    Attributes:
        request: The request that is drafted for.
        count: The most tokens that the chain may have.
        go_on: Called after each token with the draft's probability of that token; False ends the chain.
            None: the chain has no such rule, and the host needn't wait for the device.
        ends: Token ids after which nothing is drafted; they are noticed only if tokens are read.
        widened: Spreads a row of a smaller draft vocabulary over the target's, with the given value for
            all tokens that can't be drafted. None: rows have the target's width.
        confidences: The probabilities that ``go_on`` was called with.
        read: Committed tokens that the draft had to read first, beyond the one or two of any round.
        tokens: The drafted tokens, ``[1]`` each.
        probs: For sampled requests the row ``[1, V]`` that each token was drawn from.
        drafted: The tokens on the host, as far as they were read from the device.
        state: A draft model's cache for the slot; None: another method writes the chain.
        unread: The tokens that the next draft pass reads; None: the chain is complete.
        params: How the draft samples; unless a draft model changes it, as the request does.
    """

    request: SpecRequest
    count: int
    go_on: Callable[[float], bool] | None = None
    ends: frozenset[int] = frozenset()
    widened: Widened | None = None
    confidences: list[float] = field(default_factory=list)
    read: int = 0
    tokens: list[Tensor] = field(default_factory=list)
    probs: list[Tensor] = field(default_factory=list)
    drafted: list[int] = field(default_factory=list)
    state: DraftSequence | None = None
    unread: Tensor | None = None
    params: SamplingParams = field(init=False)

    def __post_init__(self) -> None:
        self.params = self.request.params

    def choose(self, logits: Tensor, *, looks: bool) -> bool:
        """Choose the next token from the draft's logits; return whether the chain goes on.

        Args:
            logits: ``[1, V]``.
            looks: Whether the token is read on the host (free on a CPU); without it, the token is read
                only if ``go_on`` needs its probability.
        """
        request, params, widened = self.request, self.params, self.widened
        row, plain, probs = logits, params.plain_logits, None
        if not plain:
            row = row if widened is None else widened(row, -torch.inf)
            drafted = torch.cat(self.tokens) if self.tokens else self.drafted
            row = request.process(row[0], drafted).unsqueeze(0)
        if not params.greedy:
            probs = probabilities(row, params)
            if plain and widened is not None:
                probs = widened(probs, 0.0)
            token = request.draw(probs, len(request.token_ids) + len(self.tokens))
        elif self.go_on is None:
            top, token = row.max(-1)
        else:
            top, token = row.float().softmax(-1).max(-1)
        drawn = confidence = None
        if looks or self.go_on is not None:
            drawn = int(token)
            confidence = float(top if probs is None else probs[0, drawn])
        return self.take(token, drawn, confidence, probs)

    def take(
        self,
        token: Tensor,
        drawn: int | None,
        confidence: float | None,
        probs: Tensor | None = None,
    ) -> bool:
        """Append a token ``[1]``; return whether the chain goes on.

        Args:
            token: The token on the device.
            drawn: The same token on the host; None: it wasn't read.
            confidence: The draft's probability of it; None: not known. After a NaN nothing is appended.
            probs: The row ``[1, V]`` that the token was drawn from; None: it is deterministic.
        """
        self.unread = None
        if confidence != confidence:
            return False  # NaN, from damaged weights or overflow: there is no distribution to draw from
        self.tokens.append(token)
        ended = len(self.tokens) >= self.count
        if probs is not None:
            self.probs.append(probs)
        if drawn is not None:
            self.drafted.append(drawn)
            ended = drawn in self.ends or ended
        if self.go_on is not None and confidence is not None:
            self.confidences.append(confidence)
            ended = not self.go_on(confidence) or ended
        self.unread = None if ended else token
        return not ended

    def take_each(self, tokens: Tensor, confidences: Tensor, *, looks: bool) -> None:
        """Append the likeliest tokens ``[n]`` of n positions, up to the one after which the chain ends.

        ``confidences [n]`` are their probabilities; for ``looks`` see `choose`.
        """
        told = None
        if looks or self.go_on is not None:
            told = zip(tokens.tolist(), confidences.tolist(), strict=True)
        for token in tokens.unsqueeze(1).unbind():
            drawn, confidence = next(told) if told is not None else (None, None)
            if not self.take(token, drawn, confidence):
                return

    def proposal(self, device: torch.device, source: str = "draft") -> Proposal:
        """The chain as a proposal, with the rows that its tokens were drawn from, if any."""
        if not self.tokens:
            return Proposal.empty(device)
        probs = torch.cat(self.probs) if self.probs else None
        return Proposal(torch.cat(self.tokens), probs, source=source)
