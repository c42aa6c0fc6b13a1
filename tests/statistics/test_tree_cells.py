"""Trees through the whole engine: the exact distribution of the first four tokens, and greedy equality.

As in `test_engine`: a G-test of N runs against the exact distribution, N = 500 a cell, which finds a
total variation of 0.18 with probability 0.99; a cell fails at p < 1e-3 / (number of cells). The planted
bugs show that these cells see what goes wrong with trees. Which requests share a step depends on the
machine, so p varies between runs; N is such that the weakest of them stays far below 1e-6.
"""

import itertools
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor

import specstream.engine.core.step
from specstream.drafting import rules as tree_rules, sequential, verify
from specstream.drafting.proposal import SpecRequest, Verdict
from specstream.drafting.research.lookahead import LookaheadProposer
from specstream.drafting.verify import Case, verify_batch
from specstream.methods import LookaheadProposerConfig
from specstream.model.kv import KVCache
from tests.exactness.cells import VOCAB, Cell, run_cell
from tests.exactness.toy import random_logits
from tests.support.trees import BestTree, LyingTree, RandomTree, TreeProposer

pytestmark = pytest.mark.slow

ALPHA, N = 1e-3, 500
KINDS: list[type[TreeProposer]] = [RandomTree, BestTree, LyingTree]
CELLS = [
    (kind, Cell(warper=warper, processor=processor, batch=batch))
    for kind in KINDS
    for warper, processor, batch in (
        ("T 1", "none", "1"), ("top-p", "penalties", "4"), ("T 0.5", "automaton", "4"),
    )
]  # fmt: skip


def draft() -> Tensor:
    return random_logits(VOCAB, 0) + 0.6 * random_logits(VOCAB, 1)


@pytest.mark.parametrize(("kind", "cell"), CELLS, ids=str)
def test_a_tree_cell_has_the_exact_distribution(kind: type[TreeProposer], cell: Cell) -> None:
    proposer = kind(draft())
    result = run_cell(cell, N, proposer=proposer)
    assert result.p_value > ALPHA / len(CELLS), result
    assert proposer.branched > 50  # paths other than the first were taken, and kept


def test_a_real_transformer_has_the_exact_distribution() -> None:
    proposer = BestTree(draft())
    result = run_cell(Cell(target="tiny", batch="4"), 300, proposer=proposer)
    assert result.p_value > ALPHA, result
    assert proposer.branched > 25


class Lookahead(LookaheadProposer):
    """Lookahead decoding with a full pool, which four tokens would not fill."""

    accepted = 0

    def _window(self, request: SpecRequest) -> Any:
        window = super()._window(request)
        for first, step in itertools.product(range(VOCAB), range(1, 4) if not window.pool else ()):
            window.pool.add(first, ((first + step) % VOCAB, (first + 2 * step) % VOCAB))
        return window

    def observe(self, requests: Sequence[SpecRequest], verdicts: Sequence[Verdict]) -> None:
        self.accepted += sum(verdict.accepted for verdict in verdicts)
        super().observe(requests, verdicts)


@pytest.mark.parametrize("cell", [cell for kind, cell in CELLS if kind is BestTree], ids=str)
def test_a_lookahead_cell_has_the_exact_distribution(cell: Cell) -> None:
    config = LookaheadProposerConfig(window=3, ngram=3, branches=3)
    proposer = Lookahead(config, torch.device("cpu"))
    result = run_cell(cell, N, proposer=proposer)
    assert result.p_value > ALPHA / len(CELLS), result
    assert proposer.accepted > 100


def without_residuals(children: Tensor, target: Tensor, q: Tensor | None = None) -> tree_rules.Siblings:
    """Each sibling is verified against the target's row, not the residual of those before."""
    assert q is not None
    first = [tree_rules.Siblings(*_one(children, target, q, i)) for i in range(children.shape[-1])]
    alive, taken = torch.ones_like(target[..., 0]), []
    for found in first:
        taken.append(alive * found.taken[..., 0])
        alive = alive * found.none
    return tree_rules.Siblings(torch.stack(taken, -1), alive, first[-1].following)


_sibling_rule = tree_rules.sibling_rule


def _one(children: Tensor, target: Tensor, q: Tensor, i: int) -> tuple[Tensor, Tensor, Tensor]:
    found = _sibling_rule(children[..., i : i + 1], target, q[..., i : i + 1, :])
    return found.taken, found.none, found.following


@pytest.mark.parametrize(
    ("module", "name", "wrong"),
    [
        (tree_rules, "sibling_rule", without_residuals),
        (sequential, "residual", lambda own, drafted, weight: own),
    ],
    ids=["in tensors", "row by row"],
)
def test_a_wrong_sibling_rule_is_found(module: Any, name: str, wrong: Any) -> None:
    with mock.patch.object(module, name, wrong), ExitStack() as patches:
        if module is tree_rules:
            patches.enter_context(mock.patch.object(verify, "_sequentially", return_value=None))
        found = run_cell(Cell(batch="32"), 4_000, proposer=RandomTree(draft()))
    assert found.p_value < 1e-6


def test_trees_in_tensors_have_the_exact_distribution() -> None:
    with mock.patch.object(verify, "_sequentially", return_value=None):
        found = run_cell(Cell(batch="4"), N, proposer=RandomTree(draft()))
    assert found.p_value > ALPHA, found


def test_a_path_whose_rows_are_not_moved_is_found() -> None:
    def forgetful(self: KVCache, start: int, path: Sequence[int]) -> None:
        self.rollback_to(start + len(path))

    with mock.patch.object(KVCache, "keep_path", forgetful):
        found = run_cell(Cell(batch="32"), 2_000, proposer=BestTree(draft()))
    assert found.p_value < 1e-6


def test_a_tree_verified_as_a_chain_is_found() -> None:
    def chains(cases: Sequence[Case], **options: Any) -> Any:
        flat = [replace(case.proposal, parents=None) for case in cases]
        verified = zip(cases, flat, strict=True)
        return verify_batch([replace(case, proposal=one) for case, one in verified], **options)

    with mock.patch.object(specstream.engine.core.step, "verify_batch", chains):
        found = run_cell(Cell(batch="32"), 1_000, proposer=BestTree(draft()))
    assert found.p_value < 1e-6
