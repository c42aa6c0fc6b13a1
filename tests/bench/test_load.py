"""What is reported of requests at once, from made-up rounds."""

from __future__ import annotations

import pytest

from specstream.bench.concurrency import Way
from specstream.bench.load import Load, Shape, load_verdict
from specstream.bench.records import Emission, Run


def run(tokens: int, predicted: float | None = None) -> Run:
    emissions = (Emission(10.0, 1), Emission(30.0, tokens - 1))
    return Run(tuple(range(tokens)), emissions, 40.0, "stop", predicted_speedup=predicted)


def load(at_once: int, ratio: float, shape: Shape = "closed") -> Load:
    made = [run(20, 1.5) for _ in range(at_once)]
    return Load(at_once, shape, Way([1.0], [made]), Way([ratio], [made]))


def test_a_load_gives_both_ways_and_their_ratio() -> None:
    found = load(4, 1.25).to_dict()
    assert (found["at_once"], found["shape"], found["rounds"], found["ratio"]) == (
        4,
        "closed",
        1,
        1.25,
    )
    assert found["auto"]["tokens_per_second"] == 80.0 and found["off"]["tokens_per_second"] == 64.0
    assert found["auto"]["tokens_per_second_each"] == 500.0
    assert found["auto"]["ttft_ms_p99"] == 10.0 and found["auto"]["gap_ms_p50"] == 20.0
    assert found["auto"]["predicted_speedup_p50"] == 1.5


@pytest.mark.parametrize(
    ("ratios", "words"),
    [
        ({1: 1.8, 4: 1.2, 16: 1.0}, "speculation pays up to 4 requests at once here"),
        ({1: 1.8, 4: 1.0, 16: 1.3}, "speculation pays up to 1 request at once here"),
        (
            {1: 0.9, 4: 1.2},
            "speculation doesn't pay at any of these loads here; it is slower with 1",
        ),
    ],
)
def test_the_verdict_names_the_load(ratios: dict[int, float], words: str) -> None:
    assert load_verdict([load(count, ratio) for count, ratio in ratios.items()]) == words


def test_the_worse_shape_counts() -> None:
    assert "pays up to" not in load_verdict([load(1, 1.5), load(1, 1.0, "steady")])
