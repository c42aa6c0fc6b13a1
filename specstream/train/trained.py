"""The result of a training, and its figures as a table and as JSON data."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from specstream.train.loop import Measured
from specstream.train.speed import Speed

__all__ = ["Trained", "as_json", "table_of"]


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


def table_of(trained: Trained) -> Iterator[str]:
    """Yield lines of text: acceptance by position, mean acceptance length, predicted speedup."""
    held = trained.held
    yield f"{trained.folder}: {trained.kind}, {trained.steps} steps on {trained.tokens} tokens"
    yield f"acceptance rate by draft position, {held.tokens:.0f} held-out tokens, temperature 1:"
    yield "  position    " + " ".join(f"{k:5}" for k in range(1, len(held.positions) + 1))
    yield "  acceptance  " + " ".join(f"{one:5.3f}" for one in held.positions)
    yield f"acceptance rate before the training, at position 1: {trained.before:.3f}"
    yield f"mean acceptance length {held.length:.2f} with {len(held.positions)} drafts a round"
    speed = trained.speed
    if not isinstance(speed, Speed):
        yield f"no prediction of the speedup: {speed}"
    else:
        best = (
            f"{speed.speedup:.2f}x with {speed.drafts} drafts a round" if speed.drafts else "none"
        )
        yield (
            f"predicted speedup here: {best} (a target pass takes {speed.target_ms:.1f} ms, a draft "
            f"pass {speed.draft_ms:.1f} ms)"
        )


def as_json(trained: Trained) -> dict[str, Any]:
    """Return the figures as JSON data."""
    speed, held = trained.speed, trained.held
    names = [one.name for one in fields(Speed)]
    return {
        "folder": str(trained.folder),
        "kind": trained.kind,
        "acceptance": list(held.positions),
        "acceptance_before": trained.before,
        "mean_acceptance_length": held.length,
        "held_out_tokens": held.tokens,
        **(asdict(speed) if isinstance(speed, Speed) else dict.fromkeys(names)),
        "steps": trained.steps,
        "tokens": trained.tokens,
        "reply_tokens": trained.reply_tokens,
        "seconds": trained.seconds,
        "padding": trained.padding,
        "curve": [list(one) for one in trained.curve],
    }
