"""What a draft model holds of a request, and the chain that it is writing for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from specstream.model.kv import KVCache
from specstream.speculation.proposal import Proposal, SpecRequest
from specstream.types import SamplingParams

__all__ = ["DraftSequence", "Drafting"]

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

    def proposal(self, device: torch.device) -> Proposal:
        """What was written."""
        if not self.tokens:
            return Proposal.empty(device)
        probs = _joined(self.probs) if self.probs else None
        return Proposal(_joined(self.tokens), probs, source="draft")


def _joined(parts: list[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts)
