"""A decoder of our kernels gives the logits and states of torch's operations, in the interpreter."""

from typing import Any

import pytest
import torch

from specstream.model.attention.kernels import Kernels, padded
from specstream.model.attention.pooled import PooledAttention
from specstream.model.decoder import Decoder
from specstream.model.forward import Extras, ForwardInput
from specstream.model.graphs import CapturePlan, drop_what_differs
from specstream.model.graphs.chains import GraphedChains
from specstream.model.graphs.passes import GraphedPasses
from specstream.model.tree import Tree
from specstream.model.weights import DecoderWeights, RotaryTable
from tests.model.families import VOCAB, build, decoder_of, text
from tests.model.fused.cases import looping
from tests.support.recorder import Recorder

# `cases` skips this module where Triton is missing.
from specstream.model.fused.attention import attend  # isort: skip

pytestmark = looping

TREE = Tree((-1, -1, 0, 2, 0))


def fused(model: Any) -> Decoder:
    weights = DecoderWeights.of(model)
    assert weights is not None
    attention = PooledAttention(weights, 2048, Kernels(attend, attend, padded))
    rotary = RotaryTable.of(model, weights.head_dim)
    made = Decoder(weights, rotary, attention, fuse=True)
    assert made.special
    return made


@pytest.mark.parametrize("name", ["llama", "qwen3"])
@torch.inference_mode()
def test_passes_of_all_kinds_are_those_of_torch(name: str) -> None:
    """Prompts, chains and trees together, states at all depths, kept tokens only, and early ends."""
    model = build(name)
    sides = fused(model), decoder_of(model, "contiguous")
    depth = len(sides[0].weights.layers)
    caches = [[side.new_cache() for _ in range(3)] for side in sides]
    passes: list[tuple[list[tuple[int, int, Tree | None]], Extras]] = [
        ([(20, 1, None), (3, 1, None), (7, 2, None)], Extras()),
        ([(6, 6, TREE), (2, 2, None), (5, 5, TREE)], Extras((depth, 0, 1))),
        ([(1, 1, None), (6, 5, TREE), (2, 1, None)], Extras((1,))),
        ([(2, 1, None), (1, 1, None), (3, 1, None)], Extras((1,), logits=False)),
    ]
    for number, (shapes, extras) in enumerate(passes):
        found = []
        for side, mine in zip(sides, caches, strict=True):
            each = zip(shapes, mine, strict=True)
            inputs = [
                ForwardInput(text(count, seed=number + at), cache, keep, tree)
                for at, ((count, keep, tree), cache) in enumerate(each)
            ]
            found.append(side(inputs, extras))
        for ours, theirs in zip(
            found[0].logits + found[0].states, found[1].logits + found[1].states, strict=True
        ):
            torch.testing.assert_close(ours, theirs, atol=2e-4, rtol=1e-3)


@torch.inference_mode()
def test_captured_passes_and_chains_of_our_kernels_agree_with_eager_ones() -> None:
    """With trees and states; one capture serves all lengths."""
    decoder, recorder = fused(build("llama")), Recorder()
    plan = CapturePlan((1, 5), steps=2)
    passes = GraphedPasses(decoder, plan, recorder, 512, (1, 2), depths=(1,))
    chains = GraphedChains(decoder, plan, VOCAB, recorder, 512, (1, 2))
    passes.record_all(lambda: None)
    chains.record_all(lambda: None)
    assert len(passes.captured) == 4 and len(chains.captured) == 10
    assert not passes.missing and not chains.missing
    drop_what_differs(decoder, passes, chains)
    assert len(passes.captured) == 4 and len(chains.captured) == 10
