"""The result of a training."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from specstream.train.loop import Measured
from specstream.train.speed import Speed

__all__ = ["Trained"]


@dataclass(frozen=True, slots=True)
class Trained:
    """The result of a training.

    Attributes:
        folder: The folder of the trained draft or head.
        kind: The kind of draft or head, a key of `specstream.train.kinds.KINDS`.
        before: Held-out acceptance rate at the first position before the first step.
        held: Held-out acceptance rates after the last step.
        speed: The predicted speedup on this machine, or why there is no prediction.
        steps: Number of training steps.
        tokens: Tokens that the steps were taken on, prompts included, padding not.
        reply_tokens: Tokens of the replies in the training data, as far as the trainer wrote them.
        seconds: Duration of steps and measurements.
        padding: Share of padding in the batches.
        curve: Step, seconds and held-out acceptance rate at the first position, per measurement.
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
