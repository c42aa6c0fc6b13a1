import pytest

from specstream.bench.costs import best_speedup, ceiling_of, costs_of, expected_tokens, pass_cost
from tests.bench.made import made_run, plain_run

# A plain round takes 4 ms (3 of them the pass); a draft .5 ms; a pass over 5 tokens 3.6 ms.
PLAIN = [plain_run(10, 4.0)]
FAST = [made_run([(7.0, 2, 4), (6.4, 2, 4), (6.4, 4, 4), (6.4, 0, 4), (6.4, 2, 4)], verify_ms=3.6)]


def test_costs_are_in_plain_rounds() -> None:
    costs = costs_of({"chat": (PLAIN, FAST)})["chat"]
    assert costs.plain_round_ms == pytest.approx(4.0)
    assert costs.c == pytest.approx(0.5 / 4)
    assert costs.v == pytest.approx({1: 0.75, 5: 0.9})
    assert costs.o == pytest.approx((6.4 - 2.0 - 3.6) / 4)
    assert costs.plain_o == pytest.approx(0.25)
    assert costs.rounds == 4  # the first is where the draft reads the prompt


def test_the_first_drafting_round_tells_what_reading_the_prompt_cost() -> None:
    slow = made_run([(15.0, 4, 4)], draft_ms=3.0, verify_ms=3.6).emissions[1]
    run = FAST[0]
    changed = type(run)(
        run.token_ids, (run.emissions[0], slow, *run.emissions[2:]), run.total_ms, run.finish, True
    )
    assert costs_of({"chat": (PLAIN, [changed])})["chat"].draft_prefill_ms == pytest.approx(12 - 2)


def test_the_formula_explains_rounds_that_cost_what_they_cost() -> None:
    costs = costs_of({"chat": (PLAIN, FAST)})["chat"]
    run = made_run([(6.4, 2, 4)] * 50, verify_ms=3.6)
    ceiling = ceiling_of(costs, [run], measured=run.decode_tokens / run.decode_ms * 4.0)
    assert ceiling is not None
    assert ceiling.alpha == pytest.approx(2 / 3)  # 2 stood, the third fell, the rest unjudged
    assert ceiling.as_run == pytest.approx(3 * 4.0 / 6.4)
    assert ceiling.measured == pytest.approx(ceiling.as_run)
    assert 0 < ceiling.best_drafts <= 8


def test_widths_between_and_beyond_those_seen_are_on_lines() -> None:
    v = {2: 1.0, 4: 1.2, 8: 1.6}
    assert pass_cost(v, 4) == 1.2
    assert pass_cost(v, 3) == pytest.approx(1.1)
    assert pass_cost(v, 6) == pytest.approx(1.4)
    assert pass_cost(v, 10) == pytest.approx(1.8)
    assert pass_cost(v, 1) == 1.0
    assert pass_cost({5: 1.3}, 9) == 1.3


def test_too_few_rounds_say_nothing() -> None:
    assert costs_of({"chat": (PLAIN, [made_run([(6.0, 1, 4)])])}) == {}
    assert costs_of({"chat": ([], FAST)}) == {}


def test_domains_share_the_passes_but_not_the_drafts() -> None:
    dear = [made_run([(12.0, 2, 4)] * 6, verify_ms=3.6, draft_ms=1.5)]
    both = costs_of({"chat": (PLAIN, FAST), "math": (PLAIN, dear)})
    assert both["chat"].v == both["math"].v
    assert both["math"].c == pytest.approx(3 * both["chat"].c)


def test_nothing_drafted_has_no_ceiling() -> None:
    costs = costs_of({"chat": (PLAIN, FAST)})["chat"]
    assert ceiling_of(costs, PLAIN, 1.0) is None


# alpha → for c of .02, .05, .10, .20, .40: the best K, its tokens a round, its speedup (v=1, o=0).
TABLE = {
    0.60: [(6, 2.43, 2.17), (4, 2.31, 1.92), (3, 2.18, 1.67), (2, 1.96, 1.40), (1, 1.60, 1.14)],
    0.70: [(8, 3.20, 2.76), (6, 3.06, 2.35), (4, 2.77, 1.98), (3, 2.53, 1.58), (2, 2.19, 1.22)],
    0.80: [(11, 4.66, 3.82), (8, 4.33, 3.09), (6, 3.95, 2.47), (4, 3.36, 1.87), (2, 2.44, 1.36)],
    0.85: [(14, 6.08, 4.75), (10, 5.55, 3.70), (7, 4.85, 2.85), (5, 4.15, 2.08), (3, 3.19, 1.45)],
}


@pytest.mark.parametrize("alpha", TABLE)
def test_the_formula_gives_the_published_optima(alpha: float) -> None:
    for c, (drafts, tokens, times) in zip((0.02, 0.05, 0.10, 0.20, 0.40), TABLE[alpha]):
        best, speedup = best_speedup(alpha, c, lambda width: 1.0)
        assert best == drafts
        assert expected_tokens(alpha, best) == pytest.approx(tokens, abs=0.006)
        assert speedup == pytest.approx(times, abs=0.006)


def test_expected_tokens_have_the_closed_form() -> None:
    for alpha in (0.1, 0.5, 0.9):
        for drafts in range(6):
            closed = (1 - alpha ** (drafts + 1)) / (1 - alpha)
            assert expected_tokens(alpha, drafts) == pytest.approx(closed)
    assert expected_tokens(1.0, 5) == 6


@pytest.mark.parametrize(
    ("c", "v", "o", "divisor"), [(0.0, 1.0, 0.0, 1.0), (0.1, 1.0, 0.0, 1.4), (0.1, 1.25, 0.0, 1.65),
                                 (0.1, 1.0, 0.1, 1.5)]
)  # fmt: skip
def test_every_cost_lowers_the_speedup(c: float, v: float, o: float, divisor: float) -> None:
    def only_four_drafts(width: int) -> float:
        return v if width == 5 else 1e9

    assert best_speedup(0.8, c, only_four_drafts, o)[1] == pytest.approx(3.3616 / divisor)


def test_a_hopeless_draft_is_best_not_used() -> None:
    assert best_speedup(0.05, 0.3, lambda width: 1.0) == (0, 1.0)
