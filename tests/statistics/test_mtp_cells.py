"""Prediction modules through the whole engine: the exact distribution of the first four tokens.

As in `test_eagle_cells`: a G-test of N = 400 runs a cell against the exact distribution, which finds a
total variation of 0.2 with probability 0.99; a cell fails at p < 1e-3 / (number of cells). The module
has weights at random. The planted bug shows what the cells see: a proposer that tells a distribution
that it didn't draw from.
"""

from unittest import mock

import pytest

from specstream.drafting.candidate import EngineParts
from specstream.drafting.chain import Drafting
from specstream.drafting.proposers.eagle import EagleProposer
from specstream.drafting.proposers.mtp import build
from specstream.methods import MtpProposerConfig
from tests.exactness.bugs import take_with_a_wrong_q
from tests.exactness.cells import Cell, run_cell
from tests.support.mtps import mtp_head, random_module
from tests.support.tiny import byte_tokenizer

pytestmark = pytest.mark.slow

ALPHA, N = 1e-3, 400
CELLS = [
    Cell("mtp", rule, warper, processor, "fixed", batch, "tiny")
    for rule, warper, processor, batch in (
        ("block", "T 1", "none", "1"),
        ("ratio", "top-p", "penalties", "4"),
        ("block", "T 1.5", "automaton", "4"),
    )
]


def mtp(cell: Cell) -> EagleProposer:
    runner = cell.runner()
    head = mtp_head(random_module(runner.model, scale=2.0), runner)
    parts = EngineParts(runner, frozenset({0}), byte_tokenizer(), heads={"mtp": head})
    return build(MtpProposerConfig(num_tokens=3), parts)


@pytest.mark.parametrize("cell", CELLS, ids=str)
def test_a_cell_has_the_exact_distribution(cell: Cell) -> None:
    result = run_cell(cell, N, proposer=mtp(cell))
    assert result.p_value > ALPHA / len(CELLS), result


def test_a_wrong_q_is_found() -> None:
    cell = Cell("mtp", "block", "T 1", batch="32", target="tiny")
    with mock.patch.object(Drafting, "take", take_with_a_wrong_q):
        found = run_cell(cell, 2_000, proposer=mtp(cell))
    assert found.p_value < 1e-6
