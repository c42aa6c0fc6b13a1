"""Proposals of heads: the states that they read, and chains drawn from their marginals."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import torch
from torch import Tensor

from specstream.drafting.candidate import Task, TaskProposal, TaskProposer
from specstream.drafting.chain import Drafting
from specstream.drafting.optional import States
from specstream.drafting.proposal import Proposal, SpecRequest
from specstream.model.heads.base import Context, FeatureHead
from specstream.model.heads.block import BlockHead

__all__ = ["RowProposer", "StateRows", "draft_ready", "take_chain"]


@dataclass(slots=True)
class StateRows(Context):
    """A head's cached rows of one slot, and the target's hidden states that have no row yet.

    Rows are made only when the head drafts: in many rounds another method drafts, and making many rows
    at once costs little more than making one.

    Attributes:
        unread: The number of states without a row.
        parts: Those states, ``[n, depths, hidden]`` each.
    """

    unread: int = 0
    parts: list[Tensor] = field(default_factory=list)

    @property
    def told(self) -> int:
        """The position after the last state."""
        return self.end + self.unread

    def add(self, start: int, states: Tensor) -> None:
        """Append the states of the tokens from position ``start`` on, replacing any from there on.

        After a gap all rows and states before it are dropped.
        """
        if not self.start <= start <= self.told:
            self.restart(start)
        if start < self.end:
            self.cache.rollback_to(start - self.start)
        if start < self.told:
            before = self.take(self.unread)[: start - self.end]
            self.parts, self.unread = [before], before.shape[0]
        self.parts.append(states.clone())  # a view would keep the states of the whole pass alive
        self.unread += states.shape[0]

    def trim(self, window: int) -> None:
        """If more than ``window`` states have no row, keep the last ``window`` and drop all rows."""
        if self.unread > window:
            start, kept = self.told - window, self.take(self.unread)[-window:].clone()
            self.restart(start)
            self.parts, self.unread = [kept], window

    def take(self, count: int) -> Tensor:
        """Remove and return the first ``count`` states without a row."""
        whole = self.parts[0] if len(self.parts) == 1 else torch.cat(self.parts)
        self.unread -= count
        self.parts = [whole[count:]] if self.unread else []
        return whole[:count]

    def restart(self, start: int) -> None:
        """Drop everything; the next state is that of position ``start``."""
        self.start, self.unread, self.parts = start, 0, []
        self.cache.rollback_to(0)


class RowProposer(TaskProposer):
    """A candidate with such a head; it drafts once the states of all tokens but the last were read.

    Attributes:
        sequences: By slot, the head's rows and the states without one.
    """

    sequences: dict[int, StateRows]
    _head: FeatureHead | BlockHead

    @abstractmethod
    def bound(self, kept: StateRows) -> None:
        """Bound a slot's states without a row; called when it got new ones, as others may draft."""

    def read(self, requests: Sequence[SpecRequest], states: Sequence[States]) -> None:
        """Keep the states of committed tokens; rows are made from them when the head drafts."""
        for request, one in zip(requests, states, strict=True):
            found = self.sequences.get(request.slot)
            if found is None:
                found = self.sequences[request.slot] = StateRows(self._head.new_cache())
            found.add(one.start, one.states)
            self.bound(found)

    def known(self, request: SpecRequest) -> StateRows | None:
        """The rows and states of the request; None unless it can be drafted for."""
        found = self.sequences.get(request.slot)
        return found if found is not None and found.told == len(request.token_ids) - 1 else None

    def behind(self, unread: int) -> int:
        """How many tokens lack rows, beyond those that a round drafted by this head leaves anyway."""
        return max(0, unread - self.most - 1)

    def release(self, slot: int) -> None:
        """Drop the slot's rows and states."""
        self.sequences.pop(slot, None)


_Ready = TypeVar("_Ready")


def draft_ready(
    tasks: Sequence[Task],
    ready: Callable[[SpecRequest], _Ready | None],
    draft: Callable[[Sequence[tuple[Task, _Ready]]], Sequence[TaskProposal]],
    device: torch.device,
) -> list[TaskProposal]:
    """Draft in one pass for all tasks whose request is ready, and nothing for the others.

    Args:
        tasks: The tasks, one for each request.
        ready: What a request is drafted from; None: nothing can be drafted for it now.
        draft: Drafts for at least one task.
        device: Device of the empty proposals.
    """
    asked = [(task, ready(task.request)) for task in tasks if task.count > 0]
    known = [(task, found) for task, found in asked if found is not None]
    made = draft(known) if known else ()
    drafted = {task.request.id: one for (task, _), one in zip(known, made, strict=True)}
    return [drafted.get(task.request.id, TaskProposal(Proposal.empty(device))) for task in tasks]


def take_chain(task: Task, logits: Tensor, *, looks: bool, source: str) -> TaskProposal:
    """Make a chain with one token from each row: the likeliest if greedy, else drawn from the row.

    Whether the chain ends is decided after a token, which is kept, and before the next is drawn.

    Args:
        task: The request, and when to stop.
        logits: ``[n, V]``, one row for each position; n is at most ``task.count``.
        looks: Whether the host reads the tokens (free on a CPU); without it, they are read only if
            ``task.go_on`` needs their probabilities.
        source: `Proposal.source`.
    """
    params, chain = task.request.params, Drafting(task.request, task.count, task.go_on)
    if params.greedy and params.plain_logits:
        tops, tokens = logits.float().softmax(-1).max(-1)
        chain.take_each(tokens, tops, looks=looks)
    else:
        for row in logits:
            if not chain.choose(row.unsqueeze(0), looks=looks):
                break
    return TaskProposal(chain.proposal(logits.device, source), chain.confidences, 1)
