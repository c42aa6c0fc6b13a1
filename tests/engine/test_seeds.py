"""A seed repeats, whatever is drafted and whoever is served beside; without one the rule judges."""

from typing import Any

import pytest

from specstream.drafting.proposal import Proposer
from specstream.drafting.verify import verify_batch
from specstream.engine.core import step
from specstream.model.runner import ModelRunner
from specstream.types import SamplingParams
from tests.engine.plain import MODEL, TOKENIZER, proposer
from tests.support.choosers import Dice, proposer_with
from tests.support.tiny import answered, ask, make_core, noisy_copy, run_until_idle

WAYS = ["off", "draft", "suffix", "dice 1", "dice 2", "dice 3"]


def by(way: str) -> Proposer:
    """Dice choose who drafts and how many: as measured times would, in another way each time."""
    if not way.startswith("dice"):
        return proposer(way)
    return proposer_with(Dice(int(way[-1])), ModelRunner(noisy_copy(MODEL, 0.1)))


def reply(way: str, params: SamplingParams, beside: int) -> tuple[list[int], int]:
    core = make_core(MODEL, TOKENIZER, by(way), eos_ids=())
    for number in range(beside):
        ask(core, "xyz", SamplingParams(temperature=1.0, max_tokens=10 + number))
    request, inbox = answered(core, "the cat sat on the mat, the cat", params)
    return inbox.token_ids, request.stats.accepted


@pytest.mark.slow
@pytest.mark.parametrize(
    "values",
    [{"temperature": 0.8}, {"temperature": 1.2, "top_p": 0.9, "repetition_penalty": 1.2}],
    ids=["plain", "processed"],
)
def test_a_seed_fixes_the_samples_whatever_drafts_and_runs_beside(values: dict[str, Any]) -> None:
    accepted, seen = 0, set()
    for seed in range(4):
        params = SamplingParams(seed=seed, max_tokens=40, **values)
        wanted, _ = reply("off", params, 0)
        for beside, way in enumerate(WAYS):
            got, count = reply(way, params, beside % 3)
            assert got == wanted
            accepted += count
        seen.add(tuple(wanted))
    assert accepted > 100 and len(seen) == 4


def test_without_a_seed_each_reply_is_another_and_the_rule_judges(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sampled: list[bool] = []
    keyed: list[bool] = []

    def counted(cases: Any, **options: Any) -> Any:
        sampled.extend(case.sampled for case in cases)
        keyed.extend(case.key is not None for case in cases)
        return verify_batch(cases, **options)

    monkeypatch.setattr(step, "verify_batch", counted)
    core = make_core(MODEL, TOKENIZER, proposer("draft"), eos_ids=())
    free = SamplingParams(temperature=1.0, max_tokens=12)
    asked = [ask(core, "abc", free) for _ in range(2)]
    greedy = ask(core, "abc", SamplingParams(seed=1, max_tokens=12))
    seeded = ask(core, "abc", SamplingParams(temperature=1.0, seed=1, max_tokens=12))
    core.step()
    assert sampled == [True, True, False, False]
    assert keyed == [False, False, False, True]
    run_until_idle(core)
    assert asked[0][1].token_ids != asked[1][1].token_ids
    assert all(len(inbox.token_ids) == 12 for _, inbox in (*asked, greedy, seeded))
