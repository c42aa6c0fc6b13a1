"""Chains from marginals: heads that predict all positions at once, before any token is drawn."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from specstream.speculation.proposers.candidate import Drafted, Task
from specstream.speculation.proposers.drafting import Drafting

__all__ = ["stop_below", "take_chain"]


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
