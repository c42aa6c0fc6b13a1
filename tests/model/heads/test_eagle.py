"""EAGLE heads from folders: the published layouts, and heads that belong to another target."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from specstream.errors import ModelBroken, ModelUnsupported
from specstream.model.attention.base import Batch
from specstream.model.forward import Extras, ForwardInput
from specstream.model.heads.eagle import EagleHead
from specstream.model.heads.recognise import kind_of, load_head
from specstream.model.native.matrix import NativeMatrix
from specstream.model.native.structs import INT8
from specstream.model.runner import ModelRunner
from specstream.model.tree import Tree
from tests.support.heads import eagle_head, random_eagle
from tests.support.tiny import tiny_model

V, H, LAYERS = 60, 32, 6
MODEL = tiny_model(V, layers=LAYERS, seed=3)
RUNNER = ModelRunner(MODEL)
PRUNED = torch.arange(0, V, 3)
ROPE = {"rope_type": "default", "rope_theta": 10000.0}
LAYER = {
    "model_type": "llama",
    "hidden_size": H,
    "intermediate_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 1,
    "rms_norm_eps": 1e-6,
    "vocab_size": V,
    "max_position_embeddings": 512,
    "hidden_act": "silu",
}


def tensors(vocabulary: Tensor | None = PRUNED, **variants: bool) -> dict[str, Tensor]:
    """As the original repository names them, with an output head."""
    trainee = random_eagle(MODEL, vocabulary=vocabulary, variants=variants)
    found = {name: one.detach().clone() for name, one in trainee.module.state_dict().items()}
    count = V if vocabulary is None else len(vocabulary)
    found["lm_head.weight"] = torch.randn(count, H, generator=torch.Generator().manual_seed(2))
    if vocabulary is not None:
        found["d2t"] = vocabulary - torch.arange(count)
        found["t2d"] = torch.zeros(V, dtype=torch.bool)
        found["t2d"][vocabulary] = True
    return found


def write(folder: Path, config: dict[str, Any], values: dict[str, Tensor], name: str) -> Path:
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    if name.endswith(".bin"):
        torch.save(values, folder / name)
    else:
        save_file({key: one.contiguous() for key, one in values.items()}, folder / name)
    return folder


def original(folder: Path, **changes: Any) -> Path:
    """SafeAILab/EAGLE: a Llama's config with one additional key, weights in a pickle."""
    config = LAYER | {"architectures": ["LlamaForCausalLM"], "draft_vocab_size": len(PRUNED)}
    return write(folder, config | changes, tensors(), "pytorch_model.bin")


def specforge(folder: Path, **changes: Any) -> Path:
    """SpecForge: an architecture of its own; layer ids count the states that leave layers."""
    config = LAYER | {
        "architectures": ["LlamaForCausalLMEagle3"],
        "draft_vocab_size": len(PRUNED),
        "rope_theta": 10000.0,
        "rope_scaling": None,
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 2, 2]},
    }
    values = tensors() | {"embed_tokens.weight": MODEL.model.embed_tokens.weight.detach().clone()}
    return write(folder, config | changes, values, "model.safetensors")


def speculators(folder: Path, **changes: Any) -> Path:
    """vllm-project/speculators: a nested config, ``layers.0``; ids count states that enter layers."""
    variants = {"norm_before_residual": True, "norm_before_fc": True, "norm_output": True}
    config: dict[str, Any] = {
        "architectures": ["Eagle3Speculator"],
        "speculators_model_type": "eagle3",
        "speculators_config": {"algorithm": "eagle3", "verifier": {"name_or_path": "tiny"}},
        "draft_vocab_size": len(PRUNED),
        "target_hidden_size": None,
        "eagle_aux_hidden_state_layer_ids": [2, 3, 3],
        "transformer_layer_config": LAYER | {"rope_parameters": ROPE},
        **variants,
    }
    renamed = {k.replace("midlayer.", "layers.0."): v for k, v in tensors(PRUNED, **variants).items()}
    renamed["embed_tokens.weight"] = torch.ones(V, H) * MODEL.model.embed_tokens.weight.detach()
    return write(folder, config | changes, renamed, "model.safetensors")


