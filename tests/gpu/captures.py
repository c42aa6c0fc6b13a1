"""Captured passes and chains: which there are, what they take, whether they equal eager ones."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from specstream.checks import first_line
from specstream.model.forward import Extras, ForwardInput
from specstream.model.graphs import DRAFT, TARGET, CapturePlan, Graphs, compile_passes, drop_what_differs
from specstream.model.graphs.capture import batches_up_to
from specstream.model.kv import KVCache
from specstream.model.numerics import rounding
from specstream.model.runner import ModelRunner
from specstream.model.tree import Tree
from tests.gpu.context import Context
from tests.gpu.models import bundled, capture, runner

__all__ = ["graphs"]

_DEPTHS = (2, 5, 8)  # as heads of the bundled target read them
_TREE = Tree((-1, -1, 0, 0, 1))


def graphs(context: Context) -> dict[str, Any]:
    """The bundled target with its states, and its draft, in bfloat16."""
    most = context.size(32, 2)
    found = dict[str, Any]()
    for which, plan, depths in (("target", TARGET, _DEPTHS), ("draft", DRAFT, ())):
        if context.tiny:
            plan = CapturePlan(plan.widths[1:3], plan.wide[:1], min(plan.steps, 2))
        made = runner(context, bundled(context, "bfloat16", which))
        began = time.monotonic()
        _compile(context, made, plan, most, depths)
        took = time.monotonic() - began
        assert made.compiled is not None
        found[which] = _count(context, which, plan, made.compiled, most, took)
        if made.compiled.passes.captured:
            with _strict(context, made.compiled):
                _compare(context, which, made, depths, most)
    return found


def _compile(
    context: Context, made: ModelRunner, plan: CapturePlan, most: int, depths: tuple[int, ...]
) -> None:
    """As building an engine does."""
    if context.mode == "cpu":  # refused there
        made.compiled = capture(context, made, plan, batches_up_to(most), depths)
        drop_what_differs(made.decoder, made.compiled.passes, made.compiled.chains)
        return
    made.compiled = compile_passes(
        made.decoder,
        plan,
        context_length=made.context_length,
        most=most,
        vocab_size=made.vocab_size,
        depths=depths,
    )


def _count(
    context: Context, which: str, plan: CapturePlan, made: Graphs, most: int, took: float
) -> dict[str, Any]:
    wanted = len(plan.passes(batches_up_to(most)))
    chains = 0 if made.chains is None else len(made.chains.captured)
    wanted_chains = 5 * len(batches_up_to(most)) if plan.steps else 0
    whole = len(made.passes.captured) == wanted and chains == wanted_chains
    said = f"{len(made.passes.captured)} of {wanted} passes, {chains} of {wanted_chains} chains"
    said += f", {made.nbytes / 2**20:.0f} MiB, {took:.1f} s"
    context.check(f"{which}: captured and agreed", whole, said)
    missing = made.passes.missing or ("" if made.chains is None else made.chains.missing)
    if missing:
        context.row(f"{which}: not captured", missing)
    chains_captured = [] if made.chains is None else made.chains.captured
    return {"passes": made.passes.captured, "chains": chains_captured, "summary": made.summary}


@contextmanager
def _strict(context: Context, made: Graphs) -> Iterator[None]:
    """A block in which every replay has its results poisoned and may not wait for the device."""
    graphs = list(made.passes.graphs.values())
    kept = [graph.replay for graph in graphs]

    def poisoning(graph: Any, replay: Any) -> Any:
        def run() -> None:
            graph.logits.fill_(torch.nan)
            if graph.states is not None:
                graph.states.fill_(torch.nan)
            replay()

        return run

    for graph, replay in zip(graphs, kept, strict=True):
        graph.replay = poisoning(graph, replay)
    try:
        yield
    finally:
        for graph, replay in zip(graphs, kept, strict=True):
            graph.replay = replay


@torch.inference_mode()
def _compare(
    context: Context, which: str, made: ModelRunner, depths: tuple[int, ...], most: int
) -> None:
    """Batches of every size with texts of their own, some ragged, some with trees."""
    worst, waits, count = 0.0, "", 0
    graphs = made.compiled
    assert graphs is not None
    for batch, width in graphs.passes.captured:
        if context.left < 3:
            break
        trees = graphs.passes.trees and width > len(_TREE.parents)
        for tree in (None, _TREE)[: 1 + trees]:
            inputs, others = _inputs(made, batch, width, tree), _inputs(made, batch, width, tree)
            torch.cuda.synchronize()
            torch.cuda.set_sync_debug_mode("error")
            try:
                found = graphs.passes(inputs, depths)
            except RuntimeError as error:
                waits = waits or f"{batch} x {width}: {first_line(error)}"
                continue
            finally:
                torch.cuda.set_sync_debug_mode("default")
            wanted = made.decoder(others, Extras(depths) if depths else Extras((0,)))
            assert found is not None
            pairs = [*zip(found.logits, wanted.logits, strict=True)]
            pairs += [*zip(found.states, wanted.states, strict=True)] if depths else []
            worst = max(worst, *(context.off(mine, theirs) for mine, theirs in pairs))
            count += 1
    allowed = rounding(made.dtype)
    said = f"off by {worst:.1e} at most in {count} passes (allowed {allowed:.1e})"
    context.check(f"{which}: poisoned replays equal eager", bool(count) and worst <= allowed, said)
    context.check(f"{which}: a replay never waits", not waits, waits or "no wait")


def _inputs(made: ModelRunner, batch: int, width: int, tree: Tree | None) -> list[ForwardInput]:
    """Sequences of lengths 3, 8, 13 …, the last one narrower than the pass, the first with the tree."""
    found = list[ForwardInput]()
    for number in range(batch):
        count = max(1, width - (number == batch - 1 and batch > 1))
        cache, before = made.new_cache(), 3 + 5 * number
        _read(made, cache, _text(made, number, before))
        tokens = _text(made, number + 50, count)
        found.append(ForwardInput(tokens, cache, count, tree if number == 0 else None))
    return found


def _read(made: ModelRunner, cache: KVCache, tokens: Tensor) -> None:
    made.decoder([ForwardInput(tokens, cache)])


def _text(made: ModelRunner, number: int, count: int) -> Tensor:
    tokens = torch.arange(count, device=made.device) * (7 + 2 * number) + 11 * number
    return tokens % made.vocab_size
