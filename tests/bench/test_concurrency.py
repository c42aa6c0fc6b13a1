import asyncio
from collections.abc import Sequence
from dataclasses import replace

import pytest

from specstream.bench.load.concurrency import (
    Crowd,
    LoadFigures,
    Shape,
    Way,
    load_verdict,
    measure_crowd,
    mix_domains,
)
from specstream.bench.prompts import Prompt
from specstream.bench.records import BenchRun, Emission
from specstream.types import Message, SamplingParams

PARAMS = SamplingParams(max_tokens=9)


def prompt(name: str, domain: str = "chat", steps: int = 1) -> Prompt:
    """A prompt whose reply takes ``steps`` steps."""
    message: Message = {"role": "user", "content": f"{name} {steps}"}
    return Prompt(name, domain, (message,))


class SteppingArm:
    """An arm whose steps take a second and give one token to each request that waits at their begin."""

    name, setting = "auto", ""

    def __init__(self) -> None:
        self.now = 0.0
        self.served: list[str] = []
        self.crowds: list[int] = []
        self._waiting: list[asyncio.Future[None]] = []
        self._next: asyncio.Task[None] | None = None

    async def run(self, messages: Sequence[Message], params: SamplingParams) -> BenchRun:
        name, steps = messages[0]["content"].split()
        began, emissions = self.now, []
        self.served.append(name)
        for _ in range(int(steps)):
            await self._step()
            emissions.append(Emission((self.now - began) * 1e3, 1))
        return BenchRun((1,) * int(steps), tuple(emissions), (self.now - began) * 1e3, "stop")

    async def _step(self) -> None:
        loop = asyncio.get_running_loop()
        if not self._waiting:
            self._next = loop.create_task(self._go())
        done = loop.create_future()
        self._waiting.append(done)
        await done

    async def _go(self) -> None:
        for _ in range(20):  # every request that is ready joins the step
            await asyncio.sleep(0)
        self.now += 1.0
        self.crowds.append(len(self._waiting))
        waiting, self._waiting = self._waiting, []
        for done in waiting:
            done.set_result(None)


async def measured(prompts: list[Prompt], at_once: int, rounds: int) -> tuple[SteppingArm, Crowd]:
    arm = SteppingArm()
    crowd = await measure_crowd(
        arm, prompts, PARAMS, at_once, rounds=rounds, each=3, clock=lambda: arm.now
    )
    return arm, crowd


async def test_throughput_is_of_all_requests_and_gaps_are_of_each() -> None:
    _, crowd = await measured([prompt("a", steps=4)], 3, 2)
    assert crowd.together.seconds == [12.0, 12.0]  # three batches of three, four steps each
    assert crowd.alone.seconds == [36.0, 36.0]
    found = crowd.to_dict()
    assert found["requests"] == 18
    assert found["throughput_ratio"] == found["throughput_ratio_median"] == pytest.approx(3.0)
    assert found["tokens_per_second_together"] == pytest.approx(3.0)
    assert found["tokens_per_second_alone"] == pytest.approx(1.0)
    assert found["gap_ms_p95_together"] == found["gap_ms_p50_alone"] == 1000
    assert found["ttft_ms_p50_alone"] == 1000
    assert found["total_ms_p95_together"] == 4000


async def test_a_place_that_is_free_is_taken_by_the_next() -> None:
    """Short replies beside a long one don't wait for its end."""
    prompts = [prompt("long", steps=10), *(prompt(f"s{i}", steps=2) for i in range(5))]
    arm, crowd = await measured(prompts, 2, 1)
    assert crowd.together.seconds == [10.0]  # the long one, and the others after one another
    assert crowd.alone.seconds == [20.0]
    warm_up = 30  # steps: the same in either way
    assert arm.crowds[warm_up : warm_up + 10] == [2] * 10
    assert arm.crowds[warm_up + 10 :] == [1] * 20


async def test_both_ways_serve_the_same_requests_and_go_first_in_turn() -> None:
    prompts = [prompt(name) for name in "abcdefgh"]
    arm, _ = await measured(prompts, 2, 2)
    first, second = list("abcdef"), list("ghabcd")
    assert arm.served == [*first, *first, *first, *first, *second, *second]
    together, alone = [2] * 3, [1] * 6
    warm_up = [*together, *alone]
    assert arm.crowds == [*warm_up, *together, *alone, *alone, *together]


