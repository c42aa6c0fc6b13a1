"""Sequential verification: the rules for a single chain or tree on a CPU.

On a GPU the whole acceptance distribution is computed in tensors, because reading a number makes the
host wait. On a CPU the number of accepted tokens is decided in Python numbers, and only the rows that
matter are computed (60 instead of 151 µs a chain). With the same two uniforms both ways give the same
verdict, up to rounding.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Literal

from torch import Tensor

from specstream.model.native.sampling import native_residual
from specstream.model.tokens.sampling import draw_one

__all__ = [
    "Rule",
    "follow_choices",
    "residual",
    "verify_sequentially",
    "verify_tree_sequentially",
    "without",
]

Rule = Literal["ratio", "block"]

_TINY = 1e-38  # about the smallest normal float32: a divisor in place of a probability of 0


def verify_sequentially(
    tokens: Sequence[int], target: Tensor, draft: Tensor | None, rule: Rule, noise: Sequence[float]
) -> tuple[int, int] | None:
    """Verify a sampled chain.

    Args:
        tokens: The K proposed tokens, K >= 0.
        target: ``[K + 1, V]``, normalised: row j is the target's distribution after the first j tokens.
        draft: ``[K, V]``, float32 or float64: what each token was drawn from; None: deterministic.
        rule: The rule for a draft with probabilities.
        noise: Two uniforms in [0, 1): for the number of accepted tokens, and for the next token.

    Returns:
        (number of accepted tokens, next token); None if a number that was needed is not finite.
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
            rest = target[n] if n == count else without(target[n], [tokens[n]])
        else:
            n, rest = _FIND[rule](chances, target, draft, noise[0])
    token = draw_one(rest, noise[1])
    if token is None and n < count:
        # The residual is empty if p and q agree up to rounding, and a rejection is as unlikely then.
        token = draw_one(target[n], noise[1])
    return None if token is None else (n, token)


def follow_choices(
    tokens: Sequence[int], links: Sequence[int], choice: Callable[[int, int], int | None]
) -> tuple[int, int] | None:
    """Follow the path of proposed tokens that agree with the target's own choices.

    Args:
        tokens: The K proposed tokens, K >= 0.
        links: Each node's parent, -1 for the root.
        choice: Gives the target's token for a row, 0 to K, and the number of proposed tokens before it.

    Returns:
        (last row of the path, its choice); None if ``choice`` returned None.
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
    """Verify a sampled tree.

    This is `specstream.drafting.rules.tree_rule`, evaluated row by row until the end of the
    accepted path is found. A row's probabilities are computed only if it has children or the path ends
    there.

    Args:
        tokens: The K proposed tokens, K >= 1.
        links: Each node's parent, -1 for the root.
        target: Gives the probabilities ``[V]`` of a row, 0 to K; row 0 is after the committed tokens,
            row j + 1 after node j.
        draft: ``[K, V]``, float32 or float64: what each token was drawn from, given the siblings before
            it; None: deterministic.
        noise: Two uniforms in [0, 1): for the end of the path, and for the next token.

    Returns:
        (row at which the accepted path ends, next token); None if a number that was needed is not
        finite.
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
        if none > 0.0:  # the last of these rows is the end if rounding leaves ``uniform`` positive
            end, found = at, judged
        uniform -= reach[at] * none
        if uniform < 0.0:
            break
    own = target(end) if found is None else found.target
    following = draw_one(own if found is None else found.rest(), noise[1])
    if following is None:  # by rounding the residual is empty, and this end of the path as unlikely
        following = draw_one(own, noise[1])
    return None if following is None else (end, following)


class _Siblings:
    """Acceptance of the children of one node, as in `specstream.drafting.rules.sibling_rule`.

    Attributes:
        target: The target's distribution at the node.
        taken: The probability that each child is accepted.
        none: The probability that none is.
    """

    def __init__(self, target: Tensor, tokens: Sequence[int], draft: Sequence[Tensor] | None) -> None:
        self.target, self._tokens, self._draft = target, tokens, draft
        self.taken, self.none, self._left = list[float](), 1.0, target
        if draft is None:
            values = target.numpy()
            for index, token in enumerate(tokens):  # a token that is proposed twice counts once
                self.taken.append(0.0 if token in tokens[:index] else values.item(token))
            self.none -= sum(self.taken)
            self.none = 0.0 if self.none < 0.0 else self.none  # unlike max(), this keeps NaN
            return
        for index, (token, drawn) in enumerate(zip(tokens, draft, strict=True)):
            if index:
                self._left = _normalised(residual(self._left, draft[index - 1], 1.0), self._left)
            p, q = self._left[token].item(), drawn[token].item()
            chance = 0.0 if q <= 0.0 else 1.0 if p >= q else p / q  # keeps NaN
            self.taken.append(self.none * chance)
            self.none *= 1.0 - chance

    def rest(self) -> Tensor:
        """The unnormalised distribution of the next token if no child is accepted."""
        if self._draft is None:
            return without(self.target, list(self._tokens))
        return residual(self._left, self._draft[-1], 1.0)


def _normalised(row: Tensor, otherwise: Tensor) -> Tensor:
    """``row`` scaled to sum 1; ``otherwise`` if it is empty, that is if p and q agree up to rounding."""
    mass = row.sum().item()
    return row.div_(mass) if mass > 0.0 else otherwise


def _in_a_row(chances: Sequence[float], uniform: float) -> int:
    """Draw how many independent tests succeed before one fails.

    The probability that at least n succeed is the product of the first n chances.
    """
    product = 1.0
    for n, chance in enumerate(chances):
        product *= chance
        if 1.0 - product > uniform:
            return n
    return len(chances)


def _ratio(ratios: Sequence[float], target: Tensor, draft: Tensor, uniform: float) -> tuple[int, Tensor]:
    """See `specstream.drafting.rules.ratio_rule`."""
    n = _in_a_row([min(1.0, ratio) for ratio in ratios], uniform)
    return n, (target[n] if n == len(ratios) else residual(target[n], draft[n], 1.0))


def _block(ratios: Sequence[float], target: Tensor, draft: Tensor, uniform: float) -> tuple[int, Tensor]:
    """See `specstream.drafting.rules.block_rule`; from the end, so that most sums aren't needed."""
    weights = [1.0]
    for ratio in ratios:
        weights.append(min(1.0, weights[-1] * ratio))
    n = len(ratios)
    rest, step = target[n], weights[n]
    fewer = 1.0 - step  # the probability that fewer than n are accepted
    while fewer > uniform:
        n -= 1
        rest = residual(target[n], draft[n], weights[n])
        if n == 0:
            break
        mass = rest.sum().item()
        left = mass + 1.0 - weights[n]
        fewer *= 1.0 - (mass / left if left > 0.0 else 0.0)
    return n, rest


def without(own: Tensor, tokens: list[int]) -> Tensor:
    """The row with the probability of some tokens set to 0."""
    left = own.clone()
    left[tokens] = 0.0
    return left


def residual(own: Tensor, drafted: Tensor, weight: float) -> Tensor:
    """max(w p - q, 0)."""
    if (found := native_residual(own, drafted, weight)) is not None:
        return found
    left = own - drafted if weight == 1.0 else (own * weight).sub_(drafted)
    return left.clamp_min_(0)


_FIND: dict[Rule, Callable[..., tuple[int, Tensor]]] = {"ratio": _ratio, "block": _block}
