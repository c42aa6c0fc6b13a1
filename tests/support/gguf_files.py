"""A tiny Llama with a byte-level tokenizer, and the same as a GGUF file."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from tokenizers import pre_tokenizers
from transformers import LlamaForCausalLM

from tests.support.tiny import tiny_model

MERGES = ["Ġ Ġ", "Ċ Ċ", "h e", "he l", "l o"]
SPECIAL = ["<|end|>", "<|start|>", "<|stop|>"]
TEMPLATE = (
    "{% for m in messages %}<|start|>{{ m.content }}<|stop|>{% endfor %}"
    "{% if add_generation_prompt %}<|start|>{% endif %}"
)
TOKENS = [
    *SPECIAL,
    *sorted(pre_tokenizers.ByteLevel.alphabet()),
    *(merge.replace(" ", "") for merge in MERGES),
]


def source_model() -> LlamaForCausalLM:
    """The model that `write_gguf` writes."""
    return tiny_model(len(TOKENS))


def permuted(weight: np.ndarray, heads: int) -> np.ndarray:
    """Rows in the order that llama.cpp's rotary embedding wants: pairs side by side."""
    halves = weight.reshape(heads, 2, weight.shape[0] // heads // 2, *weight.shape[1:])
    return halves.swapaxes(1, 2).reshape(weight.shape)


def write_gguf(
    path: Path,
    *,
    split: str | None = "smollm",
    kinds: Mapping[str, gguf.GGMLQuantizationType] | None = None,
    without: str = "",
    more: Mapping[str, Any] | None = None,
    extra_tensor: str = "",
) -> LlamaForCausalLM:
    """Write the model to ``path``; returns it.

    Args:
        path: The file.
        split: What it states of how text is split.
        kinds: The type in which a tensor is stored, by its GGUF name; float32 otherwise.
        without: A tensor to be left out.
        more: Further metadata: strings and integers.
        extra_tensor: A further tensor's name.
    """
    model = source_model()
    writer = gguf.GGUFWriter(path, "llama")
    config = model.config
    assert config.num_key_value_heads is not None
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(len(TOKENS))
    writer.add_tokenizer_model("gpt2")
    if split is not None:
        writer.add_tokenizer_pre(split)
    writer.add_token_list(TOKENS)
    writer.add_token_types([3 if token in SPECIAL else 1 for token in TOKENS])
    writer.add_token_merges(MERGES)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_add_bos_token(False)
    writer.add_chat_template(TEMPLATE)
    for key, value in (more or {}).items():
        (writer.add_string if isinstance(value, str) else writer.add_uint32)(key, value)
    for name, weight in tensors(model).items():
        kind = (kinds or {}).get(name, gguf.GGMLQuantizationType.F32)
        if name != without:
            writer.add_tensor(name, gguf.quants.quantize(weight, kind), raw_dtype=kind)
    if extra_tensor:
        writer.add_tensor(extra_tensor, np.ones(4, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return model


def tensors(model: LlamaForCausalLM) -> dict[str, np.ndarray]:
    """The weights under their GGUF names, as llama.cpp lays them out."""
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, model.config.num_hidden_layers)
    found = {}
    for name, weight in model.state_dict().items():
        stored = names.get_name(name, try_suffixes=(".weight",))
        assert stored is not None
        heads, pairs = model.config.num_attention_heads, model.config.num_key_value_heads
        assert heads and pairs
        values = weight.to(torch.float32).numpy()
        if ".attn_q." in stored:
            values = permuted(values, heads)
        elif ".attn_k." in stored:
            values = permuted(values, pairs)
        found[stored] = np.ascontiguousarray(values)
    return found
