"""EAGLE heads in the engine's loop: greedy equality, turns, trees, cancelling, heads that lie."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from specstream.drafting.candidate import EngineParts
from specstream.drafting.optional import States
from specstream.drafting.proposal import SpecRequest
from specstream.drafting.proposers import build_proposer
from specstream.drafting.proposers.auto import AutoProposer
from specstream.drafting.proposers.eagle import EagleProposer
from specstream.engine.core.step import EngineCore
from specstream.errors import ConfigError
from specstream.methods import AutoProposerConfig, EagleProposerConfig
from specstream.model.runner import ModelRunner
from specstream.types import SamplingParams
from tests.engine.plain import MODEL, PROMPTS, TOKENIZER, check_cancelled, check_greedy, plain_greedy
from tests.support.heads import eagle_head, random_eagle, trained_eagle
from tests.support.tiny import EOS, answered, make_core

RUNNER = ModelRunner(MODEL)
HEAD = eagle_head(trained_eagle(MODEL), RUNNER)
SHAPES = [{"top_k": 1, "depth": 4}, {"top_k": 3, "depth": 3, "nodes": 8}]
VOCABULARY = torch.arange(0, len(TOKENIZER), 2)


def eagle(head: Any = HEAD, **settings: int) -> EagleProposer:
    config = EagleProposerConfig.model_validate(settings)
    return EagleProposer(config, head, RUNNER.vocab_size, frozenset({EOS}), prefill_chunk=7)


def engine(proposer: Any, **options: Any) -> EngineCore:
    return make_core(MODEL, TOKENIZER, proposer, prefill_chunk=7, **options)


@pytest.mark.parametrize("settings", SHAPES, ids=["chain", "tree"])
def test_many_at_once_get_the_targets_own_text(settings: dict[str, int]) -> None:
    core = engine(eagle(**settings), max_running=4)
    requests = check_greedy(core, 40)
    assert all(request.stats.drafted > 20 for request in requests)
    assert sum(request.stats.accepted for request in requests) > 20


@pytest.mark.parametrize("settings", SHAPES, ids=["chain", "tree"])
@pytest.mark.parametrize(
    "params",
    [{"repetition_penalty": 1.3, "frequency_penalty": 0.5}, {"logit_bias": {70: 4.0}, "min_tokens": 12}],
    ids=["penalties", "bias"],
)
def test_processors_see_the_drafted_path(settings: dict[str, int], params: dict[str, Any]) -> None:
    wanted = SamplingParams(max_tokens=30, **params)
    texts = list[list[int]]()
    for proposer in (eagle(**settings), eagle(depth=1)):
        core = engine(proposer)
        _, inbox = answered(core, PROMPTS[1], wanted)
        texts.append(inbox.token_ids)
    assert texts[0] == texts[1]


@pytest.mark.parametrize("settings", SHAPES, ids=["chain", "tree"])
@pytest.mark.parametrize("scale", [1.0, 30.0, float("nan")])
def test_a_head_that_lies_costs_only_speed(settings: dict[str, int], scale: float) -> None:
    """Weights at random, over half the vocabulary, huge, or not finite."""
    trainee = random_eagle(MODEL, vocabulary=VOCABULARY, scale=scale)
    core = engine(eagle(eagle_head(trainee, RUNNER), **settings))
    check_greedy(core, 25)


@pytest.mark.broken_proposer
def test_ids_outside_the_vocabulary_cost_only_the_heads_help() -> None:
    head = eagle_head(random_eagle(MODEL, vocabulary=VOCABULARY), RUNNER)
    head.ids = torch.full_like(VOCABULARY, len(TOKENIZER) + 7)
    core = engine(eagle(head))
    request, inbox = answered(core, PROMPTS[1], SamplingParams(max_tokens=25))
    assert inbox.token_ids == plain_greedy(PROMPTS[1], 25)
    assert request.stats.accepted == 0


class Watched(EagleProposer):
    """Compares, after each pass, what is kept with what the text would give."""

    checked = 0

    def read(self, requests: Sequence[SpecRequest], states: Sequence[States]) -> None:
        super().read(requests, states)
        for request, new in zip(requests, states, strict=True):
            kept = self.sequences[request.slot]
            assert kept.told == new.start + new.states.shape[0]
            self.checked += 1


def test_turns_of_a_conversation_share_their_rows() -> None:
    head = eagle_head(trained_eagle(MODEL), RUNNER)
    proposer = Watched(EagleProposerConfig(depth=3), head, RUNNER.vocab_size, frozenset({EOS}))
    core = engine(proposer)
    text = "the cat"
    for turn in range(4):
        wanted = plain_greedy(text, 15)
        request, inbox = answered(core, text, SamplingParams(max_tokens=15), session="s")
        assert inbox.token_ids == wanted
        assert request.stats.drafted > 0
        assert len(proposer.sequences) == 1
        text += " and the dog" if turn % 2 else " sat"
    assert proposer.checked > 20
    core.slots.forget("s")
    assert proposer.sequences == {}


def test_a_cancelled_request_leaves_nothing_behind() -> None:
    proposer = eagle()
    core = engine(proposer)
    check_cancelled(core, proposer.sequences)


@pytest.mark.parametrize("most", [1, 2, 3, 5, 8])
def test_limits_inside_a_block_end_it_there(most: int) -> None:
    core = engine(eagle(top_k=2, depth=4))
    _, inbox = answered(core, PROMPTS[4], SamplingParams(max_tokens=most))
    assert inbox.token_ids == plain_greedy(PROMPTS[4], most)


def parts(**heads: Any) -> EngineParts:
    return EngineParts(ModelRunner(MODEL), frozenset({EOS}), TOKENIZER, heads=heads)


def test_auto_drafts_with_the_head_that_was_loaded() -> None:
    made = build_proposer(AutoProposerConfig(), parts(eagle=HEAD))
    assert isinstance(made, AutoProposer)
    assert made.capabilities.hidden_states == tuple(sorted(set(HEAD.depths)))
    core = engine(made)
    check_greedy(core, 40)


def test_without_a_head_it_is_told_what_is_missing() -> None:
    with pytest.raises(ConfigError, match="--draft"):
        build_proposer(EagleProposerConfig(), parts())


def test_a_folder_named_as_a_draft_is_loaded_as_a_head(tmp_path: Path) -> None:
    from specstream.model.heads.recognise import load_head

    trained_eagle(MODEL).save(tmp_path, {"target": "tiny"})
    found = build_proposer(EagleProposerConfig(), parts(eagle=load_head(tmp_path, RUNNER)))
    core = engine(found)
    request, inbox = answered(core, PROMPTS[3], SamplingParams(max_tokens=40))
    assert inbox.token_ids == plain_greedy(PROMPTS[3], 40)
    assert request.stats.accepted > 0
