"""A native pass: a token's logits are the same bits however tokens are divided into passes."""

import math
import random
from typing import Any, cast

import pytest
import torch
from torch import Tensor

from specstream.model.forward import Entered, Extras, ForwardInput
from specstream.model.kv import RowCache
from specstream.model.native.layers import NativeChain
from specstream.model.runner import ModelRunner
from specstream.model.tokens.spelling import StopRule
from specstream.model.tree import Tree
from tests.model.families import FAMILY, VOCAB, build, text


def runner(name: str, dtype: torch.dtype) -> ModelRunner:
    model: Any = build(name)
    made = ModelRunner(model.to(dtype), native=True)
    assert made.lean
    return made


def chain_of(made: ModelRunner) -> NativeChain:
    chain = made.decoder.chain
    assert chain is not None
    return chain


def logits(of: ModelRunner, ids: Tensor, *counts: int) -> Tensor:
    """All tokens' logits, in passes of these sizes."""
    cache, found = of.new_cache(), list[Tensor]()
    for part in ids.split_with_sizes(list(counts)):
        found += of.forward([ForwardInput(part, cache, keep=part.shape[0])]).logits
    return torch.cat(found)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", FAMILY)
@torch.inference_mode()
def test_passes_of_any_size_give_the_same_bits(name: str, dtype: torch.dtype) -> None:
    made, ids = runner(name, dtype), text(70)
    whole = logits(made, ids, 70)
    for counts in ((1,) * 70, (50, 1, 1, 5, 13), (2, 68)):
        assert torch.equal(logits(made, ids, *counts), whole)


@torch.inference_mode()
def test_so_do_batches_and_threads() -> None:
    made, rng = runner("llama", torch.bfloat16), random.Random(3)
    ids = [text(count, seed=count) for count in (9, 30, 300)]
    alone = [logits(made, one, one.shape[0]) for one in ids]
    before = torch.get_num_threads()
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            caches, done = [made.new_cache() for _ in ids], [0] * len(ids)
            found: list[list[Tensor]] = [[] for _ in ids]
            while any(at < len(one) for at, one in zip(done, ids, strict=True)):
                live = [i for i, one in enumerate(ids) if done[i] < len(one)]
                parts = {i: ids[i][done[i] : done[i] + rng.randint(1, 60)] for i in live}
                inputs = [ForwardInput(parts[i], caches[i], keep=len(parts[i])) for i in live]
                for i, rows in zip(live, made.forward(inputs).logits, strict=True):
                    found[i].append(rows)
                    done[i] += len(parts[i])
            assert all(torch.equal(torch.cat(f), a) for f, a in zip(found, alone, strict=True))
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@torch.inference_mode()
def test_a_node_of_a_tree_has_the_bits_of_its_path(dtype: torch.dtype) -> None:
    made, rng = runner("qwen3", dtype), random.Random(5)
    for _ in range(5):
        prompt, nodes = text(20, seed=rng.randrange(99)), text(12, seed=rng.randrange(99))
        tree = Tree(tuple(rng.randrange(-1, node) for node in range(12)))
        cache = made.new_cache()
        (rows,) = made.forward([ForwardInput(torch.cat([prompt, nodes]), cache, 12, tree)]).logits
        for node, path in enumerate(tree.paths):
            chain = torch.cat([prompt, nodes[list(path)]])
            assert torch.equal(rows[node], logits(made, chain, chain.shape[0])[-1])


@torch.inference_mode()
def test_what_is_no_number_stays_where_it_is_seen() -> None:
    """Tokens share loads of keys and values, but NaN reaches only tokens that see its row."""
    bad, prompt, nodes = VOCAB - 1, text(9) % (VOCAB - 1), text(6, seed=2) % (VOCAB - 1)
    model: Any = build("llama")
    model = model.to(torch.bfloat16)
    model.get_input_embeddings().weight[bad] = torch.nan
    made = ModelRunner(model, native=True)
    broken = nodes.clone()
    broken[2] = bad
    for tree in (None, Tree((-1, 0, 0, 1, 2, 3))):
        rows = [
            made.forward([ForwardInput(torch.cat([prompt, ids]), made.new_cache(), 6, tree)]).logits[0]
            for ids in (nodes, broken)
        ]
        seeing = {2, 4} if tree else {2, 3, 4, 5}
        for node in range(6):
            if node in seeing:
                assert rows[1][node].isnan().all()
            else:
                assert torch.equal(rows[0][node], rows[1][node])


@torch.inference_mode()
def test_states_on_the_way_change_nothing() -> None:
    made, ids = runner("llama", torch.bfloat16), text(12)
    plain = logits(made, ids, 12)
    found = made.forward([ForwardInput(ids, made.new_cache(), keep=12)], Extras(depths=(2, 0, 1)))
    assert torch.equal(found.logits[0], plain) and found.states[0].shape == (12, 3, 32)
    assert found.states[0].dtype is torch.bfloat16


