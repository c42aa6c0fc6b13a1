"""One small random model of each kind that the decoder computes."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from specstream.model.attention.pooled import PooledAttention
from specstream.model.decoder import Decoder
from specstream.model.forward import ForwardInput
from specstream.model.kv import KVCache, PooledCache
from specstream.model.weights import DecoderWeights, RotaryTable

VOCAB = 40
SIZES: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 1024,
}
FAMILY: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "llama": (LlamaForCausalLM, LlamaConfig, {}),
    "llama, as many key heads": (LlamaForCausalLM, LlamaConfig, {"num_key_value_heads": 4}),
    "llama, biased attention": (LlamaForCausalLM, LlamaConfig, {"attention_bias": True}),
    "mistral": (MistralForCausalLM, MistralConfig, {"sliding_window": None}),
    "qwen2": (Qwen2ForCausalLM, Qwen2Config, {}),
    "qwen3": (Qwen3ForCausalLM, Qwen3Config, {"head_dim": 16}),
}


def build(name: str, **changes: Any) -> PreTrainedModel:
    """A model of `FAMILY`."""
    torch.manual_seed(0)
    model_class, config_class, options = FAMILY[name]
    model: PreTrainedModel = model_class(config_class(**(SIZES | options | changes)))
    model.train(False)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.3)  # biases and norms are not neutral
    return model


def decoder_of(model: Any, backend: str, rows: int = 16_384) -> Decoder:
    """A decoder on a CPU; the pooled kernel is the padded one."""
    weights = DecoderWeights.of(model)
    assert weights is not None
    attention = PooledAttention(weights, rows) if backend == "pooled" else None
    return Decoder(weights, RotaryTable.of(model, weights.head_dim), attention)


def whole_inputs(tokens: Sequence[torch.Tensor], caches: Sequence[KVCache]) -> list[ForwardInput]:
    """Inputs of a pass that keeps all tokens."""
    return [ForwardInput(ids, cache, ids.shape[0]) for ids, cache in zip(tokens, caches, strict=True)]


def text(count: int, seed: int = 1) -> torch.Tensor:
    """Random tokens, ``[count]``."""
    return torch.randint(VOCAB, (count,), generator=torch.Generator().manual_seed(seed))


@torch.inference_mode()
def whole(model: PreTrainedModel, ids: torch.Tensor) -> torch.Tensor:
    """The model's own logits ``[n, V]`` of all tokens at once."""
    logits: torch.Tensor = model(input_ids=ids.unsqueeze(0), use_cache=False).logits[0]
    return logits


def valid_rows(cache: PooledCache) -> Tensor:
    """A view of a sequence's valid rows in its pool, ``[layers, 2, length, kv_heads, head_dim]``."""
    start = cache.slot.start
    return cache.pool.kv[:, :, start : start + cache.length]
