"""A chain out of marginals: every position's logits are known before any token is drawn."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from specstream.model.sampling import probabilities
from specstream.speculation.proposal import Proposal
from specstream.speculation.proposers.candidate import Drafted, Task

__all__ = ["stop_below", "take_chain"]


def stop_below(least: float) -> Callable[[float], bool] | None:
    """A `Task.go_on` that ends a chain once it is less likely than ``least``; None for 0: never."""
    if least <= 0.0:
        return None
    chance = 1.0

    def go_on(confidence: float) -> bool:
        nonlocal chance
        chance *= confidence
        return chance >= least

    return go_on


def take_chain(task: Task, logits: Tensor, *, looks: bool, source: str) -> Drafted:
    """One token of each row, in order; a greedy request's the likeliest, else drawn from the row.

    Whether the chain ends is decided after a token, which is kept, and before the next is drawn.

    Args:
        task: Whose, and when to stop.
        logits: ``[n, V]``, in order; n is at most ``task.count``.
        looks: Whether reading the tokens costs nothing; otherwise only where ``task.go_on`` asks.
        source: `Proposal.source`.
    """
    request, params, go_on = task.request, task.request.params, task.go_on
    looks = looks or go_on is not None
    if params.greedy and params.plain_logits:
        return _likeliest(task, logits, looks=looks, source=source)
    tokens, rows, drafted, confidences = list[Tensor](), list[Tensor](), list[int](), list[float]()
    for row in logits:
        if not params.plain_logits:
            row = request.process(row, drafted if looks or not tokens else torch.cat(tokens))
        if params.greedy:
            probs, token = row.float().softmax(-1).unsqueeze(0), row.argmax(-1, keepdim=True)
        else:
            probs = probabilities(row.unsqueeze(0), params)
            if looks and not bool(probs.isfinite().all()):
                break  # damaged weights: no distribution that a token comes from
            token = request.draw(probs, len(request.token_ids) + len(tokens))
        if looks:
            number = int(token)
            confidence = float(probs[0, number])
            if confidence != confidence:
                break
            drafted.append(number)
        tokens.append(token)
        rows.append(probs)
        if go_on is not None:
            confidences.append(confidence)
            if not go_on(confidence):
                break
    if not tokens:
        return Drafted(Proposal.empty(logits.device), passes=1)
    made = torch.cat(rows) if not params.greedy else None
    return Drafted(Proposal(torch.cat(tokens), made, source=source), confidences, 1)


def _likeliest(task: Task, logits: Tensor, *, looks: bool, source: str) -> Drafted:
    tops, tokens = logits.float().softmax(-1).max(-1)
    count, confidences = tokens.shape[0], list[float]()
    if looks:
        for index, confidence in enumerate(tops.tolist()):
            if confidence != confidence:
                count = index
                break
            if task.go_on is not None:
                confidences.append(confidence)
                if not task.go_on(confidence):
                    count = index + 1
                    break
    return Drafted(Proposal(tokens[:count], source=source), confidences, 1)
