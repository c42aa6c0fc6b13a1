"""Throughput of concurrent requests: against one at a time, and with and without speculation."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import cycle, islice, zip_longest
from typing import Any, Literal

from specstream.bench.arms.base import Arm
from specstream.bench.arms.open import EngineArm
from specstream.bench.document import LOSS, WORTH
from specstream.bench.prompts import GRAMMAR_DOMAIN, Prompt
from specstream.bench.records import BenchRun, grouped, percentile, rounded
from specstream.checks import counted
from specstream.engine.engine import Engine
from specstream.types import SamplingParams

__all__ = [
    "Crowd",
    "LoadFigures",
    "Shape",
    "Way",
    "load_verdict",
    "measure_crowd",
    "measure_load",
    "mix_domains",
]

_EACH = 16  # requests a round for each concurrent place: few places stay empty while a round ends
_MIN_ROUNDS = 2  # run whatever the budget, so that each of the two ways goes first once


@dataclass(frozen=True, slots=True)
class Way:
    """Seconds and replies of each round, served in one way: concurrently, or one at a time."""

    seconds: list[float] = field(default_factory=list)
    runs: list[list[BenchRun]] = field(default_factory=list)

    async def timed(
        self,
        arm: Arm,
        prompts: Sequence[Prompt],
        params: SamplingParams,
        places: int,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """Serve a round, see `_serve`, and add it."""
        started = clock()
        runs = await _serve(arm, prompts, params, places)
        self.seconds.append(clock() - started)
        self.runs.append(runs)

    @property
    def tokens(self) -> list[int]:
        """Tokens of each round."""
        return [sum(len(run.token_ids) for run in runs) for runs in self.runs]

    @property
    def rates(self) -> list[float]:
        """Tokens a second in each round, over all requests."""
        return [n / seconds for n, seconds in zip(self.tokens, self.seconds, strict=True)]

    @property
    def rate(self) -> float:
        """Tokens a second over all rounds."""
        return sum(self.tokens) / sum(self.seconds)

    def figures(self, name: str) -> dict[str, float]:
        """The rate and the latencies of single requests, as JSON data. Gaps are between emissions."""
        runs = [run for runs in self.runs for run in runs]
        gaps = [gap for run in runs for gap in run.gaps_ms]
        return {
            f"tokens_per_second_{name}": self.rate,
            f"gap_ms_p50_{name}": percentile(gaps, 0.5),
            f"gap_ms_p95_{name}": percentile(gaps, 0.95),
            f"ttft_ms_p50_{name}": percentile([run.ttft_ms for run in runs], 0.5),
            f"total_ms_p95_{name}": percentile([run.total_ms for run in runs], 0.95),
        }


@dataclass(frozen=True, slots=True)
class Crowd:
    """The same requests served ``at_once`` at a time and one at a time, in alternation by round."""

    at_once: int
    together: Way
    alone: Way

    def to_dict(self) -> dict[str, Any]:
        """As JSON data. ``throughput_ratio`` compares the sums; the rounds' ratios show its spread."""
        pairs = zip(self.together.rates, self.alone.rates, strict=True)
        ratios = [together / alone for together, alone in pairs]
        found = {
            "at_once": self.at_once,
            "rounds": len(ratios),
            "requests": sum(len(runs) for runs in self.together.runs),
            "throughput_ratio": self.together.rate / self.alone.rate,
            "throughput_ratio_median": statistics.median(ratios),
            "throughput_ratio_rounds": ratios,
            **self.together.figures("together"),
            **self.alone.figures("alone"),
        }
        plain: dict[str, Any] = rounded(found)
        return plain


async def measure_crowd(
    arm: Arm,
    prompts: Sequence[Prompt],
    params: SamplingParams,
    at_once: int,
    *,
    rounds: int = 4,
    each: int = _EACH,
    budget: float = 60.0,
    clock: Callable[[], float] = time.perf_counter,
    tell: Callable[[int, int], None] = lambda done, total: None,
) -> Crowd:
    """Serve the same requests ``at_once`` at a time and one at a time; which goes first alternates.

    A finished request is followed by the next one, so ``at_once`` are under way until a round runs out
    of requests. The first round's requests are served both ways beforehand, untimed, as a warm-up.

    Args:
        arm: Serves one request; several may be under way.
        prompts: Taken from every domain in turn (see `mix_domains`), again and again.
        params: How each reply is sampled.
        at_once: Requests under way.
        rounds: The most rounds that are timed.
        each: Requests a round, as a multiple of ``at_once``.
        budget: Seconds of ``clock`` after which no round begins, once each way has gone first.
        clock: Returns the time in seconds.
        tell: Called before each round with the rounds done and their total, warm-up included.
    """
    mixed = mix_domains(prompts)
    count = each * at_once
    asked = [mixed[i % len(mixed)] for i in range(max(rounds, 1) * count)]
    tell(0, rounds + 1)
    for places in (at_once, 1):
        await _serve(arm, asked[:count], params, places)
    crowd = Crowd(at_once, Way(), Way())
    ways = [(crowd.together, at_once), (crowd.alone, 1)]
    began = clock()
    for number in range(rounds):
        if number >= _MIN_ROUNDS and clock() - began > budget:
            break
        tell(number + 1, rounds + 1)
        part = asked[number * count : (number + 1) * count]
        for way, places in ways if number % 2 == 0 else ways[::-1]:
            await way.timed(arm, part, params, places, clock)
    return crowd