async def test_no_round_begins_when_the_time_is_up_but_each_way_goes_first_once() -> None:
    arm = SteppingArm()
    crowd = await measure_crowd(
        arm, [prompt("a", steps=4)], PARAMS, 3, rounds=9, each=3, budget=100.0, clock=lambda: arm.now
    )
    assert len(crowd.alone.seconds) == 3  # 48 seconds each: the third began at 96
    crowd = await measure_crowd(
        arm, [prompt("a", steps=4)], PARAMS, 3, rounds=9, each=3, budget=1.0, clock=lambda: arm.now
    )
    assert crowd.to_dict()["rounds"] == 2


async def test_how_far_it_is_is_told_before_every_round() -> None:
    arm, told = SteppingArm(), list[tuple[int, int]]()
    await measure_crowd(
        arm,
        [prompt("a")],
        PARAMS,
        2,
        rounds=2,
        each=1,
        clock=lambda: arm.now,
        tell=lambda done, total: told.append((done, total)),
    )
    assert told == [(0, 3), (1, 3), (2, 3)]  # the first is the warm-up


def run(tokens: int, *at_ms: float) -> BenchRun:
    emissions = tuple(Emission(t, tokens // len(at_ms)) for t in at_ms)
    return BenchRun((1,) * tokens, emissions, at_ms[-1], "stop")


def test_the_ratio_is_of_sums_and_each_rounds_own_is_told() -> None:
    together = Way([1.0, 3.0], [[run(10, 5, 10)], [run(30, 5, 25)]])
    alone = Way([2.0, 2.0], [[run(10, 5, 10)], [run(10, 1, 2)]])
    found = Crowd(2, together, alone).to_dict()
    assert found["throughput_ratio_rounds"] == [2.0, 2.0]
    assert found["throughput_ratio"] == 2.0
    slower = replace(together, seconds=[1.0, 9.0])
    found = Crowd(2, slower, alone).to_dict()
    assert found["throughput_ratio_rounds"] == [2.0, pytest.approx(0.6667)]
    assert found["throughput_ratio_median"] == pytest.approx(1.3333)
    assert found["throughput_ratio"] == pytest.approx(40 / 10 / (20 / 4))


def test_domains_take_turns_and_a_grammars_text_is_left_out() -> None:
    prompts = [
        *(prompt(f"c{i}", "chat") for i in range(3)),
        *(prompt(f"m{i}", "math") for i in range(1)),
        *(prompt(f"s{i}", "scene") for i in range(2)),
    ]
    assert [p.id for p in mix_domains(prompts)] == ["c0", "m0", "c1", "c2"]
    assert [p.id for p in mix_domains(prompts[-2:])] == ["s0", "s1"]


def made_up(tokens: int, predicted: float | None = None) -> BenchRun:
    emissions = (Emission(10.0, 1), Emission(30.0, tokens - 1))
    return BenchRun(tuple(range(tokens)), emissions, 40.0, "stop", predicted_speedup=predicted)


def load(at_once: int, ratio: float, shape: Shape = "closed") -> LoadFigures:
    made = [made_up(20, 1.5) for _ in range(at_once)]
    return LoadFigures(at_once, shape, Way([1.0], [made]), Way([ratio], [made]))


def test_a_load_gives_both_ways_and_their_ratio() -> None:
    found = load(4, 1.25).to_dict()
    assert (found["at_once"], found["shape"], found["rounds"], found["ratio"]) == (4, "closed", 1, 1.25)
    assert found["auto"]["tokens_per_second"] == 80.0 and found["off"]["tokens_per_second"] == 64.0
    assert found["auto"]["tokens_per_second_each"] == 500.0
    assert found["auto"]["ttft_ms_p99"] == 10.0 and found["auto"]["gap_ms_p50"] == 20.0
    assert found["auto"]["predicted_speedup_p50"] == 1.5


@pytest.mark.parametrize(
    ("ratios", "words"),
    [
        ({1: 1.8, 4: 1.2, 16: 1.0}, "speculation pays up to 4 requests at once here"),
        ({1: 1.8, 4: 1.0, 16: 1.3}, "speculation pays up to 1 request at once here"),
        ({1: 0.9, 4: 1.2}, "speculation doesn't pay at any of these loads here; it is slower with 1"),
    ],
)
def test_the_verdict_names_the_load(ratios: dict[int, float], words: str) -> None:
    assert load_verdict([load(count, ratio) for count, ratio in ratios.items()]) == words


def test_the_worse_shape_counts() -> None:
    assert "pays up to" not in load_verdict([load(1, 1.5), load(1, 1.0, "steady")])
