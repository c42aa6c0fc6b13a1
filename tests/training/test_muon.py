"""Muon against torch's own, which iterates in bfloat16."""

import pytest
import torch
from torch import nn

from specstream.training.loop import Muon, orthogonal

SHAPES = [(24, 40), (40, 24), (16, 16)]


def test_steps_are_those_of_torch() -> None:
    torch.manual_seed(0)
    ours = [nn.Parameter(torch.randn(shape)) for shape in SHAPES]
    theirs = [nn.Parameter(one.detach().clone()) for one in ours]
    mine = Muon(ours, lr=0.1)
    reference = torch.optim.Muon(theirs, lr=0.1, weight_decay=0.02, adjust_lr_fn="match_rms_adamw")
    for _ in range(4):
        for one, other in zip(ours, theirs, strict=True):
            one.grad = torch.randn(one.shape)
            other.grad = one.grad.clone()
        before = [one.detach().clone() for one in ours]
        mine.step()
        reference.step()  # type: ignore[no-untyped-call]
        for one, other, start in zip(ours, theirs, before, strict=True):
            moved = (one - start).norm()
            assert (one - other).norm() < 0.05 * moved  # bfloat16's rounding


@pytest.mark.parametrize("shape", SHAPES[:2])
def test_an_update_is_nearly_orthogonal(shape: tuple[int, int]) -> None:
    torch.manual_seed(1)
    matrix = torch.randn(shape)
    found = orthogonal(matrix)
    u, _, v = torch.linalg.svd(matrix, full_matrices=False)
    values = (u.T @ found @ v.T).diagonal()
    assert found.dtype == torch.float32
    assert values.min() > 0.6
    assert values.max() < 1.3


def test_parameters_without_a_gradient_stay() -> None:
    idle, moved = nn.Parameter(torch.ones(4, 4)), nn.Parameter(torch.ones(4, 4))
    moved.grad = torch.ones(4, 4)
    Muon([idle, moved], lr=0.1).step()
    assert torch.equal(idle, torch.ones(4, 4))
    assert not torch.equal(moved, torch.ones(4, 4))


def test_a_gradient_of_zeros_moves_nothing_but_the_decay() -> None:
    weight = nn.Parameter(torch.ones(3, 5))
    weight.grad = torch.zeros(3, 5)
    Muon([weight], lr=0.5, weight_decay=0.1).step()
    assert torch.allclose(weight, torch.full((3, 5), 0.95))
