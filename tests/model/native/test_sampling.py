"""Sampling in native code gives what torch's operations give."""

import math
from unittest import mock

import pytest
import torch
from torch import Tensor

from specstream.model.native import sampling
from specstream.model.native.library import library, loaded_library, native_library
from specstream.model.native.sampling import (
    native_distributions,
    native_draw,
    native_gumbel_max,
    native_residual,
    native_softmax,
    native_spread,
    native_without,
)
from specstream.model.tokens.noise import gumbel
from specstream.model.tokens.sampling import draw_at

WIDTHS = [1, 5, 31, 256, 257, 5000]


@pytest.fixture(autouse=True)
def native() -> None:
    assert library(True) is loaded_library()


def rng(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_softmax_is_that_of_torch(width: int, dtype: torch.dtype) -> None:
    logits = (torch.randn(3, width, generator=rng(width)) * 8).to(dtype)
    logits[1, width // 2 :] = -torch.inf if width > 1 else 0.0
    found = native_softmax(logits, 1.25)
    assert found is not None and found.dtype is torch.float32
    exact = (logits.double() * 1.25).softmax(-1)
    torch.testing.assert_close(found.double(), exact, rtol=1e-5, atol=1e-30)
    for row, alone in zip(found, logits, strict=True):
        assert torch.equal(row, native_softmax(alone.clone(), 1.25))  # type: ignore[arg-type]


@pytest.mark.parametrize("broken", [[0.0, math.nan], [-math.inf] * 2, [0.0, math.inf]])
def test_a_row_without_a_finite_maximum_is_nan(broken: list[float]) -> None:
    found = native_softmax(torch.tensor([broken * 20, [0.0] * 40]), 1.0)
    assert found is not None
    assert found[0].isnan().all() and torch.equal(found[1], torch.full((40,), 1 / 40))


@pytest.mark.parametrize("width", WIDTHS[1:])
@pytest.mark.parametrize("left", [1.0, 1e-5])
def test_what_is_left_without_a_token_has_the_same_ratios(width: int, left: float) -> None:
    weights = torch.rand(width, generator=rng(width)) * left / width
    for index in (0, width // 2, width - 1):
        most = weights.clone()
        most[index] = 1.0 - left / 2
        found, exact = native_without(most, index), most.double()
        assert found is not None and most[index] == 1.0 - left / 2
        exact[index] = 0.0
        torch.testing.assert_close(found.double(), exact / exact.sum(), rtol=1e-5, atol=0.0)
    assert native_without(torch.eye(width)[0], 0).isnan().all()  # type: ignore[union-attr]


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("weight", [1.0, 0.37])
def test_a_residual_has_the_bits_of_torch(width: int, weight: float) -> None:
    own, drafted = torch.rand(2, width, generator=rng(width))
    own[0] = math.nan
    found = native_residual(own, drafted, weight)
    expected = (own * weight - drafted).clamp_min(0)
    torch.testing.assert_close(found, expected, rtol=0.0, atol=0.0, equal_nan=True)


@pytest.mark.parametrize("width", WIDTHS[1:])
def test_a_distribution_is_told_from_what_is_none(width: int) -> None:
    rows = torch.rand(3, width, generator=rng(width)).softmax(-1)
    assert native_distributions(rows, 1e-3)
    for at in (0, width - 1):
        for value in (math.nan, 0.5, math.inf):
            broken = rows.clone()
            broken[2, at] += value
            assert not native_distributions(broken, 1e-3)
        moved = rows.clone()  # below 0, though the sum is still 1
        moved[2, -1 if at == 0 else 0] += moved[2, at] + 1e-6
        moved[2, at] = -1e-6
        assert not native_distributions(moved, 1e-3)
    assert not native_distributions(rows * 0.9985, 1e-3)
    assert native_distributions(rows * 0.9995, 1e-3)


@pytest.mark.parametrize("rest", [0.0, -math.inf])
def test_columns_are_spread_over_a_vocabulary(rest: float) -> None:
    ids = torch.randperm(100, generator=rng(1))[:33]
    rows = torch.rand(2, 3, 33, generator=rng(2))
    expected = torch.full((2, 3, 100), rest)
    expected[..., ids] = rows
    found = native_spread(rows, ids, 100, rest)
    assert found is not None and torch.equal(found, expected)


@pytest.mark.parametrize("width", WIDTHS)
def test_draws_are_those_of_the_running_sum(width: int) -> None:
    random = rng(width)
    for _ in range(200):
        weights = torch.rand(width, generator=random).pow(8)
        weights[torch.rand(width, generator=random) < 0.3] = 0.0
        weights[width // 3] += 1e-6
        uniform = torch.rand(2, dtype=torch.float64, generator=random)
        expected = draw_at(weights.expand(2, -1), uniform).tolist()
        assert [native_draw(weights, one) for one in uniform.tolist()] == expected
        for border in (0.0, 1 - 2**-53):
            index = native_draw(weights, border)
            assert index is not None and weights[index] > 0


@pytest.mark.parametrize("row", [[0.0, 0.0], [math.nan, 1.0], [math.inf, 1.0]])
def test_without_mass_nothing_is_drawn(row: list[float]) -> None:
    assert native_draw(torch.tensor(row * 200), 0.5) == -1


@pytest.mark.parametrize("width", WIDTHS)
def test_keyed_draws_are_those_of_the_noise(width: int) -> None:
    random = rng(width)
    for position in range(100):
        logits = 5 * torch.randn(width, generator=random)
        probs, seed = logits.softmax(-1), 2**62 - position
        probs[torch.rand(width, generator=random) < 0.3] = 0.0
        probs[width // 2] += 1e-9
        ids = torch.randperm(50_000, generator=random)[:width].sort().values
        assert native_gumbel_max(probs, None, seed, position) == keyed(probs, width, seed, position)
        assert native_gumbel_max(probs, ids, seed, position) == keyed(probs, ids, seed, position)


def keyed(probs: Tensor, tokens: int | Tensor, seed: int, position: int) -> int:
    return int((probs.double().log() + gumbel(seed, torch.tensor([position]), tokens)).argmax())


def test_what_is_not_computed_here_is_left_to_torch() -> None:
    row = torch.rand(40)
    assert native_softmax(row.double(), 1.0) is None and native_draw(row.double(), 0.5) is None
    assert native_softmax(row[::2], 1.0) is None and native_draw(row[::2], 0.5) is None
    assert native_softmax(torch.empty(0, 4), 1.0) is None
    assert native_gumbel_max(row[:20], torch.arange(40)[::2], 1, 1) is None
    assert native_draw(torch.empty(40, device="meta"), 0.5) is None


def test_nothing_is_compiled_for_sampling_alone() -> None:
    native_library.cache_clear()
    with mock.patch.object(sampling, "loaded_library", wraps=loaded_library) as asked:
        assert native_draw(torch.rand(4), 0.5) is None
    assert asked.called and not native_library.cache_info().currsize


def test_what_native_code_does_not_take_is_left_to_torch() -> None:
    """Native code would read or write out of bounds, keep Python's lock for long, or lose gradients."""
    rows, ids = torch.rand(2, 8), torch.arange(8)
    assert native_spread(rows, ids, 20, 0.0) is not None
    assert native_spread(rows, ids.int(), 20, 0.0) is None
    assert native_spread(rows, ids[:7], 20, 0.0) is None
    assert native_spread(rows.requires_grad_(), ids, 20, 0.0) is None
    assert native_spread(torch.rand(0, 8), ids, 20, 0.0) is None
    assert native_residual(torch.rand(8), torch.rand(7), 1.0) is None
    many = torch.rand(2, 2**20)
    assert native_distributions(many, 1e-3) is None
    assert native_spread(rows.detach(), ids, 2**20, 0.0) is None
