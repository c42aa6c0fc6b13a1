"""Noise keyed by a place: exact marginals, and nothing in common between places.

Each G-test has N >= 1,000,000: it finds a total variation of 0.004 (df 19) with probability 0.99.
"""

import math

import pytest
import torch
from torch import Tensor

from specstream.bench.exactness.enumeration import survival
from specstream.model.tokens.noise import gumbel, gumbel_max
from tests.exactness.independence import independence

N = 1_000_000
SEEDS = [0, 1, 2**31, 2**63 - 1]
P = torch.tensor([0.4, 0.0, 0.25, 0.2, 0.1, 0.05])


def fits(tokens: Tensor, wanted: Tensor) -> float:
    """p-value of a G-test of ``tokens`` against ``wanted``."""
    seen = torch.bincount(tokens, minlength=wanted.shape[0]).double()
    there = wanted > 0
    assert seen[~there].sum() == 0
    expected = wanted[there].double() / wanted.sum() * seen.sum()
    seen = seen[there]
    kept = seen > 0
    return survival(float(2 * (seen[kept] * (seen[kept] / expected[kept]).log()).sum()), len(seen) - 1)


@pytest.mark.parametrize("seed", SEEDS)
def test_positions_of_one_seed_have_the_distribution(seed: int) -> None:
    assert fits(gumbel_max(P.expand(N, -1), seed, seed % 2**40), P) > 1e-4


def test_seeds_at_one_position_have_the_distribution() -> None:
    """Consecutive seeds, as people choose them."""
    tokens = torch.cat([gumbel_max(P.expand(500, -1), seed, 17) for seed in range(2000)])
    assert fits(tokens, P) > 1e-4
    firsts = torch.cat([gumbel_max(P.unsqueeze(0), seed, 5) for seed in range(5000)])
    assert fits(firsts, P) > 1e-4


def test_the_noise_is_gumbel() -> None:
    values = gumbel(3, torch.arange(N // 8), 8).flatten()
    cdf = (-(-values).exp()).exp()
    assert fits((cdf * 20).long().clamp_max(19), torch.full((20,), 0.05)) > 1e-4
    assert abs(float(values.mean()) - 0.5772156649) < 5e-3
    assert abs(float(values.var()) - math.pi**2 / 6) < 1e-2
    assert values.isfinite().all()


def bins(values: Tensor) -> Tensor:
    return ((-(-values).exp()).exp() * 8).long().clamp_max(7)


def table(a: Tensor, b: Tensor) -> Tensor:
    return torch.bincount(bins(a).flatten() * 8 + bins(b).flatten(), minlength=64).view(8, 8)


@pytest.mark.parametrize("step", [1, 2, 7, 64, 1024])
def test_positions_are_independent(step: int) -> None:
    values = gumbel(11, torch.arange(N // 8 + step), 8)
    assert independence(table(values[step:], values[:-step])) > 1e-4


@pytest.mark.parametrize("step", [1, 2, 16])
def test_tokens_are_independent(step: int) -> None:
    values = gumbel(12, torch.arange(N // 32), 32 + step)
    assert independence(table(values[:, step:], values[:, :-step])) > 1e-4


@pytest.mark.parametrize("other", [1, 2, 2**32, 2**62])
def test_seeds_are_independent(other: int) -> None:
    """Also across places: a seed's neighbour is not the same noise one position later."""
    positions = torch.arange(N // 8)
    one, two = gumbel(40, positions, 8), gumbel(40 ^ other, positions, 8)
    assert independence(table(one, two)) > 1e-4
    assert independence(table(one[1:], two[:-1])) > 1e-4
    assert independence(table(one[:, 1:], two[:, :-1])) > 1e-4


def test_the_test_of_independence_sees_shared_noise() -> None:
    values = gumbel(13, torch.arange(20_000), 8)
    mixed = torch.where(torch.rand(values.shape, generator=torch.Generator().manual_seed(0)) < 0.05,
                        values, gumbel(14, torch.arange(20_000), 8))  # fmt: skip
    assert independence(table(values, mixed)) < 1e-6


def test_any_subset_in_any_order_has_the_same_bits() -> None:
    whole = gumbel(5, torch.arange(100), 50)
    assert torch.equal(gumbel(5, torch.tensor([80, 3, 41]), 50), whole[[80, 3, 41]])
    assert torch.equal(gumbel(5, torch.arange(30, 40), 60)[:, :50], whole[30:40])


@pytest.mark.parametrize("sharpness", [0.3, 1.0, 3.0])
def test_coupled_draws_agree_as_often_as_the_theory_says(sharpness: float) -> None:
    """P(match) lies in [(1 - TV) / (1 + TV), 1 - TV] (Daliri, Musco and Suresh 2024)."""
    generator = torch.Generator().manual_seed(9)
    n = 200_000
    for _ in range(4):
        p, q = (torch.randn(2, 12, generator=generator) * sharpness).softmax(-1)
        tv = float((p - q).abs().sum() / 2)
        same = gumbel_max(p.expand(n, -1), 21, 0) == gumbel_max(q.expand(n, -1), 21, 0)
        rate, slack = float(same.double().mean()), 5 * 0.5 / math.sqrt(n)
        assert (1 - tv) / (1 + tv) - slack < rate < 1 - tv + slack
