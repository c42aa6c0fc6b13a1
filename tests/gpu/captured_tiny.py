"""Captured passes of a tiny model against eager ones; a program of its own for a memory checker."""

import sys
import time
from pathlib import Path
from typing import Any

import torch

from specstream.model.forward import ForwardInput
from specstream.model.graphs import CapturePlan
from specstream.model.graphs.passes import GraphedPasses
from specstream.model.tree import Tree
from tests.gpu.context import Context
from tests.gpu.models import capture_with, place, pooled_decoder
from tests.model.families import build

__all__ = ["run"]


@torch.inference_mode()
def run(context: Context) -> float:
    """The largest difference of chains and trees, relative to the largest logit."""
    with context.outside():
        model: Any = build("llama", hidden_size=256, intermediate_size=512)
        model = model.to(torch.bfloat16)
        for weight in model.parameters():
            if weight.dim() > 1:
                weight.mul_(0.2)
    decoder = pooled_decoder(context, place(context, model), 8192)
    graphed = GraphedPasses(decoder, CapturePlan((1, 5)), capture_with(context), 512, (1, 2))
    graphed.record_all(lambda: None)
    worst = 0.0 if graphed.captured else torch.inf
    for tree in (None, Tree((-1, -1, 0, 1)) if graphed.trees else None):
        sides = []
        for _ in range(2):
            inputs = []
            for before in (3, 70):
                cache, tokens = decoder.new_cache(), torch.arange(before + 5, device=context.device)
                decoder([ForwardInput(tokens[:before] % 40, cache)])
                inputs.append(ForwardInput(tokens[before:] % 40, cache, 5, tree))
            sides.append(inputs)
        found, wanted = graphed(sides[0]), decoder(sides[1])
        if found is None:
            return torch.inf
        pairs = zip(found.logits, wanted.logits, strict=True)
        worst = max(worst, *(context.off(mine, theirs) for mine, theirs in pairs))
    return worst


if __name__ == "__main__":
    _context = Context("cuda", True, time.monotonic() + 600, Path(), lambda row: None)
    _off = run(_context)
    sys.stdout.write(f"off by {_off:.1e}\n")
    sys.exit(int(_off > 0.1))
