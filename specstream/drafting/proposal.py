"""The interface of drafting methods: what a proposer gets and returns, and which rules it must keep.

A proposer is any object with the three methods of `Proposer`. In every round the engine calls
`Proposer.propose` for all requests that speculate, runs the target once over the proposed tokens,
verifies them, and calls `Proposer.observe`. An example is
`specstream.drafting.proposers.suffix`; `specstream.drafting.proposers` lists them by name.

- **Honesty.** Return either the distribution that each token was *really drawn from*
  (`Proposal.probs`), or none. Without probabilities the verifier treats the tokens as deterministic, and
  no proposal can change the distribution of the text. With wrong probabilities the text is wrong.
- **Decide before drawing.** Whether and how far to draft, and whether a node of a tree gets another
  child, may depend on tokens already drawn, if those stay in the proposal. Dropping a token because of
  its value or its probability biases the text. So does returning a tree or a chain (`Proposal.parents`
  None) depending on the drawn tokens, because chains are verified by another rule.
- **Noise.** Draw with `SpecRequest.draw` only.
- **Errors cost speed only.** An exception or a malformed proposal is logged; the round goes on.
- **No waiting.** On a GPU, reading a tensor (``tolist``, ``item``) makes the host wait for the device.
- **Memory.** Keep what belongs to a sequence under its `SpecRequest.slot`, and drop it in `release`.
- **Text only.** Don't change what a request holds (``token_ids`` is the engine's own list), and let a
  proposal depend on the request's own text, whatever other requests there are. Tokens that were drafted
  and not accepted are no part of the text; ``token_ids`` is, always.
- **More.** See `Capabilities` for trees, and `specstream.drafting.optional` for proposers that read
  the target's hidden states, take part in its pass, or are told what a step cost.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

import torch
from torch import Tensor

from specstream.model.forward import Entered
from specstream.model.tree import Tree
from specstream.types import SamplingParams

__all__ = ["MAX_NODES", "Capabilities", "Proposal", "Proposer", "SpecRequest", "Verdict"]

MAX_NODES = 64
"""Maximum nodes of a proposed tree."""


@dataclass(frozen=True, slots=True)
class Proposal:
    """Tokens that a draft expects next: a chain, or a tree of alternatives.

    Attributes:
        tokens: ``[K]`` int64 on the target's device, K >= 0.
        probs: ``[K, V]`` float32: row j is the distribution that ``tokens[j]`` was drawn from. In a
            tree that is the distribution given the siblings before token j: with replacement the same
            row for all siblings; without replacement the row with the earlier siblings set to 0 and
            normalised again. None: the tokens are deterministic.
        parents: The index of each token's parent (-1: the committed text); a parent comes before its
            children. Siblings are tried in their order. None: a chain, which is verified by a rule of
            its own if its tokens were drawn.
        source: The kind of proposer that made it, for reports. Empty: the proposer's name.
        sound: Set by the engine: ``[K]`` bool, False where an id outside the vocabulary was replaced.
        entered: The states of the unread committed tokens and the first proposed ones after the target's
            own first layers (a pass with `Extras.logits` False), so that verification begins behind
            those layers. With any other states the text is wrong. Chains only.
    """

    tokens: Tensor
    probs: Tensor | None = None
    parents: tuple[int, ...] | None = None
    source: str = ""
    sound: Tensor | None = None
    entered: Entered | None = None

    @property
    def length(self) -> int:
        """The number of proposed tokens."""
        return self.tokens.shape[0]

    @property
    def links(self) -> Sequence[int]:
        """Each token's parent, for a chain as well."""
        return range(-1, self.length - 1) if self.parents is None else self.parents

    def path_to(self, row: int) -> tuple[int, ...]:
        """Return the indices of the proposed tokens before a row of target logits, 0 to K.

        Row 0 follows the committed tokens alone; row j + 1 follows token j and its ancestors.
        """
        if self.parents is None:
            return tuple(range(row))
        path, node = list[int](), row - 1
        while node >= 0:
            path.append(node)
            node = self.parents[node]
        return tuple(path[::-1])

    @property
    def paths(self) -> list[tuple[int, ...]]:
        """The result of `path_to` for each of the K + 1 rows."""
        if self.parents is None:
            return [tuple(range(row)) for row in range(self.length + 1)]
        return [(), *Tree(self.parents).paths]

    @property
    def tree(self) -> Tree | None:
        """The shape of a tree; None for a chain.

        Raises:
            ValueError: the number of parents isn't K, or a parent comes after its child.
        """
        if self.parents is None:
            return None
        if len(self.parents) != self.length:
            raise ValueError(f"{self.length} tokens with {len(self.parents)} parents")
        return Tree.of(self.parents)

    @staticmethod
    @lru_cache
    def empty(device: torch.device | str = "cpu") -> Proposal:
        """Return the device's one proposal without tokens: the round is a plain decoding step."""
        return Proposal(torch.empty(0, dtype=torch.int64, device=device))


