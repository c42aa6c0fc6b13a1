"""What a proposer gives and what the judge returns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from specstream.spec.control.records import Explanation
from specstream.types import SamplingParams

__all__ = [
    "AdaptiveProposer",
    "Capabilities",
    "Proposal",
    "Proposer",
    "SpecRequest",
    "StepTimes",
    "Verdict",
]


@dataclass(frozen=True, slots=True)
class Proposal:
    """Tokens that a draft expects next.

    Attributes:
        tokens: ``[K]`` int64, K >= 0.
        probs: ``[K, V]`` float32: row j is the distribution that ``tokens[j]`` was *really drawn
            from*. None means a deterministic draft (a point mass on ``tokens[j]``).
        parents: ``[K]`` int64, the index of each token's parent in a tree (-1: the root). None means
            a chain.
        source: The kind of proposer that made it.
        sound: Not for proposers. ``[K]`` bool, set where ids can't be looked at: False marks those that
            named no token and were replaced.
    """

    tokens: Tensor
    probs: Tensor | None = None
    parents: Tensor | None = None
    source: str = ""
    sound: Tensor | None = None

    @property
    def length(self) -> int:
        """How many tokens are proposed."""
        return self.tokens.shape[0]

    def is_chain(self) -> bool:
        """Whether each token follows the one before it. Parents, where there are any, are looked at."""
        return self.parents is None or self.parents.tolist() == list(range(-1, self.length - 1))

    def contexts(self) -> list[list[int]]:
        """For each of the K + 1 rows that the target answers with, the proposed tokens before it.

        Row 0 follows the committed tokens alone, row j + 1 the token j and those it follows.
        """
        parents = range(-1, self.length - 1) if self.parents is None else self.parents.tolist()
        found: list[list[int]] = [[]]
        for token, parent in zip(self.tokens.tolist(), parents, strict=True):
            found.append([*found[parent + 1], token])
        return found

    @staticmethod
    def empty(device: torch.device | str = "cpu") -> Proposal:
        """Nothing proposed: the round is a plain decoding step."""
        return Proposal(torch.empty(0, dtype=torch.int64, device=device))


@dataclass(frozen=True, slots=True)
class Verdict:
    """The target's judgement of a proposal.

    ``accepted`` leading tokens stand; ``next_token`` follows them: *recovered* (drawn from the
    residual) where one was rejected, *bonus* where all were accepted. ``path`` are the indices of
    the accepted tokens in the proposal (for a chain: 0, 1, …, accepted - 1). ``tokens`` is what the
    round emits: the accepted tokens and the one after them. ``broken`` are rows of logits that are no
    numbers, among them every such row that the reply gets to; it can't go on from there. ``malformed``:
    only here, behind the device, could it be seen that the proposal was none; its sound part was judged.
    """

    accepted: int
    next_token: int
    path: tuple[int, ...]
    tokens: tuple[int, ...]
    broken: tuple[int, ...] = ()
    malformed: bool = False


class SpecRequest(Protocol):
    """What a proposer may know of a request."""

    @property
    def slot(self) -> int:
        """Names the sequence; a proposer keys its own caches by it."""
        ...

    @property
    def id(self) -> int:
        """Names the request; a slot may serve several, one after another."""
        ...

    @property
    def token_ids(self) -> list[int]:
        """Prompt and committed tokens. Only ever grows while the request lives; not to be changed."""
        ...

    @property
    def prompt_length(self) -> int:
        """How many of ``token_ids`` are the prompt."""
        ...

    @property
    def reference_ids(self) -> list[int]:
        """Tokens that the reply is expected to repeat in part; may be empty."""
        ...

    @property
    def params(self) -> SamplingParams:
        """How the request samples."""
        ...

    @property
    def phrase_left(self) -> int | None:
        """About how many tokens the first speakable phrase still lacks; None where nobody asked."""
        ...

    def process(self, logits: Tensor, drafted: list[int]) -> Tensor:
        """Penalties, bans, grammar …: ``[V]`` logits after ``token_ids`` and ``drafted``, processed.

        A draft that follows them is accepted more often; one that doesn't is judged all the same.
        """
        ...

    def draw(self, probs: Tensor, position: int) -> Tensor:
        """Draw ``[1]`` from ``probs [1, V]`` for an absolute position, with the draft's own noise.

        In the default mode that noise is independent of the judge's: sharing it would bias the
        result. In the reproducible mode both are keyed by the position, and that is what makes
        draft and target agree.
        """
        ...


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a proposer needs and can do; asked instead of its type."""

    hidden_states: bool = False
    own_cache: bool = False
    trees: bool = False


class Proposer(Protocol):
    """Guesses what comes next. One object serves all requests of an engine."""

    name: str
    capabilities: Capabilities

    def propose(self, requests: Sequence[SpecRequest], budget: Sequence[int]) -> list[Proposal]:
        """At most ``budget[i]`` tokens for ``requests[i]``; fewer or none is always allowed."""
        ...

    def observe(self, requests: Sequence[SpecRequest], verdicts: Sequence[Verdict]) -> None:
        """What became of the latest proposals, before the tokens are committed."""
        ...

    def release(self, slot: int) -> None:
        """The sequence is gone: drop what is kept for it. Idempotent."""
        ...


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Where one step of the engine went, in milliseconds.

    ``rows`` requests shared the target's pass, which read ``tokens`` tokens; 0 rows: the step read
    prompts, too, and its times say nothing about rounds. ``total_ms`` is the whole step.
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
        """Why it does what it does, for one request, or in general."""
        ...

    def finish(self, request_id: int) -> None:
        """The request is over; its sequence may live on. Idempotent."""
        ...
