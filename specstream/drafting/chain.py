"""A draft model's state for one request: its KV cache, and the chain that is being drafted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from specstream.drafting.noise import draw_rows
from specstream.drafting.proposal import Proposal, SpecRequest
from specstream.model.kv import KVCache
from specstream.model.tokens.sampling import free_to_look, probabilities, probabilities_of_rows
from specstream.types import SamplingParams

__all__ = ["DraftSequence", "Drafting", "Widened", "choose_rows", "proposals"]

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
        tokens: The drafted tokens, ``[1]`` each, or several that were written at once and not read.
        probs: For sampled requests the rows ``[1, V]`` that these were drawn from, of the same lengths.
        size: The number of drafted tokens.
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
    size: int = 0
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
            token = request.draw(probs, len(request.token_ids) + self.size)
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
        self, token: Tensor, drawn: int | None, confidence: float | None, probs: Tensor | None = None
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
        self.size += 1
        ended = self.size >= self.count
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
            told = tokens.tolist(), confidences.tolist()
        self.take_all(tokens, told)

    def take_all(
        self,
        tokens: Tensor,
        told: tuple[Sequence[int], Sequence[float]] | None,
        probs: Tensor | None = None,
    ) -> None:
        """As `take` for the tokens ``[n]`` of n positions, up to the one after which the chain ends.

        Args:
            tokens: The tokens on the device.
            told: The same tokens on the host, and the draft's probabilities of them.
            probs: The rows ``[n, V]`` that they were drawn from.
        """
        if told is None:
            self._take_unread(tokens, probs)
            return
        rows = None if probs is None else torch.split(probs, 1)
        for step, token in enumerate(torch.split(tokens, 1)):
            row = None if rows is None else rows[step]
            if not self.take(token, told[0][step], told[1][step], row):
                return

    def _take_unread(self, tokens: Tensor, probs: Tensor | None) -> None:
        """Append as many of the tokens as there is room for."""
        count = min(tokens.shape[0], self.count - self.size)
        self.tokens.append(tokens[:count])
        if probs is not None:
            self.probs.append(probs[:count])
        self.size += count
        self.unread = tokens[count - 1 : count] if self.size < self.count else None

    def proposal(self, device: torch.device, source: str = "draft") -> Proposal:
        """The chain as a proposal, with the rows that its tokens were drawn from, if any."""
        return proposals([self], device, source)[0]


def proposals(chains: Sequence[Drafting], device: torch.device, source: str = "draft") -> list[Proposal]:
    """The chains as proposals, see `Drafting.proposal`; all of them take one copy."""
    tokens = _parts([chain.tokens for chain in chains])
    probs = _parts([chain.probs for chain in chains])
    each = zip(tokens, probs, strict=True)
    return [
        Proposal.empty(device) if some is None else Proposal(some, rows, source=source)
        for some, rows in each
    ]


def _parts(lists: Sequence[Sequence[Tensor]]) -> list[Tensor | None]:
    """Each list of rows as one tensor; None for an empty list."""
    flat = [row for rows in lists for row in rows]
    if not flat:
        return [None] * len(lists)
    joint = flat[0] if len(flat) == 1 else torch.cat(flat)
    parts = joint.split_with_sizes([sum(row.shape[0] for row in rows) for rows in lists])
    return [part if rows else None for part, rows in zip(parts, lists, strict=True)]


def choose_rows(chains: Sequence[Drafting], rows: Sequence[Tensor], *, looks: bool) -> None:
    """As `Drafting.choose` for several chains, each with its row ``[1, V]``.

    On a device other than a CPU, chains without processors share all operations, and one transfer if
    the host reads their tokens.
    """
    alike: dict[bool, list[int]] = {True: [], False: []}
    for index, chain in enumerate(chains):
        if free_to_look(rows[index]) or not chain.params.plain_logits or chain.widened is not None:
            chain.choose(rows[index], looks=looks)
        else:
            alike[chain.params.greedy].append(index)
    for greedy, group in alike.items():
        if not group:
            continue
        some, probs = [chains[index] for index in group], None
        joint = torch.cat([rows[index] for index in group])
        read = looks or any(chain.go_on is not None for chain in some)
        if not greedy:
            probs = probabilities_of_rows(joint, [chain.params for chain in some])
            places = [len(chain.request.token_ids) + chain.size for chain in some]
            tokens = draw_rows([chain.request for chain in some], probs, places)
            tops = probs.gather(1, tokens.unsqueeze(1)).squeeze(1) if read else probs[:, 0]
        else:
            tops, tokens = (joint.float().softmax(-1) if read else joint).max(-1)
        told = torch.stack([tokens.double(), tops.double()], 1).tolist() if read else None
        drawn_from = [None] * len(some) if probs is None else torch.split(probs, 1)
        each = zip(some, torch.split(tokens, 1), drawn_from, strict=True)
        for number, (chain, token, row) in enumerate(each):
            if told is None:
                chain.take(token, None, None, row)
            else:
                chain.take(token, int(told[number][0]), told[number][1], row)