LAYOUTS = [original, specforge, speculators]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_each_published_layout_is_read(layout: Callable[..., Path], tmp_path: Path) -> None:
    """The same weights under other names are the same head."""
    head = load_head(layout(tmp_path), RUNNER)
    assert isinstance(head, EagleHead)
    assert head.kind == "eagle" and head.depths == (2, 3, 3)
    assert head.ids is not None and head.ids.tolist() == PRUNED.tolist()
    new = layout is speculators
    flags = ("norm_before_residual", "norm_before_fc", "norm_output") if new else ()
    trainee = random_eagle(MODEL, vocabulary=PRUNED, variants=dict.fromkeys(flags, True))
    wanted = eagle_head(trainee, RUNNER, tensors()["lm_head.weight"])
    text = torch.arange(10)
    for ours, other in zip(drafted(head, text), drafted(wanted, text), strict=True):
        torch.testing.assert_close(ours, other)


@torch.inference_mode()
def drafted(head: EagleHead, text: Tensor) -> tuple[Tensor, Tensor]:
    item = ForwardInput(text, RUNNER.new_cache())
    (states,) = RUNNER.forward([item], Extras(head.depths)).states
    return head(text[1:], head.fuse(states[:-1]), Batch([head.new_cache()], [9], [4]))[:2]


def test_where_a_config_names_no_layers_the_usual_three_are_tapped(tmp_path: Path) -> None:
    assert load_head(original(tmp_path), RUNNER).depths == (2, LAYERS // 2, LAYERS - 3)


def test_what_is_no_eagle_head_is_not_taken_for_one() -> None:
    assert kind_of(LAYER | {"architectures": ["LlamaForCausalLM"]}) is None
    assert kind_of(LAYER | {"draft_vocab_size": 20, "dflash_config": {}}) != "eagle"
    other = {"speculators_model_type": "dflash", "draft_vocab_size": 20, "model_type": "llama"}
    assert kind_of(other) != "eagle"


def change(values: dict[str, Any]) -> Callable[[Path], Path]:
    return lambda folder: specforge(folder, **values)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"target_hidden_size": 64}, "another target: it reads hidden states of size 64"),
        ({"vocab_size": 61}, "another target: it reads a vocabulary of 61"),
        ({"eagle_aux_hidden_state_layer_ids": [2, 3, 9]}, "no states at 9"),
        ({"mask_token_id": 5}, "P-EAGLE"),
        ({"num_hidden_layers": 2}, "one layer"),
        ({"model_type": "qwen3"}, "qwen3"),
    ],
)
def test_a_head_that_can_not_serve_is_refused(
    values: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ModelUnsupported, match=message):
        load_head(specforge(tmp_path, **values), RUNNER)


def test_a_target_that_gives_no_states_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelUnsupported, match="head for the method eagle: hidden states"):
        load_head(specforge(tmp_path), ModelRunner(MODEL, lean=False))


@pytest.mark.parametrize(
    ("name", "tensor", "message"),
    [
        ("fc.weight", None, "fc.weight is missing"),
        ("midlayer.self_attn.q_proj.weight", None, "q_proj.weight is missing"),
        ("norm.weight", torch.ones(H + 1), "norm.weight has shape"),
        ("fc.weight", torch.ones(H, 3 * H, dtype=torch.int64), "not floats"),
        ("d2t", None, "d2t is missing"),
        ("d2t", torch.full((len(PRUNED),), 2 * V), "leads outside"),
        ("d2t", -torch.arange(len(PRUNED)), "names a token twice"),
        ("d2t", torch.zeros(len(PRUNED)), "no ids"),
        ("surprise", torch.ones(2), "surprise"),
        ("embed_tokens.weight", torch.ones(3, H), "too few rows"),
        ("embed_tokens.weight", torch.ones(V, H, dtype=torch.int8), "int8, not floats"),
    ],
)
def test_damaged_weights_are_told_by_name(
    name: str, tensor: Tensor | None, message: str, tmp_path: Path
) -> None:
    values = tensors() | {name: tensor}
    kept = {key: one for key, one in values.items() if one is not None}
    config = json.loads((specforge(tmp_path) / "config.json").read_text(encoding="utf-8"))
    write(tmp_path, config, kept, "model.safetensors")
    with pytest.raises(ModelBroken, match=message):
        load_head(tmp_path, RUNNER)


