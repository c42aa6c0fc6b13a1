"""The choice of length, against brute force; the choice by gain, against the best long-run rate."""

from __future__ import annotations

import itertools

import pytest

from specstream.speculation.policy.draft_acceptance import DraftAcceptance, DraftHabits
from specstream.speculation.policy.lookup_acceptance import LookupAcceptance, LookupHabits
from specstream.speculation.policy.options import (
    OFF,
    Prices,
    conceivable,
    draft_option,
    lookup_option,
)

BASE_MS = 3.0


def prices(worth: float, step: float = 0.3, token: float = 0.05, jump: float = 0.0) -> Prices:
    verify = [0.0, *(jump + token * k for k in range(1, 13))]
    return Prices(worth, step, 0.0, verify, 0.08, 12)


def habits() -> DraftHabits:
    return DraftHabits(DraftAcceptance(greedy=True))


@pytest.mark.parametrize("jump", [0.0, 1.5])
@pytest.mark.parametrize("worth", [0.3, 0.5, 1.0])
def test_the_fixed_length_is_the_best_of_all(worth: float, jump: float) -> None:
    price = prices(worth, jump=jump)
    chances = habits().fixed(12)
    gains = [sum(chances[:k]) - worth * (k * 0.3 + price.verify_ms[k] + 0.08) for k in range(1, 13)]
    option = draft_option(habits(), 12, price, free=False, extra_ms=0.0)
    assert option.tokens == gains.index(max(gains)) + 1
    assert option.gain == pytest.approx(max(gains))


def test_the_best_gain_at_the_best_rate_is_the_best_rate() -> None:
    """Renewal reward: with the worth at the best ratio, greatest gain and best ratio agree."""
    chances = habits().fixed(12)

    def ratio(k: int) -> float:
        ms = BASE_MS + (k * 0.3 + 0.05 * k + 0.08 if k else 0.0)
        return (1.0 + sum(chances[:k])) / ms

    best = max(range(13), key=ratio)
    option = draft_option(habits(), 12, prices(ratio(best)), free=False, extra_ms=0.0)
    assert option.tokens == best
    assert option.gain == pytest.approx(ratio(best) * BASE_MS - 1.0)


def test_with_texts_that_change_gain_beats_the_ratio_of_the_moment() -> None:
    """Rounds that are good and rounds that are bad, in turn; every pair of lengths tried out."""
    good, bad = [0.97**k for k in range(1, 13)], [0.5**k for k in range(1, 13)]

    def ms(k: int) -> float:
        return BASE_MS + (0.3 * k + 0.05 * k if k else 0.0)

    def rate(a: int, b: int) -> float:
        return (2.0 + sum(good[:a]) + sum(bad[:b])) / (ms(a) + ms(b))

    best = max(itertools.product(range(13), repeat=2), key=lambda pair: rate(*pair))
    worth = rate(*best)

    def by_gain(chances: list[float]) -> int:
        return max(range(13), key=lambda k: sum(chances[:k]) - worth * (ms(k) - BASE_MS))

    def by_ratio(chances: list[float]) -> int:
        return max(range(13), key=lambda k: (1.0 + sum(chances[:k])) / ms(k))

    assert (by_gain(good), by_gain(bad)) == best
    assert (by_ratio(good), by_ratio(bad)) != best


def test_lookup_takes_what_is_worth_its_place_in_the_pass() -> None:
    lookup = LookupHabits(LookupAcceptance())
    free = lookup_option(lookup, 4, 0, 12, prices(0.3, token=0.0))
    dear = lookup_option(lookup, 4, 0, 12, prices(0.3, token=1.0))
    assert free.kind == dear.kind == "ngram"
    assert free.tokens == 12 > dear.tokens
    assert lookup_option(lookup, 1, 0, 12, prices(0.3, token=3.0)) is OFF


def test_one_token_may_pay_where_the_usual_length_is_too_long() -> None:
    steep = Prices(0.3, 0.3, 0.0, [0.0, 0.1, *(4.0 * k for k in range(1, 12))], 0.0, 12)
    option = draft_option(habits(), 12, steep, free=True, extra_ms=0.0)
    assert option.drafted == 1 and option.gain > 0.0


def test_reading_the_prompt_counts() -> None:
    for free in (True, False):
        without = draft_option(habits(), 8, prices(0.4), free=free, extra_ms=0.0)
        with_it = draft_option(habits(), 8, prices(0.4), free=free, extra_ms=1.0)
        assert with_it.gain == pytest.approx(without.gain - 0.4)


def test_what_no_acceptance_could_make_pay() -> None:
    assert conceivable(12, prices(0.35)) > 0.0
    assert conceivable(12, prices(0.35, step=3.5)) == 0.0
