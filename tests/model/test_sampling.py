"""Warping and drawing: transformers as the oracle, then the edges that it doesn't have."""

import random

import pytest
import torch
from scipy import stats  # type: ignore[import-untyped]
from torch import Tensor
from transformers import (
    LogitsProcessorList,
    MinPLogitsWarper,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
    TypicalLogitsWarper,
)

from specstream.model.tokens.sampling import draw, draw_at, draw_one, nucleus, probabilities, uniforms
from specstream.types import SamplingParams


def oracle(logits: Tensor, params: SamplingParams) -> Tensor:
    """The warpers of transformers, in the order in which its ``generate`` puts them."""
    chain = LogitsProcessorList([TemperatureLogitsWarper(float(params.temperature))])
    if params.top_k:
        chain.append(TopKLogitsWarper(params.top_k))
    if params.top_p < 1:
        chain.append(TopPLogitsWarper(params.top_p))
    if params.min_p > 0:
        chain.append(MinPLogitsWarper(params.min_p))
    if params.typical_p < 1:
        chain.append(TypicalLogitsWarper(params.typical_p))
    ids = torch.zeros(logits.shape[0], 1, dtype=torch.int64)
    warped: Tensor = chain(ids, logits.clone())  # type: ignore[arg-type]
    return warped.softmax(-1)


