"""What came of a training."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from specstream.train.loop import Measured
from specstream.train.speed import Speed

__all__ = ["Trained"]


@dataclass(frozen=True, slots=True)
class Trained:
    """What came of a training.

    Attributes:
        folder: Where it is.
        kind: What was trained.
        before: Acceptance at the first position on held-out replies, before the first step.
        held: Acceptance on held-out replies; empty positions if there were none.
        speed: The predicted speedup here, or why there is no prediction.
        steps: Training steps.
        tokens: Tokens that steps have learnt from.
        reply_tokens: Tokens of replies that were written for it.
        seconds: Of the steps.
        padding: Share of padding in the batches.
        curve: Step, seconds and held-out acceptance at the first position.
    """

    folder: Path
    kind: str
    before: float
    held: Measured
    speed: Speed | str
    steps: int
    tokens: int
    reply_tokens: int
    seconds: float
    padding: float
    curve: list[tuple[int, float, float]]
