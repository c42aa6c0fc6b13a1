"""What a proposer may be besides a `Proposer`: told apart by the methods that it has.

`StateReader` drafts from the target's hidden states (a `SelectiveReader` not of all requests),
`MidwayProposer` beside the target's pass,
`Passenger` within it; `AdaptiveProposer` is told what steps cost.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from torch import Tensor

from specstream.model.kv.base import KVCache
from specstream.model.rider import Rider
from specstream.speculation.explanation import Explanation
from specstream.speculation.proposal import Proposal, Proposer, SpecRequest

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
    """A request as the engine knows it: the target's cache is there, too."""

    @property
    def cache(self) -> KVCache:
        """The target's cache. A proposer that drafts with the target's layers rolls it back."""
        ...


@dataclass(frozen=True, slots=True)
class States:
    """The target's hidden states for consecutive tokens of a request.

    Attributes:
        start: Position of the first: ``states[k]`` belongs to ``token_ids[start + k]``. Tokens whose
            cache was kept from an earlier turn come before it; their states were read in that turn.
        states: ``[n, depths, hidden]`` in the order of `Capabilities.hidden_states`, on the target's
            device and in its dtype.
    """

    start: int
    states: Tensor


@runtime_checkable
class StateReader(Proposer, Protocol):
    """A proposer that drafts from the target's hidden states."""

    def read(self, requests: Sequence[SpecRequest], states: Sequence[States]) -> None:
        """The hidden states of tokens that have become part of their requests.

        Called once a pass after `observe`, for all that took part: for a prompt, the tokens that were
        prefilled; for a round, the last committed token and the accepted ones, in the order of the text.
        The token that followed them has no state yet.
        """
        ...


@runtime_checkable
class SelectiveReader(StateReader, Protocol):
    """A reader that does without the states of some requests."""

    def wants_states(self, request: SpecRequest) -> bool:
        """Asked before each pass that the request takes part in; the same answer for all of them.

        A pass without a request whose states are wanted gives none, and `read` isn't called.
        """
        ...


@runtime_checkable
class MidwayProposer(Proposer, Protocol):
    """A proposer that drafts ahead on a thread of its own while the target's pass goes on.

    Attributes:
        midway_depth: After how many of the target's layers `midway` is called.
    """

    midway_depth: int

    def midway(self, requests: Sequence[SpecRequest], states: Sequence[Tensor]) -> None:
        """In the middle of a pass that verifies proposals; the pass goes on when this returns.

        What it starts ends before `propose`, `observe` or `release` does anything else: the pass may
        fail, and be repeated.

        Args:
            requests: Those with a proposal.
            states: ``[K + 1, hidden]`` each, after ``midway_depth`` layers: of the last committed
                token and the proposed ones.
        """
        ...

    def close(self) -> None:
        """The engine ends, or has another proposer: end the thread. Idempotent."""
        ...


@runtime_checkable
class Passenger(Proposer, Protocol):
    """A proposer that drafts within the target's pass; it reads no hidden states."""

    def ride(self, requests: Sequence[SpecRequest], proposals: Sequence[Proposal]) -> Rider | None:
        """What travels in the pass that verifies these proposals; None: nothing.

        Called right before the pass, once more if it is repeated with fewer requests. The pass's first
        inputs are those of ``requests``, in their order; others only read a prompt.
        """
        ...


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Milliseconds of the proposer, of the target's pass, and of the whole step.

    ``rows`` requests shared the pass, which read ``tokens`` tokens. In a step that prefilled prompts
    ``rows`` is 0, as its times tell nothing about rounds.
    """

    propose_ms: float
    verify_ms: float
    total_ms: float
    rows: int
    tokens: int


@runtime_checkable
class AdaptiveProposer(Proposer, Protocol):
    """A proposer that decides by what a round costs and brings."""

    def clock(self, times: StepTimes) -> None:
        """The step whose verdicts were observed last is over."""
        ...

    def explain(self, request_id: int | None = None) -> Explanation:
        """Why it decides as it does, for one request or in general."""
        ...

    def finish(self, request_id: int) -> None:
        """The request is over; its sequence may live on. Idempotent."""
        ...
