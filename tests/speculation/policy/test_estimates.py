from __future__ import annotations

import random

import pytest

from specstream.speculation.policy.estimates import (
    Average,
    Chance,
    Doubt,
    Lean,
    log_odds,
    odds_to_chance,
)


def test_log_odds_and_back() -> None:
    for p in (0.001, 0.3, 0.5, 0.9, 0.999):
        assert odds_to_chance(log_odds(p)) == pytest.approx(p)
    assert -10 < log_odds(0.0) < -9 and 9 < log_odds(1.0) < 10


def test_a_chance_starts_at_its_prior_and_finds_the_truth() -> None:
    rng = random.Random(1)
    chance = Chance(0.9, weight=5.0, memory=400.0)
    assert chance.value == 0.9
    for _ in range(2000):
        chance.learn(rng.random() < 0.3)
    assert chance.value == pytest.approx(0.3, abs=0.06)
    assert chance.log_odds == pytest.approx(log_odds(chance.value))


def test_a_chance_follows_a_change_within_its_memory() -> None:
    chance = Chance(0.5, weight=2.0, memory=50.0)
    for _ in range(500):
        chance.learn(True)
    for _ in range(100):
        chance.learn(False)
    assert chance.value < 0.2


def test_trials_may_be_counted_together() -> None:
    together, singly = Chance(0.6, 4.0, 400.0), Chance(0.6, 4.0, 400.0)
    together.learn(5, 7)
    for hit in (True, True, False, True, True, False, True):
        singly.learn(hit)
    assert together.value == pytest.approx(singly.value)
    all_at_once, lean = Lean(), Lean()
    all_at_once.learn(0.5, 1, trials=6)
    for hit in (False, False, True, False, False, False):
        lean.learn(0.5, hit)
    assert all_at_once.value == pytest.approx(lean.value, abs=0.2)
    assert all_at_once.value < -0.5


def test_an_average_weighs_its_prior_and_forgets() -> None:
    average = Average(10.0, weight=1.0, memory=20.0)
    average.learn(0.0)
    assert average.value == pytest.approx(5.0)
    for _ in range(100):
        average.learn(3.0)
    assert average.value == pytest.approx(3.0, abs=0.1)
    heir = average.heir(weight=4.0, memory=8.0)
    heir.learn(8.0)
    assert heir.value == pytest.approx(4.0, abs=0.1)
    assert average.value == pytest.approx(3.0, abs=0.1)


@pytest.mark.parametrize(("base", "truth"), [(0.5, 0.8), (0.7, 0.3), (0.9, 0.9), (0.3, 0.05)])
def test_a_lean_finds_how_one_request_differs(base: float, truth: float) -> None:
    rng = random.Random(2)
    lean = Lean()
    total = 0.0
    for index in range(600):
        lean.learn(log_odds(base), rng.random() < truth)
        total += lean.chance(log_odds(base)) if index >= 200 else 0.0
    assert total / 400 == pytest.approx(truth, abs=0.07)


def test_a_lean_is_not_bent_by_what_was_certain_anyway() -> None:
    lean = Lean()
    for _ in range(200):
        lean.learn(log_odds(0.9999), True)
    assert lean.value == pytest.approx(0.0, abs=0.5)


def test_a_weightless_trial_teaches_nothing() -> None:
    lean = Lean()
    lean.learn(0.0, True, weight=0.0)
    assert lean.value == 0.0


def test_doubt_follows_bayes_rule() -> None:
    doubt = Doubt(0.5, mends=0.004)  # as many begin as end: the switching cancels at one half
    doubt.learn(0.8, False)
    assert doubt.value == pytest.approx(0.5 * 0.98 / (0.5 * 0.98 + 0.5 * 0.2))


def test_doubt_comes_with_misses_and_goes_with_a_hit() -> None:
    doubt = Doubt(0.05, mends=0.02)
    for _ in range(4):
        doubt.learn(0.8, False)
    assert doubt.value > 0.9
    assert doubt.chance(0.8) < 0.1
    doubt.learn(0.8, True)
    assert doubt.value < 0.4


def test_doubt_stays_low_where_misses_are_usual() -> None:
    rng = random.Random(3)
    doubt = Doubt(0.05, mends=0.004)
    certain = 0
    for _ in range(3000):
        doubt.learn(0.3, rng.random() < 0.3)
        certain += doubt.value > 0.5
    assert certain < 60
