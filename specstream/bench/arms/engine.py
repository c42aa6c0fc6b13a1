"""Our own engine as an arm, through its public face. The one place that reads its reports."""

from __future__ import annotations

from typing import Any

from specstream.bench.arms.base import Ask
from specstream.bench.records import Emission, Run
from specstream.session import Engine
from specstream.types import Chunk, SamplingParams

__all__ = ["EngineArm", "run_of"]

_PARTS = ("draft", "verify", "sample", "rollback", "emit")


class EngineArm:
    """An engine with its proposer at work, or (``speculate=False``) the same engine without it.

    Both share one process, one set of weights and one kind of cache, so that the difference
    between them is speculation and nothing else.
    """

    def __init__(self, name: str, engine: Engine, *, speculate: bool = True) -> None:
        self.name = name
        self.setting = ""
        self._engine = engine
        self._speculate = speculate

    async def run(self, ask: Ask) -> Run:
        """Write one reply; the times are those of the engine's own clock."""
        params = SamplingParams(
            temperature=ask.temperature,
            top_p=ask.top_p,
            top_k=ask.top_k,
            seed=ask.seed,
            max_tokens=ask.max_tokens,
        )
        asked = self._engine.generate(list(ask.messages), params, speculate=self._speculate)
        async with asked as generation:
            chunks = [chunk async for chunk in generation]
            return run_of(chunks, generation.report.to_dict())


def run_of(chunks: list[Chunk], report: dict[str, Any]) -> Run:
    """The record of a finished generation.

    ``prefill`` is the time to the first token; ``other`` is what the named parts leave of the rest:
    the engine's own work.
    """
    emissions = tuple(
        Emission(
            chunk.t_ms,
            len(chunk.token_ids),
            chunk.drafted,
            chunk.accepted,
            chunk.draft_ms,
            chunk.verify_ms,
        )
        for chunk in chunks
        if chunk.token_ids
    )
    spent = {part: float(report[f"{part}_ms"]) for part in _PARTS if f"{part}_ms" in report}
    if emissions:  # round 0 belongs to the prefill
        spent["prefill"] = emissions[0].t_ms
        spent["draft"] -= emissions[0].draft_ms
        spent["verify"] -= emissions[0].verify_ms
    spent["other"] = max(0.0, float(report["total_ms"]) - sum(spent.values()))
    predicted = report.get("predicted_speedup")
    return Run(
        token_ids=tuple(token for chunk in chunks for token in chunk.token_ids),
        emissions=emissions,
        total_ms=float(report["total_ms"]),
        finish=str(report["finish_reason"]),
        tells=True,
        spent_ms=spent,
        predicted_speedup=None if predicted is None else float(predicted),
        explanation=str(report.get("explanation", "")),
        proposer_rounds={k: int(v) for k, v in report.get("proposer_rounds", {}).items()},
    )
