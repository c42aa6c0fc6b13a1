"""Speculative Streaming through the engine: greedy equality, slots, and wrong streams."""

import pytest
import torch
from torch import Tensor

from specstream.drafting.candidate import EngineParts
from specstream.drafting.research.streaming import StreamingProposer, build
from specstream.errors import ConfigError
from specstream.methods import StreamingProposerConfig
from specstream.model.heads.research.streaming import StreamingHead
from specstream.model.runner import ModelRunner
from specstream.types import SamplingParams
from tests.engine.plain import MODEL, PROMPTS, TOKENIZER, check_greedy, check_turns
from tests.support.streams import STREAMS, streaming_head, streaming_proposer
from tests.support.tiny import answered, make_core

RUNNER = ModelRunner(MODEL)


@pytest.mark.parametrize("prune_below", [0.0, 0.05, 1.0])
def test_four_at_once_write_the_targets_own_text(prune_below: float) -> None:
    proposer = streaming_proposer(RUNNER, prune_below=prune_below)
    core = make_core(MODEL, TOKENIZER, proposer, prefill_chunk=5, max_running=4)
    assert all(request.stats.drafted > 0 for request in check_greedy(core, 25))
    assert not proposer.kept


def test_a_draft_is_as_long_as_budget_and_setting_allow() -> None:
    for setting, most in ((1, 1), (2, 2), (32, STREAMS)):
        core = make_core(MODEL, TOKENIZER, streaming_proposer(RUNNER, num_tokens=setting))
        _, inbox = answered(core, PROMPTS[0], SamplingParams(max_tokens=12))
        assert max(chunk.drafted for chunk in inbox.chunks) == most
        assert len(inbox.token_ids) <= 12


def test_processors_and_seeds_are_followed() -> None:
    params = SamplingParams(max_tokens=17, repetition_penalty=1.3, logit_bias={40: 2.0})
    found = list[list[int]]()
    for setting in (1, 3):
        core = make_core(MODEL, TOKENIZER, streaming_proposer(RUNNER, num_tokens=setting))
        _, inbox = answered(core, PROMPTS[1], params)
        found.append(inbox.token_ids)
    assert found[0] == found[1]
    drawn = list[list[int]]()
    for setting in (1, 3):
        core = make_core(MODEL, TOKENIZER, streaming_proposer(RUNNER, num_tokens=setting))
        _, inbox = answered(core, PROMPTS[1], SamplingParams(temperature=1.0, seed=5, max_tokens=17))
        drawn.append(inbox.token_ids)
    assert drawn[0] == drawn[1]


def test_turns_of_a_conversation_and_a_cancelled_one() -> None:
    proposer = streaming_proposer(RUNNER)
    core = check_turns(proposer)
    assert len(proposer.kept) <= 1
    core.slots.forget("s")
    assert not proposer.kept


class Lying(StreamingHead):
    """A head that returns whatever it is told to."""

    answer = "noise"

    def logits(self, states: Tensor) -> Tensor:
        rows = torch.randn(states.shape[0], RUNNER.vocab_size) * 30
        if self.answer == "nan":
            rows[::2] = torch.nan
        if self.answer == "wide":
            rows = torch.cat([rows, rows + 99], 1)
        return rows[1:] if self.answer == "few" else rows


@pytest.mark.parametrize("answer", ["noise", "nan", "wide", "few"])
@pytest.mark.broken_proposer
def test_streams_that_lie_cost_only_speed(answer: str) -> None:
    head = streaming_head(RUNNER)
    head.__class__ = Lying
    head.answer = answer  # type: ignore[attr-defined]
    core = make_core(MODEL, TOKENIZER, StreamingProposer(StreamingProposerConfig(), head))
    check_greedy(core, 20, prompts=[PROMPTS[1]])


def test_it_is_built_of_a_head_that_was_loaded() -> None:
    heads = {"streaming": streaming_head(RUNNER)}
    made = build(StreamingProposerConfig(), EngineParts(RUNNER, frozenset(), TOKENIZER, heads=heads))
    assert isinstance(made, StreamingProposer)
    with pytest.raises(ConfigError, match="specstream train streaming"):
        build(StreamingProposerConfig(), EngineParts(RUNNER, frozenset(), TOKENIZER))
