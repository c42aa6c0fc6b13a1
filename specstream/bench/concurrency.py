"""Several requests at once through one engine, beside the same requests one after another."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from specstream.bench.arms.base import Arm, Ask
from specstream.bench.figures import percentile
from specstream.bench.prompts import Prompt
from specstream.bench.records import Run

__all__ = ["Crowd", "measure_crowd"]


@dataclass(frozen=True, slots=True)
class Crowd:
    """``at_once`` requests together and alone, ``rounds`` times each, in turn.

    Seconds and tokens are sums; gaps are the times between a request's emissions.
    """

    at_once: int
    rounds: int
    tokens_together: int
    tokens_alone: int
    seconds_together: float
    seconds_alone: float
    gaps_together: tuple[float, ...]
    gaps_alone: tuple[float, ...]
    total_together: tuple[float, ...]
    total_alone: tuple[float, ...]

    def to_dict(self) -> dict[str, Any]:
        """As JSON data: total throughput of both ways, and what a single request feels."""
        together = self.tokens_together / self.seconds_together
        alone = self.tokens_alone / self.seconds_alone
        return {
            "at_once": self.at_once,
            "rounds": self.rounds,
            "tokens_per_second_together": round(together, 2),
            "tokens_per_second_alone": round(alone, 2),
            "throughput_ratio": round(together / alone, 4),
            "gap_ms_p95_together": round(percentile(self.gaps_together, 0.95), 3),
            "gap_ms_p95_alone": round(percentile(self.gaps_alone, 0.95), 3),
            "total_ms_p95_together": round(percentile(self.total_together, 0.95), 3),
            "total_ms_p95_alone": round(percentile(self.total_alone, 0.95), 3),
        }


async def measure_crowd(
    arm: Arm,
    prompts: Sequence[Prompt],
    ask: Ask,
    at_once: int,
    *,
    rounds: int = 3,
    clock: Callable[[], float] = time.perf_counter,
) -> Crowd:
    """Take the prompts ``at_once`` at a time, ``rounds`` times; the two ways go first in turn."""
    spent = {"together": 0.0, "alone": 0.0}
    runs: dict[str, list[Run]] = {"together": [], "alone": []}
    for number in range(rounds):
        asks = [
            replace(ask, messages=prompts[(number * at_once + i) % len(prompts)].messages)
            for i in range(at_once)
        ]
        ways = ("together", "alone") if number % 2 == 0 else ("alone", "together")
        for way in ways:
            started = clock()
            if way == "together":
                runs[way] += await asyncio.gather(*(arm.run(one) for one in asks))
            else:
                runs[way] += [await arm.run(one) for one in asks]
            spent[way] += clock() - started
    return Crowd(
        at_once,
        rounds,
        sum(len(run.token_ids) for run in runs["together"]),
        sum(len(run.token_ids) for run in runs["alone"]),
        spent["together"],
        spent["alone"],
        tuple(gap for run in runs["together"] for gap in run.gaps_ms),
        tuple(gap for run in runs["alone"] for gap in run.gaps_ms),
        tuple(run.total_ms for run in runs["together"]),
        tuple(run.total_ms for run in runs["alone"]),
    )
