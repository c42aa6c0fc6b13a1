from __future__ import annotations

import pytest

from specstream.bench.formula import acceptance_from, expected_tokens, optimum, speedup

# alpha → for c of .02, .05, .10, .20, .40: the best K, its tokens a round, its speedup (v=1, o=0).
TABLE = {
    0.60: [(6, 2.43, 2.17), (4, 2.31, 1.92), (3, 2.18, 1.67), (2, 1.96, 1.40), (1, 1.60, 1.14)],
    0.70: [(8, 3.20, 2.76), (6, 3.06, 2.35), (4, 2.77, 1.98), (3, 2.53, 1.58), (2, 2.19, 1.22)],
    0.80: [(11, 4.66, 3.82), (8, 4.33, 3.09), (6, 3.95, 2.47), (4, 3.36, 1.87), (2, 2.44, 1.36)],
    0.85: [(14, 6.08, 4.75), (10, 5.55, 3.70), (7, 4.85, 2.85), (5, 4.15, 2.08), (3, 3.19, 1.45)],
}


@pytest.mark.parametrize("alpha", TABLE)
def test_it_gives_the_published_optima(alpha: float) -> None:
    for c, (drafts, tokens, times) in zip((0.02, 0.05, 0.10, 0.20, 0.40), TABLE[alpha]):
        best = optimum(acceptance_from((), alpha), c, lambda width: 1.0)
        assert best.drafts == drafts
        assert best.tokens == pytest.approx(tokens, abs=0.006)
        assert best.speedup == pytest.approx(times, abs=0.006)


def test_independent_drafts_give_the_closed_form() -> None:
    for alpha in (0.1, 0.5, 0.9):
        for drafts in range(6):
            closed = (1 - alpha ** (drafts + 1)) / (1 - alpha)
            assert expected_tokens(acceptance_from((), alpha), drafts) == pytest.approx(closed)


def test_a_perfect_draft_gives_one_token_more_than_drafted() -> None:
    assert expected_tokens(acceptance_from((), 1.0), 5) == 6


def test_measured_positions_come_before_the_pooled_rate() -> None:
    acceptance = acceptance_from((0.9, 0.5), 0.1)
    assert expected_tokens(acceptance, 3) == pytest.approx(1 + 0.9 + 0.45 + 0.045)


def test_every_cost_slows_it_down() -> None:
    alpha = acceptance_from((), 0.8)
    free = speedup(alpha, 4, 0.0, lambda width: 1.0)
    assert free == pytest.approx(3.3616)
    assert speedup(alpha, 4, 0.1, lambda width: 1.0) == pytest.approx(3.3616 / 1.4)
    assert speedup(alpha, 4, 0.1, lambda width: 1 + 0.05 * width) == pytest.approx(3.3616 / 1.65)
    assert speedup(alpha, 4, 0.1, lambda width: 1.0, 0.1) == pytest.approx(3.3616 / 1.5)


def test_a_hopeless_draft_is_best_not_used() -> None:
    best = optimum(acceptance_from((), 0.05), 0.3, lambda width: 1.0)
    assert (best.drafts, best.speedup) == (0, 1.0)
