"""The adaptive proposer carries out plans, tells what became of them, and can change no token."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from torch import Tensor

from specstream.engine.loop import EngineCore
from specstream.model.runner import ForwardInput, ModelRunner
from specstream.spec.control.controller import Controller
from specstream.spec.control.costs import Costs
from specstream.spec.control.records import Outcome, Plan, RoundTimes
from specstream.spec.proposal import StepTimes, Verdict
from specstream.types import SamplingParams
from tests.choosers import NOTHING, Dice, Steady, proposer_with
from tests.tables import TableCache, TableRunner
from tests.tiny import (
    EOS,
    ask,
    byte_tokenizer,
    make_core,
    noisy_copy,
    run_until_idle,
    tiny_model,
)

TOKENIZER = byte_tokenizer()
MODEL = tiny_model(len(TOKENIZER), seed=2)
DRAFT = noisy_copy(MODEL, 0.12)
PROMPTS = ["abab", "the cat sat on the mat, the cat", "zq", "1, 2, 3, 4, 1, 2, 3,", "aaaa", "xyzxy"]
SAMPLED = SamplingParams(temperature=1.0, max_tokens=40)


def greedy(count: int = 40) -> SamplingParams:
    return SamplingParams(max_tokens=count)


@functools.cache
def alone(text: str, count: int = 40) -> list[int]:
    """The same reply without drafts and neighbours."""
    core = make_core(MODEL, TOKENIZER, proposer_with(Dice(kinds=["off"]), None, target=RUNNER))
    _, inbox = ask(core, text, greedy(count))
    run_until_idle(core)
    return inbox.token_ids


RUNNER = ModelRunner(MODEL)


def diced(
    seed: int = 0, *, eos_ids: frozenset[int] = frozenset({EOS}), **options: Any
) -> tuple[EngineCore, Dice]:
    """An engine whose proposer is chosen by dice."""
    dice = Dice(seed)
    made = proposer_with(dice, ModelRunner(DRAFT), eos_ids=eos_ids)
    return make_core(MODEL, TOKENIZER, made, eos_ids=tuple(eos_ids), **options), dice


class Script(Dice):
    """Gives out written plans, one round after another, then nothing."""

    def __init__(self, *rounds: Sequence[Plan]) -> None:
        super().__init__()
        self.rounds = list(rounds)

    def plan(self, outlooks: Sequence[Any]) -> list[Plan]:
        self.outlooks = list(outlooks)
        self.plans = list(self.rounds.pop(0)) if self.rounds else [Plan("off", 0)] * len(outlooks)
        return self.plans


# Plans and what is proposed.


@pytest.mark.parametrize("seed", range(4))
def test_greedy_text_is_the_same_whatever_is_chosen(seed: int) -> None:
    core, dice = diced(seed, max_running=4)
    asked = [ask(core, text, greedy()) for text in PROMPTS]
    run_until_idle(core)
    sources: set[str] = set()
    for text, (request, inbox) in zip(PROMPTS, asked):
        assert inbox.token_ids == alone(text)
        sources |= {kind for kind, n in request.stats.proposer_rounds.items() if n}
    assert sources == {"draft", "ngram", "off"}
    assert sum(request.stats.accepted for request, _ in asked) > 20


def test_what_was_planned_is_proposed_all_kinds_in_one_step() -> None:
    script = Script()
    plans = [Plan("draft", 3), Plan("ngram", 2), Plan("off", 0), Plan("draft", 5), Plan("ngram", 9)]
    script.rounds = [plans]
    core = make_core(
        MODEL, TOKENIZER, proposer_with(script, ModelRunner(DRAFT)), eos_ids=(), max_running=5
    )
    texts = ["abab", "the cat the cat", "zq", "aaaa", "xyzxyzxyz"]
    asked = [ask(core, text, greedy()) for text in texts]
    core.step()  # round 0 drafts nothing
    assert [inbox.chunks[-1].drafted for _, inbox in asked] == [0] * 5
    core.step()
    drafted = [inbox.chunks[-1].drafted for _, inbox in asked]
    offers = [outlook.lookup for outlook in script.outlooks]
    assert drafted == [3, min(2, offers[1]), 0, 5, min(9, offers[4])]
    _, outcomes = script.told[-1]
    assert [o.plan for o in outcomes] == plans
    assert [o.drafted for o in outcomes] == drafted
    assert [o.accepted for o in outcomes] == [inbox.chunks[-1].accepted for _, inbox in asked]


def test_a_round_without_a_proposal_is_nobodys() -> None:
    core = make_core(MODEL, TOKENIZER, proposer_with(Script(), ModelRunner(DRAFT)), eos_ids=())
    request, _ = ask(core, "abab", greedy(10))
    run_until_idle(core)
    assert request.report().proposer_rounds == {"off": 10}


def test_a_plan_beyond_the_budget_is_cut() -> None:
    script = Script(*[[Plan("draft", 50)]] * 50)
    core = make_core(MODEL, TOKENIZER, proposer_with(script, ModelRunner(DRAFT)), eos_ids=())
    for text, room in (("abab", 9), ("a" * 505, 7)):  # the reply's room, and the context's
        script.rounds = [[Plan("draft", 50)]] * 50
        request, inbox = ask(core, text, greedy(room))
        run_until_idle(core)
        assert len(inbox.token_ids) == room
        assert inbox.token_ids == alone(text, room)
        assert max(chunk.drafted for chunk in inbox.chunks) <= room - 2


@pytest.mark.parametrize("most", [1, 2, 3])
def test_the_last_tokens_are_proposed_for_only_as_far_as_they_count(most: int) -> None:
    for seed in range(8):
        core, dice = diced(seed, eos_ids=frozenset())
        request, inbox = ask(core, "abab", greedy(most))
        run_until_idle(core)
        assert inbox.token_ids == alone("abab", most)
        assert all(0 < outlook.budget < most for outlook in dice.outlooks)
        assert all(c.drafted < most - c.tokens.start for c in inbox.chunks)


def test_without_a_draft_a_plan_for_one_is_a_plain_round() -> None:
    script = Script(*[[Plan("draft", 4)]] * 50)
    core = make_core(MODEL, TOKENIZER, proposer_with(script, None, target=RUNNER), eos_ids=())
    request, inbox = ask(core, "abab", greedy(9))
    run_until_idle(core)
    assert inbox.token_ids == alone("abab", 9)
    assert request.stats.drafted == 0


# What the controller hears.


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
            offer, match = brute_force(before, 1, 4)
            outlook = outlooks[outcome.id]
            assert (outcome.match, outlook.match) == (match, match)
            most = 5  # of `proposer_with`
            assert outlook.lookup == min(len(offer), outlook.budget, most)
            if request.finish_reason is None:
                offered = min(outlook.lookup, len(ids))
                agreed = sum(
                    1 for i in range(offered) if offer[: i + 1] == ids[: i + 1]
                )  # a prefix, so counting prefixes that agree is its length
                assert (outcome.offered, outcome.agreed) == (offered, agreed)
            compared += outcome.offered > 0 and outcome.plan.proposer != "ngram"
            used += outcome.plan.proposer == "ngram"
    assert compared > 10 and used > 10


def brute_force(ids: list[int], shortest: int, longest: int) -> tuple[list[int], int]:
    for n in range(longest, shortest - 1, -1):
        for at in range(len(ids) - 1, n - 1, -1):
            if len(ids) >= n and ids[at - n : at] == ids[-n:]:
                return ids[at:], n
    return [], 0


def test_confidences_are_those_of_the_proposed_tokens() -> None:
    core, dice = diced(5, eos_ids=frozenset())
    dice.stops = lambda: lambda q: q > 0.2
    ask(core, "abab", greedy(60))
    ask(core, "zq", SamplingParams(temperature=1.0, seed=2, max_tokens=60))
    run_until_idle(core)
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

    def plan(self, outlooks: Any) -> list[Plan]:
        self.log.append("plan")
        return super().plan(outlooks)

    def observe(self, times: RoundTimes, outcomes: Sequence[Outcome]) -> None:
        self.log.append("observe")
        super().observe(times, outcomes)

    def forget(self, request_id: int) -> None:
        self.log.append("forget")
        super().forget(request_id)


def test_every_round_is_told_the_last_one_too_and_then_forgotten() -> None:
    order = Order()
    core = make_core(MODEL, TOKENIZER, proposer_with(order, ModelRunner(DRAFT)), eos_ids=())
    request, _ = ask(core, "abab", greedy(40))
    run_until_idle(core)
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


def test_the_clock_comes_after_the_verdicts_and_says_what_the_step_was() -> None:
    core, dice = diced(2, eos_ids=frozenset(), max_running=3)
    for text in ("abab", "aaaa", "zq"):
        ask(core, text, greedy(30))
    fed: list[list[int]] = []
    forward = core.target.forward

    def spy(inputs: Sequence[ForwardInput]) -> list[Tensor]:
        fed.append([item.token_ids.shape[0] for item in inputs])
        return forward(inputs)

    core.target.forward = spy  # type: ignore[method-assign]
    draft = core.proposer._draft._runner  # type: ignore[attr-defined]
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


def test_a_step_that_reads_a_prompt_tells_outcomes_but_no_times() -> None:
    """Acceptance is as true as ever there; what such a step takes says nothing about later ones."""
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
    controller = Controller(
        kinds=frozenset({"draft"}), max_tokens=4, interactive=False, costs=Costs()
    )
    costs = controller.costs
    made = proposer_with(controller, ModelRunner(DRAFT))
    core = make_core(MODEL, TOKENIZER, made, eos_ids=())
    ask(core, "abab", greedy(400))
    core.step()
    prices = [costs.verify(3.0), costs.draft(1), costs.other(), costs.other(False), costs.read(9)]
    rounds = 0
    run = core._rounds.run

    def as_if_reading(step: Any) -> None:
        step.reading = Never()
        run(step)

    core._rounds.run = as_if_reading  # type: ignore[method-assign]
    while core.step() and rounds < 20:
        rounds += 1
    after = [costs.verify(3.0), costs.draft(1), costs.other(), costs.other(False), costs.read(9)]
    assert after == prices
    words = controller.explain().words
    assert "no round yet" not in words, words


class Never(list[Any]):
    """Nobody reads, but it looks as if somebody did."""

    def __bool__(self) -> bool:
        return True


def test_a_step_that_only_catches_up_is_not_taken_for_overhead() -> None:
    """A draft that reads a long prompt in parts proposes nothing yet; that time is the draft's."""
    script = Script(*[[Plan("draft", 4)]] * 90)
    made: Any = proposer_with(script, ModelRunner(DRAFT))
    made._draft._prefill_chunk = 16
    core = make_core(MODEL, TOKENIZER, made, eos_ids=())
    ask(core, "abc" * 30, greedy(30))
    core.step()
    behind = []
    while not script.told or not script.told[-1][1][0].drafted:
        core.step()
        times, (outcome,) = script.told[-1]
        behind.append(script.outlooks[0].behind)
        assert times.draft_ms > 0.0
        assert times.draft_read <= 16
        assert times.draft_read == 16 or outcome.drafted
    # A token is committed meanwhile, each time.
    assert behind == [90 + 1 - 2 - 15 * i for i in range(6)]
    core.step()
    assert script.told[-1][0].draft_read == 0


