"""What a proposer gives and what the verifier returns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from specstream.model.tree import Tree
from specstream.speculation.explanation import Explanation
from specstream.types import SamplingParams

__all__ = [
    "MAX_NODES",
    "AdaptiveProposer",
    "Capabilities",
    "Proposal",
    "Proposer",
    "SpecRequest",
    "StateReader",
    "States",
    "StepTimes",
    "Verdict",
]

MAX_NODES = 64
"""Tokens of a proposal, at most: a pass over more costs what it could bring."""


@dataclass(frozen=True, slots=True)
class Proposal:
    """Tokens that a draft expects next.

    Attributes:
        tokens: ``[K]`` int64, K >= 0.
        probs: ``[K, V]`` float32: row j is the distribution that ``tokens[j]`` was *really drawn
            from*. None means a deterministic draft (a point mass on ``tokens[j]``).
        parents: The index of each token's parent in a tree (-1: the root), K of them; a parent comes
            before its children. None means a chain. In a tree, ``probs[j]`` is given the siblings
            that come before token j: see `specstream.speculation.tree_rules.sibling_rule`.
        source: The kind of proposer that made it.
        sound: Not for proposers. ``[K]`` bool, set where ids can't be looked at: False marks those that
            named no token and were replaced.
    """

    tokens: Tensor
    probs: Tensor | None = None
    parents: tuple[int, ...] | None = None
    source: str = ""
    sound: Tensor | None = None

    @property
    def length(self) -> int:
        """How many tokens are proposed."""
        return self.tokens.shape[0]

    def contexts(self) -> list[list[int]]:
        """For each of the K + 1 rows that the target answers with, the proposed tokens before it.

        Row 0 follows the committed tokens alone, row j + 1 the token j and those it follows.
        """
        parents = range(-1, self.length - 1) if self.parents is None else self.parents
        found: list[list[int]] = [[]]
        for token, parent in zip(self.tokens.tolist(), parents, strict=True):
            found.append([*found[parent + 1], token])
        return found

    @property
    def tree(self) -> Tree | None:
        """The shape of a tree; None for a chain.

        Raises:
            ValueError: there aren't as many parents as tokens, or one comes after its child.
        """
        if self.parents is None:
            return None
        if len(self.parents) != self.length:
            raise ValueError(f"{self.length} tokens with {len(self.parents)} parents")
        return Tree.of(self.parents)

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

        In the default mode that noise is independent of the verifier's: sharing it would bias the
        result. In the reproducible mode both are keyed by the position, and that is what makes
        draft and target agree.
        """
        ...


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a proposer needs and can do; asked instead of its type.

    Attributes:
        hidden_states: After how many of the target's layers it wants the states of every token (see
            `StateReader`, and `forward_with_states` of `specstream.model.runner.ModelRunner`).
        own_cache: It keeps keys and values of its own.
        trees: It may propose trees; a tree from a proposer that hasn't said so counts as broken.

    An engine whose target can't give the states, or can't judge trees, is refused when it is built.
    """

    hidden_states: tuple[int, ...] = ()
    own_cache: bool = False
    trees: bool = False


class Proposer(Protocol):
    """Guesses what comes next. One object serves all requests of an engine."""

    name: str
    capabilities: Capabilities

    def propose(self, requests: Sequence[SpecRequest], budget: Sequence[int]) -> list[Proposal]:
        """At most ``budget[i]`` tokens for ``requests[i]``; fewer or none is always allowed.

        Of a tree, ``budget[i]`` is the depth; all its nodes together are at most `MAX_NODES`.
        """
        ...

    def observe(self, requests: Sequence[SpecRequest], verdicts: Sequence[Verdict]) -> None:
        """What became of the latest proposals, before the tokens are committed."""
        ...

    def release(self, slot: int) -> None:
        """The sequence is gone: drop what is kept for it. Idempotent."""
        ...


@dataclass(frozen=True, slots=True)
class States:
    """What the target computed for a stretch of a request's tokens.

    Attributes:
        start: Position of the first: ``states[k]`` belongs to ``token_ids[start + k]``. It lies behind
            the tokens that a conversation's cache still held, whose states were read a turn before.
        states: ``[n, depths, hidden]`` in the order of `Capabilities.hidden_states`, on the target's
            device and in its dtype.
    """

    start: int
    states: Tensor


@runtime_checkable
class StateReader(Proposer, Protocol):
    """A proposer that drafts from the target's hidden states."""

    def read(self, requests: Sequence[SpecRequest], states: Sequence[States]) -> None:
        """The states of tokens that have become part of their requests, prompts included.

        Called once a pass after `observe`, for all who took part: of a prompt the tokens that were
        read; of a round the last committed token and the accepted ones, in the order of the text. The
        token that followed them has none yet.
        """
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
