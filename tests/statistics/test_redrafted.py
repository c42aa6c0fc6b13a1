"""An answer drafted from another question's answer has its own exact distribution."""

from collections import Counter

import pytest

from specstream.bench.exactness.enumeration import g_test
from specstream.bench.exactness.harness import run_requests
from tests.exactness.cells import LENGTH, PROMPT, Cell
from tests.exactness.toy import Letters

pytestmark = pytest.mark.slow

ALPHA = 1e-3
CELLS = [Cell("suffix", rule="block"), Cell("suffix", rule="ratio", warper="top-p")]
N = 300


@pytest.mark.parametrize("cell", CELLS, ids=str)
def test_what_was_written_for_other_words_biases_nothing(cell: Cell) -> None:
    """As after a transcript that changed: the unwanted answer is given as ``reference``."""
    core, seen, accepted = cell.core(), Counter[tuple[int, ...]](), 0
    for seed in range(N):
        [vain] = run_requests(core, PROMPT[:-1], [cell.params], noise=[10**6 + seed])
        text = Letters().decode(vain.token_ids[vain.prompt_length :])
        [wanted] = run_requests(core, PROMPT, [cell.params], reference=text, noise=[seed])
        assert bool(wanted.reference_ids) == bool(text)
        accepted += wanted.report().accepted
        seen[tuple(wanted.token_ids[wanted.prompt_length :][:LENGTH])] += 1
    assert accepted > N / 20
    result = g_test(seen, cell.exact())
    assert result.p_value > ALPHA / len(CELLS), result
