"""The losses against sums by hand."""

import math

import pytest
import torch

from specstream.training.loss import distance


@pytest.mark.parametrize("acceptance", [0.0, 0.25, 1.0])
def test_loss_and_acceptance_are_the_formulas(acceptance: float) -> None:
    p, q = [0.5, 0.3, 0.2], [0.2, 0.2, 0.6]
    overlap = 0.2 + 0.2 + 0.2
    divergence = sum(a * math.log(a / b) for a, b in zip(p, q, strict=True))
    loss, accepted = distance(torch.tensor([q]).log(), torch.tensor([p]).log(), acceptance)
    assert accepted.item() == pytest.approx(overlap)
    wanted = (1 - acceptance) * divergence - acceptance * math.log(overlap)
    assert loss.item() == pytest.approx(wanted, rel=1e-5)


def test_tokens_outside_the_drafts_vocabulary_are_never_accepted() -> None:
    p, q = torch.tensor([[0.4, 0.1]]), torch.tensor([[0.5, 0.5]])  # half of p is elsewhere
    _, accepted = distance(q.log(), p.log(), 1.0)
    assert accepted.item() == pytest.approx(0.5)


def test_gradients_reach_the_draft_alone() -> None:
    draft = torch.randn(4, 7, requires_grad=True)
    target = torch.randn(4, 7, requires_grad=True)
    loss, accepted = distance(draft, target.log_softmax(-1), 0.5)
    loss.sum().backward()  # type: ignore[no-untyped-call]
    assert draft.grad is not None and draft.grad.abs().sum() > 0
    assert target.grad is None and not accepted.requires_grad
