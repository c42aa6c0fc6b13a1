"""The statistics themselves, against scipy and against simulation."""

import random
from collections import Counter

import numpy as np
import pytest
import torch
from scipy import stats  # type: ignore[import-untyped]

from specstream.bench.exactness.enumeration import (
    detectable,
    g_test,
    holm,
    power,
    samples_needed,
    survival,
)
from specstream.bench.exactness.harness import next_row
from specstream.model.tokens.processors import LogitsPipeline, ModelFacts
from specstream.model.tokens.sampling import probabilities
from specstream.types import SamplingParams
from tests.exactness.independence import independence

pytestmark = pytest.mark.slow


def test_survival_is_scipys() -> None:
    for df in (1, 5, 50, 400):
        for statistic in (0.0, df / 2, df, 3.0 * df, 20.0 * df):
            assert survival(statistic, df) == pytest.approx(
                stats.chi2.sf(statistic, df), rel=1e-6, abs=1e-300
            )


def test_g_is_scipys_where_nothing_is_pooled() -> None:
    exact = {"a": 0.5, "b": 0.3, "c": 0.2}
    seen = {"a": 520, "b": 270, "c": 210}
    theirs = stats.power_divergence([520, 270, 210], [500, 300, 200], lambda_="log-likelihood")
    result = g_test(seen, exact)
    assert result.p_value == pytest.approx(theirs.pvalue)
    assert (result.n, result.df) == (1000, 2)
    assert result.tv == pytest.approx(0.03)


def test_rare_outcomes_are_pooled_and_impossible_ones_reject() -> None:
    exact: dict[str, float] = {"a": 0.9, "none": 0.0} | {f"r{i}": 0.001 for i in range(100)}
    result = g_test({"a": 900, "r1": 50, "r2": 50}, exact)
    assert result.df == 20  # hundreds of 0.1 each, in pools of 5
    assert g_test({"a": 999, "none": 1}, exact).p_value == 0.0
    with pytest.raises(ValueError, match="sums to"):
        g_test({"a": 1}, {"a": 0.5})


def test_p_values_of_an_exact_sampler_are_uniform() -> None:
    """With pooling, too: what is rejected at 5 % happens in about 5 % of 600 samples."""
    rng = np.random.default_rng(1)
    exact = dict(enumerate(rng.dirichlet(np.full(60, 0.4)).tolist()))
    rejected = 0
    for _ in range(600):
        seen = Counter(dict(enumerate(rng.multinomial(2000, list(exact.values())).tolist())))
        rejected += g_test(seen, exact).p_value < 0.05
    assert 12 < rejected < 60


def test_power_is_what_simulation_gives_at_least() -> None:
    rng = np.random.default_rng(2)
    cells, n, tv = 20, 3000, 0.05
    shifted = np.full(cells, 1 / cells) + np.where(np.arange(cells) % 2, 1, -1) * 2 * tv / cells
    exact = dict(enumerate([1 / cells] * cells))
    found = sum(
        g_test(dict(enumerate(rng.multinomial(n, shifted).tolist())), exact).p_value < 1e-3
        for _ in range(300)
    )
    theory = power(n, cells - 1, tv)
    assert theory == pytest.approx(1 - stats.ncx2.cdf(stats.chi2.isf(1e-3, 19), 19, n * 4 * tv**2))
    assert abs(found / 300 - theory) < 0.1


def test_the_stated_sample_sizes_detect_what_is_stated() -> None:
    assert power(54_000, 50, 0.02) > 0.98
    assert detectable(54_000, 50) < 0.0205
    assert power(10_000, 30, detectable(10_000, 30)) == pytest.approx(0.99, abs=0.001)


def test_holm_steps_down() -> None:
    assert holm([0.0002, 0.9, 0.0004, 0.01]) == [True, False, False, False]
    assert holm([0.0002, 0.9, 0.0003, 0.01]) == [True, False, True, False]
    assert holm([]) == []


def test_independence_sees_dependence() -> None:
    rng = random.Random(3)
    table = torch.zeros(4, 4)
    for _ in range(4000):
        table[rng.randrange(4), rng.randrange(4)] += 1
    assert independence(table) > 1e-4
    assert independence(table + 100 * torch.eye(4)) < 1e-6


def test_the_reference_and_the_engine_agree_on_the_rule() -> None:
    """Two implementations, 400 random parameter sets: the engine's float32 is within 1e-5."""
    rng = random.Random(4)
    for number in range(400):
        vocab_size = rng.choice([5, 40])
        params = SamplingParams(
            temperature=rng.uniform(0.3, 2),
            top_k=rng.choice([0, 3, 100]),
            top_p=rng.choice([1.0, rng.uniform(0.3, 0.95)]),
            min_p=rng.choice([0.0, 0.05]),
            typical_p=rng.choice([1.0, rng.uniform(0.3, 0.95)]),
            repetition_penalty=rng.choice([1.0, 1.3]),
            frequency_penalty=rng.choice([0.0, 0.5]),
            presence_penalty=rng.choice([0.0, -0.5]),
            logit_bias=rng.choice([{}, {1: 2.0, 4: -1.0}]),
            min_tokens=rng.choice([0, 3]),
        )
        logits = torch.randn(vocab_size, generator=torch.Generator().manual_seed(number)) * 2
        prompt = [rng.randrange(vocab_size) for _ in range(4)]
        reply = [rng.randrange(vocab_size) for _ in range(rng.randrange(5))]
        ends = frozenset({0})
        pipeline = LogitsPipeline(
            params, ModelFacts(None, prompt, vocab_size, ends, torch.device("cpu"))
        )
        committed = rng.randrange(len(reply) + 1)
        drafted = reply[committed:]
        processed = pipeline.apply(logits, prompt + reply[:committed], drafted)
        ours = probabilities(processed, params).double().numpy()
        wanted = next_row(logits.double().numpy(), params, prompt, reply, ends)
        assert np.abs(ours - wanted).max() < 1e-5


@pytest.mark.timeout(30)
def test_a_wide_nucleus_takes_no_time_that_grows_with_its_square() -> None:
    """By the loop that was here, 8,000 tokens took 1.9 s, four times as much as 4,000."""
    logits = np.random.default_rng(5).normal(size=48_000) * 0.1
    row = next_row(logits, SamplingParams(1.0, top_p=0.95, typical_p=0.99), [], [], frozenset())
    kept = np.flatnonzero(row)
    assert 40_000 < len(kept) < 47_000 and row.sum() == pytest.approx(1.0)


def test_the_samples_needed_are_as_many_as_find_a_deviation() -> None:
    coin, die = {"a": 0.5, "b": 0.5}, dict.fromkeys("abcdef", 1 / 6)
    for exact in (coin, die):
        needed = samples_needed(exact, 0.5)
        assert detectable(needed, len(exact) - 1) <= 0.5 < detectable(needed * 3 // 5, 1)
    assert samples_needed(coin, 0.1) > samples_needed(coin, 0.5)
    assert samples_needed({"a": 1.0, "b": 0.0}, 0.5) == 0  # anything else is impossible