def test_a_draft_that_reads_in_small_parts_is_not_taken_for_mute() -> None:
    """The controller gives up on a draft that says nothing round after round."""
    made = proposer_with(Steady(), ModelRunner(noisy_copy(MODEL, 0.0)), prefill_chunk=4)
    core = make_core(MODEL, TOKENIZER, made, eos_ids=())
    request, _ = ask(core, "abcdefghijklm" * 4, greedy(60))
    run_until_idle(core)
    assert request.stats.proposer_rounds["draft"] > 5


def test_lookup_rounds_are_not_the_drafts_time() -> None:
    script = Script(*[[Plan("ngram", 4)]] * 90)
    core = make_core(MODEL, TOKENIZER, proposer_with(script, ModelRunner(DRAFT)), eos_ids=())
    ask(core, "abab", greedy(20))
    run_until_idle(core)
    assert {(t.draft_ms, t.draft_forwards, t.draft_read) for t, _ in script.told} == {(0.0, 0, 0)}


# A controller that breaks.


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

    def plan(self, outlooks: Any) -> list[Plan]:
        self._maybe("plan")
        if self.where == "go on":
            self.stops = lambda: self._go_on
        plans = super().plan(outlooks)
        return plans[1:] if self.where == "too few" else plans

    def _go_on(self, q: float) -> bool:
        self._maybe("go on")
        return True

    def observe(self, times: RoundTimes, outcomes: Sequence[Outcome]) -> None:
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
def test_a_broken_controller_costs_speed_and_nothing_else(
    where: str, chance: float, caplog: pytest.LogCaptureFixture
) -> None:
    broken = Broken(where, chance)
    core = make_core(
        MODEL, TOKENIZER, proposer_with(broken, ModelRunner(DRAFT)), eos_ids=(), max_running=3
    )
    asked = [ask(core, text, greedy(), session=text[:1]) for text in PROMPTS]
    run_until_idle(core)
    for text, (request, inbox) in zip(PROMPTS, asked):
        assert not inbox.errors
        assert inbox.token_ids == alone_without_eos(text)
        assert request.finish_reason == "length"
    assert core.slots.in_use == 0
    core.explain()
    assert where == "too few" or broken.broken > 0
    assert "broke" in caplog.text


