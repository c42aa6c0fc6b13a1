"""Times of single passes at the shapes of real models, eager and captured, and the memory's limit."""

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from specstream.model.decoder import Decoder
from specstream.model.forward import ForwardInput
from specstream.model.graphs import CapturePlan
from specstream.model.graphs.passes import GraphedPasses
from specstream.model.kv import KVCache, RowCache
from specstream.model.numerics import rounding
from tests.gpu.context import Context
from tests.gpu.models import capture_with, copy_bandwidth, pooled_decoder, random_llama, read_bytes

__all__ = ["passes"]

_WIDTHS, _EAGER = (1, 2, 5, 9, 17), (1, 5)
_REPEATS = 30
_LONGEST = 4608  # rows of a sequence


@dataclass
class _Bench:
    context: Context
    name: str
    decoder: Decoder
    graphed: GraphedPasses
    bandwidth: float


@torch.inference_mode()
def passes(context: Context) -> dict[str, Any]:
    """Milliseconds of a pass and its share of what reading its bytes takes."""
    bandwidth = copy_bandwidth(context)
    context.row("copy on the device", f"{bandwidth / 1e12:.2f} TB/s")
    batches, lengths = ((1, 32, 4), (300, 4000)) if not context.tiny else ((1, 2), (20,))
    found = list[dict[str, Any]]()
    for name in ("8B", "1B"):
        model = random_llama(context, name)
        rows = (max(batches) + 4) * max(300, max(lengths) + 64)
        decoder = pooled_decoder(context, model, rows)
        plan = CapturePlan(_WIDTHS if not context.tiny else _WIDTHS[:3])
        way = capture_with(context)
        graphed = GraphedPasses(decoder, plan, way, _LONGEST, sorted(batches))
        graphed.record_all(lambda: None)
        if graphed.missing:
            context.row(f"{name}: not captured", graphed.missing, left_out=True)
        bench = _Bench(context, name, decoder, graphed, bandwidth)
        _equal(bench)
        for length in lengths:
            for batch in batches:
                if not context.enough(4, f"{name}, batch {batch}, {length} rows"):
                    break
                found += _times(bench, batch, length)
        del model, decoder, graphed, bench
        torch.cuda.empty_cache()
    return {"passes": found, "copy_bytes_per_second": bandwidth}


def _equal(bench: _Bench) -> None:
    """Captured logits of random weights equal eager ones."""
    sides = [_caches(bench, 1, 9) for _ in range(2)]
    tokens = torch.arange(5, device=bench.context.device)
    made = bench.graphed([ForwardInput(tokens, sides[0][0], 5)])
    if made is None:
        bench.context.check(f"{bench.name}: captured equals eager", False, "nothing was captured")
        return
    wanted = bench.decoder([ForwardInput(tokens, sides[1][0], 5)])
    off = bench.context.off(made.logits[0], wanted.logits[0])
    ok = off <= rounding(bench.decoder.weights.dtype)
    bench.context.check(f"{bench.name}: captured equals eager", ok, f"off by {off:.1e}")


def _caches(bench: _Bench, batch: int, length: int) -> list[RowCache]:
    """Sequences of ``length`` rows that nobody computed: their values don't change the time."""
    made = [bench.decoder.new_cache() for _ in range(batch)]
    for cache in made:
        cache.reserve(length + 32)
        cache.append_to(length)
    return made


def _times(bench: _Bench, batch: int, length: int) -> list[dict[str, Any]]:
    """All widths of one batch; one row of the table."""
    context, found = bench.context, list[dict[str, Any]]()
    caches = _caches(bench, batch, length)
    least = read_bytes(bench.decoder.weights, batch * length) / bench.bandwidth * 1e3
    words = list[str]()
    for captured in (True, False):
        for width in _WIDTHS if captured else _EAGER:
            run = _pass(bench, caches, width, captured)
            if run is None:
                continue
            ms = _median_ms(context, run)
            words.append(f"{'' if captured else 'eager '}{width}: {ms:.2f}")
            found.append(
                {"shape": bench.name, "batch": batch, "rows": length, "width": width,
                 "captured": captured, "ms": ms, "roofline_ms": least, "roofline": least / ms}
            )  # fmt: skip
    share = next((one["roofline"] for one in found), 0.0)
    said = f"ms by width {', '.join(words)}; roofline {least:.2f} = {share:.0%} of width 1"
    context.row(f"{bench.name}, batch {batch}, {length} rows", said)
    return found


def _pass(
    bench: _Bench, caches: list[RowCache], width: int, captured: bool
) -> Callable[[], None] | None:
    """A pass that leaves the caches as they were; None if it isn't captured."""
    tokens = torch.arange(width, device=bench.context.device)
    inputs = [ForwardInput(tokens, cache, width) for cache in caches]
    if captured and bench.graphed.fitting(len(caches), width) != (len(caches), width):
        return None

    def run() -> None:
        before = caches[0].length
        made = bench.graphed(inputs) if captured else bench.decoder(inputs)
        assert made is not None
        _roll_back(caches, before)

    return run


def _roll_back(caches: list[RowCache], length: int) -> None:
    each: list[KVCache] = [*caches]
    for cache in each:
        cache.rollback_to(length)


def _median_ms(context: Context, run: Callable[[], None]) -> float:
    """The median time of a pass by events in the stream."""
    for _ in range(3):
        run()
    torch.cuda.synchronize()
    events = list[tuple[Any, Any]]()
    for _ in range(context.size(_REPEATS, 2)):
        pair = [torch.cuda.Event(enable_timing=True) for _ in range(2)]  # type: ignore[no-untyped-call]
        pair[0].record()
        run()
        pair[1].record()
        events.append((pair[0], pair[1]))
        torch.cuda.synchronize()  # as in an engine: the next pass waits for this one's choice
    times: list[float] = [start.elapsed_time(end) for start, end in events]
    return statistics.median(times)
