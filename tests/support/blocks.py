"""Tiny block-parallel heads, written as their published folders are."""

import functools
import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers import PreTrainedModel

from specstream.drafting.proposers.block import BlockProposer
from specstream.methods import BlockProposerConfig
from specstream.model.heads.block import BlockHead, load
from specstream.model.runner import ModelRunner
from specstream.training.block import BlockTrainee

MASK = 1
SIZE = 5


def config_of(model: PreTrainedModel, **changes: Any) -> dict[str, Any]:
    """A config.json as it is published, for a head of two layers."""
    made: dict[str, Any] = {
        "architectures": ["DFlashDraftModel"],
        "model_type": "qwen3",
        "attention_bias": False,
        "block_size": SIZE,
        "dflash_config": {"mask_token_id": MASK, "target_layer_ids": [0]},
        "head_dim": 8,
        "hidden_act": "silu",
        "hidden_size": model.config.hidden_size,
        "intermediate_size": 48,
        "layer_types": ["full_attention", "full_attention"],
        "max_position_embeddings": 512,
        "num_attention_heads": 4,
        "num_hidden_layers": 2,
        "num_key_value_heads": 2,
        "num_target_layers": model.config.num_hidden_layers,
        "rms_norm_eps": 1e-6,
        "rope_scaling": None,
        "rope_theta": 10000,
        "sliding_window": None,
        "tie_word_embeddings": False,
        "vocab_size": model.config.vocab_size,
    }
    return {**made, **changes}


def tensors_of(config: Mapping[str, Any], seed: int = 0) -> dict[str, Tensor]:
    """Random weights of the published names."""
    generator = torch.Generator().manual_seed(seed)
    c, hidden, dim = config, config["hidden_size"], config["head_dim"]
    rows, kv_rows = c["num_attention_heads"] * dim, c["num_key_value_heads"] * dim
    taps = len(c["dflash_config"]["target_layer_ids"])
    shapes: dict[str, tuple[int, ...]] = {
        "fc.weight": (hidden, taps * hidden),
        "hidden_norm.weight": (hidden,),
        "norm.weight": (hidden,),
    }
    for index in range(c["num_hidden_layers"]):
        start = f"layers.{index}."
        shapes |= {
            start + "input_layernorm.weight": (hidden,),
            start + "post_attention_layernorm.weight": (hidden,),
            start + "self_attn.q_proj.weight": (rows, hidden),
            start + "self_attn.k_proj.weight": (kv_rows, hidden),
            start + "self_attn.v_proj.weight": (kv_rows, hidden),
            start + "self_attn.o_proj.weight": (hidden, rows),
            start + "self_attn.q_norm.weight": (dim,),
            start + "self_attn.k_norm.weight": (dim,),
            start + "mlp.gate_proj.weight": (c["intermediate_size"], hidden),
            start + "mlp.up_proj.weight": (c["intermediate_size"], hidden),
            start + "mlp.down_proj.weight": (hidden, c["intermediate_size"]),
        }
    return {
        name: torch.rand(shape, generator=generator) + 0.5
        if len(shape) == 1
        else torch.randn(shape, generator=generator) * 0.3
        for name, shape in shapes.items()
    }


def save_block(
    folder: Path, config: Mapping[str, Any], tensors: Mapping[str, Tensor] | None = None
) -> Path:
    """The folder of a head, random unless ``tensors`` are given."""
    (folder / "config.json").write_text(json.dumps(config))
    save_file(dict(tensors or tensors_of(config)), folder / "model.safetensors")
    return folder


def block_head(runner: ModelRunner, seed: int = 0, **changes: Any) -> BlockHead:
    """A random head for a target."""
    config = config_of(runner.model, **changes)
    with tempfile.TemporaryDirectory() as folder:
        return load(save_block(Path(folder), config, tensors_of(config, seed)), runner)


def block_proposer(model: PreTrainedModel, **settings: Any) -> BlockProposer:
    """A head for ``model`` before its training, which is right now and then, as a proposer."""
    config = BlockProposerConfig(**{"min_confidence": 0.0, **settings})
    return BlockProposer(config, _begun(model))


@functools.lru_cache(maxsize=4)
def _begun(model: PreTrainedModel) -> BlockHead:
    depths = (min(1, model.config.num_hidden_layers - 1),)
    trainee = BlockTrainee(model, mask_token_id=MASK, block_size=SIZE, layers=1, depths=depths)
    with tempfile.TemporaryDirectory() as folder:
        trainee.save(Path(folder), {})
        return load(Path(folder), ModelRunner(model))
