"""What the policy hears of the rounds that it planned, and when."""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from specstream.drafting.optional import StepTimes
from specstream.drafting.policy.costs import Costs, DraftCosts
from specstream.drafting.policy.policy import Policy
from specstream.drafting.policy.records import Candidate, RoundOutcome, RoundPlan, RoundTimes
from specstream.drafting.proposal import Verdict
from specstream.drafting.proposers.off import OffProposer
from specstream.engine.core.lifecycle import PrefillBudget
from specstream.model.forward import PLAIN, Extras, ForwardInput, ForwardOutput
from specstream.model.runner import ModelRunner
from specstream.types import SamplingParams
from tests.drafting.proposers.test_suffix import by_brute_force
from tests.support.choosers import (
    DRAFT,
    MODEL,
    RUNNER,
    TOKENIZER,
    Dice,
    Script,
    Steady,
    core_under,
    diced,
    greedy,
    proposer_with,
)
from tests.support.drafts import Text
from tests.support.tiny import answered, ask, make_core, noisy_copy, run_until_idle


def test_steps_without_drafts_are_neither_offered_nor_planned_but_told() -> None:
    core, dice = diced(3, eos_ids=frozenset())
    off = make_core(MODEL, TOKENIZER, OffProposer(), eos_ids=())
    alone, _ = answered(off, "ababab", greedy(60))
    request, _ = ask(core, "ababab", greedy(60))
    steps = {True: 0, False: 0}
    while core.step():
        planned, told = bool(dice.outlooks), len(dice.plain)
        if request.stats.rounds > 1:
            steps[dice.resting] += 1
            assert planned is not dice.resting
            assert told == steps[True] or request.over  # there was no room for a draft
        dice.outlooks = []
        # The last steps are plain, so that a request ends in one.
        dice.resting = request.stats.rounds % 2 == 0 or request.sequence.room < 12
    assert min(steps.values()) > 3
    assert request.token_ids == alone.token_ids
    assert all(requests == {request.id: True} for _, requests in dice.plain)
    assert all(times.rows == times.tokens == 1 for times, _ in dice.plain)
    assert dice.forgotten == [request.id], "after its last round was told"


def test_lookup_is_compared_though_it_was_not_used() -> None:
    core, dice = diced(3, eos_ids=frozenset(), max_running=3)
    asked = [ask(core, text, greedy(60)) for text in ("ababab", "aaaa", "the cat the cat")]
    compared = used = 0
    while True:
        texts = {r.id: list(r.token_ids) for r, _ in asked}
        told = len(dice.told)
        if not core.step():
            break
        if len(dice.told) == told:
            continue
        outlooks = {outlook.id: outlook for outlook in dice.outlooks}
        for outcome in dice.told[-1][1]:
            (request,) = (r for r, _ in asked if r.id == outcome.id)
            before = texts[outcome.id]
            ids = request.token_ids[len(before) :]
            offer, _ = by_brute_force(before, 1)
            outlook = outlooks[outcome.id]
            lookup = outlook.offers["suffix"]
            most = 5  # of `proposer_with`
            assert lookup.tokens == min(len(offer), outlook.budget, most)
            if request.finish_reason is None:
                offered = min(lookup.tokens, len(ids))
                agreed = sum(
                    1 for i in range(offered) if offer[: i + 1] == ids[: i + 1]
                )  # a prefix, so counting prefixes that agree is its length
                assert outcome.compared.get("suffix", (0, 0)) == (offered, agreed)
            compared += bool(outcome.compared) and outcome.plan.proposer != "suffix"
            used += outcome.plan.proposer == "suffix"
    assert compared > 10 and used > 10


def test_confidences_are_those_of_the_proposed_tokens() -> None:
    core, dice = diced(5, eos_ids=frozenset())
    dice.stops = lambda: lambda q: q > 0.2
    ask(core, "abab", greedy(60))
    answered(core, "zq", SamplingParams(temperature=1.0, max_tokens=60), noise=2)
    outcomes = [o for _, told in dice.told for o in told if o.plan.go_on is not None]
    assert len(outcomes) > 20
    for outcome in outcomes:
        assert len(outcome.confidences) == outcome.drafted
        assert all(0.2 < q <= 1.0 for q in outcome.confidences[:-1])
        if outcome.drafted < outcome.plan.num_tokens:
            assert outcome.confidences[-1] <= 0.2