@functools.cache
def alone_without_eos(text: str) -> list[int]:
    core = make_core(
        MODEL, TOKENIZER, proposer_with(Dice(kinds=["off"]), None, target=RUNNER), eos_ids=()
    )
    _, inbox = ask(core, text, greedy())
    run_until_idle(core)
    return inbox.token_ids


def test_what_is_broken_for_good_is_asked_ever_more_rarely() -> None:
    """To start afresh costs something, too: caches and indexes are made anew."""
    broken = Broken("plan", 1.0)
    core = make_core(MODEL, TOKENIZER, proposer_with(broken, ModelRunner(DRAFT)), eos_ids=())
    request, inbox = ask(core, "abab", greedy(130))
    run_until_idle(core)
    assert len(inbox.token_ids) == 130 and not inbox.errors
    assert broken.broken == 7  # after 1, 3, 7, 15, 31 and 63 rounds of rest
    broken.chance = 0.0
    request, inbox = ask(core, "abab", greedy(200))
    run_until_idle(core)
    assert request.stats.accepted > 5


@pytest.mark.parametrize("method", ["observe", "clock", "finish", "explain"])
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
        assert inbox.token_ids == alone_without_eos(text)


def test_a_proposal_that_is_too_long_is_not_used(caplog: pytest.LogCaptureFixture) -> None:
    core, dice = diced(4, eos_ids=frozenset())
    propose = core.proposer.propose

    def longer(requests: Any, budget: Any) -> Any:
        return propose(requests, [b + 90 for b in budget])

    core.proposer.propose = longer  # type: ignore[method-assign]
    dice.most = 50
    request, inbox = ask(core, "abab", greedy())
    run_until_idle(core)
    assert inbox.token_ids == alone_without_eos("abab")
    assert "broke" in caplog.text


