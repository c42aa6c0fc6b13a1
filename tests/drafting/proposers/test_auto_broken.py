"""A policy, or a proposer, that breaks costs speed and nothing else."""

from collections.abc import Sequence
from typing import Any

import pytest

from specstream.drafting.policy.records import RoundOutcome, RoundPlan, RoundTimes
from tests.support.choosers import PROMPTS, Dice, alone, core_under, diced, greedy
from tests.support.tiny import answered, ask, run_until_idle


class Broken(Dice):
    """Breaks in one of its four ways, now and then or always."""

    def __init__(self, where: str, chance: float, seed: int = 0) -> None:
        super().__init__(seed)
        self.where, self.chance = where, chance
        self.broken = 0

    def _maybe(self, where: str) -> None:
        if where == self.where and self.rng.random() < self.chance:
            self.broken += 1
            raise ZeroDivisionError(where)

    def plan(self, outlooks: Any) -> list[RoundPlan]:
        self._maybe("plan")
        if self.where == "go on":
            self.stops = lambda: self._go_on
        plans = super().plan(outlooks)
        return plans[1:] if self.where == "too few" else plans

    def _go_on(self, q: float) -> bool:
        self._maybe("go on")
        return True

    def observe(self, times: RoundTimes, outcomes: Sequence[RoundOutcome]) -> None:
        self._maybe("observe")
        super().observe(times, outcomes)

    def forget(self, request_id: int) -> None:
        self._maybe("forget")
        super().forget(request_id)

    def explain(self, request_id: int | None = None) -> Any:
        self._maybe("explain")
        return super().explain(request_id)


@pytest.mark.parametrize("chance", [0.4, 1.0])
@pytest.mark.parametrize("where", ["plan", "go on", "too few", "observe", "forget", "explain"])
@pytest.mark.broken_proposer
def test_a_broken_policy_costs_speed_and_nothing_else(
    where: str, chance: float, caplog: pytest.LogCaptureFixture
) -> None:
    broken = Broken(where, chance)
    core = core_under(broken, max_running=3)
    asked = [ask(core, text, greedy(), session=text[:1]) for text in PROMPTS]
    run_until_idle(core)
    for text, (request, inbox) in zip(PROMPTS, asked):
        assert not inbox.errors
        assert inbox.token_ids == alone(text, eos=False)
        assert request.finish_reason == "length"
    assert core.slots.in_use == 0
    core.proposing.explain()
    assert where == "too few" or broken.broken > 0
    assert "broke" in caplog.text


@pytest.mark.broken_proposer
def test_what_is_broken_for_good_is_asked_ever_more_rarely() -> None:
    """To start afresh costs something, too: caches and indexes are made anew."""
    broken = Broken("plan", 1.0)
    core = core_under(broken)
    request, inbox = answered(core, "abab", greedy(130))
    assert len(inbox.token_ids) == 130 and not inbox.errors
    assert broken.broken == 7  # after 1, 3, 7, 15, 31 and 63 rounds of rest
    broken.chance = 0.0
    request, inbox = answered(core, "abab", greedy(200))
    assert request.stats.accepted > 5


@pytest.mark.parametrize("method", ["observe", "clock", "finish", "explain"])
@pytest.mark.broken_proposer
def test_a_proposer_that_breaks_after_the_verdict_ends_no_request(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    core, _ = diced(4, eos_ids=frozenset(), max_running=2)

    def explode(*args: object) -> None:
        raise RuntimeError("boom")

    asked = [ask(core, text, greedy()) for text in PROMPTS[:3]]
    core.step()
    core.step()
    monkeypatch.setattr(core.proposer, method, explode)
    run_until_idle(core)
    for text, (_, inbox) in zip(PROMPTS, asked):
        assert not inbox.errors
        assert inbox.token_ids == alone(text, eos=False)


@pytest.mark.broken_proposer
def test_a_proposal_that_is_too_long_is_not_used(caplog: pytest.LogCaptureFixture) -> None:
    core, dice = diced(4, eos_ids=frozenset())
    propose = core.proposer.propose

    def longer(requests: Any, budget: Any) -> Any:
        return propose(requests, [b + 90 for b in budget])

    core.proposer.propose = longer  # type: ignore[method-assign]
    dice.most = 50
    request, inbox = answered(core, "abab", greedy())
    assert inbox.token_ids == alone("abab", eos=False)
    assert "broke" in caplog.text
