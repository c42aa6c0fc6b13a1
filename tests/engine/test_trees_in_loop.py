"""Trees through the engine's loop: greedy equality, limits inside a path, and what is refused."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from transformers import BloomConfig, BloomForCausalLM

from specstream.config import EngineConfig
from specstream.drafting.optional import States
from specstream.drafting.proposal import Capabilities, Proposal, Proposer, SpecRequest
from specstream.engine.core.step import EngineCore
from specstream.errors import ModelUnsupported
from specstream.model.forward import Extras, ForwardInput, ForwardOutput
from specstream.model.runner import ModelRunner
from specstream.types import SamplingParams
from tests.engine.plain import MODEL, TOKENIZER, plain_greedy
from tests.support.tiny import answered, ask, make_core, run_until_idle
from tests.support.trees import LyingTree, OracleTree

TEXT = "A tree of words."
REPLY = plain_greedy(TEXT, 40, None)


def oracle(seed: int = 0) -> OracleTree:
    return OracleTree(REPLY, len(TOKENIZER), seed=seed)


def engine(proposer: Proposer, *, lean: bool = True, **options: Any) -> EngineCore:
    return make_core(ModelRunner(MODEL, lean=lean), TOKENIZER, proposer, eos_ids=(), **options)


@pytest.mark.parametrize("lean", [True, False])
@pytest.mark.parametrize("seed", range(4))
def test_greedy_text_is_the_targets_own(lean: bool, seed: int) -> None:
    proposer = oracle(seed)
    core = engine(proposer, lean=lean)
    _, inbox = answered(core, TEXT, SamplingParams(max_tokens=40))
    assert inbox.token_ids == REPLY
    assert proposer.accepted > 8
    assert proposer.branched > 3


def test_requests_with_trees_and_without_share_a_pass() -> None:
    core = engine(oracle())
    others = ["Another one", "A third, longer than the rest of them", TEXT]
    wanted = [plain_greedy(text, 20, None) for text in others]
    boxes = [ask(core, text, SamplingParams(max_tokens=20))[1] for text in others]
    run_until_idle(core)
    assert [box.token_ids for box in boxes] == wanted


@pytest.mark.parametrize("most", [1, 2, 3, 5, 7, 11])
def test_a_limit_inside_a_path_ends_it_there(most: int) -> None:
    core = engine(oracle(most))
    request, inbox = answered(core, TEXT, SamplingParams(max_tokens=most))
    assert inbox.token_ids == REPLY[:most]
    assert request.finish_reason == "length"


class Undeclared(LyingTree):
    capabilities = Capabilities()


class Endless(LyingTree):
    def grow(self, request: object, depth: int) -> Proposal:
        return Proposal(torch.zeros(65, dtype=torch.int64), None, (-1,) * 65)


@pytest.mark.parametrize("kind", [Undeclared, Endless])
@pytest.mark.broken_proposer
def test_a_tree_that_may_not_be_costs_only_the_proposers_help(kind: type[LyingTree]) -> None:
    proposer = kind(torch.zeros(len(TOKENIZER), 1))
    core = engine(proposer)
    _, inbox = answered(core, TEXT, SamplingParams(max_tokens=10))
    assert inbox.token_ids == REPLY[:10]
    assert proposer.accepted == 0


class Reading(OracleTree):
    """Keeps the states of every request, and checks that no token is left out."""

    capabilities = Capabilities(trees=True, hidden_states=(0, 1, 2))

    def __init__(self) -> None:
        super().__init__(REPLY, len(TOKENIZER))
        self.seen: dict[int, torch.Tensor] = {}

    def read(self, requests: Sequence[SpecRequest], states: Sequence[States]) -> None:
        for request, new in zip(requests, states, strict=True):
            before = self.seen.get(request.id, new.states[:0])
            assert new.start == before.shape[0]
            self.seen[request.id] = torch.cat([before, new.states])


@torch.inference_mode()
def test_a_proposer_reads_the_states_of_prompt_and_accepted_tokens() -> None:
    """With several requests, a prompt in parts, and trees whose paths are not the first rows."""
    proposer = Reading()
    core = engine(proposer, prefill_chunk=7)
    asked = [ask(core, text, SamplingParams(max_tokens=30))[0] for text in (TEXT, "Hello, you", TEXT)]
    run_until_idle(core)
    assert proposer.branched > 3
    for request in asked:
        assert request.token_ids[request.prompt_length :] == plain_greedy(
            str(request.messages[0]["content"]), 30, None
        )
        ids = torch.tensor(request.token_ids[:-1])  # the last one was never read
        runner = ModelRunner(MODEL)
        item = ForwardInput(ids, runner.new_cache())
        (wanted,) = runner.forward([item], Extras((0, 1, 2))).states
        found = proposer.seen[request.id][: len(ids)]
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)


class Choosing(Reading):
    """Wants the states of requests with an even id."""

    def wants_states(self, request: SpecRequest) -> bool:
        return request.id % 2 == 0

    def read(self, requests: Sequence[SpecRequest], states: Sequence[States]) -> None:
        assert any(self.wants_states(request) for request in requests)
        super().read(requests, states)


def test_passes_give_no_states_that_nobody_wants(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, forward = list[Sequence[int]](), ModelRunner.forward

    def noted(self: ModelRunner, inputs: Sequence[ForwardInput], extras: Extras) -> ForwardOutput:
        asked.append(extras.depths)
        return forward(self, inputs, extras)

    proposer = Choosing()
    core = engine(proposer)
    monkeypatch.setattr(ModelRunner, "forward", noted)
    seen = set[int]()
    for _ in range(4):
        request, inbox = answered(core, TEXT, SamplingParams(max_tokens=20))
        assert inbox.token_ids == REPLY[:20]
        wanted = request.id % 2 == 0
        assert set(asked) == {(0, 1, 2) if wanted else ()}
        seen |= {request.id} if wanted else set()
        asked.clear()
    assert set(proposer.seen) == seen and len(seen) == 2
    both = [ask(core, TEXT, SamplingParams(max_tokens=9)) for _ in range(2)]
    run_until_idle(core)
    assert all(inbox.token_ids == REPLY[:9] for _, inbox in both)
    assert set(asked) == {(0, 1, 2)}


def test_states_that_a_target_can_not_give_are_refused_when_the_engine_is_built() -> None:
    with pytest.raises(ModelUnsupported, match="hidden states"):
        engine(Reading(), lean=False)


def test_a_target_that_can_not_judge_trees_is_refused_when_the_engine_is_built() -> None:
    sizes = {"hidden_size": 32, "n_layer": 1, "n_head": 2}
    bloom = BloomForCausalLM(BloomConfig(vocab_size=len(TOKENIZER), **sizes))  # type: ignore[arg-type]
    with pytest.raises(ModelUnsupported, match="Bloom"):
        EngineCore(EngineConfig(), ModelRunner(bloom), TOKENIZER, oracle(), frozenset())
