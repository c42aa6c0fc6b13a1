"""Rotary factors that depend on a pass end the context; so no reply depends on how it was read."""

import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, Phi3Config, Phi3ForCausalLM, PreTrainedModel

from specstream.config import parse_config
from specstream.engine import build
from specstream.model.forward import ForwardInput
from specstream.model.own_forward import steady_positions
from specstream.model.runner import ModelRunner
from specstream.types import SamplingParams
from tests.model import families
from tests.support.tiny import answered, byte_tokenizer

ORIGINAL, DECLARED = 64, 256
TOKENIZER = byte_tokenizer()
TEXT = "one two one two one two"
LONG: dict[str, Any] = {
    "rope_type": "longrope",
    "rope_theta": 1e4,
    "short_factor": [1.0] * 4,
    "long_factor": [1.5, 2.0, 3.0, 4.0],
}


def longrope() -> PreTrainedModel:
    torch.manual_seed(0)
    config = Phi3Config(
        vocab_size=len(TOKENIZER),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=DECLARED,
        original_max_position_embeddings=ORIGINAL,
        rope_parameters=dict(LONG),
        pad_token_id=None,
        eos_token_id=None,
        bos_token_id=None,
    )
    model = Phi3ForCausalLM(config)
    model.train(False)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(5.0)
    return model


@torch.inference_mode()
def test_past_the_original_length_a_row_depends_on_the_pass_that_it_is_in() -> None:
    """Why the context ends there. Should this fail, transformers has changed, and it needn't."""
    model, ids = longrope(), families.text(ORIGINAL + 10)
    row = families.whole(model, ids[:ORIGINAL])[-1]
    later = families.whole(model, ids)[ORIGINAL - 1]
    assert float((row - later).abs().max()) > 0.1


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("longrope")
    longrope().save_pretrained(path)
    TOKENIZER.eos_token = None
    TOKENIZER.save_pretrained(path)
    return path


@pytest.mark.parametrize("mode", ["default", "reproducible"])
def test_up_to_there_every_reply_is_the_models_own(
    folder: Path, mode: str, caplog: pytest.LogCaptureFixture
) -> None:
    replies: list[list[int]] = []
    for kind in ({"kind": "off"}, {"kind": "suffix", "min_score": 0}):
        caplog.clear()
        values = {"target": str(folder), "proposer": kind, "mode": mode, "threads": 1}
        core = build.build_engine(parse_config(values))
        assert [r.getMessage() for r in caplog.records if "longrope" in r.getMessage()]
        request, inbox = answered(core, TEXT, SamplingParams(max_tokens=DECLARED))
        assert request.finish_reason == "length" and not inbox.errors
        assert bool(request.stats.drafted) == ("min_score" in kind)
        replies.append(request.token_ids)
        junk = core.target.fixed_width or 0  # it has positions, too
        assert len(request.token_ids) == ORIGINAL - junk
    assert replies[0] == replies[1]
    ids, prompt = torch.tensor(replies[0]), len(TOKENIZER.encode(TEXT))
    wanted = families.whole(longrope(), ids[:-1]).argmax(-1)
    assert ids[prompt:].tolist() == wanted[prompt - 1 :].tolist()


def test_a_context_that_was_asked_for_shorter_is_not_talked_about(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    values = {"target": str(folder), "proposer": {"kind": "off"}, "context_length": ORIGINAL}
    core = build.build_engine(parse_config(values | {"threads": 1}))
    assert core.target.context_length == ORIGINAL and caplog.messages == []


def test_a_context_longer_than_the_models_own_is_cut_with_a_word(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    values = {"target": str(folder), "proposer": {"kind": "off"}, "context_length": 2 * DECLARED}
    core = build.build_engine(parse_config(values | {"threads": 1}))
    assert core.target.context_length == ORIGINAL
    assert any(f"ends at {DECLARED} tokens, as it declares" in one for one in caplog.messages)


@torch.inference_mode()
def test_factors_that_grow_never_come_to_grow() -> None:
    """ "dynamic" ones change past the declared length; no pass goes there, junk included."""
    rope = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}
    model: Any = families.build(
        "llama", rope_parameters=rope, max_position_embeddings=ORIGINAL, vocab_size=len(TOKENIZER)
    )
    for width in (None, 16):
        runner = ModelRunner(model, fixed_width=width)
        assert runner.context_length == ORIGINAL - (width or 0)
        cache, left = runner.new_cache(), runner.context_length
        while left > 0:
            part = families.text(min(left, width or left))
            runner.forward([ForwardInput(part, cache)])
            left -= part.shape[0]
        assert model.model.rotary_emb.max_seq_len_cached == ORIGINAL


@pytest.mark.parametrize(
    ("rope", "steady"),
    [
        ({"full": LONG | {"original_max_position_embeddings": 32}, "sliding": {}}, 32),
        ({"rope_type": "llama3", "original_max_position_embeddings": 32}, 2**31),
        (None, 2**31),
    ],
)
def test_factors_of_each_kind_of_layer(rope: Any, steady: int) -> None:
    config = LlamaConfig()
    config.rope_parameters = rope
    assert steady_positions(config) == steady
