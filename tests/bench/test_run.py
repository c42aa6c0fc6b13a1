"""The schedule of the experiment, with fake arms that advance a fake clock."""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Sequence

import pytest

from specstream.bench.prompts import Prompt, PromptSet
from specstream.bench.records import BenchRun, Record
from specstream.bench.run import Budget, Faults, Outcome, cells, run_cells, turned, warm_up
from specstream.errors import EngineFailed, PromptError
from specstream.types import Message, SamplingParams
from tests.bench.made import reply

PARAMS = SamplingParams(max_tokens=100, seed=5)


class FakeArm:
    """An arm that answers with its tokens, advances the clock and records its requests."""

    def __init__(
        self, name: str, clock: list[float], seconds: float = 1.0, fail: Exception | None = None
    ) -> None:
        self.name = name
        self.setting = ""
        self.asked: list[tuple[Sequence[Message], SamplingParams]] = []
        self._clock = clock
        self._seconds = seconds
        self.fail = fail

    async def run(self, messages: Sequence[Message], params: SamplingParams) -> BenchRun:
        self.asked.append((messages, params))
        self._clock[0] += self._seconds
        if self.fail is not None:
            raise self.fail
        return reply(1, 2, 3)


def prompts(*domains: str, each: int = 2) -> PromptSet:
    made = [
        Prompt(f"{d}-{i}", d, ({"role": "user", "content": f"{d} {i}"},))
        for d in domains
        for i in range(each)
    ]
    return PromptSet(tuple(made), "test", "")


async def measured(
    arms: list[FakeArm],
    of: PromptSet,
    clock: list[float],
    *,
    repeats: int = 1,
    budget: float | None = None,
    keep: Callable[[Record], None] = lambda record: None,
) -> Outcome:
    outcome = Outcome()
    limit = Budget(budget, lambda: clock[0])
    await run_cells(arms, list(cells(of, repeats)), PARAMS, limit, outcome, keep=keep)
    return outcome


async def test_every_arm_runs_in_every_cell_in_turning_order() -> None:
    clock = [0.0]
    arms = [FakeArm("own", clock), FakeArm("auto", clock)]
    kept: list[Record] = []
    outcome = await measured(arms, prompts("chat", "math"), clock, keep=kept.append)
    assert outcome.cells == 4
    assert not outcome.cut_short
    assert kept == outcome.records
    assert [(r.domain, r.arm) for r in kept if r.domain == "chat"] == [
        ("chat", "own"), ("chat", "auto"), ("chat", "auto"), ("chat", "own"),
    ]  # fmt: skip
    assert [r.place for r in kept] == [0, 1] * 4


async def test_all_arms_are_asked_the_same_and_repeats_differ_in_their_seed() -> None:
    clock = [0.0]
    arms = [FakeArm("own", clock), FakeArm("generate", clock)]
    await measured(arms, prompts("chat", each=1), clock, repeats=2)
    assert arms[0].asked == arms[1].asked
    assert len({params.seed for _, params in arms[0].asked}) == 2
    assert arms[0].asked[0][0][0]["content"] == "chat 0"


async def test_a_used_up_budget_ends_it_but_leaves_no_domain_without_a_figure() -> None:
    clock = [0.0]
    arms = [FakeArm("own", clock, seconds=10.0)]
    outcome = await measured(arms, prompts("chat", "math", "code", each=5), clock, budget=15.0)
    assert {r.domain for r in outcome.records} == {"chat", "math", "code"}
    assert outcome.cells == 3
    assert "budget" in outcome.cut_short


async def test_a_cell_that_would_not_fit_is_not_begun() -> None:
    clock = [0.0]
    outcome = await measured([FakeArm("own", clock)], prompts("chat", each=9), clock, budget=4.5)
    assert outcome.cells == 4


async def test_a_peer_that_breaks_is_left_out_with_all_it_did() -> None:
    clock = [0.0]
    own, peer = FakeArm("own", clock), FakeArm("assisted", clock)
    of = prompts("chat", each=4)

    def break_later(record: Record) -> None:
        if record.prompt == "chat-1":
            peer.fail = RuntimeError("no such cache\nand more")

    outcome = await measured([own, peer], of, clock, keep=break_later)
    assert outcome.broken == {"assisted": "no such cache"}
    assert {r.arm for r in outcome.records} == {"own"}
    assert len(outcome.records) == 4
    assert len(peer.asked) < 4


async def test_our_own_failures_are_not_hidden() -> None:
    clock = [0.0]
    with pytest.raises(ZeroDivisionError):
        await measured([FakeArm("auto", clock, fail=ZeroDivisionError())], prompts("chat"), clock)
    with pytest.raises(EngineFailed):
        await measured([FakeArm("lookup", clock, fail=EngineFailed("x"))], prompts("chat"), clock)


