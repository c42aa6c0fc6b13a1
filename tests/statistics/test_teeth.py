"""Planted bugs: twelve that shipped elsewhere or would be easy to make, each rejected at p < 1e-6.

The same cells without a bug pass with at least as many runs, so the same bug in the engine's own code
would be rejected, too. Harmless deviations are shown to be harmless.

N is chosen by the size of the deviation. With the seeds used here the weakest are noise keyed by
position (total variation 0.077, N = 2,500, p = 4e-12), penalties (0.11, N = 1,800, p = 6e-12) and a
stale row (0.12, N = 1,000, p = 8e-14).
"""

import functools

import pytest

from specstream.bench.exactness.enumeration import GTest
from tests.exactness.bugs import BUGS, HARMLESS, run_bug
from tests.exactness.cells import Cell, run_cell

pytestmark = pytest.mark.slow

N = 1000
SIZES = {  # by the size of the deviation
    "argmax draft, q given as if drawn": 400,  # p = 1e-50 and less, as the next three
    "q a position late": 800,
    "top-p before the temperature, and twice": 400,
    "sub-vocabulary, q over all tokens": 400,
    "penalties without the accepted prefix": 1800,
    "unsure tokens looked at and dropped": 1500,
    "stale row of q after a full acceptance": 1000,
    "draft's noise keyed by position alone": 2500,
    "auto drops its unsure last token": 2500,
    "residual from unwarped p": 200,
    "bonus from unwarped p": 200,
}


@functools.cache
def without_a_bug(cell: Cell) -> GTest:
    """One run for all bugs of a cell, as long as the longest of them."""
    return run_cell(cell, max(SIZES.get(name, N) for name, bug in BUGS.items() if bug.cell == cell))


@pytest.mark.parametrize("name", BUGS)
def test_a_bug_is_rejected_and_its_twin_passes(name: str) -> None:
    n = SIZES.get(name, N)
    assert run_bug(BUGS[name], n).p_value < 1e-6
    assert without_a_bug(BUGS[name].cell).p_value > 1e-4


@pytest.mark.parametrize("name", HARMLESS)
@pytest.mark.broken_proposer
def test_what_is_harmless_passes(name: str) -> None:
    """N = 600 finds a total variation of 0.18 with probability 0.99 at p < 1e-3."""
    result = run_bug(HARMLESS[name], 600)
    assert result.p_value > 1e-4 and result.detectable < 0.18
