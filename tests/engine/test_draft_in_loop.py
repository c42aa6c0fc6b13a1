"""How much of a prompt the draft reads, seen from the engine."""

from typing import Any, cast

import pytest
import torch

from specstream.drafting.policy.costs import Costs
from specstream.drafting.proposers.draft_model import DraftModelProposer
from specstream.drafting.research.mirror import MirrorProposer
from specstream.methods import DraftProposerConfig, MirrorProposerConfig
from specstream.model.forward import ForwardInput, ForwardOutput
from specstream.model.heads.research.early_exit import EarlyExit
from specstream.model.runner import ModelRunner
from specstream.types import SamplingParams
from tests.engine.plain import MODEL, TOKENIZER, AtOnce, plain_greedy, proposer
from tests.support.tiny import answered, ask, auto_proposer, make_core, noisy_copy, run_until_idle


def test_the_draft_reads_a_long_prompt_in_parts() -> None:
    draft = proposer("draft")
    assert isinstance(draft, DraftModelProposer)
    draft.prefill_chunk = 8
    core = make_core(MODEL, TOKENIZER, draft, eos_ids=(), prefill_chunk=8)
    text = "abc" * 20
    request, inbox = ask(core, text, SamplingParams(max_tokens=40))
    worst, runner = 0, cast(ModelRunner, draft.runner)
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
    forward = draft.runner.forward

    def spy(inputs: list[ForwardInput]) -> ForwardOutput:
        read.extend(item.token_ids.shape[0] for item in inputs)
        return forward(inputs)

    monkeypatch.setattr(draft.runner, "forward", spy)
    for text in ("abc" * 20, "abc" * 20 + "tell me more", "xyz"):  # turns of one conversation
        read.clear()
        request, inbox = answered(core, text, SamplingParams(max_tokens=40), session="s")
        assert inbox.token_ids == plain_greedy(text, 40, eos=None)
        assert request.stats.accepted > 0
        assert max(read) <= 8


def test_a_draft_of_small_context_goes_on_beyond_it() -> None:
    draft = windowed(8, context=20)
    core = make_core(MODEL, TOKENIZER, draft, eos_ids=())
    request, inbox = answered(core, "abcabc", SamplingParams(max_tokens=80))
    assert inbox.token_ids == plain_greedy("abcabc", 80, eos=None)
    drafted = [chunk.drafted for chunk in inbox.chunks]
    assert sum(drafted[len(drafted) // 2 :]) > 0


NARROW = len(TOKENIZER) - 1
"""The draft's rows. The last token is a byte of "í", but of no ASCII text."""


def narrow_draft(kind: str) -> Any:
    """A proposer whose draft has one row less than the target."""
    draft = noisy_copy(MODEL, 0.1)
    draft.resize_token_embeddings(NARROW)
    runner = ModelRunner(draft, vocab_size=len(TOKENIZER))
    if kind == "auto":
        return auto_proposer(runner)
    inner = DraftModelProposer(DraftProposerConfig(num_tokens=4, window=12), runner, frozenset())
    if kind == "draft":
        return inner
    config, leave = MirrorProposerConfig(num_tokens=4), EarlyExit(ModelRunner(MODEL), 1)
    return MirrorProposer(config, inner, leave, frozenset(), AtOnce(), Costs({1: 1.0, 2: 1.0}))


@pytest.mark.parametrize("kind", ["draft", "mirror", "auto"])
def test_a_token_without_a_row_in_the_draft_costs_its_own_request_the_draft(
    kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    assert TOKENIZER.encode("í")[-1] == NARROW
    core = make_core(MODEL, TOKENIZER, narrow_draft(kind), eos_ids=())
    params = SamplingParams(max_tokens=40)
    asked = [ask(core, text, params) for text in ("abcabc", "í" + "abc" * 3)]
    run_until_idle(core)
    for text, (request, inbox) in zip(("abcabc", "í" + "abc" * 3), asked, strict=True):
        assert inbox.token_ids == plain_greedy(text, 40, eos=None)
        assert request.stats.accepted > 0  # the other's draft goes on behind that token's window
    assert "broke" not in caplog.text


def forced(ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
    """Every fourth token is the one that the draft can't read."""
    if ids.shape[1] % 4:
        return scores
    return torch.full_like(scores, -torch.inf).index_fill(1, torch.tensor([NARROW]), 0.0)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("looks", [True, False])
def test_a_processor_that_makes_the_draft_write_such_a_token_breaks_nothing(
    temperature: float, looks: bool, caplog: pytest.LogCaptureFixture
) -> None:
    proposer = narrow_draft("draft")
    proposer.looks = looks
    core = make_core(MODEL, TOKENIZER, proposer, eos_ids=())
    params = SamplingParams(temperature, max_tokens=24, processors=(forced,))
    request, inbox = answered(core, "abc", params)
    assert request.finish_reason == "length" and not inbox.errors
    assert inbox.token_ids[1::4] == [NARROW] * 6
    assert request.stats.accepted > 0
    assert "broke" not in caplog.text
