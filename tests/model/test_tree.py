"""Trees in a pass: each node's logits are those of its own path, and the path's rows can be kept."""

import random
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from transformers import (
    BloomConfig,
    BloomForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    GPTNeoConfig,
    GPTNeoForCausalLM,
    PreTrainedModel,
)

from specstream.errors import ModelUnsupported
from specstream.model.forward import PLAIN, Extras, ForwardInput, ForwardOutput
from specstream.model.runner import ModelRunner
from specstream.model.selfcheck import check_trees
from specstream.model.tree import Tree, positions_of
from tests.model.families import FAMILY, VOCAB, build, text

pytestmark = pytest.mark.usefixtures("passes")


def random_tree(rng: random.Random, size: int) -> Tree:
    return Tree(tuple(rng.randrange(-1, node) for node in range(size)))


def gpt2() -> PreTrainedModel:
    torch.manual_seed(3)
    sizes: dict[str, Any] = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 512}
    model = GPT2LMHeadModel(GPT2Config(vocab_size=VOCAB, **sizes))
    model.train(False)
    return model


def linear(runner: ModelRunner, ids: torch.Tensor) -> torch.Tensor:
    """The logits after the last of ``ids``, ``[V]``."""
    return runner.forward([ForwardInput(ids, runner.new_cache())]).logits[0][0]


def same(found: torch.Tensor, expected: torch.Tensor) -> None:
    """To 1e-5 of the largest logit: sums in another order differ by a few of its last bits."""
    largest = max(1.0, float(expected.abs().max()))
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5 * largest)