@pytest.mark.parametrize("damage", [{"hidden_size": "32"}, {"eagle_config": {}, "vocab_size": None}])
def test_a_damaged_config_is_told(damage: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(ModelBroken, match="should have a number"):
        load_head(specforge(tmp_path, **damage), RUNNER)


@pytest.mark.parametrize(
    "damage",
    [
        {"rms_norm_eps": None},
        {"rms_norm_eps": float("nan")},
        {"rms_norm_eps": -1.0},
        {"rope_theta": None},
        {"rope_scaling": [1]},
        {"rope_scaling": {"rope_type": "none such"}},
        {"rope_scaling": {"rope_type": "linear"}},
        {"rope_parameters": {"rope_theta": "many"}},
        {"num_key_value_heads": "two"},
        {"num_key_value_heads": 3},
        {"head_dim": float("inf")},
        {"max_position_embeddings": [512]},
        {"target_hidden_size": {}, "draft_vocab_size": [1]},
        {"num_hidden_layers": "one"},
        {"eagle_aux_hidden_state_layer_ids": [float("inf")]},
        {"architectures": 5},
    ],
    ids=str,
)
def test_no_field_of_a_config_breaks_it(damage: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(ModelBroken, match=r"config\.json|must be a list"):
        load_head(specforge(tmp_path, **damage), RUNNER)


def test_an_unknown_activation_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelUnsupported, match="activation 'none such'"):
        load_head(specforge(tmp_path, hidden_act="none such"), RUNNER)


@torch.inference_mode()
def test_a_tree_grown_level_by_level_is_its_paths() -> None:
    """Each node's logits are those of a chain along its path: siblings in the cache aren't seen."""
    head = eagle_head(random_eagle(MODEL), RUNNER)
    text = torch.randint(0, V, (9,), generator=torch.Generator().manual_seed(4))
    parents = (-1, -1, -1, 0, 2, 2, 4, 5)
    tokens = torch.randint(0, V, (8,), generator=torch.Generator().manual_seed(5))
    (states,) = RUNNER.forward([ForwardInput(text, RUNNER.new_cache())], Extras(head.depths)).states
    cache = head.new_cache()
    root = head(text[1:], head.fuse(states[:-1]), Batch([cache], [8], [1])).features
    found, features, start = list[Tensor](), {-1: root[0]}, 0
    for stop in (3, 6, 8):
        level = range(start, stop)
        before = torch.stack([features[parents[node]] for node in level])
        tree = Tree(parents[:stop])
        count = [len(level)]
        logits, after = head(tokens[start:stop], before, Batch([cache], count, count, [tree]))[:2]
        found += list(logits)
        features |= dict(zip(level, after, strict=True))
        start = stop
    for node, path in enumerate(Tree(parents).paths):
        cache.rollback_to(8)
        feature = root
        for step in path:
            logits, feature = head(tokens[step : step + 1], feature, Batch([cache], [1], [1]))[:2]
        torch.testing.assert_close(found[node], logits[0], rtol=0, atol=1e-4)


@pytest.mark.parametrize("native", [True, False])
@torch.inference_mode()
def test_the_likeliest_tokens_come_with_their_log_probabilities(native: bool) -> None:
    runner = RUNNER if native else ModelRunner(MODEL, native=False)
    head = eagle_head(random_eagle(MODEL, vocabulary=PRUNED), runner)
    tokens, features = torch.arange(6), torch.randn(6, H)
    for most in (1, 5, V):
        level = head(tokens, features, Batch([head.new_cache()], [6], [3]), most=most)
        wanted = level.logits.log_softmax(-1).topk(min(most, len(PRUNED)))
        torch.testing.assert_close(level.chances, wanted.values, rtol=0, atol=1e-5)
        assert torch.equal(level.choices, PRUNED[wanted.indices])


@torch.inference_mode()
def test_of_damaged_weights_nothing_is_likely() -> None:
    head = eagle_head(random_eagle(MODEL, scale=float("nan")), RUNNER)
    level = head(torch.arange(2), torch.randn(2, H), Batch([head.new_cache()], [2], [2]), most=3)
    assert not bool((level.chances > -torch.inf).any())
    assert bool(((0 <= level.choices) & (level.choices < V)).all())


@torch.inference_mode()
def test_a_head_of_bfloat16_is_read_as_eight_bits() -> None:
    """Half the memory, and its logits differ by less than 5 % of the largest logit."""
    narrow = tiny_model(V, layers=LAYERS, seed=3).bfloat16()
    runner = ModelRunner(narrow)
    exact = eagle_head(random_eagle(MODEL), RUNNER)
    short = eagle_head(random_eagle(MODEL), runner)
    tokens, features = torch.arange(6), torch.randn(6, H)
    each = [one(tokens, features, Batch([one.new_cache()], [6], [6])).logits for one in (exact, short)]
    assert float((each[0] - each[1]).abs().max()) < 0.05 * float(each[0].abs().max())
    assert isinstance(short.output, NativeMatrix)
    assert short.output.struct.kind == INT8
