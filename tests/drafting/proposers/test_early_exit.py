"""Drafting with the target's first layers: what is proposed, what verification costs, and exactness."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from specstream.drafting.candidate import EngineParts
from specstream.drafting.proposal import Capabilities, Proposal, SpecRequest
from specstream.drafting.proposers import build_proposer
from specstream.drafting.proposers.auto import build as build_auto
from specstream.drafting.research.early_exit import EarlyExitProposer
from specstream.engine.core.step import EngineCore
from specstream.errors import ConfigError, ModelUnsupported
from specstream.methods import AutoProposerConfig, EarlyExitProposerConfig
from specstream.model.forward import Extras, ForwardInput
from specstream.model.heads.research.early_exit import EarlyExit, ExitWeights
from specstream.model.native.layers import NativeLayers
from specstream.model.native.structs import PassStruct
from specstream.model.runner import ModelRunner
from specstream.types import SamplingParams
from tests.engine.plain import MODEL, PROMPTS, TOKENIZER, check_greedy, plain_greedy
from tests.exactness.toy import EOS, sampled_text
from tests.support.tiny import answered, ask, make_core, run_until_idle

pytestmark = pytest.mark.slow

V = len(TOKENIZER)


def weights(seed: int, scale: float = 0.3) -> ExitWeights:
    """A trained exit's tensors, at random."""
    torch.manual_seed(seed)
    up, down = scale * torch.randn(24, 32), scale * torch.randn(32, 24)
    return ExitWeights(torch.ones(32), up, down, torch.ones(32) + scale * torch.randn(32))


def early(tokens: int = 4, given: ExitWeights | None = None) -> EarlyExitProposer:
    runner = ModelRunner(MODEL)
    config = EarlyExitProposerConfig(num_tokens=tokens)
    return EarlyExitProposer(config, runner, EarlyExit(runner, 1, given), frozenset())


class Proposed(EarlyExitProposer):
    """Keeps its proposals."""

    made: list[Proposal]

    def propose(self, requests: Sequence[SpecRequest], budget: Sequence[int]) -> list[Proposal]:
        found = super().propose(requests, budget)
        self.made.extend(found)
        return found


def watched(tokens: int) -> Proposed:
    runner = ModelRunner(MODEL)
    proposer = Proposed(
        EarlyExitProposerConfig(num_tokens=tokens), runner, EarlyExit(runner, 1), frozenset()
    )
    proposer.made = []
    return proposer


def test_the_drafted_tokens_enter_verification_behind_the_layers_that_drafted_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In the target's pass over K drafted tokens the first layer reads one token, not K + 1."""
    proposer = watched(4)
    core = make_core(MODEL, TOKENIZER, proposer, eos_ids=())
    read: list[int] = []
    run = NativeLayers.run_on

    def count(self: NativeLayers, ready: PassStruct, first: int, end: int) -> None:
        if first == 0 < end:
            read.append(ready.n)
        run(self, ready, first, end)

    monkeypatch.setattr(NativeLayers, "run_on", count)
    check_greedy(core, 41, None, prompts=[PROMPTS[0]])
    assert len(proposer.made) > 5
    for made in proposer.made:
        entered = made.entered
        assert entered is not None and entered.depth == 1
        assert entered.states.shape == (made.length, 32)  # the last token and all drafted but one
    assert read[0] > 1 and set(read[1:]) == {1}