def compare(params: SamplingParams, seed: int = 0) -> None:
    logits = torch.randn(64, 50, generator=torch.Generator().manual_seed(seed)) * 3
    logits[:, 47:] = -torch.inf  # ids that a processor or the padding ruled out
    ours = probabilities(logits, params)
    torch.testing.assert_close(ours, oracle(logits, params), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(ours.sum(-1), torch.ones(64))
    assert not ours[:, 47:].any()


@pytest.mark.parametrize("temperature", [0.3, 1.0, 1.7])
@pytest.mark.parametrize("top_k", [0, 1, 7, 500])
@pytest.mark.parametrize("top_p", [1.0, 0.9, 0.35, 1e-6])
def test_probabilities_are_those_of_transformers(temperature: float, top_k: int, top_p: float) -> None:
    compare(SamplingParams(temperature, top_p, top_k))


@pytest.mark.parametrize("temperature", [0.3, 1.0, 1.7])
@pytest.mark.parametrize(
    "values", [{"min_p": p} for p in (0.01, 0.2, 1.0)] + [{"typical_p": p} for p in (0.05, 0.5, 0.95)]
)
def test_min_p_and_typical_p_are_too(temperature: float, values: dict[str, float]) -> None:
    compare(SamplingParams(temperature, **values))  # type: ignore[arg-type]


def test_together_they_are_applied_in_the_order_of_transformers() -> None:
    rng = random.Random(2)
    for seed in range(150):
        params = SamplingParams(
            rng.uniform(0.2, 2.0),
            top_k=rng.choice([0, 3, 20]),
            top_p=rng.choice([1.0, rng.uniform(0.1, 0.99)]),
            min_p=rng.choice([0.0, rng.uniform(0.01, 0.3)]),
            typical_p=rng.choice([1.0, rng.uniform(0.1, 0.99)]),
        )
        compare(params, seed)


def test_ties_at_a_border_are_treated_as_documented() -> None:
    """Whole for top-k, min-p and typical-p, so that no sort decides; by id for top-p."""
    logits = torch.tensor([[1.0, 2.0, 1.0, 1.0, 0.0]])

    def kept(**values: float) -> list[int]:
        probs = probabilities(logits, SamplingParams(1.0, **values))  # type: ignore[arg-type]
        return [int(i) for i in probs[0].nonzero()]

    assert kept(top_k=2) == [0, 1, 2, 3]
    assert kept(min_p=float(torch.tensor(-1.0).exp())) == [0, 1, 2, 3]
    assert kept(typical_p=0.2) == [0, 2, 3]  # these three are the nearest to the entropy
    assert kept(top_p=0.5) == [0, 1]
    assert kept(top_p=0.7) == [0, 1, 2]


def test_the_smallest_values_keep_the_likeliest_token() -> None:
    logits = torch.tensor([[0.5, 3.0, 2.999, -torch.inf], [0.0, 0.0, 7.0, 1.0]])
    for params in (
        SamplingParams(5e-324),
        SamplingParams(1e-50),
        SamplingParams(1.0, 5e-324),
        SamplingParams(1.0, top_k=1),
        SamplingParams(1.0, min_p=1.0),
        SamplingParams(5e-324, 5e-324, 1, min_p=1.0, typical_p=5e-324),
    ):
        assert probabilities(logits, params).argmax(-1).tolist() == [1, 2]
        assert (probabilities(logits, params) > 0).sum(-1).tolist() == [1, 1]
    sure = torch.tensor([[-torch.inf, 4.0, -torch.inf]])  # surprise 0, entropy 0
    for mass in (5e-324, 0.5, 0.999):
        one = probabilities(sure, SamplingParams(1.0, typical_p=mass))
        assert one.tolist() == [[0.0, 1.0, 0.0]]


def test_a_row_has_the_same_bits_alone_as_among_others() -> None:
    logits = torch.randn(9, 300, generator=torch.Generator().manual_seed(3)) * 2
    params = SamplingParams(0.9, 0.9, 100, min_p=0.001, typical_p=0.95)
    rows = probabilities(logits, params)
    for row in range(9):
        assert torch.equal(rows[row : row + 1], probabilities(logits[row : row + 1], params))
        assert torch.equal(rows[row], probabilities(logits[row], params))


def test_a_tiny_temperature_and_low_precision_stay_finite() -> None:
    logits = torch.tensor([[60000.0, 59000.0, -60000.0]], dtype=torch.bfloat16)
    for temperature in (1e-30, 1e-3, 100.0):
        probs = probabilities(logits, SamplingParams(temperature, 0.5))
        assert probs.isfinite().all()
        assert probs.argmax() == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_any_precision_gives_float32_and_is_left_as_it_was(dtype: torch.dtype) -> None:
    logits = (torch.randn(4, 50, generator=torch.Generator().manual_seed(6)) * 3).to(dtype)
    before = logits.clone()
    for temperature in (0.009, 0.01, 0.8, 1.0, 100.0):  # the first is divided in another way
        probs = probabilities(logits, SamplingParams(temperature))
        exact = (logits.double() / temperature).softmax(-1)
        assert probs.dtype == torch.float32
        torch.testing.assert_close(probs.double(), exact, atol=2e-4, rtol=2e-4)
        assert torch.equal(logits, before)


def test_draws_follow_the_weights_and_never_take_a_zero() -> None:
    """N = 200,000: a total variation of 0.01 is seen with power > 0.99."""
    weights = torch.tensor([0.0, 3.0, 0.0, 1.0, 0.5, 0.0])
    generator = torch.Generator().manual_seed(5)
    drawn = draw(weights.expand(200_000, -1), generator)
    counts = torch.bincount(drawn, minlength=6)
    assert counts[[0, 2, 5]].sum() == 0
    exact = weights.double()
    expected = (exact / exact.sum() * 200_000)[[1, 3, 4]]
    assert stats.chisquare(counts[[1, 3, 4]], expected).pvalue > 1e-4


def test_noise_used_depends_on_the_number_of_rows_only() -> None:
    one, other = torch.Generator().manual_seed(1), torch.Generator().manual_seed(1)
    draw(torch.ones(3, 5), one)
    draw(torch.tensor([[0.0, 1.0]]).expand(3, 2), other)
    assert torch.rand(1, generator=one) == torch.rand(1, generator=other)


def test_a_uniform_meets_the_token_whose_share_it_falls_in() -> None:
    weights = torch.tensor([[0.0, 1.0, 2.0, 0.0, 1.0, 0.0]]).expand(6, -1)
    uniform = torch.tensor([0.0, 0.2499, 0.25, 0.7499, 0.75, 1 - 2**-53], dtype=torch.float64)
    assert draw_at(weights, uniform).tolist() == [1, 1, 2, 2, 4, 4]
    # So small beside the rest that the total doesn't show it; and a total that rounds.
    tail = torch.tensor([[1.0] + [1e-30] * 3 + [0.0]])
    assert draw_at(tail, uniform[-1:]).item() in (0, 1, 2, 3)


def test_one_row_is_drawn_as_several_are() -> None:
    """One row on a CPU is looked at; the token is the same, to the last bit of the uniform."""
    generator = torch.Generator().manual_seed(9)
    weights = torch.rand(400, 7, generator=generator) * (torch.rand(400, 7, generator=generator) > 0.4)
    weights[:, 3] += 1e-30
    uniform = torch.tensor(uniforms(400, generator), dtype=torch.float64)
    shares = weights.double().cumsum(-1) / weights.double().sum(-1, keepdim=True)
    uniform[:100] = shares[:100, 2].clamp_max(1 - 2**-53)  # on a border, or as near as it gets
    uniform[100:110], uniform[110:120] = 0.0, 1 - 2**-53
    together = draw_at(weights, uniform)
    for row, level, token in zip(weights, uniform, together.tolist()):
        assert draw_at(row.unsqueeze(0), level.unsqueeze(0)).tolist() == [token]
        assert draw_one(row, level.item()) == token


def test_a_row_that_is_no_distribution_has_no_token() -> None:
    for row in ([0.0, 0.0], [torch.nan, 1.0], [torch.inf, 1.0]):
        assert draw_one(torch.tensor(row), 0.5) is None
        for rows in (torch.tensor([row]), torch.tensor([row, row])):
            drawn = draw_at(rows, torch.full((len(rows),), 0.5, dtype=torch.float64))
            assert all(0 <= token < 2 for token in drawn.tolist())


def sorted_nucleus(probs: Tensor, mass: float) -> Tensor:
    """Top-p by sorting the whole row, equal values by their ids."""
    ordered, order = probs.double().sort(dim=-1, descending=True, stable=True)
    behind = ordered.cumsum(-1) - ordered >= mass
    kept = ordered.masked_fill(behind, 0.0)
    kept /= kept.sum(-1, keepdim=True)
    return torch.zeros_like(kept).scatter_(-1, order, kept).float()


@pytest.mark.parametrize("mass", [1e-6, 0.3, 0.9, 0.999, 1 - 1e-7])
@pytest.mark.parametrize("spread", [0.0, 1.0, 6.0])
def test_top_p_of_a_wide_row_is_that_of_a_sorted_one(mass: float, spread: float) -> None:
    """``spread`` 0 makes all values equal: the lowest ids stay. Whole numbers make ties."""
    logits = torch.randn(3, 20_000, generator=torch.Generator().manual_seed(1)) * spread
    logits[1] = logits[1].round()
    probs = logits.softmax(-1)
    for rows in (probs, probs[:1], probs[0], probs.reshape(3, 1, -1)):
        found = nucleus(rows, mass)
        assert found.shape == rows.shape
        expected = sorted_nucleus(rows, mass)
        # At the cut-off, one token more or less: sums of many values differ in their last bits.
        differ = (found > 0) != (expected > 0)
        assert differ.sum(-1).max() <= (2 if spread == 0.0 or mass > 0.99 else 0)
        torch.testing.assert_close(found, expected, atol=1e-4 if differ.any() else 1e-6, rtol=1e-3)


def test_top_p_keeps_a_row_that_is_not_finite() -> None:
    rows = torch.full((2, 10), torch.nan)
    rows[1] = 0.1
    found = nucleus(rows, 0.5)
    assert not torch.isfinite(found[0]).any()
    torch.testing.assert_close(found[1], torch.tensor([0.2] * 5 + [0.0] * 5))


def test_top_p_sorts_no_tail(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sorting a vocabulary takes as long as a small model's pass."""
    monkeypatch.setattr(torch.Tensor, "sort", None)
    logits = torch.randn(2, 50_000, generator=torch.Generator().manual_seed(1)) * 3
    found = probabilities(logits, SamplingParams(temperature=0.3, top_p=0.9))
    torch.testing.assert_close(found.sum(-1), torch.ones(2))
