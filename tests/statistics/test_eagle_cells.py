"""EAGLE heads through the whole engine: the exact distribution of the first four tokens.

As in `test_tree_cells`: a G-test of N = 400 runs a cell against the exact distribution, which finds a
total variation of 0.2 with probability 0.99; a cell fails at p < 1e-3 / (number of cells). The head has
weights at random and can draft four of five tokens. The planted bugs show what the cells see: chains
and trees that tell a distribution that they didn't draw from, a tree that leaves drawn tokens out.
"""

from collections.abc import Callable, Sequence
from typing import Any
from unittest import mock

import pytest
import torch

from specstream.drafting.chain import Drafting
from specstream.drafting.proposal import Proposal, SpecRequest
from specstream.drafting.proposers.eagle import EagleProposer
from specstream.drafting.proposers.eagle_drawn import DrawnTree
from specstream.methods import EagleProposerConfig
from tests.exactness.bugs import take_with_a_wrong_q
from tests.exactness.cells import VOCAB, Cell, run_cell
from tests.support.heads import eagle_head, random_eagle

pytestmark = pytest.mark.slow

ALPHA, N = 1e-3, 400
DRAFTABLE = torch.tensor([0, 1, 2, 4])
CHAIN, TREE = {"depth": 3}, {"depth": 3, "top_k": 2, "nodes": 5}
CELLS = [
    (settings, Cell("eagle", rule, warper, processor, k, batch, "tiny"))
    for settings, rule, warper, processor, k, batch in (
        (CHAIN, "block", "T 1", "none", "fixed", "1"),
        (CHAIN, "ratio", "top-p", "penalties", "fixed", "4"),
        (CHAIN, "block", "T 1.5", "automaton", "varying", "4"),
        (TREE, "block", "T 1", "none", "fixed", "4"),
        (TREE, "ratio", "top-k", "penalties", "fixed", "1"),
        (TREE, "block", "T 1.5", "automaton", "varying", "4"),
    )
]  # fmt: skip


class Varied(EagleProposer):
    """The budget depends on the text alone."""

    def propose(self, requests: Sequence[SpecRequest], budget: Sequence[int]) -> list[Proposal]:
        most = [
            min(b, 1 + (r.token_ids[-1] + len(r.token_ids)) % 4)
            for r, b in zip(requests, budget, strict=True)
        ]
        return super().propose(requests, most)


def eagle(cell: Cell, **settings: int) -> EagleProposer:
    runner = cell.runner()
    head = eagle_head(random_eagle(runner.model, vocabulary=DRAFTABLE, scale=3.0), runner)
    kind = Varied if cell.k == "varying" else EagleProposer
    return kind(EagleProposerConfig.model_validate(settings), head, VOCAB, frozenset({0}))


@pytest.mark.parametrize(("settings", "cell"), CELLS, ids=str)
def test_a_cell_has_the_exact_distribution(settings: dict[str, int], cell: Cell) -> None:
    proposer = eagle(cell, **settings)
    result = run_cell(cell, N, proposer=proposer)
    assert result.p_value > ALPHA / len(CELLS), result


def with_siblings(tree: DrawnTree, *told: Any) -> Proposal:
    """Tells for each child the row that the first one was drawn from."""
    first = dict[int, int]()
    for node, parent in enumerate(tree.parents):
        first.setdefault(parent, node)
    tree.drawn_from = [tree.drawn_from[first[parent]] for parent in tree.parents]
    return _PROPOSAL(tree, *told)


def without_unlikely(tree: DrawnTree, *told: Any) -> Proposal:
    """Leaves out leaves that turned out to be unlikely."""
    made = _PROPOSAL(tree, *told)
    if made.probs is None or not made.length:
        return made
    chances = made.probs.gather(1, made.tokens.unsqueeze(1)).squeeze(1).tolist()
    kept = [n for n in range(made.length) if n in tree.parents or chances[n] > 0.4]
    if not kept:
        return Proposal.empty()
    place = {node: index for index, node in enumerate(kept)} | {-1: -1}
    parents = tuple(place[tree.parents[node]] for node in kept)
    return Proposal(made.tokens[kept], made.probs[kept], parents, source=made.source)


_PROPOSAL = DrawnTree.proposal


@pytest.mark.parametrize(("wrong", "n"), [(with_siblings, 3_000), (without_unlikely, 1_000)])
def test_a_dishonest_tree_is_found(wrong: Callable[..., Proposal], n: int) -> None:
    cell = Cell("eagle", "block", "T 1", batch="32", target="tiny")
    with mock.patch.object(DrawnTree, "proposal", wrong):
        found = run_cell(cell, n, proposer=eagle(cell, **TREE))
    assert found.p_value < 1e-6


def test_a_wrong_q_is_found() -> None:
    cell = Cell("eagle", "block", "T 1", batch="32", target="tiny")
    proposer = eagle(cell, **CHAIN)
    with mock.patch.object(Drafting, "take", take_with_a_wrong_q):
        found = run_cell(cell, 1_000, proposer=proposer)
    assert found.p_value < 1e-6
