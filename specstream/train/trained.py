"""The result of a training, and its figures as a table and as JSON data."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from specstream.train.loop import Measured, Progress
from specstream.train.speed import Speed

__all__ = ["Trained", "as_json", "table_of"]


@dataclass(frozen=True, slots=True)
class Trained:
    """The result of a training.

    Attributes:
        folder: The folder of the trained draft or head.
        kind: The kind of draft or head, a key of `specstream.train.kinds.KINDS`.
        held: Held-out acceptance rates after the last step.
        speed: The predicted speedup on this machine, or why there is no prediction.
        progress: Steps, tokens and seconds of the training, and its measurements.
        reply_tokens: Tokens of the replies in the training data, as far as the trainer wrote them.
    """

    folder: Path
    kind: str
    held: Measured
    speed: Speed | str
    progress: Progress
    reply_tokens: int

    @property
    def before(self) -> float:
        """Held-out acceptance rate at the first position before the first step."""
        return self.progress.curve[0][2]


def table_of(trained: Trained) -> Iterator[str]:
    """Yield lines of text: acceptance by position, mean acceptance length, predicted speedup."""
    held, now = trained.held, trained.progress
    yield f"{trained.folder}: {trained.kind}, {now.step} steps on {now.tokens} tokens"
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
    speed, held, now = trained.speed, trained.held, trained.progress
    names = [one.name for one in fields(Speed)]
    return {
        "folder": str(trained.folder),
        "kind": trained.kind,
        "acceptance": list(held.positions),
        "acceptance_before": trained.before,
        "mean_acceptance_length": held.length,
        "held_out_tokens": held.tokens,
        **(asdict(speed) if isinstance(speed, Speed) else dict.fromkeys(names)),
        "steps": now.step,
        "tokens": now.tokens,
        "reply_tokens": trained.reply_tokens,
        "seconds": now.seconds,
        "padding": 1 - now.tokens / max(1, now.tokens + now.padding),
        "curve": [list(one) for one in now.curve],
    }
