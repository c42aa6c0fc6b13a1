"""Chains from marginals: heads that predict all positions at once, before any token is drawn."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import torch
from torch import Tensor

from specstream.speculation.proposal import Proposal, SpecRequest
from specstream.speculation.proposers.candidate import Drafted, Task
from specstream.speculation.proposers.drafting import Drafting

__all__ = ["draft_ready", "take_chain"]


_Ready = TypeVar("_Ready")


def draft_ready(
    tasks: Sequence[Task],
    ready: Callable[[SpecRequest], _Ready | None],
    draft: Callable[[Sequence[tuple[Task, _Ready]]], Sequence[Drafted]],
    device: torch.device,
) -> list[Drafted]:
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
    return [drafted.get(task.request.id, Drafted(Proposal.empty(device))) for task in tasks]


def take_chain(task: Task, logits: Tensor, *, looks: bool, source: str) -> Drafted:
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
    return Drafted(chain.proposal(logits.device, source), chain.confidences, 1)
