from __future__ import annotations

import pytest

from specstream.bench.costs import Costs, ceiling_of, costs_of
from tests.bench.made import made_run, plain_run

# A plain round takes 4 ms (3 of them the pass); a draft .5 ms; a pass over 5 tokens 3.6 ms.
PLAIN = [plain_run(10, 4.0)]
FAST = [made_run([(7.0, 2, 4), (6.4, 2, 4), (6.4, 4, 4), (6.4, 0, 4), (6.4, 2, 4)], verify_ms=3.6)]


def test_costs_are_in_plain_rounds() -> None:
    costs = costs_of({"chat": (PLAIN, FAST)})["chat"]
    assert costs.plain_ms == pytest.approx(4.0)
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
    assert costs_of({"chat": (PLAIN, [changed])})["chat"].first_ms == pytest.approx(12 - 2)


def test_the_formula_explains_rounds_that_cost_what_they_cost() -> None:
    costs = costs_of({"chat": (PLAIN, FAST)})["chat"]
    run = made_run([(6.4, 2, 4)] * 50, verify_ms=3.6)
    ceiling = ceiling_of(costs, [run], measured=run.decode_tokens / run.decode_ms * 4.0)
    assert ceiling is not None
    assert ceiling.acceptance == pytest.approx(2 / 3)  # 2 stood, the third fell, the rest unjudged
    assert ceiling.as_run == pytest.approx(3 * 4.0 / 6.4)
    assert ceiling.measured == pytest.approx(ceiling.as_run)
    assert 0 < ceiling.best.drafts <= 8


def test_widths_between_and_beyond_those_seen_are_on_lines() -> None:
    costs = Costs(4.0, 0.1, {2: 1.0, 4: 1.2, 8: 1.6}, 0.0, 0.0, 0.0, 9)
    assert costs.v_at(4) == 1.2
    assert costs.v_at(3) == pytest.approx(1.1)
    assert costs.v_at(6) == pytest.approx(1.4)
    assert costs.v_at(10) == pytest.approx(1.8)
    assert costs.v_at(1) == 1.0
    assert Costs(4.0, 0.1, {5: 1.3}, 0.0, 0.0, 0.0, 9).v_at(9) == 1.3


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
