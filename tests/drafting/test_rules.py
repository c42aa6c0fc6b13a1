"""Every rule gives back the target's distribution to the last digit, summed over all proposals.

The oracle is the definition: the joint of K + 1 tokens under the target alone. 25 pairs of kinds of
(p, q) times 12 random tables a size: >= 300 problems for every rule and size, in float64.
"""

import itertools
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

from specstream.bench.exactness.enumeration import Table, enumerate_rule, joint
from specstream.drafting.rules import Acceptance, block_rule, deterministic_rule, ratio_rule
from tests.exactness.tables import KINDS, random_table

RULES: dict[str, Callable[[Tensor, Tensor, Tensor], Acceptance]] = {
    "ratio": ratio_rule,
    "block": block_rule,
    "deterministic": lambda tokens, draft, target: deterministic_rule(tokens, target),
}
SIZES = [(3, 2), (3, 3), (4, 2), (4, 3), (5, 2), (5, 3)]
COUNT = 12


def problems(vocab_size: int, k: int, count: int = COUNT) -> Iterator[tuple[Table, Table]]:
    generator = torch.Generator().manual_seed(vocab_size * 10 + k)
    for p_kind, q_kind in itertools.product(KINDS, KINDS):
        target = random_table(p_kind, vocab_size, k, count, generator)
        yield target, random_table(q_kind, vocab_size, k, count, generator)
    yield target, target
    # Equal but for rounding: the residual is a handful of 1e-17s, and must not become a distribution.
    yield target, [(level * (1 + 1e-15 * torch.rand_like(level))) for level in target]


def chain(k: int) -> list[int]:
    return list(range(-1, k - 1))


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize(("vocab_size", "k"), SIZES)
def test_a_rule_gives_back_the_targets_rule(rule: str, vocab_size: int, k: int) -> None:
    count = 0
    for target, draft in problems(vocab_size, k):
        outcome = enumerate_rule(RULES[rule], target, draft, chain(k))
        assert (outcome.joint - joint(target)).abs().max() < 1e-12
        count += len(target[0])
    assert count >= 200


def test_block_never_accepts_fewer_than_ratio_and_sometimes_more() -> None:
    gains = []
    for target, draft in problems(4, 3):
        block = enumerate_rule(block_rule, target, draft, chain(3)).accepted
        ratio = enumerate_rule(ratio_rule, target, draft, chain(3)).accepted
        assert (block >= ratio - 1e-12).all()
        gains.append(block - ratio)
    assert torch.cat(gains).max() > 0.02


def test_ratio_accepts_one_minus_the_total_variation() -> None:
    for target, draft in problems(5, 1):
        overlap = torch.minimum(target[0], draft[0]).sum((-1, -2))
        for apply in (ratio_rule, block_rule):
            accepted = enumerate_rule(apply, target, draft, chain(1)).accepted
            assert torch.allclose(accepted, overlap, atol=1e-12)


@pytest.mark.parametrize("rule", RULES)
def test_a_ragged_batch_equals_the_single_ones(rule: str) -> None:
    generator = torch.Generator().manual_seed(0)
    vocab_size, k, count = 5, 4, 40
    lengths = torch.arange(count) % (k + 1)

    def rows(n: int) -> Tensor:
        weights = torch.rand(count, n, vocab_size, generator=generator, dtype=torch.float64)
        return weights / weights.sum(-1, keepdim=True)

    draft, target = rows(k), rows(k + 1)
    tokens = torch.randint(vocab_size, (count, k), generator=generator)
    arguments = (tokens, target) if rule == "deterministic" else (tokens, draft, target)
    apply = {"ratio": ratio_rule, "block": block_rule, "deterministic": deterministic_rule}[rule]
    padded = apply(*arguments, lengths)  # type: ignore[operator]
    for i, n in enumerate(lengths.tolist()):
        single = RULES[rule](tokens[i, :n], draft[i, :n], target[i, : n + 1])
        assert torch.allclose(padded.accepted[i, : n + 1], single.accepted, atol=1e-15)
        assert (padded.accepted[i, n + 1 :] == 0).all()
        assert torch.allclose(padded.following[i, : n + 1], single.following, atol=1e-15)


@pytest.mark.parametrize("rule", RULES)
def test_in_float32_the_distribution_is_off_by_rounding_only(rule: str) -> None:
    """The engine verifies in float32; the error of that is far below what any sample could show."""
    for target, draft in problems(4, 2, count=4):
        low = [[level.float() for level in table] for table in (target, draft)]
        outcome = enumerate_rule(RULES[rule], low[0], low[1], chain(2))
        assert (outcome.joint.double() - joint(target)).abs().max() < 2e-6


def test_the_enumeration_sees_a_wrong_rule() -> None:
    def no_residual(tokens: Tensor, draft: Tensor, target: Tensor) -> Acceptance:
        return Acceptance.of(ratio_rule(tokens, draft, target).accepted, target)

    def accepts_too_much(tokens: Tensor, draft: Tensor, target: Tensor) -> Acceptance:
        return ratio_rule(tokens, draft * 0.99, target)

    generator = torch.Generator().manual_seed(5)
    target, draft = (random_table("dense", 4, 2, 5, generator) for _ in range(2))
    for wrong in (no_residual, accepts_too_much):
        outcome = enumerate_rule(wrong, target, draft, chain(2))
        assert ((outcome.joint - joint(target)).abs().amax(-1) > 1e-4).all()
