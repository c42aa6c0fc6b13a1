import math
from dataclasses import replace

import pytest

from specstream.bench.records import BenchRun, Emission, geometric_mean, percentile, rounded
from specstream.bench.results import Figures
from tests.bench.made import made_record, made_run, peer_run, plain_run


def test_the_decode_phase_begins_after_the_first_emission() -> None:
    run = BenchRun((1, 2, 3, 4, 5), (Emission(50, 2), Emission(60, 1), Emission(80, 2)), 90, "stop")
    assert (run.ttft_ms, run.decode_tokens, run.decode_ms) == (50, 3, 30)
    assert run.gaps_ms == [10, 20]


def test_speeds_are_sums_over_sums() -> None:
    runs = [plain_run(100, 5.0), plain_run(10, 20.0)]  # 500 ms and 200 ms of decoding
    figures = Figures([made_record("own", run, prompt=str(i)) for i, run in enumerate(runs)])
    assert figures.decode_tokens_per_second == pytest.approx(110 / 0.7)
    assert figures.tokens_per_second == pytest.approx(112 / 0.722)  # 10 + 1 ms more, each
    assert (figures.prompts, figures.runs, figures.tokens) == (2, 2, 112)


def test_what_was_expected_is_a_ratio_of_sums_too() -> None:
    """300 tokens at 3x take as long as 100 plain ones, 100 at 1x as well: 400 at 2x."""
    runs = [
        replace(plain_run(300, 5.0), predicted_speedup=3.0),
        replace(plain_run(100, 5.0), predicted_speedup=1.0),
        replace(plain_run(0, 5.0), predicted_speedup=9.0),  # no decode phase: nothing to be compared
    ]
    assert Figures([made_record("auto", run) for run in runs]).predicted_speedup == 2.0
    assert Figures([made_record("auto", runs[2])]).predicted_speedup is None
    assert Figures([made_record("own", plain_run(9, 5.0))]).predicted_speedup is None


def test_acceptance_is_counted_from_the_rounds() -> None:
    run = made_run([(10, 4, 4), (10, 1, 4), (10, 0, 4), (10, 2, 2)])
    figures = Figures([made_record("auto", run)])
    assert (figures.drafted, figures.accepted, figures.rejected) == (14, 7, 7)
    assert figures.acceptance_rate == 0.5
    assert figures.rounds == 5
    assert figures.mean_acceptance_length == pytest.approx(1 + 7 / 5)
    # Reached: 4 first drafts; second after a standing first: 3; third: 1; fourth: 1.
    assert figures.reached_by_position == (4, 3, 1, 1)
    assert figures.acceptance_by_position == pytest.approx((3 / 4, 2 / 3, 1, 1))


def test_a_peer_tells_no_drafts() -> None:
    figures = Figures([made_record("assisted", peer_run(5, 4.0))])
    assert (figures.drafted, figures.rejected, figures.acceptance_rate) == (None, None, None)
    assert figures.time_split == {}


def test_the_time_split_is_in_shares_of_the_whole() -> None:
    run = BenchRun((1,), (Emission(1, 1),), 4, "stop", True, {"verify": 3.0, "draft": 1.0})
    assert Figures([made_record("auto", run)]).time_split == {"verify": 0.75, "draft": 0.25}


def test_a_reply_without_a_decode_phase_has_no_speed() -> None:
    figures = Figures([made_record("own", plain_run(0, 5.0))])
    assert figures.decode_tokens_per_second == 0
    assert rounded(figures.ms["gap"]) == {"p50": None, "p95": None}


def test_percentiles_are_interpolated() -> None:
    assert percentile([3, 1, 2], 0.5) == 2
    assert percentile([0, 10], 0.95) == pytest.approx(9.5)
    assert math.isnan(percentile([], 0.5))


def test_geometric_means_skip_what_is_missing() -> None:
    assert geometric_mean([2.0, None, 8.0]) == pytest.approx(4.0)
    assert geometric_mean([None, 0.0]) is None