def mix_domains(prompts: Sequence[Prompt]) -> list[Prompt]:
    """Interleave the domains' prompts; the grammar's are left out unless there are no others."""
    usual = [prompt for prompt in prompts if prompt.domain != GRAMMAR_DOMAIN] or prompts
    of = grouped((prompt.domain, prompt) for prompt in usual)
    return [prompt for turn in zip_longest(*of.values()) for prompt in turn if prompt is not None]


async def _serve(
    arm: Arm, prompts: Sequence[Prompt], params: SamplingParams, places: int
) -> list[BenchRun]:
    """Serve requests in order, at most ``places`` at a time."""
    waiting = iter(prompts)
    runs: list[BenchRun] = []

    async def place() -> None:
        for prompt in waiting:
            runs.append(await arm.run(prompt.messages, params))

    await asyncio.gather(*(place() for _ in range(places)))
    return runs


Shape = Literal["closed", "steady"]

_FOLLOWING = 4  # requests for each place where a finished one is followed by the next


@dataclass(frozen=True, slots=True)
class LoadFigures:
    """What ``at_once`` requests at a time got, with and without speculation.

    ``shape``: ``"closed"``: all begin together, until the last is done; ``"steady"``: a finished one is
    followed by the next.
    """

    at_once: int
    shape: Shape
    auto: Way = field(default_factory=Way)
    off: Way = field(default_factory=Way)

    @property
    def ratio(self) -> float:
        """Tokens a second with speculation, by those without: the median of the rounds."""
        pairs = zip(self.auto.rates, self.off.rates, strict=True)
        return percentile([auto / off for auto, off in pairs], 0.5)

    def to_dict(self) -> dict[str, Any]:
        """As JSON data; milliseconds, and tokens a second of all requests and of one in the mean."""
        found: dict[str, Any] = {
            "at_once": self.at_once,
            "shape": self.shape,
            "rounds": len(self.auto.seconds),
            "ratio": self.ratio,
        }
        for name, way in (("auto", self.auto), ("off", self.off)):
            runs = [run for each in way.runs for run in each]
            gaps = [gap for run in runs for gap in run.gaps_ms]
            predicted = [run.predicted_speedup for run in runs if run.predicted_speedup is not None]
            found[name] = {
                "tokens_per_second": way.rate,
                "tokens_per_second_each": percentile(
                    [1e3 * len(run.token_ids) / run.total_ms for run in runs], 0.5
                ),
                "ttft_ms_p50": percentile([run.ttft_ms for run in runs], 0.5),
                "ttft_ms_p99": percentile([run.ttft_ms for run in runs], 0.99),
                "gap_ms_p50": percentile(gaps, 0.5),
                "gap_ms_p99": percentile(gaps, 0.99),
                "predicted_speedup_p50": percentile(predicted, 0.5) if predicted else None,
            }
        plain: dict[str, Any] = rounded(found)
        return plain


def load_verdict(loads: Sequence[LoadFigures]) -> str:
    """Say up to how many requests at once speculation pays here, by both shapes together."""
    worst = {n: min(load.ratio for load in loads if load.at_once == n) for n in _counts(loads)}
    pays = [n for n in worst if all(worst[m] >= WORTH for m in worst if m <= n)]
    loses = [n for n, ratio in worst.items() if ratio <= LOSS]
    text = (
        f"speculation pays up to {counted(pays[-1], 'request')} at once here"
        if pays
        else ("speculation doesn't pay at any of these loads here")
    )
    if loses:
        text += f"; it is slower with {', '.join(map(str, loses))}"
    return text


def _counts(loads: Sequence[LoadFigures]) -> list[int]:
    return sorted({load.at_once for load in loads})


async def measure_load(
    engine: Engine,
    prompts: Sequence[Prompt],
    params: SamplingParams,
    counts: Sequence[int],
    rounds: int,
    tell: Callable[[str], object] = lambda line: None,
) -> list[LoadFigures]:
    """Serve each number of requests in both shapes, with and without speculation by turns.

    Args:
        engine: Its ``max_running`` should be the largest of ``counts`` at least.
        prompts: Taken from every domain in turn, again and again.
        params: How each reply is sampled.
        counts: Requests at a time.
        rounds: Of each; which of the two goes first alternates.
        tell: Called with a line before each.
    """
    auto, off = EngineArm(engine), EngineArm(engine, speculate=False)
    asked = cycle(mix_domains(prompts))
    await _serve(auto, list(islice(asked, max(counts))), params, max(counts))
    shapes: tuple[Shape, ...] = ("closed", "steady")
    found = [LoadFigures(count, shape) for count in counts for shape in shapes]
    for number in range(rounds):
        for load in found:
            tell(f"round {number + 1} of {rounds}: {load.at_once} at once, {load.shape}")
            each = 1 if load.shape == "closed" else _FOLLOWING
            part = list(islice(asked, each * load.at_once))
            ways = [(auto, load.auto), (off, load.off)]
            for arm, way in ways if number % 2 == 0 else ways[::-1]:
                await way.timed(arm, part, params, load.at_once)
    return found