# What is kept, and for how long.


def test_nothing_is_kept_of_requests_that_are_over() -> None:
    core, dice = diced(6, max_running=4, max_sessions=2)
    rng = random.Random(2)
    for number in range(60):
        session = rng.choice([None, None, "s", "t", "u", "v"])
        params = greedy(rng.randint(1, 20)) if rng.random() < 0.5 else SAMPLED
        _, inbox = ask(core, rng.choice(PROMPTS), params, session=session)
        if rng.random() < 0.3:
            core.step()
            inbox.delivery.cancelled = True
        if number % 7 == 0:
            run_until_idle(core)
    run_until_idle(core)
    made: Any = core.proposer
    assert not made._rounds and not dice.known
    assert core.slots.kept == 2
    kept = {slot.id for slot in core.slots._kept.values()}
    assert set(made._draft._sequences) <= kept
    assert set(made._lookup._indexes) <= kept
    for session in "stuv":
        core.slots.forget(session)
    assert not made._draft._sequences and not made._lookup._indexes


# Requests that want no drafts, beside others.


def test_a_request_that_wants_no_drafts_is_never_asked_about() -> None:
    core, dice = diced(7, eos_ids=frozenset(), max_running=3)
    plain, plain_inbox = ask(core, "abab", greedy())
    plain.proposer = "off"
    drafted, inbox = ask(core, "aaaa", greedy())
    run_until_idle(core)
    assert plain_inbox.token_ids == alone_without_eos("abab")
    assert inbox.token_ids == alone_without_eos("aaaa")
    assert plain.report().proposer_rounds == {"off": 40}
    assert plain.report().explanation == ""
    assert dice.forgotten == [drafted.id]
    assert all(o.id == drafted.id for _, outcomes in dice.told for o in outcomes)


