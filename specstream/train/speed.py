"""Predicts the speedup by a trained draft on this machine, from measured passes and acceptance."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from specstream.bench.costs import pass_cost
from specstream.config import EngineConfig
from specstream.engine.build import build_engine
from specstream.errors import SpecstreamError
from specstream.methods import AutoProposerConfig
from specstream.speculation.proposers.auto import AutoProposer

__all__ = ["Speed", "expected_speed", "predict"]

_WIDTHS = (1, 2, 5, 9)  # tokens of the target passes whose times are used


@dataclass(frozen=True, slots=True)
class Speed:
    """A predicted speedup.

    Attributes:
        drafts: The best number of drafted tokens per round; 0: drafting doesn't pay.
        speedup: The speedup over plain decoding with that number.
        target_ms: Milliseconds of a target pass over one token.
        draft_ms: Milliseconds of a draft pass.
    """

    drafts: int
    speedup: float
    target_ms: float
    draft_ms: float


def expected_speed(
    positions: Sequence[float], passes: dict[int, float], draft_ms: float, *, whole: bool
) -> Speed:
    """Find the number of drafts that is fastest at these costs; formula: `specstream.bench.costs`.

    Args:
        positions: Acceptance rate by position, given that all drafts before were accepted.
        passes: Milliseconds of a target pass, by its number of tokens; 1 must be among them.
        draft_ms: Milliseconds of a draft pass.
        whole: Whether one draft pass gives all tokens of a round, instead of one token.
    """
    plain = passes[1]
    c, v = draft_ms / plain, {width: ms / plain for width, ms in passes.items()}
    best, reached, expected = (0, 1.0), 1.0, 1.0
    for drafts, accepted in enumerate(positions, 1):
        reached *= accepted
        expected += reached
        speedup = expected / (c * (1 if whole else drafts) + pass_cost(v, drafts + 1))
        if speedup > best[1]:
            best = (drafts, speedup)
    return Speed(*best, plain, draft_ms)


def predict(
    folder: Path, kind: str, positions: Sequence[float], config: EngineConfig
) -> Speed | str:
    """Load the pair as ``--draft`` does and predict its speedup by timed passes; or return why not."""
    pair = {"draft": str(folder), "proposer": AutoProposerConfig()}
    try:
        core = build_engine(config.model_copy(update=pair))
    except SpecstreamError as error:
        return str(error)
    auto = core.proposer
    if not isinstance(auto, AutoProposer) or (candidate := auto.candidate(kind)) is None:
        return f"the passes of {kind} can't be timed by themselves"
    widths = {width: auto.costs.verify(width) for width in _WIDTHS}
    step_ms = auto.costs.draft(kind).step
    return expected_speed(positions, widths, step_ms, whole=candidate.passes == "one")
