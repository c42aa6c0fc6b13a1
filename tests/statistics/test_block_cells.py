"""Block drafts through the whole engine: the exact distribution of the first four tokens.

As in `test_engine`: a G-test of N runs against the exact distribution, N = 500 a cell, which finds a
total variation of 0.18 with probability 0.99; a cell fails at p < 1e-3 / (number of cells). The tiny
target's head isn't trained, so its marginals are far from the target's rows; a wrong q would show.
"""

from dataclasses import replace

import pytest
from torch import Tensor

from specstream.drafting.candidate import Task, TaskProposal
from specstream.drafting.proposers import block
from specstream.drafting.rows import take_chain
from tests.exactness.cells import Cell, run_cell
from tests.support.blocks import block_proposer

pytestmark = pytest.mark.slow

ALPHA, N = 1e-3, 500
CELLS = [
    Cell(target="tiny"),
    Cell(target="tiny", batch="4", warper="top-p", processor="penalties"),
    Cell(target="tiny", batch="4", rule="ratio", warper="T 0.5", processor="automaton"),
]


@pytest.mark.parametrize("cell", CELLS, ids=str)
def test_a_block_cell_has_the_exact_distribution(cell: Cell) -> None:
    proposer = block_proposer(cell.runner().model, num_tokens=3, min_confidence=0.3)
    result = run_cell(cell, N, proposer=proposer)
    assert result.p_value > ALPHA / len(CELLS), result


def dishonest(task: Task, logits: Tensor, *, looks: bool, source: str) -> TaskProposal:
    """Tells other probabilities than those that it drew from."""
    made = take_chain(task, logits, looks=looks, source=source)
    if made.proposal.probs is not None:
        rows = made.proposal.probs.roll(1, -1)
        made = made._replace(proposal=replace(made.proposal, probs=rows))
    return made


def test_a_wrong_q_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(block, "take_chain", dishonest)
    proposer = block_proposer(CELLS[0].runner().model, num_tokens=3)
    assert run_cell(CELLS[0], 3 * N, proposer=proposer).p_value < ALPHA