async def test_a_prompt_that_does_not_fit_is_named() -> None:
    clock = [0.0]
    arm = FakeArm("own", clock, fail=PromptError("too long"))
    with pytest.raises(PromptError, match="prompt chat-0: too long"):
        await measured([arm], prompts("chat"), clock)


async def test_cancelling_leaves_the_complete_cells() -> None:
    clock = [0.0]
    own, auto = FakeArm("own", clock), FakeArm("auto", clock)
    outcome = Outcome()

    def stop(record: Record) -> None:
        if record.prompt == "chat-1":
            auto.fail = asyncio.CancelledError()  # type: ignore[assignment]

    todo = list(cells(prompts("chat", each=3), 1))
    with pytest.raises(asyncio.CancelledError):
        await run_cells([auto, own], todo, PARAMS, Budget(None, lambda: clock[0]), outcome, keep=stop)
    assert [(r.prompt, r.arm) for r in outcome.records] == [("chat-0", "auto"), ("chat-0", "own")]


async def test_warming_up_is_short_and_kept_by_nobody() -> None:
    clock = [0.0]
    arm, outcome = FakeArm("own", clock), Outcome()
    await warm_up([arm], prompts("chat", "math", "code"), PARAMS, outcome)
    assert [params.max_tokens for _, params in arm.asked] == [32, 32]
    assert not outcome.records
    arm.asked.clear()
    await warm_up([arm], prompts("chat", "math", "code"), PARAMS, outcome, thorough=True)
    assert [params.max_tokens for _, params in arm.asked] == [100] * 7


async def test_a_peer_that_breaks_in_the_warm_up_never_runs() -> None:
    clock = [0.0]
    arms = [FakeArm("own", clock), FakeArm("lookup", clock, fail=ValueError("no"))]
    outcome = Outcome()
    await warm_up(arms, prompts("chat"), PARAMS, outcome)
    todo = list(cells(prompts("chat"), 1))
    await run_cells(arms, todo, PARAMS, Budget(None, lambda: clock[0]), outcome)
    assert {r.arm for r in outcome.records} == {"own"}
    assert len(arms[1].asked) == 1


async def test_how_far_it_is_is_told_before_every_step() -> None:
    clock = [0.0]
    arms = [FakeArm("own", clock), FakeArm("auto", clock)]
    of, outcome, told = prompts("chat", "math", each=2), Outcome(), list[tuple[int, int]]()

    def tell(done: int, total: int) -> None:
        told.append((done, total))

    await warm_up(arms, of, PARAMS, outcome, tell=tell)
    assert told == [(0, 2), (1, 2)]
    told.clear()
    budget = Budget(5.0, lambda: clock[0] - 2.0)
    await run_cells(arms, list(cells(of, 1)), PARAMS, budget, outcome, tell=tell)
    assert told == [(0, 4), (1, 4), (2, 4), (3, 4)]


def counts(**of: int) -> PromptSet:
    made = [Prompt(f"{d}-{i}", d, ()) for d, count in of.items() for i in range(count)]
    return PromptSet(tuple(made), "test", "")


def test_domains_take_turns_and_every_prompt_comes_before_any_comes_again() -> None:
    order = [(c.prompt.id, c.repeat) for c in cells(counts(chat=2, math=1), 2)]
    once = ["chat-0", "math-0", "chat-1"]
    assert order == [(i, 0) for i in once] + [(i, 1) for i in once]


def test_visits_count_the_cells_of_a_domain() -> None:
    visits = [(c.prompt.domain, c.visit) for c in cells(counts(chat=2, math=1), 2)]
    assert [v for d, v in visits if d == "chat"] == [0, 1, 2, 3]
    assert [v for d, v in visits if d == "math"] == [0, 1]


def test_arms_go_there_and_back_and_then_from_the_next() -> None:
    assert [turned("abc", n) for n in range(4)] == [
        ["a", "b", "c"], ["c", "b", "a"], ["b", "c", "a"], ["a", "c", "b"],
    ]  # fmt: skip


def test_over_a_full_turn_each_arm_stands_in_each_place_equally_often() -> None:
    arms = "abcde"
    places = Counter(
        (arm, place) for n in range(2 * len(arms)) for place, arm in enumerate(turned(arms, n))
    )
    assert set(places.values()) == {2}


def test_a_budget_is_wall_time() -> None:
    now = [100.0]
    budget = Budget(10.0, lambda: now[0])
    assert budget.allows(10.0)
    now[0] = 107.0
    assert budget.used == 7.0
    assert budget.allows(3.0)
    assert not budget.allows(3.1)
    assert Budget(None, lambda: now[0]).allows(1e9)


def test_errors_in_the_engines_log_are_counted() -> None:
    log = logging.getLogger("specstream.engine")
    faults = Faults()
    log.error("it broke")
    log.warning("never mind")
    log.error("again")
    assert faults.end() == ["the engine reported an error 2 times; the first: it broke"]
    log.error("nobody listens")
    assert Faults().end() == []
