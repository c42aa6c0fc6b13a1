"""What can be decoded with a cache passes; what can't is refused by name, in any dtype."""

from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, PreTrainedModel

from specstream.errors import ModelBroken, ModelUnsupported
from specstream.model.runner import ModelRunner
from specstream.model.selfcheck import check_decoding
from tests.model import families
from tests.support.tiny import byte_tokenizer

TOKENIZER = byte_tokenizer()
VOCAB = len(TOKENIZER)
GPT: dict[str, Any] = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}
BERT: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "max_position_embeddings": 64,
}
LLAMA = BERT | {"num_key_value_heads": 2}

SOUND: dict[str, dict[str, Any]] = {
    "gpt2": GPT,
    "gpt_neox": BERT,
    "falcon": {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "alibi": True},
    "opt": BERT | {"ffn_dim": 64, "word_embed_proj_dim": 32},
    "phi3": LLAMA | {"pad_token_id": 0},
    "gemma2": LLAMA | {"head_dim": 8, "sliding_window": 4},
    "mixtral": LLAMA | {"num_local_experts": 4},
    "bert": BERT | {"is_decoder": True},
    "roberta": BERT | {"is_decoder": True},
}
UNSOUND: dict[str, tuple[dict[str, Any], str]] = {
    "bert": (BERT, "later tokens change"),
    "roberta": (BERT, "later tokens change"),
    "electra": (BERT | {"embedding_size": 32}, "later tokens change"),
    "openai-gpt": (GPT, "doesn't keep its state"),
    "rwkv": ({"hidden_size": 32, "num_hidden_layers": 2, "attention_hidden_size": 32}, "its state"),
    "cpmant": (
        {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "dim_head": 8,
         "dim_ff": 64},
        "can't be decoded",
    ),
    "xlnet": ({"d_model": 32, "n_layer": 2, "n_head": 4, "d_inner": 64}, "can't be decoded"),
    "xlstm": ({"hidden_size": 64, "num_blocks": 2, "num_heads": 4}, "can't be decoded"),
}  # fmt: skip


def made(kind: str, options: dict[str, Any], dtype: torch.dtype) -> PreTrainedModel:
    torch.manual_seed(0)
    config = CONFIG_MAPPING[kind](**{"vocab_size": VOCAB} | options)
    factory: Any = AutoModelForCausalLM
    model: Any = factory.from_config(config)
    model.train(False)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(5.0)  # opinions that depend on the context
    found: PreTrainedModel = model.to(dtype)
    return found


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("kind", sorted(SOUND))
def test_a_decoder_passes(kind: str, dtype: torch.dtype) -> None:
    runner = ModelRunner(made(kind, SOUND[kind], dtype))
    assert not runner.lean
    check_decoding("a/model", runner, TOKENIZER)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("kind", sorted(UNSOUND))
def test_what_is_no_decoder_is_refused_by_name(kind: str, dtype: torch.dtype) -> None:
    options, said = UNSOUND[kind]
    runner = ModelRunner(made(kind, options, dtype))
    with pytest.raises(ModelUnsupported, match=said) as caught:
        check_decoding("a/model", runner, TOKENIZER)
    message = str(caught.value)
    assert message.startswith(f"a/model: {type(runner.model).__name__} ")
    assert "\n" not in message and "decoder-only" in message


def test_a_draft_with_fewer_or_more_rows_than_its_target_passes() -> None:
    """Its logits are padded or cut to the target's vocabulary, in passes of its own forward, too."""
    model = made("gpt2", SOUND["gpt2"], torch.float32)
    for rows in (VOCAB + 64, VOCAB - 8):
        check_decoding("a/draft", ModelRunner(model, vocab_size=rows), TOKENIZER)


def test_state_beside_the_cache_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that depend on how many passes came before."""
    model: Any = made("gpt2", GPT, torch.float32)
    head, passes = model.lm_head.forward, 0

    def remembering(hidden: Tensor) -> Tensor:
        nonlocal passes
        passes += 1
        logits: Tensor = head(hidden)
        return logits.roll(max(0, passes - 2), -1)  # the two whole readings are right

    monkeypatch.setattr(model.lm_head, "forward", remembering)
    with pytest.raises(ModelUnsupported, match="one after another"):
        check_decoding("a/model", ModelRunner(model), TOKENIZER)


@pytest.mark.parametrize("kind", ["lean", "as it is"])
def test_weights_that_are_no_numbers_are_named(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    model = families.build("llama") if kind == "lean" else made("gpt2", GPT, torch.float32)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(torch.nan)
    with pytest.raises(ModelBroken, match="a/model: its logits are not numbers"):
        check_decoding("a/model", ModelRunner(model), TOKENIZER)
    assert caplog.messages == []
