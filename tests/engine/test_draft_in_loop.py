"""How much of a prompt the draft reads, seen from the engine."""

from __future__ import annotations

from typing import cast

import pytest

from specstream.config import DraftProposerConfig
from specstream.model.forward import ForwardInput, ForwardOutput
from specstream.model.runner import ModelRunner
from specstream.speculation.proposers.draft_model import DraftModelProposer
from specstream.types import SamplingParams
from tests.engine.plain import MODEL, TOKENIZER, plain_greedy, proposer
from tests.tiny import (
    ask,
    make_core,
    noisy_copy,
    run_until_idle,
)


def test_the_draft_reads_a_long_prompt_in_parts() -> None:
    draft = proposer("draft")
    assert isinstance(draft, DraftModelProposer)
    draft._prefill_chunk = 8
    core = make_core(MODEL, TOKENIZER, draft, eos_ids=(), prefill_chunk=8)
    text = "abc" * 20
    request, inbox = ask(core, text, SamplingParams(max_tokens=40))
    worst, runner = 0, cast(ModelRunner, draft._runner)
    while request.finish_reason is None:
        before = runner.forwards
        core.step()
        worst = max(worst, runner.forwards - before)
    assert worst <= 5
    assert inbox.token_ids == plain_greedy(text, 40, eos=None)
    assert request.stats.accepted > 0


def windowed(window: int, context: int | None = None) -> DraftModelProposer:
    runner = ModelRunner(noisy_copy(MODEL, 0.1), context_length=context)
    return DraftModelProposer(DraftProposerConfig(window=window), runner, frozenset())


@pytest.mark.usefixtures("single_steps")
def test_the_draft_reads_the_end_of_a_long_prompt_only(monkeypatch: pytest.MonkeyPatch) -> None:
    draft = windowed(8)
    core = make_core(MODEL, TOKENIZER, draft, eos_ids=())
    read: list[int] = []
    forward = draft._runner.forward

    def spy(inputs: list[ForwardInput]) -> ForwardOutput:
        read.extend(item.token_ids.shape[0] for item in inputs)
        return forward(inputs)

    monkeypatch.setattr(draft._runner, "forward", spy)
    for text in ("abc" * 20, "abc" * 20 + "tell me more", "xyz"):  # turns of one conversation
        read.clear()
        request, inbox = ask(core, text, SamplingParams(max_tokens=40), session="s")
        run_until_idle(core)
        assert inbox.token_ids == plain_greedy(text, 40, eos=None)
        assert request.stats.accepted > 0
        assert max(read) <= 8


def test_a_draft_of_small_context_goes_on_beyond_it() -> None:
    draft = windowed(8, context=20)
    core = make_core(MODEL, TOKENIZER, draft, eos_ids=())
    request, inbox = ask(core, "abcabc", SamplingParams(max_tokens=80))
    run_until_idle(core)
    assert inbox.token_ids == plain_greedy("abcabc", 80, eos=None)
    drafted = [chunk.drafted for chunk in inbox.chunks]
    assert sum(drafted[len(drafted) // 2 :]) > 0
