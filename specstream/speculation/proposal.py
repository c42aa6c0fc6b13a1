"""How to write a drafting method: what a proposer gets and returns, and where it must be honest.

A proposer is any object with the three methods of `Proposer`. In every round the engine calls
`Proposer.propose` for all requests that speculate, runs the target once over the proposed tokens,
verifies them, and calls `Proposer.observe`. An example is
`specstream.speculation.proposers.suffix`; `specstream.speculation.proposers` lists them by name.

- **Honesty.** Return either the distribution that each token was *really drawn from*
  (`Proposal.probs`), or none. Without, the verifier takes the draft for deterministic, and nothing it
  proposes can change the distribution of the text. With wrong probabilities the text is wrong.
- **Decide before drawing.** Whether and how far to draft, and whether a node of a tree gets another
  child, may depend on tokens already drawn, if those stay in the proposal. Dropping a token because of
  its value or its probability biases the text. So does a proposal that is now a tree and now a chain
  (`Proposal.parents` None), depending on what was drawn: chains have a rule of their own.
- **Noise.** Draw with `SpecRequest.draw` only.
- **Errors cost speed only.** An exception or a malformed proposal is logged; the round goes on.
- **No waiting.** On a GPU, reading a tensor (``tolist``, ``item``) makes the host wait for the device.
- **Memory.** Keep what belongs to a sequence under its `SpecRequest.slot`, and drop it in `release`.
- **More.** `Capabilities` for trees; `specstream.speculation.optional` for proposers that read the
  target's hidden states, take part in its pass, or are told what a step cost.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from specstream.model.entry import Entered
from specstream.model.tree import Tree
from specstream.types import SamplingParams

__all__ = [
    "MAX_NODES",
    "Capabilities",
    "Proposal",
    "Proposer",
    "SpecRequest",
    "Verdict",
]

MAX_NODES = 64
"""Maximum nodes of a proposed tree."""


@dataclass(frozen=True, slots=True)
class Proposal:
    """Tokens that a draft expects next: a chain, or a tree of alternatives.

    Attributes:
        tokens: ``[K]`` int64 on the target's device, K >= 0.
        probs: ``[K, V]`` float32: row j is the distribution that ``tokens[j]`` was drawn from. In a
            tree it is given the siblings before token j: the same row for each if they were drawn with
            replacement; without, the row with those before it left out, normalised. None: deterministic.
        parents: The index of each token's parent (-1: the committed text); a parent comes before its
            children. Siblings are tried in their order. None: a chain, which has a rule of its own where
            tokens were drawn.
        source: The kind of proposer that made it, for reports.
        sound: Set by the engine. ``[K]`` bool, False for ids that named no token and were replaced.
        entered: What the target's own first layers made of the unread committed tokens and the first
            proposed ones (`Extras.logits`), so that verification begins behind those layers. With
            states of anything else the text is wrong. Chains only.
    """

    tokens: Tensor
    probs: Tensor | None = None
    parents: tuple[int, ...] | None = None
    source: str = ""
    sound: Tensor | None = None
    entered: Entered | None = None

    @property
    def length(self) -> int:
        """How many tokens are proposed."""
        return self.tokens.shape[0]

    @property
    def links(self) -> Sequence[int]:
        """``parents``, those of a chain included."""
        return range(-1, self.length - 1) if self.parents is None else self.parents

    @property
    def paths(self) -> list[tuple[int, ...]]:
        """For each of the K + 1 rows of target logits, the indices of the proposed tokens before it.

        Row 0 follows the committed tokens alone, row j + 1 token j and its ancestors.
        """
        found: list[tuple[int, ...]] = [()]
        for node, parent in enumerate(self.links):
            found.append((*found[parent + 1], node))
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
        """No tokens: the round is a plain decoding step."""
        return Proposal(torch.empty(0, dtype=torch.int64, device=device))


@dataclass(frozen=True, slots=True)
class Verdict:
    """The target's answer to a proposal.

    Attributes:
        accepted: How many proposed tokens are accepted.
        next_token: The token after them: *recovered* (drawn from the residual) where one was rejected,
            *bonus* where none was.
        path: The indices of the accepted tokens in the proposal (for a chain 0, 1, …, accepted - 1).
        tokens: What the round emits: the accepted tokens and the one after them.
        broken: Rows of logits that are not finite, among them every such row that the reply gets to.
        malformed: Ids or probabilities turned out to be out of range; the rest was verified.
        predictions: For `Capabilities.predictions`, else (): K + 1 tokens, what the target would write
            after the committed tokens and after each proposed token on its path (greedily, or as its
            seed has it).
    """

    accepted: int
    next_token: int
    path: tuple[int, ...]
    tokens: tuple[int, ...]
    broken: tuple[int, ...] = ()
    malformed: bool = False
    predictions: tuple[int, ...] = ()


class SpecRequest(Protocol):
    """What a proposer may know of a request."""

    @property
    def slot(self) -> int:
        """Names the sequence: the key for a proposer's own caches."""
        ...

    @property
    def id(self) -> int:
        """Names the request; a slot may serve several, one after another."""
        ...

    @property
    def token_ids(self) -> list[int]:
        """Prompt and committed tokens. Only grows while the request lives; not to be changed."""
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
        """About how many tokens the first speakable phrase still lacks; None if nobody asked."""
        ...

    def process(self, logits: Tensor, drafted: Sequence[int] | Tensor) -> Tensor:
        """Logits ``[V]`` after ``token_ids`` and ``drafted`` with penalties, bans, grammar … applied.

        A draft that follows them is accepted more often. ``drafted`` may be a tensor ``[n]`` on the
        device, which is read for a grammar only.
        """
        ...

    def draw(self, probs: Tensor, position: int, ids: Tensor | None = None) -> Tensor:
        """Draw an index ``[1]`` into ``probs`` for an absolute position, with the draft's own noise.

        Args:
            probs: ``[1, n]``.
            position: Tokens before the one that is drawn.
            ids: ``[n]`` int64: the tokens that ``probs`` is of. Default: all, so that n is V and the
                index is the token.

        It is independent of the verifier's, as sharing noise would bias the text; with a seed both are
        keyed by the position, and that is what makes draft and target agree.
        """
        ...


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a proposer needs and can do. An engine whose target can't serve it is refused when built.

    Attributes:
        hidden_states: After how many of the target's layers it wants hidden states (see `StateReader`).
        own_cache: It keeps keys and values of its own.
        trees: It may propose trees; a tree from any other proposer is malformed.
        predictions: It wants `Verdict.predictions`.
    """

    hidden_states: tuple[int, ...] = ()
    own_cache: bool = False
    trees: bool = False
    predictions: bool = False


class Proposer(Protocol):
    """Guesses what comes next. One object serves all requests of an engine, on the engine's thread."""

    name: str
    capabilities: Capabilities

    def propose(self, requests: Sequence[SpecRequest], budget: Sequence[int]) -> list[Proposal]:
        """One proposal for each request; fewer tokens than the budget, or none, is always allowed.

        Args:
            requests: Those that speculate in this round.
            budget: Maximum depth of each proposal: tokens of a chain, length of a tree's longest path.
                A tree has `MAX_NODES` nodes at most.
        """
        ...

    def observe(self, requests: Sequence[SpecRequest], verdicts: Sequence[Verdict]) -> None:
        """What became of the latest proposals, before the tokens are committed."""
        ...

    def release(self, slot: int) -> None:
        """The sequence is gone: drop what is kept for it. Idempotent."""
        ...
