"""Our own engine as an arm."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial

import torch

from specstream.bench.arms.base import BenchThread
from specstream.bench.records import BenchRun, Emission
from specstream.drafting.proposers.candidate import DraftWeights
from specstream.engine.core.request import Delivery, Request
from specstream.engine.core.step import EngineCore
from specstream.engine.engine import Engine
from specstream.engine.generation import ThreadBridge
from specstream.errors import SpecstreamError
from specstream.metrics import Report
from specstream.types import Chunk, Message, Preview, SamplingParams

__all__ = ["CoreArm", "EngineArm", "run_of"]

_PARTS = ("draft", "verify", "sample", "rollback", "emit")


class CoreArm:
    """The engine's core on the thread of all arms, with or without speculation.

    Two arms that share a core differ in nothing but speculation. Chunks go to the event loop as they do
    in `Engine`, so that cost is measured as well.
    """

    def __init__(self, name: str, core: EngineCore, thread: BenchThread, proposer: str) -> None:
        self.name = name
        self.setting = ""
        self._core = core
        self._thread = thread
        self._proposer = proposer
        self.weights = core.draft_weights if proposer != "off" else DraftWeights()

    async def run(self, messages: Sequence[Message], params: SamplingParams) -> BenchRun:
        """Write one reply; the times are those of the engine's own clock."""
        arrived: list[Chunk | Preview | SpecstreamError] = []
        handover = ThreadBridge(asyncio.get_running_loop())
        request = Request(
            list(messages),
            params,
            Delivery(partial(handover.put, arrived.append), limit=2**62),
            proposer=self._proposer,
        )
        try:
            await self._thread.call(lambda: self._serve(request))
        finally:
            handover.deliver()
        if request.error is not None:
            raise request.error
        chunks = [item for item in arrived if isinstance(item, Chunk)]
        return run_of(chunks, request.report())

    def _serve(self, request: Request) -> None:
        self._core.submit(request)
        with torch.inference_mode():  # the engine's own thread is always in this mode
            while request.finish_reason is None and request.error is None:
                request.delivery.cancelled = self._thread.stopping
                self._core.step()


class EngineArm:
    """The engine as a program uses it: on its own thread, many requests at once."""

    name, setting = "auto", ""

    def __init__(self, engine: Engine, *, speculate: bool = True) -> None:
        self._engine, self._speculate = engine, speculate

    async def run(self, messages: Sequence[Message], params: SamplingParams) -> BenchRun:
        """Write one reply."""
        async with self._engine.generate(messages, params, speculate=self._speculate) as generation:
            chunks = [chunk async for chunk in generation]
            return run_of(chunks, generation.report)


def run_of(chunks: list[Chunk], report: Report) -> BenchRun:
    """The record of a finished generation.

    In ``spent_ms``, ``prefill`` is the time to the first token, and ``other`` the rest of the total.
    """
    emissions = tuple(
        Emission(c.t_ms, len(c.token_ids), c.drafted, c.accepted, c.draft_ms, c.verify_ms)
        for c in chunks
        if c.token_ids
    )
    spent: dict[str, float] = {part: getattr(report, f"{part}_ms") for part in _PARTS}
    if emissions:  # round 0 belongs to the prefill
        spent["prefill"] = emissions[0].t_ms
        spent["draft"] -= emissions[0].draft_ms
        spent["verify"] -= emissions[0].verify_ms
    spent["other"] = max(0.0, report.total_ms - sum(spent.values()))
    return BenchRun(
        token_ids=report.token_ids,
        emissions=emissions,
        total_ms=report.total_ms,
        finish=str(report.finish_reason),
        tells=True,
        spent_ms=spent,
        predicted_speedup=report.predicted_speedup,
        explanation=report.explanation,
        proposer_rounds=report.proposer_rounds,
    )
