"""Sequential verification agrees with the rules, to nine digits.

`test_rules` shows that the rules are exact. The outcome of sequential verification is a step function of
its two uniforms; here its steps must be at the rules' cumulative probabilities.
"""

import itertools
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from specstream.drafting import sequential as module
from specstream.drafting.rules import Acceptance, block_rule, deterministic_rule, ratio_rule
from specstream.drafting.sequential import Rule, verify_sequentially
from tests.exactness.tables import KINDS, random_table

V, COUNT, EPSILON = 5, 4, 1e-9
LAWS: dict[str, Callable[[Tensor, Tensor, Tensor], Acceptance]] = {
    "ratio": ratio_rule,
    "block": block_rule,
    "deterministic": lambda tokens, draft, target: deterministic_rule(tokens, target),
}
Chain = tuple[list[int], Tensor, Tensor]


def chains(k: int) -> Iterator[Chain]:
    """Tokens, draft ``[K, V]`` and target ``[K + 1, V]`` in float64; the tokens are drawn."""
    generator = torch.Generator().manual_seed(k)
    for p_kind, q_kind in itertools.product(KINDS, KINDS):
        target = random_table(p_kind, V, k, COUNT, generator)
        draft = random_table(q_kind, V, k, COUNT, generator)
        for n in range(COUNT):
            p = torch.stack([level[n, 0] for level in target])
            q = torch.stack([level[n, -1] for level in draft])[:k]
            yield torch.multinomial(q, 1, generator=generator).flatten().tolist(), q, p
        same = p[:k].clone()
        yield torch.multinomial(same, 1, generator=generator).flatten().tolist(), same, p


def walked(rule: str, chain: Chain, first: float, second: float = 0.5) -> tuple[int, int]:
    tokens, draft, target = chain
    probs = None if rule == "deterministic" else draft
    kind: Rule = "ratio" if rule == "ratio" else "block"
    outcome = verify_sequentially(tokens, target, probs, kind, (first, second))
    assert outcome is not None
    return outcome


def acceptance_of(rule: str, chain: Chain) -> Acceptance:
    tokens, draft, target = chain
    return LAWS[rule](torch.tensor(tokens), draft, target)


def borders(weights: Tensor) -> list[float]:
    """Cumulative shares of all entries but the last."""
    return [float(border) for border in (weights.cumsum(-1) / weights.sum())[:-1]]


@pytest.mark.parametrize("rule", LAWS)
@pytest.mark.parametrize("k", [1, 2, 4])
def test_the_accepted_count_has_the_distribution_of_the_rule(rule: str, k: int) -> None:
    between = 0
    for chain in chains(k):
        for n, border in enumerate(borders(acceptance_of(rule, chain).accepted)):
            if border > EPSILON:
                assert walked(rule, chain, border - EPSILON)[0] <= n
            if border < 1 - EPSILON:
                assert walked(rule, chain, border + EPSILON)[0] > n
            between += EPSILON < border < 1 - EPSILON
    assert between > 20 * k


@pytest.mark.parametrize("rule", LAWS)
@pytest.mark.parametrize("k", [1, 2, 4])
def test_the_following_token_has_the_distribution_of_the_rule(rule: str, k: int) -> None:
    seen = set()
    for chain in chains(k):
        found = acceptance_of(rule, chain)
        shares = found.accepted.tolist()
        for n, border in enumerate([*borders(found.accepted), 1.0]):
            if shares[n] < 4 * EPSILON:
                continue
            first = border - shares[n] / 2
            row = found.following[n]
            low = 0.0
            for token, high in enumerate([*borders(row), 1.0]):
                if high - low > 4 * EPSILON:
                    assert walked(rule, chain, first, low + EPSILON) == (n, token)
                    assert walked(rule, chain, first, high - EPSILON) == (n, token)
                    seen.add((n, token))
                low = high
    assert len(seen) > (k + 1) * (V - 1)


def test_nothing_proposed_is_a_draw_from_the_target() -> None:
    target = torch.tensor([[0.0, 0.25, 0.5, 0.25]], dtype=torch.float64)
    for second, token in ((0.0, 1), (0.24, 1), (0.25, 2), (0.74, 2), (0.75, 3), (1 - 2**-53, 3)):
        assert verify_sequentially([], target, None, "block", (0.3, second)) == (0, token)
        assert verify_sequentially([], target, target[:0], "ratio", (0.3, second)) == (0, token)


@pytest.mark.parametrize("rule", ["ratio", "block"])
def test_p_and_q_equal_but_for_rounding_leave_the_targets_row(rule: Rule) -> None:
    """A rejection is as unlikely as a rounding error; the token after it still has some mass."""
    target = torch.tensor([[0.0, 0.5, 0.5], [1.0, 0.0, 0.0]])
    draft = torch.tensor([[0.0, 0.5000001, 0.5]])
    assert verify_sequentially([1], target, draft, rule, (0.0, 0.2)) == (0, 1)
    assert verify_sequentially([1], target, draft, rule, (0.5, 0.2)) == (1, 0)


@pytest.mark.parametrize("rule", ["ratio", "block"])
def test_a_row_that_is_not_finite_is_never_passed(rule: Rule) -> None:
    _, draft, target = next(chains(2))
    tokens, nan = [1, 2], float("nan")
    for broken in range(3):
        rows = target.clone()
        rows[broken] = nan
        for probs in (draft, None):
            for first in (0.0, 0.5, 1 - 2**-53):
                outcome = verify_sequentially(tokens, rows, probs, rule, (first, 0.5))
                # Only rows that the reply doesn't get to may be NaN.
                assert outcome is None or outcome[0] < broken
    for broken in range(2):
        probs = draft.clone()
        probs[broken] = nan
        assert verify_sequentially(tokens, target, probs, rule, (0.5, 0.5)) is None
    everything = torch.ones(2, 3) / 3
    assert verify_sequentially([1], everything, everything[:1] * nan, rule, (0.5, 0.5)) is None


def test_the_comparison_sees_a_wrong_implementation(monkeypatch: pytest.MonkeyPatch) -> None:
    def full_weight(own: Tensor, drafted: Tensor, weight: float) -> Tensor:
        return (own - drafted).clamp_min(0)

    def no_residual(own: Tensor, drafted: Tensor, weight: float) -> Tensor:
        return own

    def by_blocks(tokens: Any, target: Any, draft: Any, rule: Rule, noise: Any) -> Any:
        return right(tokens, target, draft, "block", noise)

    right = verify_sequentially
    for wrong in (full_weight, no_residual):
        with monkeypatch.context() as patch:
            patch.setattr(module, "residual", wrong)
            with pytest.raises(AssertionError):
                test_the_accepted_count_has_the_distribution_of_the_rule("block", 4)
            with pytest.raises(AssertionError):
                test_the_following_token_has_the_distribution_of_the_rule("block", 4)
    with monkeypatch.context() as patch:
        patch.setattr(module, "without", lambda own, token: own)
        with pytest.raises(AssertionError):
            test_the_following_token_has_the_distribution_of_the_rule("deterministic", 2)
    with monkeypatch.context() as patch:
        patch.setattr(sys.modules[__name__], "verify_sequentially", by_blocks)
        with pytest.raises(AssertionError):
            test_the_accepted_count_has_the_distribution_of_the_rule("ratio", 2)
