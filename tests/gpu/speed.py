"""The whole engine's speed, with the bundled pair's acceptance at the cost of real models."""

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import torch

from specstream.model.graphs import CapturePlan
from specstream.types import SamplingParams
from tests.gpu.context import Context
from tests.gpu.models import copy_bandwidth, padded, random_llama, read_bytes
from tests.gpu.pace import Pace, measure
from tests.gpu.pair import Pair, make_pair

__all__ = ["PLAN", "speed1", "speed8"]

# Fewer passes than an engine captures when it is built: every second counts here.
PLAN = CapturePlan((1, 2, 3, 5, 9), (17,))
_METHODS = ("off", "draft-4", "auto")
_TOKENS = 400  # of a reply
_CONTEXT = 300  # rows that a roofline counts for each sequence
_BARS = {"H200": 0.65}  # of the roofline, plain; others: .75
Params = Callable[[int], SamplingParams]


def speed8(context: Context) -> dict[str, Any]:
    """At the cost of 8B."""
    return _speed(context, "8B")


def speed1(context: Context) -> dict[str, Any]:
    """At the cost of 1B, then with a vocabulary of 128k tokens."""
    found = _speed(context, "1B", share=0.6)
    if context.enough(6, "128k tokens"):
        torch.cuda.empty_cache()
        found["128k"] = _large_vocabulary(context)
    return found


def _ways() -> dict[str, Params]:
    def greedy(number: int) -> SamplingParams:
        return SamplingParams(max_tokens=_TOKENS)

    def sampled(number: int) -> SamplingParams:
        return SamplingParams(temperature=0.8, top_p=0.95, max_tokens=_TOKENS)

    def seeded(number: int) -> SamplingParams:
        return SamplingParams(temperature=0.8, top_p=0.95, seed=number, max_tokens=_TOKENS)

    return {"greedy": greedy, "T .8, top-p .95": sampled, "seeded": seeded}


def _groups(context: Context, name: str) -> list[tuple[str, int]]:
    """Ways to choose and numbers of requests, in order of worth."""
    greedy, sampled, seeded = _ways()
    if context.tiny:
        return [(greedy, 1), (greedy, 2), (seeded, 1)] if name == "8B" else [(sampled, 2)]
    pairs = [(greedy, 1), (greedy, 32), (sampled, 1), (sampled, 32), (seeded, 1), (seeded, 32)]
    return [*pairs, (greedy, 4), (sampled, 4), (seeded, 4)]


def _speed(context: Context, name: str, share: float = 1.0) -> dict[str, Any]:
    end = context.left * (1 - share)
    bandwidth = copy_bandwidth(context)
    pair = make_pair(context, "bfloat16", target=padded(context, name), ends=False)
    pair.capture(PLAN, (1, 4, 32) if not context.tiny else (1, 2))
    weights = pair.target.decoder.weights
    roofline = bandwidth / read_bytes(weights, _CONTEXT)
    groups = _groups(context, name)
    context.row(f"{name}: roofline of one sequence", f"{roofline:.0f} tok/s")
    paces = dict[tuple[str, int, str], Pace]()
    for number, (way, batch) in enumerate(groups):
        left = context.left - end
        if left < 4 and not context.tiny:
            rest = ", ".join(f"{way} x {batch}" for way, batch in groups[number:])
            context.row(f"{name}: left out for want of time", rest, left_out=True)
            break
        seconds = min(2.5, 0.7 * left / (len(groups) - number) / len(_METHODS))
        paces |= _group(context, name, pair, way, batch, _METHODS, seconds)
        if number == min(1, len(groups) - 1):
            _bars(context, name, paces, roofline)
    _eager(context, name, pair)
    return {
        "paces": [asdict(pace) | {"setting": setting} for setting, pace in paces.items()],
        "roofline_tokens_per_second": roofline,
        "bandwidth": bandwidth,
    }


