"""Multi-token prediction modules in the engine: greedy equality, turns, cancelling, modules that lie."""

import logging
from pathlib import Path
from typing import Any

import pytest
import torch

from specstream.config import EngineConfig
from specstream.drafting.candidate import EngineParts
from specstream.drafting.proposers import build_proposer
from specstream.engine.build import build_engine
from specstream.engine.core.step import EngineCore
from specstream.errors import ConfigError, ModelUnsupported
from specstream.methods import MtpProposerConfig
from specstream.model.heads.base import Level
from specstream.model.heads.mtp import MtpHead
from specstream.model.runner import ModelRunner
from specstream.types import SamplingParams
from tests.engine.plain import MODEL, PROMPTS, TOKENIZER, check_cancelled, check_greedy, plain_greedy
from tests.model.heads.test_mtp import qwen, write
from tests.support.mtps import mtp_head, mtp_proposer, random_module, tensors_of, trained_module
from tests.support.tiny import EOS, answered, make_core

RUNNER = ModelRunner(MODEL)
GREEDY = SamplingParams(max_tokens=40)


def engine(head: MtpHead | None = None, **options: Any) -> EngineCore:
    proposer = mtp_proposer(MODEL, head, **options.pop("proposer", {}))
    return make_core(MODEL, TOKENIZER, proposer, prefill_chunk=7, **options)


def test_many_at_once_get_the_targets_own_text() -> None:
    core = engine(max_running=4)
    requests = check_greedy(core, 40)
    assert all(request.stats.drafted > 20 for request in requests)
    assert sum(request.stats.accepted for request in requests) > 20


@pytest.mark.parametrize(
    "params",
    [{"repetition_penalty": 1.3, "frequency_penalty": 0.5}, {"logit_bias": {70: 4.0}, "min_tokens": 12}],
    ids=["penalties", "bias"],
)
def test_processors_see_the_drafted_path(params: dict[str, Any]) -> None:
    texts = list[list[int]]()
    for tokens in (1, 5):
        core = engine(proposer={"num_tokens": tokens})
        _, inbox = answered(core, PROMPTS[1], SamplingParams(max_tokens=30, **params))
        texts.append(inbox.token_ids)
    assert texts[0] == texts[1]


@pytest.mark.parametrize("scale", [1.0, 30.0, float("nan")])
def test_a_module_that_lies_costs_only_speed(scale: float) -> None:
    core = engine(mtp_head(random_module(MODEL, scale), RUNNER))
    check_greedy(core, 40)


@pytest.mark.broken_proposer
def test_ids_outside_the_vocabulary_cost_only_the_modules_help(monkeypatch: pytest.MonkeyPatch) -> None:
    sound = MtpHead.__call__

    def astray(*given: Any) -> Level:
        level = sound(*given)
        return level._replace(choices=level.choices + len(TOKENIZER) + 7)

    monkeypatch.setattr(MtpHead, "__call__", astray)
    core = engine(mtp_head(trained_module(MODEL), RUNNER))
    request, inbox = answered(core, PROMPTS[1], GREEDY)
    assert inbox.token_ids == plain_greedy(PROMPTS[1], 40)
    assert request.stats.accepted == 0


def sampled(tokens: int, seed: int | None) -> tuple[list[int], int]:
    core = engine(proposer={"num_tokens": tokens})
    params = SamplingParams(temperature=0.9, max_tokens=40, seed=seed)
    request, inbox = answered(core, PROMPTS[1], params, noise=5)
    return inbox.token_ids, request.stats.accepted


def test_a_seed_repeats_a_reply_whatever_is_drafted() -> None:
    short, long = sampled(1, seed=3), sampled(5, seed=3)
    assert short[0] == long[0] == sampled(5, seed=3)[0]
    assert long[1] > 0 and sampled(5, seed=4)[0] != long[0]


def test_turns_of_a_conversation_share_their_rows() -> None:
    proposer = mtp_proposer(MODEL)
    core = make_core(MODEL, TOKENIZER, proposer, prefill_chunk=7)
    text = "the cat"
    for turn in range(4):
        request, inbox = answered(core, text, SamplingParams(max_tokens=15), session="s")
        assert inbox.token_ids == plain_greedy(text, 15)
        assert request.stats.drafted > 0 and len(proposer.sequences) == 1
        text += " and the dog" if turn % 2 else " sat"
    core.slots.forget("s")
    assert proposer.sequences == {}


def test_a_cancelled_request_leaves_nothing_behind() -> None:
    proposer = mtp_proposer(MODEL)
    core = make_core(MODEL, TOKENIZER, proposer, prefill_chunk=7)
    check_cancelled(core, proposer.sequences)


@pytest.mark.parametrize("most", [1, 2, 3, 5, 8])
def test_limits_inside_a_block_end_it_there(most: int) -> None:
    core = engine()
    _, inbox = answered(core, PROMPTS[4], SamplingParams(max_tokens=most))
    assert inbox.token_ids == plain_greedy(PROMPTS[4], most)


def test_no_more_is_drafted_than_was_asked_for() -> None:
    core = engine(proposer={"num_tokens": 2})
    _, inbox = answered(core, PROMPTS[1], GREEDY)
    assert max(chunk.drafted for chunk in inbox.chunks) == 2


def test_without_a_module_a_proposer_says_so() -> None:
    with pytest.raises(ConfigError, match="target's own folder"):
        build_proposer(MtpProposerConfig(), EngineParts(RUNNER, frozenset({EOS}), TOKENIZER))


def folder(path: Path, *, module: bool) -> str:
    """A target with or without a module, as people have it."""
    extra = qwen(tensors_of(trained_module(MODEL))) if module else {}
    TOKENIZER.save_pretrained(path)
    return write(path, extra, MODEL)


def built(target: str, **proposer: Any) -> EngineCore:
    values = {"target": target, "dtype": "float32", "threads": 1, "proposer": proposer}
    return build_engine(EngineConfig.model_validate(values))


def test_an_engine_takes_the_module_from_its_targets_folder(tmp_path: Path) -> None:
    core = built(folder(tmp_path, module=True), kind="mtp", num_tokens=3)
    request, inbox = answered(core, PROMPTS[1], GREEDY)
    assert inbox.token_ids == plain_greedy(PROMPTS[1], 40)
    assert request.stats.accepted > 0
    assert core.proposer.name == "mtp"
    assert core.draft_weights.parameters > 0


def test_a_target_without_one_is_refused_when_the_engine_is_built(tmp_path: Path) -> None:
    with pytest.raises(ModelUnsupported, match="holds no multi-token prediction module"):
        built(folder(tmp_path, module=False), kind="mtp")


def test_auto_takes_a_module_that_is_there(tmp_path: Path) -> None:
    core = built(folder(tmp_path, module=True), kind="auto", draft=False)
    assert core.proposer.capabilities.hidden_states == (2,)
    check_greedy(core, 40)


def test_auto_goes_on_without_a_module_that_it_cannot_compute(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    TOKENIZER.save_pretrained(tmp_path)
    extra = {"mtp.fc.weight": torch.ones(1), "mtp.layers.0.mlp.gate.weight": torch.ones(1)}
    core = built(write(tmp_path, extra, MODEL), kind="auto", draft=False)
    assert core.proposer.capabilities.hidden_states == ()
    assert "has experts (MoE)" in caplog.text