@pytest.mark.parametrize("name", [*FAMILY, "gpt2"])
@pytest.mark.parametrize("lean", [True, False])
@torch.inference_mode()
def test_every_nodes_logits_are_those_of_its_path(name: str, lean: bool) -> None:
    rng = random.Random(7)
    runner = ModelRunner(gpt2() if name == "gpt2" else build(name), lean=lean)
    for size in (2, 5, 13, 90):  # 90: more rows than query heads are folded for
        tree = random_tree(rng, size)
        prompt, nodes = text(11, seed=size), text(size, seed=size + 1)
        cache = runner.new_cache()
        runner.forward([ForwardInput(prompt[:6], cache)])
        ids = torch.cat([prompt[6:], nodes])
        (found,) = runner.forward([ForwardInput(ids, cache, size + 1, tree)]).logits
        same(found[0], linear(runner, prompt))
        for node in range(0, size, 1 + size // 8):
            path = torch.cat([prompt, nodes[list(tree.paths[node])]])
            same(found[node + 1], linear(runner, path))


@pytest.mark.parametrize("lean", [True, False])
@torch.inference_mode()
def test_a_kept_path_goes_on_as_if_there_had_been_no_tree(lean: bool) -> None:
    rng = random.Random(1)
    runner = ModelRunner(build("llama"), lean=lean)
    for seed in range(20):
        tree = random_tree(rng, 9)
        prompt, nodes, after = text(10, seed), text(9, seed + 100), text(3, seed + 200)
        path = tree.paths[rng.randrange(9)]
        cache = runner.new_cache()
        runner.forward([ForwardInput(torch.cat([prompt, nodes]), cache, 10, tree)])
        cache.keep_path(10, path)
        assert cache.length == 10 + len(path)
        (found,) = runner.forward([ForwardInput(after, cache)]).logits
        whole = torch.cat([prompt, nodes[list(path)], after])
        same(found[0], linear(runner, whole))


@torch.inference_mode()
def test_trees_and_chains_share_a_pass() -> None:
    rng = random.Random(5)
    runner = ModelRunner(build("qwen3"))
    trees = [random_tree(rng, 6), None, random_tree(rng, 3), None]
    inputs, prompts = [], []
    for number, tree in enumerate(trees):
        prompt = text(4 + 3 * number, number)
        nodes = text(len(tree.parents) if tree else 2, 50 + number)
        keep = 1 + nodes.shape[0]
        inputs.append(ForwardInput(torch.cat([prompt, nodes]), runner.new_cache(), keep, tree))
        prompts.append(prompt)
    for item, prompt, found in zip(inputs, prompts, runner.forward(inputs).logits, strict=True):
        nodes = item.token_ids[prompt.shape[0] :]
        paths = item.tree.paths if item.tree else [(0,), (0, 1)]
        for node, path in enumerate(paths):
            ids = torch.cat([prompt, nodes[list(path)]])
            same(found[node + 1], linear(runner, ids))


@torch.inference_mode()
def test_a_model_that_takes_positions_in_another_way_is_refused_by_name() -> None:
    check_trees(ModelRunner(build("llama")))
    check_trees(ModelRunner(gpt2()))
    torch.manual_seed(0)
    bloom = BloomForCausalLM(BloomConfig(vocab_size=VOCAB, hidden_size=32, n_layer=2, n_head=4))
    with pytest.raises(ModelUnsupported, match="BloomForCausalLM can't verify trees"):
        check_trees(ModelRunner(bloom))
    with pytest.raises(ModelUnsupported, match="reproducible"):
        check_trees(ModelRunner(build("llama"), fixed_width=8, context_length=64))


@torch.inference_mode()
def test_a_model_whose_logits_of_trees_are_no_numbers_is_refused() -> None:
    """As those of a mask that hides everything from a node."""
    runner = ModelRunner(gpt2())
    forward = runner.forward

    def broken(inputs: Sequence[ForwardInput], extras: Extras = PLAIN) -> ForwardOutput:
        found = forward(inputs, extras)
        if inputs[0].tree is not None:
            found.logits[0][3, 5] = torch.nan
        return found

    runner.forward = broken  # type: ignore[method-assign]
    with pytest.raises(ModelUnsupported, match="can't verify trees"):
        check_trees(runner)


@torch.inference_mode()
def test_trees_are_tried_on_tokens_of_text() -> None:
    """The first ids are often control tokens; those of SmolLM2 magnify rounding beyond the bound."""
    runner, read = ModelRunner(build("llama")), set[int]()
    forward = runner.forward

    def spy(inputs: Sequence[ForwardInput], extras: Extras = PLAIN) -> ForwardOutput:
        read.update(*(item.token_ids.tolist() for item in inputs))
        return forward(inputs, extras)

    runner.forward = spy  # type: ignore[method-assign]
    check_trees(runner)
    assert len(read) == 8 and min(read) >= VOCAB // 9


@pytest.mark.parametrize("kinds", [["global"], ["global", "local"]])
def test_windows_that_a_model_names_in_its_own_way_are_refused(kinds: list[str]) -> None:
    """GPT-Neo's: a prompt as short as the trial's would not reach the window."""
    sizes: dict[str, Any] = {"hidden_size": 32, "num_layers": 2, "num_heads": 4}
    types = [[kinds, 2 // len(kinds)]]
    config = GPTNeoConfig(vocab_size=VOCAB, attention_types=types, window_size=12, **sizes)
    model = GPTNeoForCausalLM(config)
    model.train(False)
    if "local" not in kinds:
        return check_trees(ModelRunner(model))
    with pytest.raises(ModelUnsupported, match="sliding window"):
        check_trees(ModelRunner(model))


def test_a_chain_is_no_tree_and_disorder_is_refused() -> None:
    assert Tree.of([-1, 0, 1]) is None
    assert Tree.of([]) is None
    assert Tree.of([-1, -1]) == Tree((-1, -1))
    for parents in ([0], [-1, 1], [-2], [-1, 5]):
        with pytest.raises(ValueError, match="parent"):
            Tree.of(parents)


@torch.inference_mode()
def test_a_tree_that_goes_on_over_several_passes_is_the_same_tree() -> None:
    """Over contiguous caches the first nodes may be cached; siblings among them stay unseen."""
    rng = random.Random(3)
    runner = ModelRunner(build("llama"))
    for size in (3, 8, 70):
        tree, prompt, nodes = random_tree(rng, size), text(9, seed=size), text(size, seed=size + 1)
        cache, found = runner.new_cache(), list[torch.Tensor]()
        runner.forward([ForwardInput(prompt, cache)])
        stops = sorted(rng.sample(range(1, size), min(3, size - 1))) + [size]
        for start, stop in zip([0, *stops], stops, strict=False):
            part = Tree(tree.parents[:stop])
            (rows,) = runner.forward([ForwardInput(nodes[start:stop], cache, stop - start, part)]).logits
            found += list(rows)
        for node in range(0, size, 1 + size // 8):
            path = torch.cat([prompt, nodes[list(tree.paths[node])]])
            same(found[node], linear(runner, path))


def test_a_tree_of_more_nodes_than_rows_is_refused() -> None:
    tree = Tree((-1, 0, 0, 1, 1))
    with pytest.raises(ValueError, match="needs as many rows, not 4"):
        tree.seen_behind(2, 2, 4, torch.device("cpu"))
    with pytest.raises(ValueError, match="needs as many rows, not 4"):
        tree.seen_bytes(2, 2)


def test_bytes_and_mask_show_each_node_its_path() -> None:
    """Of tokens before the tree, of the whole tree, and of its last nodes."""
    rng, before, hidden = random.Random(8), 20, 3
    for size, count in ((5, 9), (5, 5), (9, 4), (1, 3)):
        tree, wide, end = random_tree(rng, size), max(size, count), before + count
        chain = wide - size
        visible = [list(range(row + 1)) for row in range(chain)]
        visible += [[*range(chain), *(chain + node for node in path)] for path in tree.paths]
        wanted = [[column in row for column in range(wide)] for row in visible[-count:]]
        assert tree.seen_bytes(before, count) == bytes(sum(wanted, []))
        mask = tree.seen_behind(before, count, end + hidden, torch.device("cpu"))
        assert bool(mask[:, : end - wide].all()) and not bool(mask[:, end:].any())
        assert mask[:, end - wide : end].tolist() == wanted


def test_positions_go_by_depth() -> None:
    assert positions_of(4, 6, Tree((-1, 0, 0, -1))) == [4, 5, 6, 7, 7, 6]
    assert positions_of(4, 2, None) == [4, 5]


@pytest.mark.parametrize("path", [(1, 0), (0, 0), (3,)])
@torch.inference_mode()
def test_a_path_that_is_none_is_refused(path: tuple[int, ...]) -> None:
    runner = ModelRunner(build("llama"))
    cache = runner.new_cache()
    runner.forward([ForwardInput(text(6), cache)])
    with pytest.raises(ValueError, match="path|roll back"):
        cache.keep_path(3, path)
    assert cache.length == 6
