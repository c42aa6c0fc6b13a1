from __future__ import annotations

import asyncio

import pytest

from specstream.bench.arms.base import Ask
from specstream.bench.concurrency import measure_crowd
from specstream.bench.prompts import Prompt
from specstream.bench.records import Emission, Run


class SharedArm:
    """A step serves everybody who waits, and takes a second: alone or together."""

    name, setting = "auto", ""

    def __init__(self) -> None:
        self.now = 0.0
        self.most = 0
        self._waiting = 0

    async def run(self, ask: Ask) -> Run:
        self._waiting += 1
        self.most = max(self.most, self._waiting)
        at = self.now
        await asyncio.sleep(0)  # the others get in
        self.now = at + 1.0
        self._waiting -= 1
        return Run((1, 2), (Emission(500, 1), Emission(1000, 1)), 1000, "stop")


async def test_throughput_is_of_all_requests_and_gaps_are_of_each() -> None:
    arm = SharedArm()
    prompts = [Prompt(str(i), "chat", ()) for i in range(2)]
    crowd = await measure_crowd(arm, prompts, Ask((), 9), 3, rounds=4, clock=lambda: arm.now)
    assert arm.most == 3
    assert (crowd.tokens_together, crowd.tokens_alone) == (24, 24)
    assert (crowd.seconds_together, crowd.seconds_alone) == (4.0, 12.0)
    found = crowd.to_dict()
    assert found["throughput_ratio"] == pytest.approx(3.0)
    assert found["gap_ms_p95_together"] == found["gap_ms_p95_alone"] == 500
