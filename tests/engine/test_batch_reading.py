"""Prompts that are read while others are being answered, and prompts that come together."""

import pytest

from specstream.engine.core.lifecycle import PrefillBudget
from specstream.engine.core.request import Request
from specstream.engine.core.step import EngineCore
from tests.support.batches import KINDS, TEXTS, Passes, alone, greedy, make
from tests.support.tiny import Inbox, ask, run_until_idle


def newcomer_beside(
    kind: str, budget: int, monkeypatch: pytest.MonkeyPatch, prompt: str
) -> tuple[EngineCore, Passes, list[tuple[Request, Inbox]], tuple[Request, Inbox]]:
    monkeypatch.setattr(PrefillBudget, "tokens", lambda self, most, proposed, **how: min(most, budget))
    core = make(kind, max_running=5)
    passes = Passes(core)
    asked = [ask(core, text, greedy(150)) for text in TEXTS[:3]]
    for _ in range(3):
        core.step()
    return core, passes, asked, ask(core, prompt, greedy(10))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("budget", [4, 16, 50])
def test_a_long_prompt_is_read_beside_the_rounds_of_others(
    kind: str, budget: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Never more of it than the budget in one pass, and nobody is left out of any."""
    prompt = "long prompt. " * 7  # 91 tokens
    core, passes, asked, (late, inbox) = newcomer_beside(kind, budget, monkeypatch, prompt)
    steps = 0
    while late.stats.rounds == 0:
        chunks = [len(i.chunks) for _, i in asked]
        running = [request for request, _ in asked if request.finish_reason is None]
        at = len(passes.all)
        core.step()
        steps += 1
        assert len(passes.all) == at + 1  # one pass for all of them
        assert passes.all[-1][late.id] <= budget
        assert {r.id for r in running} | {late.id} == set(passes.all[-1])
        for before, (request, i) in zip(chunks, asked):
            assert len(i.chunks) == before + (request in running)
    assert sum(passes.of(late)) == late.prompt_length == 91
    assert steps == -(-91 // budget)
    assert late.report().target_forwards == steps
    run_until_idle(core)
    assert inbox.token_ids == alone(prompt, 10)
    assert [i.token_ids for _, i in asked] == [alone(t, 150) for t in TEXTS[:3]]


def test_several_newcomers_share_the_budget_oldest_first(monkeypatch: pytest.MonkeyPatch) -> None:
    core, passes, asked, first = newcomer_beside("auto", 20, monkeypatch, "a" * 50)
    second = ask(core, "b" * 30, greedy(10))
    fresh = {first[0].id, second[0].id}
    while second[0].stats.rounds == 0:
        prompts = {r.id for r, _ in (first, second) if r.stats.rounds == 0}
        core.step()
        read = {i: n for i, n in passes.all[-1].items() if i in fresh & prompts}
        assert sum(read.values()) <= 20
    assert passes.of(first[0])[:3] == [20, 20, 10]
    assert passes.of(second[0])[:2] == [10, 20]  # what the first one left, and then all of it
    run_until_idle(core)
    for text, (_, inbox) in zip(("a" * 50, "b" * 30), (first, second)):
        assert inbox.token_ids == alone(text, 10)


def test_nobody_waits_when_all_are_newcomers() -> None:
    """Prompts of several requests are read side by side, a chunk of each in a pass."""
    core = make("auto", max_running=4, prefill_chunk=16)
    passes = Passes(core)
    texts = ["a" * 40, "b" * 16, "c" * 17, "d" * 5]
    asked = [ask(core, text, greedy(10)) for text in texts]
    core.step()
    assert sorted(passes.all[0].values()) == [5, 16, 16, 16]
    assert [request.stats.rounds for request, _ in asked] == [0, 1, 0, 1]
    run_until_idle(core)
    for text, (_, inbox) in zip(texts, asked):
        assert inbox.token_ids == alone(text, 10)


def test_a_newcomer_may_be_cancelled_while_it_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    core, passes, asked, (late, inbox) = newcomer_beside("auto", 16, monkeypatch, "n" * 90)
    core.step()
    core.step()
    inbox.delivery.cancelled = True
    run_until_idle(core)
    assert passes.of(late) == [16, 16]
    assert inbox.chunks[-1].finish_reason == "cancelled" and not inbox.token_ids
    assert [i.token_ids for _, i in asked] == [alone(t, 150) for t in TEXTS[:3]]
    assert core.slots.in_use == 0


def test_prompts_that_come_together_to_a_resting_engine_are_read_in_one_pass() -> None:
    """Whoever comes while others are being answered is read beside them; then nobody is held up."""
    core = make("auto", max_running=4)
    passes = Passes(core)
    texts = ["a" * 40, "b" * 75, "c" * 17, "d" * 5]
    asked = [ask(core, text, greedy(10)) for text in texts]
    core.step()
    assert sorted(passes.all[0].values()) == [5, 17, 40, 75]
    assert [len(inbox.chunks) for _, inbox in asked] == [1, 1, 1, 1]
    run_until_idle(core)
    for text, (_, inbox) in zip(texts, asked):
        assert inbox.token_ids == alone(text, 10)


def test_the_pace_is_asked_with_what_is_proposed_and_told_what_was_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[int] = []
    told: list[tuple[int, bool]] = []

    def budget(self: PrefillBudget, most: int, proposed: int, *, patient: bool) -> int:
        assert not patient, "nobody listens"
        asked.append(proposed)
        return 16

    def observe(self: PrefillBudget, ms: float, read: int, *, beside: bool) -> None:
        told.append((read, beside))

    monkeypatch.setattr(PrefillBudget, "tokens", budget)
    monkeypatch.setattr(PrefillBudget, "observe", observe)
    core = make("draft", max_running=3)
    first, inbox = ask(core, TEXTS[0], greedy(60))
    core.step()
    assert told == [(first.prompt_length, False)] and not asked
    ask(core, "long prompt. " * 7, greedy(5))
    for _ in range(4):
        core.step()
        assert asked[-1] == inbox.chunks[-1].drafted
        assert told[-1] == (16, True)
    assert max(asked) > 0
