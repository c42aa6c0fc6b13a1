"""What a draft model holds of a request, and the chain that it is writing for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from specstream.model.kv import KVCache
from specstream.model.sampling import probabilities
from specstream.speculation.proposal import Proposal, SpecRequest
from specstream.types import SamplingParams

__all__ = ["DraftSequence", "Drafting", "joined"]

_SHARPER = 0.85
"""The draft's temperature by the target's.

A small model spreads over what it can't tell apart. On the bundled pair 0.8 to 0.85 has the largest
overlap with the target's distribution, sum min(p, q), in every domain and at target temperatures from
0.8 to 1.3 (below that, all are alike): of blocks of four, 1 to 3 % more tokens stand than at the
target's own temperature. Any value is exact, for q is told as it was.
"""


@dataclass(slots=True)
class DraftSequence:
    """The draft's own cache of one slot, and the tokens whose rows it holds for certain.

    Those are the request's from ``start`` on: of a long prompt the draft reads the end only. After a
    proposal the cache holds rows of proposed tokens, too; the verdict tells which stay.
    """

    cache: KVCache
    request_id: int
    start: int = 0
    rows: list[int] = field(default_factory=list)
    _law: tuple[SamplingParams, SamplingParams] | None = None  # a request's, and the draft's for it

    def sharpened(self, params: SamplingParams) -> SamplingParams:
        """What the draft draws by, for a request that samples by ``params``."""
        if self._law is None or self._law[0] is not params:
            self._law = params, replace(params, temperature=params.temperature * _SHARPER)
        return self._law[1]

    @property
    def end(self) -> int:
        """The request's tokens up to here are read, or skipped."""
        return self.start + len(self.rows)

    def keep(self, count: int) -> None:
        """Keep the first ``count`` rows."""
        self.cache.rollback_to(count)
        del self.rows[count:]


@dataclass(slots=True)
class Drafting:
    """One request's chain while it is being written.

    A token that was drawn is proposed: whether the chain ends is decided behind it.

    Attributes:
        request: Whose.
        count: At most so many tokens.
        go_on: Asked with the draft's probability of each token after that token was taken; False ends
            the chain. None: never asked, so that nothing waits for the device.
        confidences: Those probabilities, as far as they were asked for.
        read: Tokens that had to be read first, beyond the one or two of any round.
    """

    request: SpecRequest
    count: int
    go_on: Callable[[float], bool] | None = None
    confidences: list[float] = field(default_factory=list)
    read: int = 0
    tokens: list[Tensor] = field(default_factory=list)
    probs: list[Tensor] = field(default_factory=list)
    drafted: list[int] = field(default_factory=list)  # known where the chain is looked at
    state: DraftSequence | None = None
    unread: Tensor | None = None  # what the next pass reads; None: the chain is complete

    def choose(
        self,
        logits: Tensor,
        *,
        looks: bool,
        ends: frozenset[int] = frozenset(),
        params: SamplingParams | None = None,
        widened: Callable[[Tensor, float], Tensor] | None = None,
    ) -> bool:
        """Take the next token by the draft's row; whether the chain goes on.

        Args:
            logits: ``[1, V]``.
            looks: Whether reading the token costs nothing; otherwise only where ``go_on`` asks.
            ends: Tokens behind which nothing is drafted, where they are looked at.
            params: What the draft draws by. Default: the request's.
            widened: Spreads a row over the target's vocabulary, the value given for all other tokens.
                Default: the row has that width.
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
        """Append a token ``[1]``, looked at unless ``drawn`` is None; whether the chain goes on."""
        self.unread = None
        if confidence != confidence:
            return False  # damaged weights or overflow: no distribution that a token comes from
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
        """What was written."""
        return joined(self.tokens, self.probs, source, device)


def joined(
    tokens: list[Tensor], probs: list[Tensor], source: str, device: torch.device | str = "cpu"
) -> Proposal:
    """A chain of tokens ``[1]``, with the rows ``[1, V]`` that they were drawn from, if any."""
    if not tokens:
        return Proposal.empty(device)
    if len(tokens) == 1:
        return Proposal(tokens[0], probs[0] if probs else None, source=source)
    return Proposal(torch.cat(tokens), torch.cat(probs) if probs else None, source=source)