def _group(
    context: Context,
    name: str,
    pair: Pair,
    way: str,
    batch: int,
    methods: tuple[str, ...],
    seconds: float,
) -> dict[tuple[str, int, str], Pace]:
    """All methods for one way to choose and number of requests: one row."""
    found = dict[tuple[str, int, str], Pace]()
    for method in methods:
        pace = _measure(context, pair, way, batch, method, seconds)
        if pace is not None:
            found[way, batch, method] = pace
    words = " | ".join(
        f"{method} {pace.rate:.0f} ({pace.tokens:.2f}, {pace.step_ms:.1f})"
        for (_, _, method), pace in found.items()
    )
    idle = [f"{max(0.0, 1 - one.busy):.0%}" for one in found.values() if one.busy is not None]
    words += f"; idle {' '.join(idle)}" if idle else ""
    more = {f"{method} {key}": value for (_, _, method), pace in found.items()
            for key, value in asdict(pace).items()}  # fmt: skip
    context.row(f"{name}, batch {batch}, {way}: tok/s (a pass, ms)", words, figures=more)
    return found


def _measure(
    context: Context, pair: Pair, way: str, batch: int, method: str, seconds: float
) -> Pace | None:
    core = pair.core(method, batch)
    pace = measure(context, core, _ways()[way], batch, seconds, trace=way == "greedy")
    core.proposing.close()
    if pace is None:
        context.row(f"{method}, batch {batch}, {way}", "no step of a full batch", left_out=True)
    return pace


def _eager(context: Context, name: str, pair: Pair) -> None:
    """Plain decoding without captured passes, for comparison."""
    if context.left < 2 and not context.tiny:
        return
    with pair.eager():
        pace = measure(context, pair.core("off"), _ways()["greedy"], 1, 1.0)
    if pace is not None:
        context.row(f"{name} off, batch 1, greedy, eager", pace.words)


def _bars(context: Context, name: str, paces: dict[tuple[str, int, str], Pace], roofline: float) -> None:
    """What the engine is to reach; judged for the shape of 8B only."""
    card = torch.cuda.get_device_name(0)
    wanted = next((share for model, share in _BARS.items() if model in card), 0.75)

    def rate(batch: int, *methods: str) -> float:
        return max((paces[k].rate for k in _keys(paces, batch) if k[2] in methods), default=0.0)

    many = 32 if not context.tiny else 2
    figures = [
        ("plain, batch 1: of the roofline", rate(1, "off") / roofline, wanted),
        ("speculating, batch 1: of the roofline", rate(1, "draft-4", "auto") / roofline, 2.0),
        (f"speculating over plain, batch {many}",
         rate(many, "draft-4", "auto") / max(rate(many, "off"), 1e-9), 1.3),
    ]  # fmt: skip
    for what, value, bar in figures:
        said = f"{value:.2f} (wanted {bar:.2f})"
        if name == "8B":
            context.bar(f"{name} {what}", said, value >= bar, ratio=value)
        else:
            context.row(f"{name} {what}", f"{value:.2f}", ratio=value)


def _keys(paces: dict[tuple[str, int, str], Pace], batch: int) -> list[tuple[str, int, str]]:
    return [key for key in paces if key[0] == "greedy" and key[1] == batch]


def _large_vocabulary(context: Context) -> list[dict[str, Any]]:
    """Costs of drawing from 128k tokens; nothing is accepted, as the weights are random."""
    target, draft = random_llama(context, "1B"), random_llama(context, "draft")
    pair = make_pair(context, "bfloat16", target=target, draft=draft, ends=False)
    pair.capture(CapturePlan((1, 2, 5)), (1, 32) if not context.tiny else (1, 2))
    found = dict[tuple[str, int, str], Pace]()
    batches = (1, 32) if not context.tiny else (1,)
    for way in ("greedy", "T .8, top-p .95"):
        for batch in batches:
            if context.enough(4, f"128k tokens, batch {batch}, {way}"):
                found |= _group(context, "128k", pair, way, batch, _METHODS[:2], 1.0)
    return [asdict(pace) | {"setting": setting} for setting, pace in found.items()]
