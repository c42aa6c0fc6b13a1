"""The reproducible mode in every way that a reply can come about; a thousand generations at night."""

from dataclasses import replace

import pytest
import torch

from specstream.drafting.proposal import Verdict
from specstream.drafting.verify import Case, Rule, verify_batch
from tests.exactness.scale import WAYS, Bench, count_identical, in_a_new_process, make_job

pytestmark = pytest.mark.slow

DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])


@DTYPES
def test_every_way_gives_the_same_tokens(dtype: torch.dtype) -> None:
    counts = count_identical(dtype, 4)
    assert counts.keys() == WAYS.keys()
    assert all(same == total == 4 for same, total in counts.values()), counts


@pytest.mark.nightly
@pytest.mark.timeout(1800)
@DTYPES
def test_a_thousand_replies_are_identical(dtype: torch.dtype) -> None:
    counts = count_identical(dtype, 150)
    assert sum(total for _, total in counts.values()) >= 1000
    assert all(same == total for same, total in counts.values()), counts
    assert in_a_new_process(dtype, 30) == (30, 30)


def test_the_count_sees_noise_that_depends_on_the_draft(monkeypatch: pytest.MonkeyPatch) -> None:
    """Teeth: noise keyed by how many tokens are judged at once, not by the position alone."""

    def by_block(cases: list[Case], *, rule: Rule) -> list[Verdict]:
        return verify_batch([spoilt(case) for case in cases], rule=rule)

    def spoilt(case: Case) -> Case:
        assert case.key is not None
        seed, first = case.key
        return replace(case, key=(seed ^ case.proposal.length, first))

    bench, job = Bench(torch.float32), make_job(0)
    honest = bench.plain(job)
    monkeypatch.setattr("specstream.engine.core.step.verify_batch", by_block)
    assert bench.plain(job) == honest  # nothing is drafted: the bug can't show
    same = [WAYS[name](bench, job, number) == honest for number, name in enumerate(WAYS)]
    assert not any(same[:2])
