"""A draft model's state for one request: its KV cache, and the chain that is being drafted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import torch
from torch import Tensor

from specstream.model.forward import ForwardInput, ForwardOutput
from specstream.model.kv import KVCache
from specstream.model.sampling import probabilities
from specstream.model.stop import Stop
from specstream.speculation.proposal import Proposal, SpecRequest
from specstream.types import SamplingParams

__all__ = ["DraftRunner", "DraftSequence", "Drafting", "common_prefix", "joined"]

_SHARPER = 0.85
"""Factor from the target's sampling temperature to the draft's.

A small model spreads its probability over tokens that it can't tell apart. On the bundled pair a factor
of 0.8 to 0.85 gives the largest overlap with the target's distribution, sum min(p, q), in every domain
and at target temperatures from 0.8 to 1.3 (at lower temperatures the factor makes no difference): of
blocks of four drafted tokens, 1 to 3 % more are accepted than without it. Any factor keeps the output
exact, because the verifier gets the q that the tokens were really drawn from.
"""


class DraftRunner(Protocol):
    """The part of a `ModelRunner` that a draft model needs."""

    @property
    def device(self) -> torch.device:
        """The device that the model runs on."""
        ...

    @property
    def model_vocab_size(self) -> int:
        """The number of ids that it can read, from 0 on."""
        ...

    @property
    def vocab_size(self) -> int:
        """The width of its logits, which is that of the target's."""
        ...

    @property
    def context_length(self) -> int:
        """The most tokens that a sequence may have."""
        ...

    def new_cache(self) -> KVCache:
        """An empty cache for one sequence."""
        ...

    def forward(self, inputs: Sequence[ForwardInput], /) -> ForwardOutput:
        """See `ModelRunner.forward`."""
        ...

    def chain(
        self, token_ids: Tensor, cache: KVCache, most: int, stop: Stop | None, /
    ) -> tuple[Tensor, Tensor] | None:
        """See `ModelRunner.chain`."""
        ...


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
    _sharpened: tuple[SamplingParams, SamplingParams] | None = None  # latest argument and result

    def sharpened(self, params: SamplingParams) -> SamplingParams:
        """The draft's sampling parameters for a request with ``params``: a lower temperature."""
        if self._sharpened is None or self._sharpened[0] is not params:
            cooler = replace(params, temperature=params.temperature * _SHARPER)
            self._sharpened = params, cooler
        return self._sharpened[1]

    @property
    def end(self) -> int:
        """The position up to which the request's tokens have been read or skipped."""
        return self.start + len(self.rows)

    def keep(self, count: int) -> None:
        """Roll the cache back to its first ``count`` rows."""
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
        confidences: The probabilities that ``go_on`` was called with.
        read: Committed tokens that the draft had to read first, beyond the one or two of any round.
        tokens: The drafted tokens, ``[1]`` each.
        probs: For sampled requests the row ``[1, V]`` that each token was drawn from.
        drafted: The tokens on the host, as far as they were read from the device.
        state: A draft model's cache for the slot; None: another method writes the chain.
        unread: The tokens that the next draft pass reads; None: the chain is complete.
    """

    request: SpecRequest
    count: int
    go_on: Callable[[float], bool] | None = None
    confidences: list[float] = field(default_factory=list)
    read: int = 0
    tokens: list[Tensor] = field(default_factory=list)
    probs: list[Tensor] = field(default_factory=list)
    drafted: list[int] = field(default_factory=list)
    state: DraftSequence | None = None
    unread: Tensor | None = None

    def choose(
        self,
        logits: Tensor,
        *,
        looks: bool,
        ends: frozenset[int] = frozenset(),
        params: SamplingParams | None = None,
        widened: Callable[[Tensor, float], Tensor] | None = None,
    ) -> bool:
        """Choose the next token from the draft's logits; return whether the chain goes on.

        Args:
            logits: ``[1, V]``.
            looks: Whether the token is read on the host (free on a CPU); without it, the token is read
                only if ``go_on`` needs its probability.
            ends: Token ids after which nothing is drafted; they are noticed only if the token is read.
            params: The draft's sampling parameters. Default: the request's.
            widened: Spreads a row of a smaller draft vocabulary over the target's, with the given value
                for all tokens that can't be drafted. Default: the row has the target's width.
        """
        request, params = self.request, params or self.request.params
        row, plain, probs = logits, self.request.params.plain_logits, None
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
        return self.take(token, drawn, confidence, ends, probs)

    def take(
        self,
        token: Tensor,
        drawn: int | None,
        confidence: float | None,
        ends: frozenset[int] = frozenset(),
        probs: Tensor | None = None,
    ) -> bool:
        """Append a token ``[1]``; return whether the chain goes on.

        Args:
            token: The token on the device.
            drawn: The same token on the host; None: it wasn't read.
            confidence: The draft's probability of it; None: not known. After a NaN nothing is appended.
            ends: Token ids after which nothing is drafted.
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
            ended = drawn in ends or ended
        if self.go_on is not None and confidence is not None:
            self.confidences.append(confidence)
            ended = not self.go_on(confidence) or ended
        self.unread = None if ended else token
        return not ended

    def proposal(self, device: torch.device, source: str = "draft") -> Proposal:
        """The chain as a proposal."""
        return joined(self.tokens, self.probs, source, device)


def joined(
    tokens: list[Tensor], probs: list[Tensor], source: str, device: torch.device | str = "cpu"
) -> Proposal:
    """Join tokens ``[1]``, and the rows ``[1, V]`` that they were drawn from, if any, to a chain."""
    if not tokens:
        return Proposal.empty(device)
    if len(tokens) == 1:
        return Proposal(tokens[0], probs[0] if probs else None, source=source)
    return Proposal(torch.cat(tokens), torch.cat(probs) if probs else None, source=source)


def common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """The length of the longest common prefix."""
    for index, (x, y) in enumerate(zip(a, b, strict=False)):
        if x != y:
            return index
    return min(len(a), len(b))
