from __future__ import annotations

import pytest
import torch
from scipy import stats
from transformers import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from specstream.model.sampling import draw, probabilities
from specstream.types import SamplingParams


@pytest.mark.parametrize("temperature", [0.3, 1.0, 1.7])
@pytest.mark.parametrize("top_k", [0, 1, 7, 500])
@pytest.mark.parametrize("top_p", [1.0, 0.9, 0.35, 1e-6])
def test_probabilities_are_those_of_transformers(
    temperature: float, top_k: int, top_p: float
) -> None:
    logits = torch.randn(64, 50, generator=torch.Generator().manual_seed(0)) * 3
    ours = probabilities(logits, SamplingParams(temperature, top_p, top_k))
    scores = TemperatureLogitsWarper(temperature)(None, logits.clone())
    if top_k:
        scores = TopKLogitsWarper(top_k)(None, scores)
    if top_p < 1:
        scores = TopPLogitsWarper(top_p)(None, scores)
    torch.testing.assert_close(ours, scores.softmax(-1), atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(ours.sum(-1), torch.ones(64))


def test_a_tiny_temperature_and_low_precision_stay_finite() -> None:
    logits = torch.tensor([[60000.0, 59000.0, -60000.0]], dtype=torch.bfloat16)
    for temperature in (1e-30, 1e-3, 100.0):
        probs = probabilities(logits, SamplingParams(temperature, 0.5))
        assert probs.isfinite().all()
        assert probs.argmax() == 0


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