# Caches of the draft, whatever happens.


class Watched(TableRunner):
    """A draft that checks, at each pass, that what its cache holds is what the request says."""

    def __init__(self, core: Callable[[], EngineCore]) -> None:
        super().__init__(len(TOKENIZER), seed=3, eager=0.0)
        self.core = core
        self.checked = 0

    def forward(self, inputs: Sequence[ForwardInput]) -> list[Tensor]:
        core = self.core()
        proposer: Any = core.proposer
        for item in inputs:
            (slot,) = (s for s, q in proposer._draft._sequences.items() if q.cache is item.cache)
            state = proposer._draft._sequences[slot]
            (request,) = (r for r in core.scheduler.running if r.slot_state and r.slot == slot)
            cache: Any = item.cache
            assert isinstance(cache, TableCache)
            held = [*cache.tokens, *item.token_ids.tolist()]
            own = request.token_ids[state.start :]
            assert held[: len(own)] == own[: len(held)]
            self.checked += 1
        return super().forward(inputs)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize(
    ("window", "chunk", "context"), [(256, 512, 999), (8, 5, 999), (8, 512, 30)]
)
def test_the_draft_never_goes_on_from_a_row_that_is_not_the_requests(
    seed: int, window: int, chunk: int, context: int
) -> None:
    """Stops inside a block, cancels, faults, edited histories, windows, two requests of a session."""
    rng = random.Random(seed)
    table: Any = TableRunner(len(TOKENIZER), seed=3, eager=0.0)
    box: list[EngineCore] = []
    watched: Any = Watched(lambda: box[0])
    watched.context_length = context
    dice = Dice(seed)
    made: Any = proposer_with(dice, watched, window=window)
    made._draft._prefill_chunk = chunk
    core = EngineCore(
        make_config(),
        table,
        TOKENIZER,
        made,
        frozenset({EOS}),
    )
    box.append(core)
    history = dict.fromkeys("st", "abcabcabc")
    for _ in range(25):
        name = rng.choice("st")
        text = history[name]
        inboxes = []
        for _ in range(rng.choice([1, 1, 2])):
            params = SamplingParams(
                temperature=rng.choice([0.0, 1.0]),
                seed=rng.randrange(99),
                max_tokens=rng.randint(1, 25),
                stop=(rng.choice("abcdefgh"),) if rng.random() < 0.5 else (),
            )
            inboxes.append(ask(core, text, params, session=name)[1])
        ask(core, rng.choice(PROMPTS), greedy(9))
        for _ in range(rng.randrange(12)):
            core.step()
        trouble = rng.random()
        if trouble < 0.3:
            inboxes[0].delivery.cancelled = True
        elif trouble < 0.45:
            fail_once(table)
        elif trouble < 0.6:
            fail_once(watched)
        run_until_idle(core)
        grown = text + inboxes[0].text + rng.choice(["?", " and", "abc"])
        cut = rng.randrange(len(grown))
        edits = [grown, grown, grown[:cut] + "z" + grown[cut + 1 :], grown[cut:], grown[: cut + 1]]
        history[name] = (rng.choice(edits) or "a")[-120:]
    assert watched.checked > 60


def make_config() -> Any:
    from specstream.config import EngineConfig

    return EngineConfig(max_running=3, prefill_chunk=16)


def fail_once(runner: TableRunner) -> None:
    forward = runner.forward

    def broken(inputs: Sequence[ForwardInput]) -> list[Tensor]:
        runner.forward = forward  # type: ignore[method-assign]
        forward(inputs)  # the rows are in the cache, and nobody hears of them
        raise RuntimeError("boom")

    runner.forward = broken  # type: ignore[method-assign]


