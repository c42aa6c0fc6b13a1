"""Kernels that a pass on a GPU launches, counted on fake tensors."""

from typing import Any

import pytest
import torch

from specstream.model import fused
from specstream.model.forward import ForwardInput
from specstream.model.runner import ModelRunner
from specstream.model.tree import Tree
from tests.support.fake_cuda import CARD, fake_cuda, on_card
from tests.support.tiny import tiny_model

pytestmark = pytest.mark.fake_cuda

TREE = Tree((-1, -1, -1, 0, 0, 0, 1, 1, 3, 3, 4, 8))


def launched(layers: int, inputs: list[tuple[int, Tree | None]]) -> int:
    """The launches of one pass over these numbers of tokens and trees, behind 16 rows each."""
    model: Any = tiny_model(264, seed=2, layers=layers)
    model.to(torch.bfloat16)
    with fake_cuda() as counts:
        runner = ModelRunner(on_card(model))
        caches = [runner.new_cache() for _ in inputs]

        def tokens(count: int) -> torch.Tensor:
            return torch.zeros(count, dtype=torch.int64, device=CARD)

        runner.forward([ForwardInput(tokens(16), cache) for cache in caches])
        each = zip(inputs, caches, strict=True)
        made = [ForwardInput(tokens(n), cache, n, tree) for (n, tree), cache in each]
        counts.reset()
        runner.forward(made)
        assert not counts.waits and counts.uploads == 1
        return counts.launched


def by_layer(inputs: list[tuple[int, Tree | None]]) -> float:
    return (launched(6, inputs) - launched(2, inputs)) / 4


@pytest.fixture
def no_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused, "installed", lambda: False)


@pytest.mark.usefixtures("no_triton")
@pytest.mark.parametrize("count", [1, 32])
def test_a_layer_of_chains_takes_fifteen_operations_whatever_the_batch(count: int) -> None:
    assert by_layer([(5, None)] * count) <= 15
    assert launched(2, [(5, None)] * count) - 2 * by_layer([(5, None)] * count) <= 12


@pytest.mark.usefixtures("no_triton")
def test_one_upload_serves_a_pass_with_trees() -> None:
    launched(2, [(13, TREE), (5, None)])


@pytest.mark.parametrize("count", [1, 32])
def test_with_our_own_kernels_a_layer_takes_ten_operations_for_trees_too(count: int) -> None:
    """Four products, attention and its merge of splits, two norms, rotation and SiLU."""
    pytest.importorskip("triton")
    one: tuple[tuple[int, Tree | None], ...] = ((5, None), (13, TREE))
    for shape in one:
        inputs = [shape] * count
        each = by_layer(inputs)
        assert each <= (10 if count == 1 else 9), each
        assert launched(2, inputs) - 2 * each <= 12
