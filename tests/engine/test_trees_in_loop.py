"""Trees through the engine's loop: greedy equality, limits inside a path, and what is refused."""

from __future__ import annotations

import pytest
import torch
from transformers import BloomConfig, BloomForCausalLM

from specstream.config import EngineConfig
from specstream.engine.loop import EngineCore
from specstream.errors import ModelUnsupported
from specstream.model.runner import ModelRunner
from specstream.spec.proposal import Capabilities, Proposal, Proposer
from specstream.types import SamplingParams
from tests.engine.plain import MODEL, TOKENIZER, plain_greedy
from tests.tiny import ask, run_until_idle
from tests.trees import LyingTree, OracleTree

TEXT = "A tree of words."
REPLY = plain_greedy(TEXT, 40, None)


def oracle(seed: int = 0) -> OracleTree:
    return OracleTree(REPLY, len(TOKENIZER), seed=seed)


def engine(proposer: Proposer, *, lean: bool = True) -> EngineCore:
    runner = ModelRunner(MODEL, lean=lean)
    return EngineCore(EngineConfig(), runner, TOKENIZER, proposer, frozenset())


@pytest.mark.parametrize("lean", [True, False])
@pytest.mark.parametrize("seed", range(4))
def test_greedy_text_is_the_targets_own(lean: bool, seed: int) -> None:
    proposer = oracle(seed)
    core = engine(proposer, lean=lean)
    _, inbox = ask(core, TEXT, SamplingParams(max_tokens=40))
    run_until_idle(core)
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
    request, inbox = ask(core, TEXT, SamplingParams(max_tokens=most))
    run_until_idle(core)
    assert inbox.token_ids == REPLY[:most]
    assert request.finish_reason == "length"


class Undeclared(LyingTree):
    capabilities = Capabilities()


class Endless(LyingTree):
    def grow(self, request: object, depth: int) -> Proposal:
        return Proposal(torch.zeros(65, dtype=torch.int64), None, (-1,) * 65)


@pytest.mark.parametrize("kind", [Undeclared, Endless])
def test_a_tree_that_may_not_be_costs_only_the_proposers_help(kind: type[LyingTree]) -> None:
    proposer = kind(torch.zeros(len(TOKENIZER), 1))
    core = engine(proposer)
    _, inbox = ask(core, TEXT, SamplingParams(max_tokens=10))
    run_until_idle(core)
    assert inbox.token_ids == REPLY[:10]
    assert proposer.accepted == 0


def test_a_target_that_can_not_judge_trees_is_refused_when_the_engine_is_built() -> None:
    sizes = {"hidden_size": 32, "n_layer": 1, "n_head": 2}
    bloom = BloomForCausalLM(BloomConfig(vocab_size=len(TOKENIZER), **sizes))  # type: ignore[arg-type]
    with pytest.raises(ModelUnsupported, match="Bloom"):
        EngineCore(EngineConfig(), ModelRunner(bloom), TOKENIZER, oracle(), frozenset())
