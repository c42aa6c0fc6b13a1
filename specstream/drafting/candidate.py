"""What a method is built from, and the interface of those among which ``auto`` chooses."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol, runtime_checkable

from transformers import PreTrainedTokenizerBase

from specstream.drafting.calibration import FRESH, MeasuredTimes
from specstream.drafting.policy.records import Candidate, Offer
from specstream.drafting.proposal import Proposal, Proposer, SpecRequest, Verdict
from specstream.errors import ConfigError
from specstream.model.heads.base import Head
from specstream.model.runner import ModelRunner
from specstream.model.tokens.vocabulary import Translation

__all__ = [
    "CandidateProposer",
    "DraftWeights",
    "EngineParts",
    "Rehearsed",
    "Task",
    "TaskProposal",
    "TaskProposer",
    "stop_below",
]


@dataclass(frozen=True, slots=True)
class DraftWeights:
    """Trained parameters that drafting adds to the target, and the bytes of their weights."""

    parameters: int = 0
    nbytes: int = 0


@dataclass(frozen=True, slots=True)
class EngineParts:
    """The models that an engine has loaded, as a method's ``build`` gets them.

    Attributes:
        target: The target model.
        eos_ids: Token ids that end a turn.
        tokenizer: The target's tokenizer.
        draft: The draft model; None: none was loaded.
        translation: Between the draft's vocabulary and the target's; None: they have one vocabulary.
        heads: Drafting heads by method.
        prefill_chunk: The most prompt tokens that one pass reads.
        acceptance: By method, the acceptance probability at each position, from the ``config.json`` of
            its draft model or head (see `told_acceptance`).
        times: Of passes, as far as an earlier start has measured them.
    """

    target: ModelRunner
    eos_ids: frozenset[int]
    tokenizer: PreTrainedTokenizerBase
    draft: ModelRunner | None = None
    translation: Translation | None = None
    heads: Mapping[str, Head] = field(default_factory=dict)
    prefill_chunk: int = 512
    acceptance: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    times: MeasuredTimes = FRESH

    def head(self, kind: str) -> Head:
        """The head of a method.

        Raises:
            ConfigError: none was loaded.
        """
        found = self.heads.get(kind)
        if found is None:
            raise ConfigError(
                f"--proposer {kind} needs a head that was trained for the target: name its folder with "
                f"--draft (specstream train {kind} makes one)"
            )
        return found

    def draft_model(self, kind: str) -> ModelRunner:
        """The draft model of a method.

        Raises:
            ConfigError: none was loaded.
        """
        if self.draft is None:
            raise ConfigError(f"--proposer {kind} needs a draft model: name it with --draft")
        return self.draft

    @property
    def draft_weights(self) -> DraftWeights:
        """The weights of the draft model and all heads."""
        heads = self.heads.values()
        count, size = sum(one.parameters for one in heads), sum(one.nbytes for one in heads)
        if self.draft is not None:
            weights = list(self.draft.model.parameters())
            count += sum(weight.numel() for weight in weights)
            size += sum(weight.nbytes for weight in weights)
        return DraftWeights(count, size)


@dataclass(slots=True)
class Task:
    """A planned proposal: at most ``count`` tokens (levels of a tree) from ``offer``.

    ``go_on`` is called after each token of a chain with the draft's probability of that token. The
    token is kept; False ends the chain. None: the chain's length doesn't depend on its tokens.
    For trees, and for ``least``, see `Plan`.
    """

    request: SpecRequest
    count: int
    offer: Offer
    go_on: Callable[[float], bool] | None = None
    least: float = 0.0


class TaskProposal(NamedTuple):
    """A task's proposal.

    Attributes:
        proposal: The tokens, fewer or none where no more can be proposed.
        confidences: The draft's probability of each token (the mass of each level of a tree) for which
            `Task.go_on` was called.
        passes: Number of draft passes. Tasks in lockstep share passes, so a step has as many as the task
            with the most.
        read: Tokens that the draft read to catch up.
    """

    proposal: Proposal
    confidences: Sequence[float] = ()
    passes: int = 0
    read: int = 0


class CandidateProposer(Proposer, Protocol):
    """A proposer that can be chosen round by round. All methods run on the engine's thread.

    Whether another token is drafted may depend only on tokens drafted before it: a token that was drawn
    must be proposed, however unlikely it is, or the output distribution would be biased.
    """

    @property
    def candidate(self) -> Candidate:
        """The policy's view of this proposer."""
        ...

    def offer(self, request: SpecRequest, budget: int) -> Offer:
        """Return what it could propose now, at most ``budget`` tokens (levels), without a draft pass."""
        ...

    def draft(self, tasks: Sequence[Task]) -> Sequence[TaskProposal]:
        """Draft for all tasks of one step, several of them in lockstep."""
        ...


class TaskProposer(Protocol):
    """A candidate that can also be used alone, with proposals as long as its settings allow.

    Attributes:
        most: Largest number of tokens of a proposal (levels of a tree).
        least: Used alone, a chain ends once its probability is below this; see `stop_below`.
    """

    most: int
    least: float = 0.0

    def offer(self, request: SpecRequest, budget: int) -> Offer:
        """Offer up to ``budget`` tokens."""
        return Offer(budget)

    @abstractmethod
    def draft(self, tasks: Sequence[Task]) -> Sequence[TaskProposal]:
        """See `CandidateProposer.draft`."""

    def propose(self, requests: Sequence[SpecRequest], budget: Sequence[int]) -> list[Proposal]:
        """See `Proposer.propose`."""
        tasks = [
            Task(r, min(b, self.most), self.offer(r, b), stop_below(self.least))
            for r, b in zip(requests, budget, strict=True)
        ]
        return [drafted.proposal for drafted in self.draft(tasks)]

    def observe(self, requests: Sequence[SpecRequest], verdicts: Sequence[Verdict]) -> None:
        """Do nothing: accepted tokens are read at the next proposal."""
        return


def stop_below(least: float) -> Callable[[float], bool] | None:
    """A `Task.go_on` that ends a chain once its probability falls below ``least``.

    None for ``least`` 0: the chain has no such rule.
    """
    if least <= 0.0:
        return None
    chance = 1.0

    def go_on(confidence: float) -> bool:
        nonlocal chance
        chance *= confidence
        return chance >= least

    return go_on


@runtime_checkable
class Rehearsed(CandidateProposer, Protocol):
    """A candidate whose draft pass can be timed before the first request.

    A draft pass of any other candidate counts as a target pass until its first rounds are timed.
    """

    def rehearse(self) -> None:
        """Make one draft pass of typical size, wait for its result, and keep no state."""
        ...