class Order(Dice):
    """Notes in which order things are said."""

    def __init__(self) -> None:
        super().__init__(kinds=["draft"])
        self.log: list[str] = []

    def plan(self, outlooks: Any) -> list[RoundPlan]:
        self.log.append("plan")
        return super().plan(outlooks)

    def observe(self, times: RoundTimes, outcomes: Sequence[RoundOutcome]) -> None:
        self.log.append("observe")
        super().observe(times, outcomes)

    def forget(self, request_id: int) -> None:
        self.log.append("forget")
        super().forget(request_id)


def test_every_round_is_told_the_last_one_too_and_then_forgotten() -> None:
    order = Order()
    core = core_under(order)
    request, _ = answered(core, "abab", greedy(40))
    rounds = request.stats.rounds - 1  # but for round 0, which drafts nothing
    assert order.log == ["plan", "observe"] * rounds + ["forget"]
    told = [outcome for _, outcomes in order.told for outcome in outcomes]
    assert sum(outcome.accepted for outcome in told) == request.stats.accepted
    assert sum(outcome.drafted for outcome in told) == request.stats.drafted
    assert order.forgotten == [request.id]


@pytest.mark.parametrize("way", ["cancelled", "stopped", "broken"])
def test_whatever_ends_a_request_it_is_forgotten(way: str) -> None:
    core, dice = diced(1, eos_ids=frozenset(), max_running=2)
    criteria: tuple[Callable[..., bool], ...] = ()
    if way == "broken":
        criteria = (lambda ids, text: 1 // (12 - len(ids)) > 9,)
    params = SamplingParams(max_tokens=12 if way == "stopped" else 300, stop_when=criteria)
    request, inbox = ask(core, "abab", params)
    for _ in range(5):
        core.step()
    assert dice.known <= {request.id}
    inbox.delivery.cancelled = way == "cancelled"
    run_until_idle(core)
    assert not dice.known
    assert set(dice.forgotten) == {request.id}


@pytest.mark.usefixtures("single_steps")
def test_the_clock_comes_after_the_verdicts_and_says_what_the_step_was() -> None:
    core, dice = diced(2, eos_ids=frozenset(), max_running=3)
    for text in ("abab", "aaaa", "zq"):
        ask(core, text, greedy(30))
    fed: list[list[int]] = []
    forward = core.target.forward

    def spy(inputs: Sequence[ForwardInput], extras: Extras = PLAIN) -> ForwardOutput:
        fed.append([item.token_ids.shape[0] for item in inputs])
        return forward(inputs, extras)

    core.target.forward = spy  # type: ignore[method-assign]
    draft = core.proposer.candidates["draft"].runner  # type: ignore[attr-defined]
    core.step()
    while True:
        passes = draft.forwards
        told = len(dice.told)
        if not core.step():
            break
        if len(dice.told) == told:
            continue  # nobody had room for a proposal
        times, outcomes = dice.told[-1]
        assert len(dice.told) == told + 1
        assert (times.rows, times.tokens) == (len(fed[-1]), sum(fed[-1]))
        assert times.tokens >= times.rows + sum(o.drafted for o in outcomes) - (
            times.rows - len(outcomes)
        )
        longest = max([o.drafted for o in outcomes if o.plan.proposer == "draft"], default=0)
        assert times.draft_forwards == longest
        assert (times.draft_ms > 0.0) == (longest > 0)
        assert draft.forwards >= passes + longest
        assert times.verify_ms > 0.0 and times.other_ms >= 0.0


def test_a_step_that_reads_a_prompt_tells_outcomes_but_no_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """Acceptance is as true as ever there; what such a step takes says nothing about later ones."""
    monkeypatch.setattr(PrefillBudget, "tokens", lambda self, most, proposed, **how: 64)
    core, dice = diced(2, eos_ids=frozenset(), max_running=2)
    ask(core, "abab", greedy(200))
    for _ in range(4):
        core.step()
    heard = len(dice.told)
    newcomer, _ = ask(core, "a" * 300, greedy(5))  # read beside the rounds, in several steps
    readings = 0
    while newcomer.stats.rounds == 0:
        core.step()
        readings += 1
        times, outcomes = dice.told[-1]
        assert times.rows == 0
        assert [outcome.id for outcome in outcomes] == [core.scheduler.running[0].id]
    assert readings > 2
    assert len(dice.told) == heard + readings
    core.step()
    assert dice.told[-1][0].rows == 2


def test_outcomes_without_times_teach_acceptance_and_no_prices() -> None:
    """What the engine relies on when it says that a step had no rows."""
    costs = Costs({1: 4.0, 9: 5.0})
    costs.drafts["draft"] = DraftCosts(1.0)
    policy = Policy([Candidate("draft", "the draft model")], costs, max_tokens=4)
    made: Any = proposer_with(policy, ModelRunner(DRAFT))
    core = make_core(MODEL, TOKENIZER, made, eos_ids=())
    ask(core, "abab", greedy(400))
    core.step()
    drafts = costs.drafts["draft"]
    prices = [costs.verify(3.0), drafts.step, costs.other(), costs.other(False), drafts.read]
    rounds = 0
    told = made.clock
    made.clock = lambda times: told(replace(times, rows=0))
    while core.step() and rounds < 20:
        rounds += 1
    after = [costs.verify(3.0), drafts.step, costs.other(), costs.other(False), drafts.read]
    assert after == prices
    words = policy.explain().words
    assert "no round yet" not in words, words


def test_a_step_that_only_catches_up_is_not_taken_for_overhead() -> None:
    """A draft that reads a long prompt in parts proposes nothing yet; that time is the draft's."""
    script = Script(*[[RoundPlan("draft", 4)]] * 90)
    made: Any = proposer_with(script, ModelRunner(DRAFT))
    made.candidates["draft"].prefill_chunk = 16
    core = make_core(MODEL, TOKENIZER, made, eos_ids=())
    ask(core, "abc" * 30, greedy(30))
    core.step()
    behind = []
    while not script.told or not script.told[-1][1][0].drafted:
        core.step()
        times, (outcome,) = script.told[-1]
        behind.append(script.outlooks[0].offers["draft"].behind)
        assert times.draft_ms > 0.0
        assert times.draft_read <= 16
        assert times.draft_read == 16 or outcome.drafted
    # A token is committed meanwhile, each time.
    assert behind == [90 + 1 - 2 - 15 * i for i in range(6)]
    core.step()
    assert script.told[-1][0].draft_read == 0


def test_a_draft_that_reads_in_small_parts_is_not_taken_for_mute() -> None:
    """The policy gives up on a draft that says nothing round after round."""
    made = proposer_with(Steady(), ModelRunner(noisy_copy(MODEL, 0.0)), prefill_chunk=4)
    core = make_core(MODEL, TOKENIZER, made, eos_ids=())
    request, _ = answered(core, "abcdefghijklm" * 4, greedy(60))
    assert request.stats.proposer_rounds["draft"] > 5


def test_lookup_rounds_are_not_the_drafts_time() -> None:
    script = Script(*[[RoundPlan("suffix", 4)]] * 90)
    core = core_under(script)
    answered(core, "abab", greedy(20))
    assert {(t.draft_ms, t.draft_forwards, t.draft_read) for t, _ in script.told} == {(0.0, 0, 0)}


def test_an_outcome_counts_the_agreeing_beginning_only() -> None:
    dice = Dice(kinds=["off"])
    made = proposer_with(dice, None, target=RUNNER)
    text = Text([1, 2, 3, 4, 5, 1], id=7, prompt_length=6)
    times = StepTimes(1.0, 1.0, 3.0, rows=1, tokens=1)
    for tokens, agreed in (((2, 3, 9, 5), 2), ((2, 3, 4, 5), 4), ((9, 3), 0), ((2,), 1)):
        made.propose([text], [9])
        made.observe([text], [Verdict(len(tokens) - 1, tokens[-1], (), tokens)])
        made.clock(times)
        (outcome,) = dice.told[-1][1]
        assert outcome.compared == {"suffix": (len(tokens), agreed)}


def test_what_choosing_costs_is_told_apart() -> None:
    """Looking up and planning are no part of a draft pass or a plain round; learning comes after."""
    ticks = itertools.count()
    dice = Dice(kinds=["off"])
    # Each reading of the clock is a millisecond after the one before.
    made = proposer_with(dice, None, target=RUNNER, now=lambda: next(ticks) * 1e-3)
    text = Text([1, 2, 3, 4, 5, 1], id=7, prompt_length=6)
    for learning_ms in (0.0, 1.0, 1.0):
        made.propose([text], [9])
        made.observe([text], [Verdict(0, 9, (), (9,))])
        made.clock(StepTimes(1.5, 4.0, 7.0, rows=1, tokens=1))
        times = dice.told[-1][0]
        assert times.plan_ms == pytest.approx(1.0 + learning_ms)
        assert times.draft_ms == 0.0
        assert times.other_ms == pytest.approx(7.0 - 4.0 - 1.0)