def test_states_are_the_targets_own() -> None:
    proposer = watched(5)
    core = make_core(MODEL, TOKENIZER, proposer, eos_ids=())
    request, _ = ask(core, PROMPTS[1], SamplingParams(max_tokens=30))
    core.step()
    ids = list(request.token_ids)
    core.step()
    made = proposer.made[0]
    assert made.entered is not None and made.entered.at == len(ids) - 1
    read = torch.tensor([*ids, *made.tokens[:-1].tolist()])
    with torch.inference_mode():
        runner = ModelRunner(MODEL)
        item = ForwardInput(read, runner.new_cache())
        (wanted,) = runner.forward([item], Extras((1,))).states
    torch.testing.assert_close(made.entered.states, wanted[-made.length :, 0], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", ["random", "NaN", "huge"])
def test_a_head_that_lies_costs_speed_only(kind: str) -> None:
    given = weights(3)
    if kind != "random":
        given = given._replace(down=given.down * (torch.nan if kind == "NaN" else 1e30))
    core = make_core(MODEL, TOKENIZER, early(4, given), max_running=4)
    asked = check_greedy(core, 25)
    assert kind != "NaN" or not any(request.stats.drafted for request in asked)


class Wrong(EarlyExitProposer):
    """Its states belong to other rows, or its proposal is a tree."""

    how = ""
    capabilities = Capabilities(trees=True)

    def propose(self, requests: Sequence[SpecRequest], budget: Sequence[int]) -> list[Proposal]:
        made = super().propose(requests, budget)
        for index, one in enumerate(made):
            assert one.entered is not None
            junk = replace(one.entered, states=torch.full_like(one.entered.states, 9.0))
            if self.how == "tree":
                # A tree of one node is a chain.
                parents, given = (-1,) * one.length, junk if one.length > 1 else None
                made[index] = replace(one, parents=parents, entered=given)
            elif self.how == "place":
                made[index] = replace(one, entered=replace(junk, at=junk.at - 1))
            else:
                states = torch.full((one.length + 2, 32), 9.0)
                made[index] = replace(one, entered=replace(junk, states=states))
        return made


@pytest.mark.parametrize("how", ["tree", "place", "count"])
@pytest.mark.broken_proposer
def test_states_that_can_not_be_those_of_the_pass_are_not_used(how: str) -> None:
    runner = ModelRunner(MODEL)
    proposer = Wrong(EarlyExitProposerConfig(), runner, EarlyExit(runner, 1), frozenset())
    proposer.how = how
    core = make_core(MODEL, TOKENIZER, proposer, eos_ids=())
    check_greedy(core, 20, None, prompts=[PROMPTS[1]])


class Breaks(EarlyExit):
    """Raises in the middle of a chain, or at its beginning."""

    calls = 0

    def logits(self, states: Tensor) -> Tensor:
        self.calls += 1
        if self.calls % 7 == 3:
            raise RuntimeError("in the middle")
        return super().logits(states)


@pytest.mark.broken_proposer
def test_an_error_in_the_middle_of_a_chain_leaves_the_targets_caches_as_they_were() -> None:
    runner = ModelRunner(MODEL)
    leave = Breaks(runner, 1)
    proposer = EarlyExitProposer(EarlyExitProposerConfig(), runner, leave, frozenset())
    core = make_core(MODEL, TOKENIZER, proposer, eos_ids=())
    check_greedy(core, 30, None, prompts=PROMPTS[:3])
    assert leave.calls > 7


def test_cancelled_rounds_and_turns_leave_a_cache_that_serves_the_next() -> None:
    core = make_core(MODEL, TOKENIZER, early(), eos_ids=(), prefill_chunk=5)
    text = "a conversation"
    for turn in range(4):
        request, inbox = ask(core, text, SamplingParams(max_tokens=30), session="s")
        for _ in range(6 + turn):
            core.step()
        inbox.delivery.cancelled = True
        run_until_idle(core)
        shown = inbox.token_ids
        assert shown == plain_greedy(text, len(shown), None)
        kept = core.slots.kept["s"]
        assert kept.rows == request.token_ids[: kept.cache.length]
        text = text + "." + str(turn)


@pytest.mark.parametrize(
    ("warper", "batch"),
    [(SamplingParams(1.0), 1), (SamplingParams(0.7, top_p=0.8), 4), (SamplingParams(1.3), 4)],
)
def test_sampled_replies_have_the_exact_distribution(warper: SamplingParams, batch: int) -> None:
    config, ends = EarlyExitProposerConfig(num_tokens=3), frozenset({EOS})
    result = sampled_text(
        lambda runner: EarlyExitProposer(config, runner, EarlyExit(runner, 1), ends), warper, batch
    )
    assert result.p_value > 1e-3 / 3, result


def test_a_seeded_reply_is_the_same_without_it() -> None:
    params = SamplingParams(temperature=0.9, seed=11, max_tokens=40)

    def reply(core: EngineCore, kind: str) -> list[int]:
        _, inbox = answered(core, PROMPTS[2], params, proposer=kind)
        return inbox.token_ids

    core = make_core(MODEL, TOKENIZER, early(), eos_ids=())
    assert reply(core, "test") == reply(core, "off")


def parts(runner: ModelRunner, **heads: EarlyExit) -> EngineParts:
    named = {name.replace("_", "-"): head for name, head in heads.items()}
    return EngineParts(runner, frozenset(), TOKENIZER, heads=named)


def test_it_is_built_with_a_trained_exit_or_without() -> None:
    runner = ModelRunner(MODEL)
    plain = build_proposer(EarlyExitProposerConfig(layers=1), parts(runner))
    assert isinstance(plain, EarlyExitProposer) and not plain.exit.trained
    assert isinstance(build_proposer(EarlyExitProposerConfig(), parts(runner)), EarlyExitProposer)
    trained = EarlyExit(runner, 1, weights(0))
    made = build_proposer(EarlyExitProposerConfig(), parts(runner, early_exit=trained))
    assert isinstance(made, EarlyExitProposer) and made.exit is trained
    with pytest.raises(ConfigError, match="behind 1 layers, not 2"):
        build_proposer(EarlyExitProposerConfig(layers=2), parts(runner, early_exit=trained))
    with pytest.raises(ModelUnsupported, match="1 to 1"):
        build_proposer(EarlyExitProposerConfig(layers=2), parts(runner))
    for other in (ModelRunner(MODEL, lean=False), ModelRunner(MODEL, fixed_width=8)):
        with pytest.raises(ModelUnsupported, match="LlamaForCausalLM"):
            build_proposer(EarlyExitProposerConfig(layers=1), parts(other))


def test_auto_takes_a_trained_exit_as_a_candidate() -> None:
    runner = ModelRunner(MODEL)
    trained = EarlyExit(runner, 1, weights(0))
    auto = build_auto(AutoProposerConfig(), parts(runner, early_exit=trained))
    assert "early-exit" in auto.candidates
    core = make_core(MODEL, TOKENIZER, auto, eos_ids=())
    check_greedy(core, 30, None)