def test_a_history_that_lost_its_beginning_is_read_afresh_not_from_the_middle() -> None:
    """Else the draft would know a few tokens only, of a prompt that has many."""
    script = Script(*[[Plan("draft", 3)]] * 200)
    made: Any = proposer_with(script, ModelRunner(DRAFT), window=32)
    core = make_core(MODEL, TOKENIZER, made, eos_ids=())
    ask(core, "abc" * 40, greedy(12), session="s")  # of 120 tokens the draft reads the last 32
    run_until_idle(core)
    script.rounds = [[Plan("draft", 3)]] * 20
    request, _ = ask(core, "xyz" * 33, greedy(12), session="s")  # 99 tokens
    core.step()
    core.step()
    state = made._draft._sequences[request.slot]
    assert request.prompt_length - state.start >= 31


# Beside a reproducible engine.


@pytest.mark.parametrize("temperature", [0.0, 1.2])
def test_the_reproducible_mode_gives_the_same_tokens_whatever_is_chosen(temperature: float) -> None:
    model = tiny_model(len(TOKENIZER), seed=2, context=160)
    draft = noisy_copy(model, 0.1)
    params = SamplingParams(temperature, top_p=0.95, seed=5, max_tokens=40)
    replies, accepted = [], 0
    for seed in (None, 0, 1, 2):
        dice = Dice(seed or 0, kinds=["off"] if seed is None else ("draft", "ngram", "off"))
        made = proposer_with(dice, ModelRunner(draft), most=7)
        config = make_config().model_copy(update={"mode": "reproducible"})
        target = ModelRunner(model, fixed_width=8)
        core = EngineCore(config, target, TOKENIZER, made, frozenset())
        request, inbox = ask(core, "one, two, one,", params)
        for number in range(seed or 0):
            ask(core, PROMPTS[number], SAMPLED)
        run_until_idle(core)
        replies.append(inbox.token_ids)
        accepted += request.stats.accepted
    assert len(replies[0]) == 40
    assert all(reply == replies[0] for reply in replies)
    assert accepted > 10


def test_a_fixed_width_bounds_the_proposals() -> None:
    script = Script(*[[Plan("draft", 50)]] * 90)
    target = ModelRunner(tiny_model(len(TOKENIZER), seed=2, context=160), fixed_width=8)
    config = make_config().model_copy(update={"mode": "reproducible"})
    made = proposer_with(script, ModelRunner(DRAFT))
    core = EngineCore(config, target, TOKENIZER, made, frozenset())
    _, inbox = ask(core, "abab", greedy(30))
    run_until_idle(core)
    assert not inbox.errors
    assert max(chunk.drafted for chunk in inbox.chunks) == 7


# Small things of the records.


def test_an_outcome_counts_the_agreeing_beginning_only() -> None:
    dice = Dice(kinds=["off"])
    made = proposer_with(dice, None, target=RUNNER)
    text: Any = SimpleNamespace(
        token_ids=[1, 2, 3, 4, 5, 1], prompt_length=6, reference_ids=[], id=7, slot=0,
        params=greedy(), phrase_left=None,
    )  # fmt: skip
    times = StepTimes(1.0, 1.0, 3.0, rows=1, tokens=1)
    for tokens, agreed in (((2, 3, 9, 5), 2), ((2, 3, 4, 5), 4), ((9, 3), 0), ((2,), 1)):
        made.propose([text], [9])
        made.observe([text], [Verdict(len(tokens) - 1, tokens[-1], (), tokens)])
        made.clock(times)
        (outcome,) = dice.told[-1][1]
        assert (outcome.offered, outcome.agreed) == (len(tokens), agreed)
        assert outcome.match == 1


def test_a_request_is_not_looked_up_after_it_is_over() -> None:
    made: Any = proposer_with(Dice(), None, target=RUNNER)
    made.finish(3)
    made.finish(3)
    made.release(3)
    made.release(3)
    made.observe([], [])
    made.clock(StepTimes(0.0, 0.0, 0.0, 0, 0))
    assert made.explain(3) is NOTHING