def test_what_it_does_not_compute_is_left_to_torch() -> None:
    assert ModelRunner(build("llama")).invariant
    assert not ModelRunner(build("llama"), native=False).invariant
    for change in ({"hidden_act": "relu"}, {"hidden_size": 48}, {"intermediate_size": 72}):
        made = ModelRunner(build("llama", **change))
        (rows,) = made.forward([ForwardInput(text(3), made.new_cache())]).logits
        assert made.lean and not made.invariant and rows.shape == (1, VOCAB)
    assert ModelRunner(build("llama", hidden_act="gelu_pytorch_tanh"), native=True).lean


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@torch.inference_mode()
def test_a_chain_writes_what_single_steps_write(dtype: torch.dtype) -> None:
    made, ids = runner("qwen3", dtype), text(9)
    for count in (1, 2, 6):
        one, many = made.new_cache(), made.new_cache()
        for cache in (one, many):
            made.forward([ForwardInput(ids, cache)])
            cache.rollback_to(9 - count)
        found = chain_of(made)(ids[9 - count :], cast(RowCache, many), 5, VOCAB - 3)
        assert many.length == 9 + 4
        read = ids[9 - count :]
        for token, confidence in zip(*found, strict=True):
            (rows,) = made.forward([ForwardInput(read, one)]).logits
            q, likeliest = rows[-1, : VOCAB - 3].float().softmax(-1).max(-1)
            assert confidence == pytest.approx(float(q), rel=1e-4)
            assert token == likeliest
            read = token.view(1)
        after = [made.forward([ForwardInput(read, cache)]).logits[0] for cache in (one, many)]
        assert torch.equal(*after)


@torch.inference_mode()
def test_a_chain_ends_where_its_rule_says() -> None:
    made, ids = runner("qwen3", torch.float32), text(9)

    def written(stop: StopRule, most: int = 8) -> list[int]:
        cache = made.new_cache()
        made.forward([ForwardInput(ids[:8], cache)])
        found = chain_of(made)(ids[8:], cast(RowCache, cache), most, VOCAB, stop)
        assert found[0].shape == found[1].shape
        assert cache.length == 8 + len(found[0])
        tokens: list[int] = found[0].tolist()
        return tokens

    whole = written(StopRule())
    assert len(whole) == 8
    for at in range(1, 8):
        first = whole.index(whole[at])
        assert written(StopRule(ends=(VOCAB + 1, whole[at]))) == whole[: first + 1]
        free = StopRule(prices=[0.0] * 7)
        assert written(free) == whole and written(free, 3) == whole[:3]
        assert written(free._replace(prices=[0.0] * at)) == whole[: at + 1]  # as far as it reaches
        dear = [0.0] * (at - 1) + [1.0] + [0.0] * 9
        assert written(free._replace(prices=dear)) == whole[:at]  # at most 1: not above
        halved = StopRule(chances=[0.5], prices=[0.5 ** (at + 2)] * 8)
        assert written(halved) == whole[: at + 1]
        assert written(halved._replace(ceiling=0.25)) == whole[:at]


@torch.inference_mode()
def test_a_chain_looks_its_probabilities_up() -> None:
    made, ids = runner("qwen3", torch.float32), text(9)

    def chain(stop: StopRule) -> tuple[torch.Tensor, torch.Tensor]:
        return chain_of(made)(ids, cast(RowCache, made.new_cache()), 8, VOCAB, stop)

    confidences = chain(StopRule())[1].tolist()
    lowest = min(confidences)
    at = confidences.index(lowest)
    # On an edge means behind it: only what lies below the edge has no chance.
    for edge, count in ((lowest, 8), (math.nextafter(lowest, 2.0), at + 1)):
        rule = StopRule(edges=[edge], chances=[0.0, 1.0], prices=[0.0] * 7)
        assert len(chain(rule)[0]) == count


@torch.inference_mode()
def test_a_pass_that_began_before_has_the_bits_of_a_whole_one() -> None:
    made, ids = runner("llama", torch.bfloat16), text(12)
    cache = made.new_cache()
    made.forward([ForwardInput(ids[:5], cache)])
    early = Extras(depths=(1,), logits=False)
    (states,) = made.forward([ForwardInput(ids[5:9], cache)], early).states
    cache.rollback_to(5)
    item = ForwardInput(ids[5:], cache, 7, entered=Entered(5, 1, states[:, 0]))
    assert torch.equal(made.forward([item]).logits[0], logits(made, ids, 12)[5:])
