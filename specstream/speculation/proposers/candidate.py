"""The interface of proposers that the adaptive proposer chooses among: drafts, heads, lookups, trees."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

from specstream.speculation.policy.records import Candidate, Offer
from specstream.speculation.proposal import Proposal, Proposer, SpecRequest, Verdict

__all__ = ["CandidateProposer", "Drafted", "Rehearsed", "Task", "TaskProposer"]


@dataclass(slots=True)
class Task:
    """A proposal that was planned: at most ``count`` tokens (levels of a tree) from ``offer``.

    ``go_on`` is called after each token of a chain, with the draft's probability of it; the token is
    kept, and False ends the chain there. None: nothing has to be known of a token before the next.
    Of a tree, and ``least``: see `Plan`.
    """

    request: SpecRequest
    count: int
    offer: Offer
    go_on: Callable[[float], bool] | None = None
    least: float = 0.0


class Drafted(NamedTuple):
    """A task's proposal.

    Attributes:
        proposal: The tokens, fewer or none where no more can be proposed.
        confidences: The draft's probability of each (the mass of each level), as far as `Task.go_on`
            was asked.
        passes: Draft passes for it; tasks in lockstep share them, so the step's number is the largest.
        read: Tokens that the draft caught up on.
    """

    proposal: Proposal
    confidences: Sequence[float] = ()
    passes: int = 0
    read: int = 0


class CandidateProposer(Proposer, Protocol):
    """A proposer that can be chosen round by round. Every method runs on the engine's thread.

    Whether and how far it drafts may depend only on what was drafted before the token in question: a
    token that was drawn must be proposed, however unlikely it is.
    """

    @property
    def candidate(self) -> Candidate:
        """Its name, what it costs and how its acceptance is predicted."""
        ...

    def offer(self, request: SpecRequest, budget: int) -> Offer:
        """What it could propose now, at most ``budget`` tokens (levels); without a draft pass."""
        ...

    def draft(self, tasks: Sequence[Task]) -> Sequence[Drafted]:
        """Carry out tasks, all of one step; several in lockstep."""
        ...


class TaskProposer(Protocol):
    """Proposes what it would draft for tasks as long as its settings allow.

    Attributes:
        most: Tokens of a proposal, levels of a tree.
    """

    most: int

    @abstractmethod
    def draft(self, tasks: Sequence[Task]) -> Sequence[Drafted]:
        """See `CandidateProposer.draft`."""

    def propose(self, requests: Sequence[SpecRequest], budget: Sequence[int]) -> list[Proposal]:
        """See `Proposer.propose`."""
        each = zip(requests, budget, strict=True)
        tasks = [Task(r, min(b, self.most), Offer(b), self.go_on()) for r, b in each]
        return [drafted.proposal for drafted in self.draft(tasks)]

    def go_on(self) -> Callable[[float], bool] | None:
        """`Task.go_on` of a proposal that nobody planned."""
        return None

    def observe(self, requests: Sequence[SpecRequest], verdicts: Sequence[Verdict]) -> None:
        """Nothing: what is kept of accepted tokens comes from elsewhere."""
        return


@runtime_checkable
class Rehearsed(CandidateProposer, Protocol):
    """A candidate whose draft pass can be timed before there is a request.

    Of others the first rounds tell what a draft pass costs; until then it counts as a target pass.
    """

    def rehearse(self) -> None:
        """One draft pass of typical size, waited for, that leaves nothing behind."""
        ...
