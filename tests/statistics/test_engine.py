"""The whole engine against the exact distribution of the first four tokens.

Each cell runs the real engine N times with seeds of their own over a target whose joint distribution is
computed by `specstream.bench.exactness.harness`, which shares no code with the engine, and puts the
counts through a G-test (pooled to an expectation of 5). A cell fails at p < 1e-3 / (number of cells):
Holm's first step, so the whole family errs once in a thousand. Seeds are fixed: no run is lucky.

Power, from a noncentrality of N·4·TV²: the cells of every run (N = 250) find a TV of about 0.25 each
with probability 0.99, so they see the bugs that shipped elsewhere (`test_teeth`), not small biases;
nightly, N = 54,000 finds 0.02.
"""

import itertools

import pytest

from tests.exactness.cells import FACTORS, Cell, covering_cells, every_cell, run_cell

pytestmark = pytest.mark.slow

CELLS = covering_cells()
TINY = [
    Cell(target="tiny", batch="4"),
    Cell(target="tiny", rule="ratio", processor="penalties", warper="top-p", k="varying"),
    Cell(target="tiny", rule="reproducible", proposer="suffix", batch="4"),
]
ALPHA = 1e-3
DEEP = 54_000
BROAD = 2_000


def test_the_cells_cover_every_pair() -> None:
    names = list(FACTORS)
    for a, b in itertools.combinations(names, 2):
        seen = {(getattr(cell, a), getattr(cell, b)) for cell in CELLS}
        assert seen == set(itertools.product(FACTORS[a], FACTORS[b]))


@pytest.mark.parametrize("cell", CELLS, ids=str)
def test_a_cell_has_the_exact_distribution(cell: Cell) -> None:
    result = run_cell(cell, 250)
    assert result.p_value > ALPHA / len(CELLS), result


@pytest.mark.parametrize("cell", TINY, ids=str)
def test_a_real_transformer_has_the_exact_distribution(cell: Cell) -> None:
    result = run_cell(cell, 300)
    assert result.p_value > ALPHA / len(TINY), result


@pytest.mark.nightly
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("cell", [*CELLS, *TINY], ids=str)
def test_deep(cell: Cell) -> None:
    """Total variations of 0.02 and more would be found in any one of these with probability 0.99."""
    result = run_cell(cell, DEEP, first_seed=10**6)
    assert result.p_value > ALPHA / (len(CELLS) + len(TINY)), result
    assert result.detectable < 0.025


@pytest.mark.nightly
@pytest.mark.timeout(4 * 3600)
def test_broad() -> None:
    """Every combination there is."""
    cells = list(every_cell())
    p_values = [run_cell(cell, BROAD, first_seed=10**7).p_value for cell in cells]
    wrong = [str(cell) for cell, p in zip(cells, p_values) if p < ALPHA / len(cells)]
    assert not wrong
