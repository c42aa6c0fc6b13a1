"""Speculation under load: the same requests with and without it, so many at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import cycle, islice
from typing import Any, Literal

from specstream.bench.aggregates import percentile, rounded
from specstream.bench.arms.engine import EngineArm
from specstream.bench.concurrency import Way, mix_domains, serve_all
from specstream.bench.prompts import Prompt
from specstream.bench.verdict import LOSS, WORTH
from specstream.session import Engine
from specstream.types import SamplingParams
from specstream.wording import counted

__all__ = ["Load", "Shape", "load_verdict", "measure_load"]

Shape = Literal["closed", "steady"]

_EACH = 4  # requests for each place where a finished one is followed by the next


@dataclass(frozen=True, slots=True)
class Load:
    """What ``at_once`` requests at a time got, with and without speculation.

    ``shape``: ``"closed"``: all begin together, until the last is done; ``"steady"``: a finished one is
    followed by the next.
    """

    at_once: int
    shape: Shape
    auto: Way = field(default_factory=Way)
    off: Way = field(default_factory=Way)

    @property
    def ratio(self) -> float:
        """Tokens a second with speculation, by those without: the median of the rounds."""
        pairs = zip(self.auto.rates, self.off.rates, strict=True)
        return percentile([auto / off for auto, off in pairs], 0.5)

    def to_dict(self) -> dict[str, Any]:
        """As JSON data; milliseconds, and tokens a second of all requests and of one in the mean."""
        found: dict[str, Any] = {
            "at_once": self.at_once,
            "shape": self.shape,
            "rounds": len(self.auto.seconds),
            "ratio": self.ratio,
        }
        for name, way in (("auto", self.auto), ("off", self.off)):
            runs = [run for each in way.runs for run in each]
            gaps = [gap for run in runs for gap in run.gaps_ms]
            predicted = [run.predicted_speedup for run in runs if run.predicted_speedup is not None]
            found[name] = {
                "tokens_per_second": way.rate,
                "tokens_per_second_each": percentile(
                    [1e3 * len(run.token_ids) / run.total_ms for run in runs], 0.5
                ),
                "ttft_ms_p50": percentile([run.ttft_ms for run in runs], 0.5),
                "ttft_ms_p99": percentile([run.ttft_ms for run in runs], 0.99),
                "gap_ms_p50": percentile(gaps, 0.5),
                "gap_ms_p99": percentile(gaps, 0.99),
                "predicted_speedup_p50": percentile(predicted, 0.5) if predicted else None,
            }
        plain: dict[str, Any] = rounded(found)
        return plain


def load_verdict(loads: Sequence[Load]) -> str:
    """Say up to how many requests at once speculation pays here, by both shapes together."""
    worst = {n: min(load.ratio for load in loads if load.at_once == n) for n in _counts(loads)}
    pays = [n for n in worst if all(worst[m] >= WORTH for m in worst if m <= n)]
    loses = [n for n, ratio in worst.items() if ratio <= LOSS]
    text = (
        f"speculation pays up to {counted(pays[-1], 'request')} at once here"
        if pays
        else ("speculation doesn't pay at any of these loads here")
    )
    if loses:
        text += f"; it is slower with {', '.join(map(str, loses))}"
    return text


def _counts(loads: Sequence[Load]) -> list[int]:
    return sorted({load.at_once for load in loads})


async def measure_load(
    engine: Engine,
    prompts: Sequence[Prompt],
    params: SamplingParams,
    counts: Sequence[int],
    rounds: int,
    tell: Callable[[str], object] = lambda line: None,
) -> list[Load]:
    """Serve each number of requests in both shapes, with and without speculation by turns.

    Args:
        engine: Its ``max_running`` should be the largest of ``counts`` at least.
        prompts: Taken from every domain in turn, again and again.
        params: How each reply is sampled.
        counts: Requests at a time.
        rounds: Of each; which of the two goes first alternates.
        tell: Called with a line before each.
    """
    auto, off = EngineArm(engine), EngineArm(engine, speculate=False)
    asked = cycle(mix_domains(prompts))
    await serve_all(auto, list(islice(asked, max(counts))), params, max(counts))
    shapes: tuple[Shape, ...] = ("closed", "steady")
    found = [Load(count, shape) for count in counts for shape in shapes]
    for number in range(rounds):
        for load in found:
            tell(f"round {number + 1} of {rounds}: {load.at_once} at once, {load.shape}")
            each = 1 if load.shape == "closed" else _EACH
            part = list(islice(asked, each * load.at_once))
            ways = [(auto, load.auto), (off, load.off)]
            for arm, way in ways if number % 2 == 0 else ways[::-1]:
                await way.timed(arm, part, params, load.at_once)
    return found
