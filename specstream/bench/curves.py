"""Pictures of load: throughput by the number of requests, and each caller's sound ahead over time."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from specstream.bench.callers import ORDERS, Caller
from specstream.bench.load import Load
from specstream.bench.plots import picture

__all__ = ["draw_callers", "draw_load"]

_INCHES = (12, 4.2)
_TICKS = 400  # points of a curve


def draw_load(loads: Sequence[Load], path: Path, title: str) -> None:
    """Tokens a second with and without speculation, in closed groups and with steady arrivals.

    Raises:
        OSError: the file can't be written.
    """
    with picture(path, 2, _INCHES) as axes:
        for each, shape in zip(axes, ("closed", "steady"), strict=True):
            own = [load for load in loads if load.shape == shape]
            counts = [load.at_once for load in own]
            each.plot(counts, [load.off.rate for load in own], "o-", color="#8a8f98", label="off")
            each.plot(counts, [load.auto.rate for load in own], "o-", color="#0b5fad", label="auto")
            each.set_xscale("log", base=2)
            each.set_xticks(counts, list(map(str, counts)))
            each.set_xlabel("requests at once")
            each.set_ylabel("tokens a second, together")
            each.set_ylim(bottom=0)
            each.set_title(f"{title}: {shape}", loc="left", fontsize=10, parse_math=False)
            each.legend(frameon=False, fontsize=8)


def draw_callers(callers: Sequence[Caller], path: Path, title: str) -> None:
    """Each caller's sound ahead over time, by who went first; for the largest number of callers.

    Raises:
        OSError: the file can't be written.
    """
    most = max(caller.at_once for caller in callers)
    with picture(path, len(ORDERS), _INCHES, sharey=True) as axes:
        for each, order in zip(axes, ORDERS, strict=True):
            own = [c for c in callers if c.at_once == most and c.order == order and c.pieces]
            for caller in own:
                end = caller.pieces[-1][0] + caller.ahead(caller.pieces[-1][0])
                times = [caller.asked + (end - caller.asked) * n / _TICKS for n in range(_TICKS)]
                ahead = [caller.ahead(at) for at in times]
                each.plot([t - caller.asked for t in times], ahead, lw=0.6, alpha=0.7)
            each.set_xlabel("seconds since the question")
            each.set_ylabel("seconds of sound ahead, of each caller")
            name = f"{title}: {most} callers, by {order}"
            each.set_title(name, loc="left", fontsize=10, parse_math=False)