@dataclass(frozen=True, slots=True)
class Verdict:
    """The target's answer to a proposal.

    Attributes:
        accepted: How many proposed tokens are accepted.
        next_token: The token after them: *recovered* (drawn from the residual) if a token was rejected,
            *bonus* if none was.
        path: The indices of the accepted tokens in the proposal (for a chain 0, 1, …, accepted - 1).
        tokens: The tokens that the round emits: the accepted ones and the one after them.
        broken: Indices of rows of logits that are not finite; all such rows on the accepted path are
            among them.
        malformed: Whether ids or probabilities were out of range; the rest was verified.
        predictions: Empty unless `Capabilities.predictions`: K + 1 tokens that the target would write
            after the committed tokens and after each proposed token on its path (its draw by the seed
            if verified by exact match, else the likeliest).
    """

    accepted: int
    next_token: int
    path: tuple[int, ...]
    tokens: tuple[int, ...]
    broken: tuple[int, ...] = ()
    malformed: bool = False
    predictions: tuple[int, ...] = ()


class SpecRequest(Protocol):
    """A request as proposers see it."""

    @property
    def slot(self) -> int:
        """Identifies the sequence: the key under which a proposer keeps its own caches."""
        ...

    @property
    def id(self) -> int:
        """Identifies the request; a slot may serve several requests, one after another."""
        ...

    @property
    def token_ids(self) -> list[int]:
        """Prompt and committed tokens. It only grows while the request lives; don't change it."""
        ...

    @property
    def prompt_length(self) -> int:
        """How many of ``token_ids`` belong to the prompt."""
        ...

    @property
    def reference_ids(self) -> list[int]:
        """Tokens that the reply is expected to repeat in part; may be empty."""
        ...

    @property
    def params(self) -> SamplingParams:
        """How the request samples."""
        ...

    def process(self, logits: Tensor, drafted: Sequence[int] | Tensor) -> Tensor:
        """Apply penalties, bans, grammar … to logits ``[V]`` after ``token_ids`` and ``drafted``.

        A draft that follows these processors is accepted more often. ``drafted`` may be a tensor ``[n]``
        on the device; only a grammar reads it.
        """
        ...

    def draw(self, probs: Tensor, position: int, ids: Tensor | None = None) -> Tensor:
        """Draw an index ``[1]`` into ``probs`` for an absolute position, with the draft's own noise.

        Args:
            probs: ``[1, n]``.
            position: The number of tokens before the one that is drawn.
            ids: ``[n]`` int64: the token ids of the columns of ``probs``. Default: n is V, and the index
                is the token id.

        The noise is independent of the verifier's, because shared noise would bias the text. With a seed
        (exact match) both use the same noise, keyed by position, so that draft and target agree.
        """
        ...


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a proposer needs and can do; building an engine fails if its target can't serve that.

    Attributes:
        hidden_states: After how many of the target's layers it wants hidden states (see `StateReader`).
        trees: Whether it may propose trees; a tree from any other proposer is malformed.
        predictions: Whether it wants `Verdict.predictions`.
    """

    hidden_states: tuple[int, ...] = ()
    trees: bool = False
    predictions: bool = False


class Proposer(Protocol):
    """A drafting method. One object serves all requests of an engine, on the engine's thread."""

    name: str
    capabilities: Capabilities

    def propose(self, requests: Sequence[SpecRequest], budget: Sequence[int]) -> list[Proposal]:
        """Return one proposal for each request; fewer tokens than the budget, or none, is allowed.

        Args:
            requests: The requests that speculate in this round.
            budget: Maximum depth of each proposal: tokens of a chain, length of a tree's longest path.
                A tree has `MAX_NODES` nodes at most.
        """
        ...

    def observe(self, requests: Sequence[SpecRequest], verdicts: Sequence[Verdict]) -> None:
        """Learn the verdicts on the latest proposals; called before the tokens are committed."""
        ...

    def release(self, slot: int) -> None:
        """Drop what is kept for a slot, whose sequence is gone. Idempotent."""
        ...
