"""The test has teeth: twelve bugs that shipped elsewhere or would be easy to make, each rejected.

Each at p < 1e-6. The same cells without them pass, with as many runs: so the same mistake made in the
engine itself would be rejected here, too. What is harmless in truth is shown to be.

Power of the two that are made in one place of ours: N = 2,500 finds a total variation of 0.075 (noise
keyed by position) and of 0.1 (a token dropped) with probability 0.99; seen are 0.077 and 0.097, at
p = 4e-12 and 4e-17.
"""

from __future__ import annotations

import functools

import pytest

from specstream.bench.exactness.gtest import GTest
from tests.exactness.bugs import BUGS, HARMLESS, run_bug
from tests.exactness.cells import Cell, run_cell

N = 1000
# By the size of the deviation; a judge that goes case by case is slow.
SIZES = {
    "penalties without the accepted prefix": 1800,
    "unsure tokens looked at and dropped": 1500,
    "stale row of q after a full acceptance": 1500,
    "draft's noise keyed by position alone": 2500,
    "auto drops its unsure last token": 2500,
    "residual from unwarped p": 400,
    "bonus from unwarped p": 400,
}


@functools.cache
def without_a_bug(cell: Cell, n: int) -> GTest:
    return run_cell(cell, n)


@pytest.mark.parametrize("name", BUGS)
def test_a_bug_is_rejected_and_its_twin_passes(name: str) -> None:
    n = SIZES.get(name, N)
    assert run_bug(BUGS[name], n).p_value < 1e-6
    assert without_a_bug(BUGS[name].cell, max(n, N)).p_value > 1e-4


@pytest.mark.parametrize("name", HARMLESS)
def test_what_is_harmless_passes(name: str) -> None:
    assert run_bug(HARMLESS[name], N).p_value > 1e-4
