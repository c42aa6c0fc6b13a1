"""Drafts whose tokens the host doesn't read while they are written, as on a GPU: the same tokens."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from specstream.drafting.chain import Drafting
from specstream.drafting.proposal import Proposal, Proposer, SpecRequest
from specstream.drafting.proposers.draft_model import DraftModelProposer
from specstream.methods import DraftProposerConfig
from specstream.model.runner import ModelRunner
from specstream.types import SamplingParams
from tests.exactness.bugs import Meddling
from tests.support.choosers import Dice, proposer_with
from tests.support.drafts import GREEDY, SAMPLED, TOKENIZER, Text, draft, nan_after, no_looking
from tests.support.tiny import answered, ask, make_core, noisy_copy, tiny_model
from tests.support.transfers import transfers

pytestmark = pytest.mark.usefixtures("inference")


@pytest.mark.parametrize("params", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_what_is_not_looked_at_comes_out_the_same(params: SamplingParams) -> None:
    looking, blind = draft(), draft()
    blind.looks = False
    for rounds in range(5):
        pair = [Text([2, 3, 4], params=params) for _ in range(2)]
        for text in pair:
            text.generator.manual_seed(rounds)
        one = looking.propose([pair[0]], [6])[0]
        with pytest.MonkeyPatch.context() as patch, transfers() as counter:
            no_looking(patch)
            other = blind.propose([pair[1]], [6])[0]
        assert counter.where == []
        assert one.tokens.tolist() == other.tokens.tolist()
        assert (one.probs is None) == (other.probs is None) == params.greedy
        if one.probs is not None and other.probs is not None:
            torch.testing.assert_close(one.probs, other.probs)  # summed in another order


@pytest.mark.usefixtures("single_steps")
def test_the_count_has_teeth() -> None:
    """`transfers` counts what drafts on a CPU and ``go_on`` read, and every way to read a tensor."""
    proposer = draft()
    with transfers() as counter:
        proposer.propose([Text([2, 3, 4])], [3])
    assert counter.count == 2 * 3
    proposer.looks = False
    with transfers() as counter:
        proposer.write([Drafting(Text([2, 3, 4], 1), 3, lambda q: True)])
    assert counter.count == 2 * 3
    for read in (
        lambda t: t.item(),
        lambda t: float(t),
        lambda t: bool(t),
        lambda t: t.tolist(),
        lambda t: [1, 2][t],
        lambda t: torch.arange(3)[torch.arange(3) > t],
        lambda t: torch.arange(3)[[0, 1]],
        lambda t: torch.tensor([1], device=t.device),
    ):
        with transfers() as counter:
            read(torch.tensor(1))
        assert counter.count == 1


@pytest.mark.parametrize("rule", ["ratio", "block"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("adaptive", [False, True])
def test_a_whole_round_waits_for_the_device_once(
    rule: str, temperature: float, count: int, adaptive: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the mixture of requests, a round has a single transfer, that of the verdicts."""

    no_looking(monkeypatch)
    model = tiny_model(len(TOKENIZER), seed=2)
    runner = ModelRunner(noisy_copy(model, 0.1))
    proposer: Any
    if adaptive:
        dice = Dice(1, kinds=["draft", "suffix", "off"])
        dice.stops = lambda: None
        proposer = proposer_with(dice, runner)
        inner = proposer.candidates["draft"]
    else:
        inner = proposer = DraftModelProposer(DraftProposerConfig(), runner, frozenset())
    inner.looks = False
    core = make_core(model, TOKENIZER, proposer, eos_ids=(), rule=rule, max_running=count)
    params = SamplingParams(temperature=temperature, top_p=0.9, top_k=30, max_tokens=60)
    asked = [ask(core, "abab" * (n + 1), params, noise=4) for n in range(count)]
    drafted = rounds = 0
    core.step()
    while True:
        before = sum(request.stats.drafted for request, _ in asked)
        with transfers() as counter:
            if not core.step():
                break
        assert counter.where == ["tolist"]
        drafted += sum(request.stats.drafted for request, _ in asked) > before
        rounds += 1
    assert drafted > 5 and rounds > 10


def test_a_blind_draft_changes_no_token_of_a_reply() -> None:
    model = tiny_model(len(TOKENIZER), seed=2)
    for temperature in (0.0, 1.0):
        replies = []
        for looks in (True, False):
            runner = ModelRunner(noisy_copy(model, 0.1))
            inner = DraftModelProposer(DraftProposerConfig(), runner, frozenset())
            inner.looks = looks
            core = make_core(model, TOKENIZER, inner, eos_ids=())
            params = SamplingParams(temperature=temperature, max_tokens=60)
            _, inbox = answered(core, "abab", params, noise=3)
            replies.append(inbox.token_ids)
        assert replies[0] == replies[1]


def test_processors_are_followed_even_where_nobody_looks() -> None:
    """Penalties apply to a draft whose tokens the host doesn't read."""
    model = tiny_model(len(TOKENIZER), seed=2)
    runner = ModelRunner(noisy_copy(model, 0.0))
    inner = DraftModelProposer(DraftProposerConfig(), runner, frozenset())
    inner.looks = False
    core = make_core(model, TOKENIZER, inner, eos_ids=())
    params = SamplingParams(repetition_penalty=1.5, frequency_penalty=0.7, max_tokens=60)
    request, _ = answered(core, "abab", params)
    # Draft and target are the same model with the same penalties, so every drafted token is accepted.
    assert request.stats.accepted == request.stats.drafted > 30


class Listening(Meddling):
    """Keeps what was proposed."""

    def __init__(self, inner: Proposer) -> None:
        super().__init__(inner)
        self.made: list[Proposal] = []

    def propose(self, requests: Sequence[SpecRequest], budget: Sequence[int]) -> list[Proposal]:
        made = self.inner.propose(requests, budget)
        self.made += made
        return made


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("rule", ["ratio", "block"])
@pytest.mark.broken_proposer
def test_a_blind_draft_without_numbers_names_no_token_that_there_is_not(
    rule: str, temperature: float
) -> None:
    """On a GPU an id out of range would end the process. NaN logits of the draft must not give one."""
    model = tiny_model(len(TOKENIZER), seed=2)
    params = SamplingParams(temperature=temperature, max_tokens=20)
    for passes in (0, 2, 9):
        runner = ModelRunner(noisy_copy(model, 0.1))
        runner.forward = nan_after(runner, passes)  # type: ignore[method-assign]
        inner = DraftModelProposer(DraftProposerConfig(), runner, frozenset())
        inner.looks = False
        core = make_core(model, TOKENIZER, Listening(inner), eos_ids=(), rule=rule)
        request, inbox = answered(core, "abab", params, noise=4)
        proposals = core.proposer.made  # type: ignore[attr-defined]
        assert len(inbox.token_ids) == 20
        assert all(proposal.length for proposal in proposals) and len(proposals) > 3
        tokens = torch.cat([proposal.tokens for proposal in proposals])
        assert 0 <= int(tokens.min()) and int(tokens.max()) < len(TOKENIZER)
