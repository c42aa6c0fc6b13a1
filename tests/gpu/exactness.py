"""Distributions on the device by G-tests, and replies that are the same to the last token."""

import time
from collections import Counter
from pathlib import Path
from typing import Any

from specstream.bench.exactness.enumeration import g_test, holm
from specstream.bench.exactness.harness import AT_ONCE, sample
from specstream.config import EngineConfig
from specstream.drafting.proposal import Proposer
from specstream.drafting.proposers.eagle import EagleProposer
from specstream.methods import EagleProposerConfig
from specstream.model.heads.eagle import EagleHead
from specstream.model.heads.tensors import Tensors
from specstream.model.runner import ModelRunner
from specstream.model.selfcheck import find_fixed_width
from specstream.types import SamplingParams
from tests.exactness.cells import LENGTH, PROMPT, VOCAB, Cell
from tests.exactness.toy import TinyRunner
from tests.gpu.context import Context
from tests.gpu.models import bundled
from tests.gpu.pair import make_pair, prompts, replies
from tests.support.heads import random_eagle

__all__ = ["bits", "cells"]

_N = 4000  # replies of a cell
_CELLS = {
    "chain, ratio": Cell("draft", "ratio", "T 1"),
    "chain, block, top-p": Cell("draft", "block", "top-p"),
    "exact match": Cell("draft", "reproducible", "T 1"),
    "tree": Cell("eagle", "block", "T 1", target="tiny"),
    "lookup": Cell("suffix", "block", "T 1.5"),
}


def cells(context: Context) -> dict[str, Any]:
    """A sample of the cells of the whole-engine test, each with an equal share of the time."""
    found, counts, told = dict[str, float](), dict[str, int](), dict[str, Any]()
    names = list(_CELLS)
    for number, name in enumerate(names):
        share = (context.left - 2) / (len(names) - number)
        cell = _placed(_CELLS[name], context)
        core = cell.core(_tree(context, cell) if cell.target == "tiny" else None)
        seen = Counter[tuple[int, ...]]()
        began, wanted = time.monotonic(), context.size(_N, AT_ONCE)
        while seen.total() < wanted and (context.tiny or time.monotonic() - began < share):
            first = seen.total()
            seen += sample(core, PROMPT, cell.params, AT_ONCE, length=LENGTH, first_seed=first)
        if context.mode == "fake":  # what is drawn there is no sample
            context.row(f"{name}, {seen.total()} replies", "drawn, not compared")
            continue
        test = g_test(seen, cell.exact())
        context.row(f"{name}, {test.n} replies", f"p {test.p_value:.2g}")
        found[name], counts[name] = test.p_value, test.n
        told[name] = {"p": test.p_value, "n": test.n, "tv": test.tv, "tv_of_chance": test.noise}
    if found:
        words = ", ".join(f"{name} {p:.2g}" for name, p in found.items())
        context.row(f"p of {min(counts.values())} to {max(counts.values())} replies", words)
        rejected = [name for name, no in zip(found, holm([*found.values()]), strict=True) if no]
        said = ", ".join(rejected) or f"least p {min(found.values()):.3g}"
        context.check(f"none of {len(found)} rejected (Holm, 1e-3)", not rejected, said)
    return told


def _placed(cell: Cell, context: Context) -> Cell:
    values = {name: getattr(cell, name) for name in cell.__slots__}
    many = "32" if not context.tiny else "4"
    return Cell(**values | {"device": str(context.device), "batch": many})


def _tree(context: Context, cell: Cell) -> Proposer:
    """Trees that are drawn by a random head, over the cell's own target."""
    with context.outside():  # its weights are drawn on a CPU
        head = random_eagle(TinyRunner(VOCAB, 0).model, scale=3.0)
        tensors = dict(head.module.state_dict())
    made = EagleHead(head.module.shape, Tensors(Path(), tensors), cell.runner())
    config = EagleProposerConfig(depth=3, top_k=2, nodes=5)
    return EagleProposer(config, made, VOCAB, frozenset({0}))


def bits(context: Context) -> dict[str, Any]:
    """Reproducible mode: the tokens of plain decoding whatever drafts, in both dtypes."""
    for dtype in ("bfloat16", "float32"):
        if not context.enough(5, dtype):
            break
        model = bundled(context, dtype)
        config = EngineConfig(context_length=512, mode="reproducible")
        width = 8 if context.mode == "fake" else find_fixed_width(model, config)
        pair = make_pair(context, dtype)
        pair.target = ModelRunner(model, fixed_width=width, context_length=512)
        asked = prompts(context.size(8, 2))
        params = [
            SamplingParams(temperature=0.8, max_tokens=context.size(40, 3), seed=seed)
            for seed in range(len(asked))
        ]
        same = dict[str, int]()
        wanted = list[list[int]]()
        for method in ("off", "draft-4", "suffix"):
            core = pair.core(method, 4, mode="reproducible", context_length=512)
            found = replies(core, asked, params)
            wanted = wanted or found
            same[method] = sum(a == b for a, b in zip(found, wanted, strict=True))
        ok = all(n == len(asked) for n in same.values())
        said = ", ".join(f"{name} {n} of {len(asked)}" for name, n in same.items())
        context.check(f"{dtype}, passes of {width} tokens", ok, said)
    return {}
