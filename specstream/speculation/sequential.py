"""Sequential verification: the rules for one chain, or one deterministic tree, on a CPU.

A GPU needs the whole acceptance distribution in tensors, as reading a number would wait for it. On a CPU
the number of accepted tokens is decided in plain numbers and only the rows that matter are computed (60
instead of 151 µs a chain). With the same two uniforms both ways give the same verdict, up to rounding.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Literal

from torch import Tensor

from specstream.model.sampling import draw_one

__all__ = ["Rule", "verify_sequentially", "verify_tree_sequentially"]

Rule = Literal["ratio", "block"]

_TINY = 1e-38  # the smallest probability that float32 can tell from 0


def verify_sequentially(
    tokens: Sequence[int],
    target: Tensor,
    draft: Tensor | None,
    rule: Rule,
    noise: Sequence[float],
) -> tuple[int, int] | None:
    """How many tokens of a chain are accepted, and the token that follows them.

    Args:
        tokens: K of them, K >= 0.
        target: ``[K + 1, V]``, row j follows the first j tokens; normalised.
        draft: ``[K, V]``, float32 or float64: what each token was drawn from; None: deterministic.
        rule: For a draft with probabilities.
        noise: Two uniforms in [0, 1): how many are accepted, and what follows.

    Returns:
        (accepted, next token); None if a number that was needed is not finite.
    """
    count = len(tokens)
    if not count:
        n, rest = 0, target[0]
    else:
        rows = target.numpy()
        chances = [rows.item(j, token) for j, token in enumerate(tokens)]
        if draft is not None:
            drawn = draft.numpy()
            chances = [p / max(drawn.item(j, tokens[j]), _TINY) for j, p in enumerate(chances)]
        if not math.isfinite(sum(chances)):
            return None
        if draft is None:
            n = _in_a_row(chances, noise[0])
            rest = target[n] if n == count else _without(target[n], [tokens[n]])
        else:
            n, rest = _FIND[rule](chances, target, draft, noise[0])
    token = draw_one(rest, noise[1])
    if token is None and n < count:
        # The residual is empty where p and q agree up to rounding; so unlikely is the rejection.
        token = draw_one(target[n], noise[1])
    return None if token is None else (n, token)


def verify_tree_sequentially(
    tokens: Sequence[int],
    links: Sequence[int],
    target: Callable[[int], Tensor],
    noise: Sequence[float],
) -> tuple[int, int] | None:
    """The row at which a deterministic tree's accepted path ends, and the token that follows it.

    `specstream.speculation.tree_rules.tree_rule` without a draft. Each row's probabilities are computed
    once, and only where the row has children or the path ends.

    Args:
        tokens: K of them, K >= 1.
        links: Each node's parent, -1 for the root.
        target: From a row, 0 to K, to its probabilities ``[V]``; row 0 decides after the committed
            tokens, row j + 1 after node j.
        noise: Two uniforms in [0, 1): where the path ends, and what follows.

    Returns:
        (row, next token); None if a number that was needed is not finite.
    """
    rows = dict[int, Tensor]()
    children: list[dict[int, int]] = [{} for _ in range(len(tokens) + 1)]
    for node, (token, parent) in enumerate(zip(tokens, links, strict=True)):
        children[parent + 1].setdefault(token, node)  # a child that is there twice counts once
    reach, ends = [1.0] + [0.0] * len(tokens), list[float]()
    for at, below in enumerate(children):
        left = 1.0
        if below and reach[at] > 0.0:
            row = rows[at] = target(at)
            values = row.numpy()
            for token, node in below.items():
                chance = values.item(token)
                reach[node + 1] = reach[at] * chance
                left -= chance
        ends.append(reach[at] * max(left, 0.0))
    total = sum(ends)
    if not 0.0 < total < math.inf:
        return None
    end = _drawn(ends, noise[0] * total)
    row = rows[end] if end in rows else target(end)
    following = draw_one(_without(row, list(children[end])), noise[1])
    if following is None:  # rounding: so unlikely is the path's end here
        following = draw_one(row, noise[1])
    return None if following is None else (end, following)


def _drawn(weights: Sequence[float], threshold: float) -> int:
    """The first index at which the sum of the weights passes the threshold, or the last with weight."""
    last = 0
    for index, weight in enumerate(weights):
        threshold -= weight
        last = index if weight > 0.0 else last
        if threshold < 0.0:
            return index
    return last


def _in_a_row(chances: Sequence[float], uniform: float) -> int:
    """How many independent tests succeed before one fails: n or more with the product of the first n."""
    product = 1.0
    for n, chance in enumerate(chances):
        product *= chance
        if 1.0 - product > uniform:
            return n
    return len(chances)


def _ratio(
    ratios: Sequence[float], target: Tensor, draft: Tensor, uniform: float
) -> tuple[int, Tensor]:
    """See `specstream.speculation.rules.ratio_rule`."""
    n = _in_a_row([min(1.0, ratio) for ratio in ratios], uniform)
    return n, (target[n] if n == len(ratios) else _residual(target[n], draft[n], 1.0))


def _block(
    ratios: Sequence[float], target: Tensor, draft: Tensor, uniform: float
) -> tuple[int, Tensor]:
    """See `specstream.speculation.rules.block_rule`; from the end: most sums are never needed."""
    weights = [1.0]
    for ratio in ratios:
        weights.append(min(1.0, weights[-1] * ratio))
    n = len(ratios)
    rest, step = target[n], weights[n]
    fewer = 1.0 - step  # the probability that fewer than n are accepted
    while fewer > uniform:
        n -= 1
        rest = _residual(target[n], draft[n], weights[n])
        if n == 0:
            break
        mass = rest.sum().item()
        left = mass + 1.0 - weights[n]
        fewer *= 1.0 - (mass / left if left > 0.0 else 0.0)
    return n, rest


def _without(own: Tensor, tokens: list[int]) -> Tensor:
    """p, all but some tokens."""
    left = own.clone()
    left[tokens] = 0.0
    return left


def _residual(own: Tensor, drafted: Tensor, weight: float) -> Tensor:
    """max(w p - q, 0)."""
    left = own - drafted if weight == 1.0 else (own * weight).sub_(drafted)
    return left.clamp_min_(0)


_FIND: dict[Rule, Callable[..., tuple[int, Tensor]]] = {"ratio": _ratio, "block": _block}
