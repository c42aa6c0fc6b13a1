"""What breaks in a round ends the requests it is about, and nothing else."""

import asyncio
from collections.abc import Sequence
from typing import cast

import pytest
import torch

from specstream.drafting.proposal import Proposal
from specstream.drafting.proposers.draft_model import DraftModelProposer
from specstream.drafting.proposers.off import OffProposer
from specstream.errors import EngineFailed, ModelBroken
from specstream.methods import DraftProposerConfig
from specstream.model.forward import PLAIN, Extras, ForwardInput, ForwardOutput
from specstream.model.runner import ModelRunner
from specstream.types import SamplingParams
from tests.engine.plain import MODEL, TOKENIZER, plain_greedy, proposer
from tests.support.tiny import answered, ask, make_core, noisy_copy, run_until_idle


def explode(*args: object) -> None:
    raise RuntimeError("boom")


def test_a_broken_round_ends_its_requests_with_a_typed_error(monkeypatch: pytest.MonkeyPatch) -> None:
    core = make_core(MODEL, TOKENIZER, proposer("suffix"), eos_ids=())
    _, inbox = ask(core, "abab", SamplingParams(max_tokens=20))
    core.step()
    with monkeypatch.context() as patch:
        patch.setattr(core.target, "forward", explode)
        core.step()
    assert isinstance(inbox.errors[0], EngineFailed)
    assert isinstance(inbox.errors[0].__cause__, RuntimeError)
    assert len(inbox.chunks) == 1  # what was accepted before has been given out
    assert core.slots.in_use == 0
    _, inbox = answered(core, "abab", SamplingParams(max_tokens=20))
    assert len(inbox.token_ids) == 20


def test_what_breaks_before_the_pass_ends_its_requests_too(monkeypatch: pytest.MonkeyPatch) -> None:
    core = make_core(MODEL, TOKENIZER, proposer("suffix"), eos_ids=())
    _, inbox = ask(core, "abab", SamplingParams(max_tokens=20))
    core.step()
    with monkeypatch.context() as patch:
        patch.setattr(core, "_plan", explode)
        core.step()
    assert isinstance(inbox.errors[0], EngineFailed) and core.slots.in_use == 0
    _, inbox = answered(core, "abab", SamplingParams(max_tokens=20))
    assert len(inbox.token_ids) == 20


@pytest.mark.broken_proposer
def test_a_broken_proposer_costs_speed_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    core = make_core(MODEL, TOKENIZER, proposer("draft"), eos_ids=())
    request, inbox = ask(core, "abab", SamplingParams(max_tokens=30))
    core.step()
    core.step()
    with monkeypatch.context() as patch:
        assert isinstance(core.proposer, DraftModelProposer)
        for passes in ("forward", "chain"):
            patch.setattr(core.proposer.runner, passes, explode)
        core.step()
    assert "proposer broke" in caplog.text
    run_until_idle(core)
    assert inbox.token_ids == plain_greedy("abab", 30, eos=None)
    assert request.stats.accepted > 0


@pytest.mark.broken_proposer
@pytest.mark.parametrize("call", ["propose", "observe", "release"])
@pytest.mark.parametrize("error", [asyncio.CancelledError, SystemExit, KeyboardInterrupt])
def test_whatever_a_proposer_raises_the_engine_goes_on(
    call: str, error: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    def ends(*args: object) -> None:
        raise error

    core = make_core(MODEL, TOKENIZER, proposer("suffix"), eos_ids=())
    monkeypatch.setattr(core.proposer, call, ends)
    for _ in range(2):
        _, inbox = answered(core, "abab", SamplingParams(max_tokens=10))
        assert inbox.token_ids == plain_greedy("abab", 10, eos=None)
        assert inbox.chunks[-1].finish_reason == "length"


@pytest.mark.broken_proposer
def test_a_proposal_with_the_engines_own_marks_fails_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    core = make_core(MODEL, TOKENIZER, proposer("suffix"), eos_ids=())
    wrong = cast("torch.Tensor", "x")

    def marked(sequences: list[object], budget: list[int]) -> list[Proposal]:
        return [Proposal(torch.tensor([1]), sound=wrong) for _ in sequences]

    monkeypatch.setattr(core.proposer, "propose", marked)
    _, inbox = answered(core, "abab", SamplingParams(max_tokens=10))
    assert inbox.token_ids == plain_greedy("abab", 10, eos=None)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("rule", ["ratio", "block"])
def test_a_draft_without_numbers_changes_nothing(temperature: float, rule: str) -> None:
    broken = noisy_copy(MODEL, 0.0)
    with torch.no_grad():
        for weight in broken.parameters():
            weight.fill_(torch.nan)
    draft = DraftModelProposer(DraftProposerConfig(), ModelRunner(broken), frozenset())
    params = SamplingParams(temperature, max_tokens=12)
    results = []
    for made in (draft, OffProposer()):
        core = make_core(MODEL, TOKENIZER, made, eos_ids=(), rule=rule)
        request, inbox = answered(core, "abc", params, noise=3)
        results.append(inbox.token_ids)
        assert request.stats.accepted == 0
    assert results[0] == results[1]


def test_numbers_lost_on_the_way_end_that_request_only() -> None:
    core = make_core(MODEL, TOKENIZER, OffProposer(), eos_ids=())
    _, bad = ask(core, "abc", SamplingParams(max_tokens=10))
    _, good = ask(core, "abcd", SamplingParams(max_tokens=10))
    core.step()
    forward = core.target.forward

    def spoil(inputs: Sequence[ForwardInput], extras: Extras = PLAIN) -> ForwardOutput:
        made = forward(inputs, extras)
        made.logits[0] = made.logits[0].clone()
        made.logits[0][0, 7] = torch.nan
        return made

    core.target.forward = spoil  # type: ignore[method-assign]
    core.step()
    core.target.forward = forward  # type: ignore[method-assign]
    run_until_idle(core)
    assert isinstance(bad.errors[0], ModelBroken)
    assert len(bad.token_ids) == 1
    assert good.token_ids == plain_greedy("abcd", 10, eos=None)


def test_weights_that_give_no_numbers_are_named() -> None:
    broken = noisy_copy(MODEL, 0.0)
    with torch.no_grad():
        for weight in broken.parameters():
            weight.fill_(torch.nan)
    core = make_core(broken, TOKENIZER, OffProposer())
    _, inbox = answered(core, "abc", SamplingParams())
    assert isinstance(inbox.errors[0], ModelBroken)


def test_a_commit_that_breaks_in_the_last_round_does_not_leave_its_consumer_waiting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    core = make_core(MODEL, TOKENIZER, OffProposer(), eos_ids=())
    request, inbox = ask(core, "abc", SamplingParams(max_tokens=2))
    core.step()
    monkeypatch.setattr(request.sequence.cache, "keep_path", explode)
    core.step()
    assert [type(error) for error in inbox.errors] == [EngineFailed]
    assert request.finish_reason is None and core.slots.in_use == 0
