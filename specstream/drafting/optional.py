"""Optional interfaces of proposers, which the engine recognises by their methods.

A `StateReader` drafts from the target's hidden states (a `SelectiveReader` only for some requests), a
`MidwayProposer` drafts in parallel with the target's pass, a `Passenger` within that pass; an
`AdaptiveProposer` is told what steps cost.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from torch import Tensor

from specstream.drafting.checking import Explanation
from specstream.drafting.proposal import Proposal, Proposer, SpecRequest
from specstream.model.forward import Rider
from specstream.model.kv import KVCache

__all__ = [
    "AdaptiveProposer",
    "CachedRequest",
    "MidwayProposer",
    "Passenger",
    "SelectiveReader",
    "StateReader",
    "States",
    "StepTimes",
]


class CachedRequest(SpecRequest, Protocol):
    """A request with the target's KV cache, for proposers that draft with the target's layers."""

    @property
    def cache(self) -> KVCache:
        """The target's cache; a proposer that writes rows to it must roll it back."""
        ...


@dataclass(frozen=True, slots=True)
class States:
    """The target's hidden states for consecutive tokens of a request.

    Attributes:
        start: Position of the first token: ``states[k]`` belongs to ``token_ids[start + k]``. Tokens
            before it have rows in the cache from an earlier turn, in which their states were read.
        states: ``[n, depths, hidden]`` in the order of `Capabilities.hidden_states`, on the target's
            device and in its dtype.
    """

    start: int
    states: Tensor


@runtime_checkable
class StateReader(Proposer, Protocol):
    """A proposer that drafts from the target's hidden states."""

    def read(self, requests: Sequence[SpecRequest], states: Sequence[States]) -> None:
        """Receive the hidden states of committed tokens that a pass has read.

        Called once a pass, after `observe`, with all requests that took part: for a prompt, the states
        of the tokens that were prefilled; for a round, of the last committed token and the accepted
        ones, in text order. The token that followed them has no state yet.
        """
        ...


@runtime_checkable
class SelectiveReader(StateReader, Protocol):
    """A `StateReader` that doesn't need the states of every request."""

    def wants_states(self, request: SpecRequest) -> bool:
        """Whether states of this request are wanted; the answer must be the same before every pass.

        If no request of a pass has its states wanted, the pass returns none and `read` isn't called.
        """
        ...


@runtime_checkable
class MidwayProposer(Proposer, Protocol):
    """A proposer that drafts on a thread of its own while the target's pass goes on.

    Attributes:
        midway_depth: After how many of the target's layers `midway` is called.
    """

    midway_depth: int

    def midway(self, requests: Sequence[SpecRequest], states: Sequence[Tensor]) -> None:
        """Start drafting; called in the middle of a verifying pass, which goes on when this returns.

        `propose`, `observe` and `release` must first wait until the started work has ended. The pass may
        fail and be repeated.

        Args:
            requests: The requests with a proposal.
            states: For each of them ``[K + 1, hidden]``, the states of the last committed token and the
                proposed ones after ``midway_depth`` layers.
        """
        ...

    def close(self) -> None:
        """End the thread: the engine closes, or gets another proposer. Idempotent."""
        ...


@runtime_checkable
class Passenger(Proposer, Protocol):
    """A proposer that drafts by extra rows within the target's pass; it reads no hidden states."""

    def ride(self, requests: Sequence[SpecRequest], proposals: Sequence[Proposal]) -> Rider | None:
        """The extra rows for the pass that verifies these proposals; None: no rows.

        Called right before the pass, and again if the pass is repeated with fewer requests. The pass's
        first inputs are those of ``requests``, in their order; any further inputs are prompts.
        """
        ...


@dataclass(frozen=True, slots=True)
class StepTimes:
    """What one engine step took.

    Attributes:
        propose_ms: Milliseconds of the proposer.
        verify_ms: Milliseconds of the target's pass.
        total_ms: Milliseconds of the whole step.
        rows: Requests that shared the pass; 0 if the step also prefilled prompts, since its times say
            nothing about rounds.
        tokens: Tokens that the pass read.
    """

    propose_ms: float
    verify_ms: float
    total_ms: float
    rows: int
    tokens: int


@runtime_checkable
class AdaptiveProposer(Proposer, Protocol):
    """A proposer whose decisions depend on what rounds cost and how many tokens they bring."""

    def clock(self, times: StepTimes) -> None:
        """Learn the times of the step whose verdicts were observed last; called at its end."""
        ...

    def explain(self, request_id: int | None = None) -> Explanation:
        """Explain the current decisions, for one request or (None) in general."""
        ...

    def finish(self, request_id: int) -> None:
        """Drop what is kept for a request that is over; its slot may live on. Idempotent."""
        ...
