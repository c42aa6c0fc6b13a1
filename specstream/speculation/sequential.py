"""Sequential verification: the rules for one chain, or one tree, on a CPU.

A GPU needs the whole acceptance distribution in tensors, as reading a number would wait for it. On a CPU
the number of accepted tokens is decided in plain numbers and only the rows that matter are computed (60
instead of 151 µs a chain). With the same two uniforms both ways give the same verdict, up to rounding.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Literal

from torch import Tensor

from specstream.model.native.sampling import native_residual
from specstream.model.sampling import draw_one

__all__ = ["Rule", "follow_choices", "verify_sequentially", "verify_tree_sequentially"]

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


def follow_choices(
    tokens: Sequence[int], links: Sequence[int], choice: Callable[[int, int], int | None]
) -> tuple[int, int] | None:
    """Go along the target's own choices as far as they were proposed.

    Args:
        tokens: K of them, K >= 0.
        links: Each node's parent, -1 for the root.
        choice: From a row, 0 to K, and the number of proposed tokens before it, to the target's token.

    Returns:
        (last row, its choice); None where ``choice`` was None.
    """
    row, depth = 0, 0
    token = choice(row, depth)
    for node, (proposed, parent) in enumerate(zip(tokens, links, strict=True)):
        if parent == row - 1 and proposed == token:
            row, depth = node + 1, depth + 1
            token = choice(row, depth)
    return None if token is None else (row, token)


def verify_tree_sequentially(
    tokens: Sequence[int],
    links: Sequence[int],
    target: Callable[[int], Tensor],
    draft: Tensor | None,
    noise: Sequence[float],
) -> tuple[int, int] | None:
    """The row at which a tree's accepted path ends, and the token that follows it.

    `specstream.speculation.tree_rules.tree_rule`, row by row until the path's end is found; a row's
    probabilities are computed where it has children or the path ends.

    Args:
        tokens: K of them, K >= 1.
        links: Each node's parent, -1 for the root.
        target: From a row, 0 to K, to its probabilities ``[V]``; row 0 decides after the committed
            tokens, row j + 1 after node j.
        draft: ``[K, V]``, float32 or float64: what each token was drawn from, given the siblings before
            it; None: deterministic.
        noise: Two uniforms in [0, 1): where the path ends, and what follows.

    Returns:
        (row, next token); None if a number that was needed is not finite.
    """
    children: list[list[int]] = [[] for _ in range(len(tokens) + 1)]
    for node, parent in enumerate(links):
        children[parent + 1].append(node)
    reach, uniform = [1.0] + [0.0] * len(tokens), noise[0]
    end, found = -1, None
    for at, below in enumerate(children):
        if reach[at] == 0.0:
            continue
        judged, none = None, 1.0
        if below:
            rows = None if draft is None else [draft[node] for node in below]
            judged = _Siblings(target(at), [tokens[node] for node in below], rows)
            none = judged.none
            for node, chance in zip(below, judged.taken, strict=True):
                reach[node + 1] = reach[at] * chance
        if not math.isfinite(none):
            return None
        if none > 0.0:  # with rounding, the last such row is the end at the latest
            end, found = at, judged
        uniform -= reach[at] * none
        if uniform < 0.0:
            break
    own = target(end) if found is None else found.target
    following = draw_one(own if found is None else found.rest(), noise[1])
    if following is None:  # rounding: so unlikely is the path's end here
        following = draw_one(own, noise[1])
    return None if following is None else (end, following)


class _Siblings:
    """The children of one node: see `specstream.speculation.tree_rules.sibling_rule`."""

    def __init__(
        self, target: Tensor, tokens: Sequence[int], draft: Sequence[Tensor] | None
    ) -> None:
        self.target, self._tokens, self._draft = target, tokens, draft
        self.taken, self.none, self._left = list[float](), 1.0, target
        if draft is None:
            values = target.numpy()
            for index, token in enumerate(tokens):  # a child that is there twice counts once
                self.taken.append(0.0 if token in tokens[:index] else values.item(token))
            self.none -= sum(self.taken)
            self.none = 0.0 if self.none < 0.0 else self.none  # NaN stays
            return
        for index, (token, drawn) in enumerate(zip(tokens, draft, strict=True)):
            if index:
                self._left = _normalised(_residual(self._left, draft[index - 1], 1.0), self._left)
            p, q = self._left[token].item(), drawn[token].item()
            chance = 0.0 if q <= 0.0 else 1.0 if p >= q else p / q  # NaN stays
            self.taken.append(self.none * chance)
            self.none *= 1.0 - chance

    def rest(self) -> Tensor:
        """What the following token is drawn from if none is accepted, unnormalised."""
        if self._draft is None:
            return _without(self.target, list(self._tokens))
        return _residual(self._left, self._draft[-1], 1.0)


def _normalised(row: Tensor, otherwise: Tensor) -> Tensor:
    """With sum 1; ``otherwise`` where nothing is left, which is where p and q agree up to rounding."""
    mass = row.sum().item()
    return row.div_(mass) if mass > 0.0 else otherwise


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
    if (found := native_residual(own, drafted, weight)) is not None:
        return found
    left = own - drafted if weight == 1.0 else (own * weight).sub_(drafted)
    return left.clamp_min_(0)


_FIND: dict[Rule, Callable[..., tuple[int, Tensor]]] = {"ratio": _ratio, "block": _block}
