"""Formats the figures of a training as a table and as JSON data."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from specstream.train.speed import Speed
from specstream.train.trained import Trained

__all__ = ["as_json", "table_of"]


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
    elif speed.drafts == 0:
        yield (
            f"predicted speedup here: none (a target pass takes {speed.target_ms:.1f} ms, a draft pass "
            f"{speed.draft_ms:.1f} ms)"
        )
    else:
        yield (
            f"predicted speedup here: {speed.speedup:.2f}x with {speed.drafts} drafts a round (a target "
            f"pass takes {speed.target_ms:.1f} ms, a draft pass {speed.draft_ms:.1f} ms)"
        )


def as_json(trained: Trained) -> dict[str, Any]:
    """Return the figures as JSON data."""
    speed, held = trained.speed, trained.held
    return {
        "folder": str(trained.folder),
        "kind": trained.kind,
        "acceptance": list(held.positions),
        "acceptance_before": trained.before,
        "mean_acceptance_length": held.length,
        "held_out_tokens": held.tokens,
        "speedup": speed.speedup if isinstance(speed, Speed) else None,
        "drafts": speed.drafts if isinstance(speed, Speed) else None,
        "target_ms": speed.target_ms if isinstance(speed, Speed) else None,
        "draft_ms": speed.draft_ms if isinstance(speed, Speed) else None,
        "steps": trained.steps,
        "tokens": trained.tokens,
        "reply_tokens": trained.reply_tokens,
        "seconds": trained.seconds,
        "padding": trained.padding,
        "curve": [list(one) for one in trained.curve],
    }
