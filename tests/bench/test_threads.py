from __future__ import annotations

import os

import pytest

from specstream.bench.threads import choose_threads, cores_here


@pytest.mark.parametrize(
    ("cores", "rates", "chosen"),
    [
        (2, {2: 100, 1: 90}, 2),
        (2, {2: 100, 1: 105}, 2),  # as good as equal: all cores stand
        (2, {2: 10, 1: 400}, 1),
        (8, {8: 50, 4: 300, 1: 200}, 4),
        (8, {8: 50, 4: 60, 1: 200}, 1),
    ],
)
def test_fewer_threads_only_where_they_are_plainly_faster(
    cores: int, rates: dict[int, float], chosen: int
) -> None:
    assert choose_threads(cores, rates.__getitem__) == chosen


def test_candidates_take_turns() -> None:
    asked: list[int] = []

    def rate(threads: int) -> float:
        asked.append(threads)
        return 1.0

    choose_threads(4, rate)
    assert asked[:6] == [4, 2, 1, 4, 2, 1]


def test_one_core_is_not_measured() -> None:
    def never(threads: int) -> float:
        raise AssertionError

    assert choose_threads(1, never) == 1


def test_the_cores_are_those_that_may_be_used() -> None:
    assert 1 <= cores_here() <= (os.cpu_count() or 1)
