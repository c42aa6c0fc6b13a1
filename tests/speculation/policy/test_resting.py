"""A plain round costs next to no thought: what was settled is not asked again, what is learned waits."""

from __future__ import annotations

import statistics
from collections.abc import Callable

import pytest

from specstream.speculation.policy import (
    Controller,
    Kind,
    Outcome,
    Outlook,
    Plan,
    RoundTimes,
    options,
    rounds,
)
from tests.speculation.policy.simulator import Machine, Text, serve, text
from tests.speculation.policy.test_controller import WORKLOADS, controller, flat
from tests.speculation.policy.test_never_slower import hostile

DRAFT: frozenset[Kind] = frozenset({"draft"})
PLAIN = RoundTimes(0.0, 0, 0, 2.8, 1, 1, 0.3)


def evaluations(monkeypatch: pytest.MonkeyPatch, made: Text, after: int = 100) -> tuple[int, int]:
    """Options of the draft's that are worked out in the plain rounds after the first, and the rounds."""
    machine = Machine(target=flat)
    control = controller(machine)
    counted, option = [0], options.draft_option

    def count(*args: object, **more: object) -> object:
        counted[0] += 1
        return option(*args, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(rounds, "draft_option", count)
    plan, seen = control.plan, list[int]()

    def listen(outlooks: list[Outlook]) -> list[Plan]:
        before = counted[0]
        plans = plan(outlooks)
        if plans[0].proposer == "off":
            seen.append(counted[0] - before)
        return plans

    control.plan = listen  # type: ignore[method-assign, assignment]
    serve(control, [made], machine)
    assert len(seen) >= after + 200
    return sum(seen[after : after + 200]), 200


@pytest.mark.parametrize("lookup", [False, True], ids=["no lookup", "wrong lookup"])
def test_a_draft_that_was_given_up_is_seldom_thought_of(
    lookup: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, plain = evaluations(monkeypatch, hostile(lookup, 9))
    assert 0 < made <= plain / 5


def test_without_rest_that_would_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Controller, "_resting", lambda self, outlook: None)
    made, plain = evaluations(monkeypatch, hostile(False, 9))
    assert made == plain


@pytest.mark.parametrize("target", [flat, lambda n: 0.75 + 0.1 * (n - 1)], ids=["flat", "steep"])
def test_rest_changes_no_speed(
    target: Callable[[int], float], monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = Machine(target=target)

    def speed() -> float:
        """Of all workloads; a single one is a matter of luck, a few percent up or down."""
        made = [serve(controller(machine), of(), machine).speedup for of in WORKLOADS.values()]
        return statistics.geometric_mean(made)

    rested = speed()
    monkeypatch.setattr(Controller, "_resting", lambda self, outlook: None)
    assert rested >= 0.985 * speed()


def test_lookup_is_used_while_the_draft_rests() -> None:
    machine = Machine(target=flat)
    wrong = text(400, 3, acceptance=lambda _: 0.0, informative=False, repeats=0.6, run=20.0)
    result = serve(controller(machine), [wrong], machine)
    assert result.speedup > 1.5
    assert sum(t.plan.proposer == "draft" for t in result.rounds) < len(result.rounds) / 8


def test_what_waits_is_learned_before_anybody_asks() -> None:
    control = controller(Machine(target=flat), kinds=DRAFT)
    for count in range(1, 20):
        (plan,) = control.plan([Outlook(7, True, 100)])
        if plan.proposer == "draft":
            times = PLAIN._replace(tokens=1 + plan.num_tokens, draft_ms=0.3, draft_forwards=1)
            control.observe(times, [Outcome(7, plan, 1, 0, confidences=(0.5,))])
        else:
            control.observe(PLAIN, [Outcome(7, plan, 0, 0)])
        assert control._digest.rounds <= count
        control.explain(7)
        assert control._digest.rounds == count
        assert control._histories[7].committed == count


def test_a_slower_machine_is_noticed_in_plain_rounds_alone() -> None:
    control = controller(Machine(target=flat), kinds=frozenset())
    before = control.costs.plain()
    slower = PLAIN._replace(verify_ms=5.6, other_ms=0.6)
    for _ in range(200):
        (plan,) = control.plan([Outlook(7, True, 100)])
        control.observe(slower, [Outcome(7, plan, 0, 0)])
    assert control.costs.plain() == pytest.approx(2.0 * before, rel=0.05)


def test_a_newcomer_ends_the_rest() -> None:
    """Beside others a draft's passes are shared, so what was settled alone is asked again."""
    control = controller(Machine(target=flat), kinds=frozenset())
    control.plan([Outlook(1, True, 100)])
    assert control._histories[1].rest > 0
    control.plan([Outlook(1, True, 100), Outlook(2, True, 100)])
    assert control._histories[1].rest == 0
