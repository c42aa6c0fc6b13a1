"""Block-parallel heads: the published layout, what is refused, and the same numbers as in training."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from specstream.errors import ModelBroken, ModelUnsupported
from specstream.model.forward import Extras, ForwardInput
from specstream.model.heads.base import Context
from specstream.model.heads.block import BlockShape
from specstream.model.heads.recognise import kind_of, load_head
from specstream.model.runner import ModelRunner
from specstream.training.block import BlockModule
from tests.model.families import build
from tests.support.blocks import MASK, SIZE, block_head, config_of, save_block, tensors_of
from tests.support.tiny import tiny_model

MODEL = tiny_model(64, seed=5, layers=3, scale=2.0)
RUNNER = ModelRunner(MODEL)
TAPS: dict[str, Any] = {"dflash_config": {"mask_token_id": MASK, "target_layer_ids": [0, 1]}}


def module_of(config: dict[str, Any], tensors: dict[str, Tensor]) -> BlockModule:
    module = BlockModule(BlockShape.of(config))
    module.load_state_dict(tensors)
    return module


@torch.inference_mode()
def by_module(module: BlockModule, head: Any, ids: Tensor, states: Tensor, seen: Tensor) -> Tensor:
    """Logits of one block behind ``ids[:-1]``, computed as training computes it."""
    size, at = module.shape.block_size, len(ids) - 1
    block = torch.full((1, size), MASK)
    block[0, 0] = ids[-1]
    x = RUNNER.model.get_input_embeddings()(block)
    positions = torch.arange(at, at + size).unsqueeze(0)
    out = module(states.unsqueeze(0), x, head.rotary.upto(64), positions, seen)
    return RUNNER.head_logits(out[0, 1:])


@pytest.mark.parametrize("windows", [False, True])
@torch.inference_mode()
def test_service_computes_what_training_computes(windows: bool) -> None:
    kinds = ["sliding_attention", "full_attention"] if windows else ["full_attention"] * 2
    config = config_of(MODEL, layer_types=kinds, sliding_window=7, **TAPS)
    tensors = tensors_of(config)
    head = block_head(RUNNER, layer_types=kinds, sliding_window=7, **TAPS)
    module = module_of(config, tensors)
    ids = torch.randint(2, 64, (12,), generator=torch.Generator().manual_seed(1))
    item = ForwardInput(ids[:-1], RUNNER.new_cache())
    (states,) = RUNNER.forward([item], Extras(head.depths)).states
    context, other = Context(head.new_cache()), Context(head.new_cache())
    head.read([context, other], [states[:4], states[:3]])
    head.read([context], [states[4:]])
    both = head.block([other, context], [7, int(ids[-1])], [1, SIZE - 1])
    again = head.block([context], [int(ids[-1])], [2])
    torch.testing.assert_close(again, both[1:3], rtol=1e-5, atol=1e-4)
    assert context.end == 11
    if windows:  # layers differ, which the module's one mask can't say
        module.layers = module.layers[1:]
        tensors = {k: v for k, v in tensors.items() if not k.startswith("layers.0.")}
        full = block_head(RUNNER, **TAPS)
        full.read([rows := Context(full.new_cache())], [states])
        differs = full.block([rows], [int(ids[-1])], [SIZE - 1])
        assert not torch.allclose(differs, both[1:])
        return
    seen = torch.ones(1, 1, SIZE, 11 + SIZE, dtype=torch.bool)
    wanted = by_module(module, head, ids, states, seen)
    torch.testing.assert_close(both[1:], wanted, rtol=1e-4, atol=1e-4)


@torch.inference_mode()
def test_a_sliding_layer_is_causal_and_sees_its_window_only() -> None:
    kinds, ids = ["sliding_attention"] * 2, torch.arange(3, 15)
    changes: dict[str, Any] = {"layer_types": kinds, "sliding_window": 4, **TAPS}
    config = config_of(MODEL, **changes)
    head, module = block_head(RUNNER, **changes), module_of(config, tensors_of(config))
    item = ForwardInput(ids[:-1], RUNNER.new_cache())
    (states,) = RUNNER.forward([item], Extras(head.depths)).states
    head.read([context := Context(head.new_cache())], [states])
    found = head.block([context], [int(ids[-1])], [SIZE - 1])
    gaps = torch.arange(11, 11 + SIZE).unsqueeze(1) - torch.arange(11 + SIZE)
    seen = ((gaps >= 0) & (gaps < 4))[None, None]
    torch.testing.assert_close(found, by_module(module, head, ids, states, seen), rtol=1e-4, atol=1e-4)


def test_a_published_folder_is_recognised_and_loaded(tmp_path: Path) -> None:
    config = config_of(MODEL, **TAPS)
    assert kind_of(config) == "block"
    head: Any = load_head(save_block(tmp_path, config), RUNNER)
    assert (head.kind, head.depths, head.shape.block_size) == ("block", (1, 2), SIZE)
    assert head.parameters == sum(one.numel() for one in tensors_of(config).values())
    assert head.nbytes == 4 * head.parameters
    assert BlockShape.of(head.shape.config) == head.shape


def test_the_weights_take_the_targets_dtype(tmp_path: Path) -> None:
    config = config_of(MODEL, **TAPS)
    half = {name: one.to(torch.bfloat16) for name, one in tensors_of(config).items()}
    head: Any = load_head(save_block(tmp_path, config, half), RUNNER)
    with torch.inference_mode():
        assert head.block([Context(head.new_cache())], [3], [2]).dtype == torch.float32


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"hidden_size": 48, "head_dim": 8}, "hidden states of size 48, and this target has 32"),
        ({"vocab_size": 99}, "a vocabulary of 99"),
        ({"num_target_layers": 36}, "36, and this target has 3"),
        ({"dflash_config": {"mask_token_id": 64, "target_layer_ids": [1]}}, "mask token 64"),
        ({"dflash_config": {"mask_token_id": 1, "target_layer_ids": [7]}}, "3 layers"),
        ({"dflash_config": {"mask_token_id": 1, "target_layer_ids": [2]}}, "last layer"),
        ({"markov_rank": 64}, "DSpark"),
        ({"enable_confidence_head": True}, "confidence head"),
        ({"selector_rank": 8}, "DFlash 2"),
        ({"output_multiplier": 0.5}, "output_multiplier"),
        ({"hidden_act": "none such"}, "activation"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "yarn"),
    ],
)
def test_a_head_of_another_target_or_kind_is_refused(
    changes: dict[str, Any], match: str, tmp_path: Path
) -> None:
    config = config_of(MODEL, **changes)
    with pytest.raises(ModelUnsupported, match=match):
        load_head(save_block(tmp_path, config), RUNNER)


@pytest.mark.parametrize(
    "changes",
    [
        {"block_size": 1},
        {"block_size": 10_000},
        {"block_size": "many"},
        {"num_key_value_heads": 3},
        {"num_hidden_layers": 3},
        {"dflash_config": {"mask_token_id": 1}},
        {"dflash_config": {"mask_token_id": 1, "target_layer_ids": []}},
        {"dflash_config": {"mask_token_id": 1, "target_layer_ids": [1, 1]}},
        {"layer_types": ["sliding_attention"] * 2},
        {"block_size": float("inf")},
        {"output_multiplier": "much"},
        {"rms_norm_eps": -1.0},
    ],
)
def test_a_damaged_config_is_refused(changes: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(ModelBroken):
        BlockShape.of(config_of(MODEL, **changes))


def test_missing_and_wrong_tensors_are_named(tmp_path: Path) -> None:
    config = config_of(MODEL, **TAPS)
    whole = tensors_of(config)
    name = "layers.1.self_attn.k_norm.weight"
    with pytest.raises(ModelBroken, match="k_norm"):
        load_head(save_block(tmp_path, config, {k: v for k, v in whole.items() if k != name}), RUNNER)
    with pytest.raises(ModelBroken, match="shape"):
        load_head(save_block(tmp_path, config, whole | {"fc.weight": torch.zeros(32, 32)}), RUNNER)
    ints = whole | {"norm.weight": torch.ones(32, dtype=torch.int64)}
    with pytest.raises(ModelBroken, match="int64"):
        load_head(save_block(tmp_path, config, ints), RUNNER)


def test_a_target_without_states_is_refused(tmp_path: Path) -> None:
    runner = ModelRunner(build("llama"), lean=False)
    with pytest.raises(ModelUnsupported, match="LlamaForCausalLM"):
        load_head(save_block(tmp_path, config_of(runner.model)), runner)
