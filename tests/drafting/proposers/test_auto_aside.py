"""What the policy learns from requests that want no proposals."""

from typing import Any

import pytest

from specstream.drafting.policy.costs import Costs
from specstream.drafting.policy.policy import Policy
from specstream.drafting.policy.records import Candidate, RoundTimes
from specstream.model.forward import PLAIN
from tests.support.choosers import diced, greedy
from tests.support.tiny import ask


def test_rounds_of_requests_that_want_no_proposals_tell_what_a_plain_one_costs() -> None:
    core, dice = diced(1, eos_ids=frozenset(), max_running=3)
    ask(core, "abab", greedy(20), proposer="off")
    ask(core, "the cat", greedy(20), proposer="off")
    while core.step():
        pass
    assert [(times.rows, times.tokens) for times in dice.aside] == [(2, 2)] * 19  # all but the first
    assert all(times.verify_ms > 0.0 and times.draft_ms == 0.0 for times in dice.aside)
    assert not dice.told


def test_a_step_with_others_in_it_or_with_a_prompt_to_read_tells_nothing_of_the_kind() -> None:
    core, dice = diced(1, eos_ids=frozenset(), max_running=3)
    ask(core, "abab", greedy(60), proposer="off")
    core.step()
    ask(core, "the cat", greedy(10))
    steps = 0
    while len(core.scheduler.running) == 2 or not steps:
        core.step()
        steps += 1
    assert steps > 1 and not dice.aside
    core.step()
    assert len(dice.aside) == 1


@pytest.mark.parametrize("believed_ms", [2.0, 1.0, 3.0])
def test_the_price_of_a_plain_round_is_learned(believed_ms: float) -> None:
    """Whatever a calibration said: a prediction would be as far off as that."""
    widths = {1: believed_ms, 9: believed_ms + 0.5}
    costs = Costs(widths)
    policy = Policy([Candidate("draft", "the draft model")], costs, max_tokens=8)
    plain = RoundTimes(
        draft_ms=0.0,
        draft_forwards=0,
        draft_read=0,
        verify_ms=2.0,
        rows=1,
        tokens=1,
        other_ms=0.3,
        plan_ms=0.0,
    )
    for _ in range(8):
        policy.observe(plain, [])
    if believed_ms != 2.0:  # learned from no later than that
        assert abs(costs.plain() - 2.3) < abs(believed_ms + 0.3 - 2.3)
    for _ in range(152):
        policy.observe(plain, [])
    assert costs.plain() == pytest.approx(2.3, rel=0.03)


def test_a_step_that_failed_is_not_taken_for_anybody_elses() -> None:
    """The draft's passes of a step whose target broke must not be told with the next plain one."""
    core, dice = diced(1, eos_ids=frozenset(), max_running=3)
    dice.kinds = ["draft"]
    bystander, _ = ask(core, "the cat", greedy(40), proposer="off")
    core.step()
    core.step()
    assert len(dice.aside) == 1
    failing, _ = ask(core, "abab", greedy(40))
    core.step()
    forward = core.target.forward

    def break_down(inputs: Any, extras: Any = PLAIN) -> Any:
        raise RuntimeError("out of memory")

    bystander.delivery.limit = 0  # parked meanwhile
    core.target.forward = break_down  # type: ignore[method-assign]
    core.step()
    assert failing.error is not None
    core.target.forward = forward  # type: ignore[method-assign]
    bystander.delivery.limit = 2**62
    core.step()
    assert len(dice.aside) == 1  # of the first one, it isn't known what it was
    core.step()
    assert len(dice.aside) == 2
    assert all(times.draft_forwards == 0 for times in dice.aside)
