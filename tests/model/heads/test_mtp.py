"""Multi-token prediction modules in the layouts of published targets, against transformers' own."""

import json
import logging
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForCausalLM
from transformers.modeling_layers import MtpModel

from specstream.errors import ModelBroken, ModelError, ModelUnsupported
from specstream.model.attention.base import Batch
from specstream.model.forward import Extras, ForwardInput
from specstream.model.heads import mtp as mtp_format
from specstream.model.heads.mtp import MtpHead, find, load
from specstream.model.runner import ModelRunner
from tests.model.families import build
from tests.support.mtps import mtp_head, random_module, reference, tensors_of

MODEL = build("qwen3", tie_word_embeddings=False)
RUNNER, MODULE = ModelRunner(MODEL), random_module(MODEL)
LAYERS = MODEL.config.num_hidden_layers
TEXT = torch.tensor([3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8])


def deepseek(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """A layer behind the last, with copies of embedding and head."""
    names = {"norm.weight": "shared_head.norm.weight"}
    made = {f"model.layers.{LAYERS}.{names.get(n, n)}": t for n, t in tensors.items()}
    made[f"model.layers.{LAYERS}.shared_head.head.weight"] = MODEL.lm_head.weight.detach().clone()
    embedding: Tensor = MODEL.model.embed_tokens.weight
    return made | {f"model.layers.{LAYERS}.embed_tokens.weight": embedding.detach().clone()}


def qwen(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Projection and norms one level up."""
    names = {
        "eh_proj.weight": "mtp.fc.weight",
        "enorm.weight": "mtp.pre_fc_norm_embedding.weight",
        "hnorm.weight": "mtp.pre_fc_norm_hidden.weight",
        "norm.weight": "mtp.norm.weight",
    }
    return {names.get(n, f"mtp.layers.0.{n}"): t for n, t in tensors.items()}


def mimo(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The state comes first in its projection."""
    names = {
        "eh_proj.weight": "input_proj.weight",
        "enorm.weight": "token_layernorm.weight",
        "hnorm.weight": "hidden_layernorm.weight",
        "norm.weight": "final_layernorm.weight",
    }
    made = {f"model.mtp_layers.0.{names.get(n, n)}": t for n, t in tensors.items()}
    joint = made["model.mtp_layers.0.input_proj.weight"]
    made["model.mtp_layers.0.input_proj.weight"] = torch.cat(joint.chunk(2, 1)[::-1], 1)
    return made


LAYOUTS = [deepseek, qwen, mimo]


def write(folder: Path, extra: dict[str, Tensor], model: Any = MODEL, *, apart: bool = False) -> str:
    """A target's folder that holds more tensors than the target; ``apart``: in a file of their own."""
    model.save_pretrained(folder)
    file = folder / "model.safetensors"
    extra = {name: one.contiguous() for name, one in extra.items()}
    if apart:
        save_file(extra, folder / "model-mtp.safetensors", {"format": "pt"})
    else:
        save_file(load_file(file) | extra, file, {"format": "pt"})
    return str(folder)


@torch.inference_mode()
def drafted(head: MtpHead, runner: ModelRunner = RUNNER) -> tuple[Tensor, Tensor]:
    """Of all rows, read in two passes."""
    (states,) = runner.forward([ForwardInput(TEXT, runner.new_cache())], Extras(head.depths)).states
    features, cache = head.fuse(states[:-1]), head.new_cache()
    first = head(TEXT[1:8], features[:7], Batch([cache], [7], [7]))
    later = head(TEXT[8:], features[7:], Batch([cache], [4], [4]))
    return torch.cat([first[0], later[0]]), torch.cat([first[1], later[1]])


@torch.inference_mode()
def wanted(module: Any, model: Any = MODEL, *, normed: bool = True) -> tuple[Tensor, Tensor]:
    found = model(input_ids=TEXT.unsqueeze(0), output_hidden_states=True)
    states = found.hidden_states[-1][0, :-1]
    if not normed:
        seen = list[Tensor]()
        hook = model.model.norm.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
        model(input_ids=TEXT.unsqueeze(0))
        hook.remove()
        states = seen[0][0, :-1]
    return reference(module, TEXT[1:], states)


def same(ours: tuple[Tensor, Tensor], theirs: tuple[Tensor, Tensor]) -> None:
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["llama", "llama, biased attention", "qwen2", "qwen3"])
def test_it_computes_what_transformers_computes(name: str) -> None:
    model = build(name)
    module, runner = random_module(model), ModelRunner(model)
    same(drafted(mtp_head(module, runner), runner), wanted(module, model))


@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_each_layout_is_read(
    layout: Callable[[dict[str, Tensor]], dict[str, Tensor]], apart: bool, tmp_path: Path
) -> None:
    name = write(tmp_path, layout(tensors_of(MODULE)), apart=apart)
    head = load(name, RUNNER)
    same(drafted(head), wanted(MODULE, normed=layout is not mimo))
    weights = sum(one.numel() for one in MODULE.layers.parameters())
    assert (head.parameters, head.nbytes) == (weights, 4 * weights)  # no copies of what is shared


@pytest.mark.parametrize("layout", [deepseek, qwen])
def test_transformers_reads_the_same_folder_to_the_same_numbers(
    layout: Callable[[dict[str, Tensor]], dict[str, Tensor]], tmp_path: Path
) -> None:
    if layout is qwen:  # transformers 5.17 reads only the other
        pytest.importorskip("transformers", minversion="5.20")
    name = write(tmp_path, layout(tensors_of(MODULE)))
    model = AutoModelForCausalLM.from_pretrained(name)
    model.config.num_mtp_layers, model.config.mtp_layer_types = 1, ["full_attention"]
    model._keys_to_ignore_on_load_unexpected = [r"^mtp.*", rf"model\.layers\.{LAYERS}.*"]
    theirs: Any = MtpModel.from_pretrained(model)
    same(drafted(load(name, RUNNER)), wanted(theirs))


def test_own_embedding_and_head_are_used_where_they_differ(tmp_path: Path) -> None:
    extra = deepseek(tensors_of(MODULE))
    embedding, head = (f"model.layers.{LAYERS}.{n}.weight" for n in ("embed_tokens", "shared_head.head"))
    extra[embedding], extra[head] = extra[embedding] * 2 + 1, extra[head] * 3
    found = load(write(tmp_path, extra), RUNNER)
    shared = sum(one.numel() for one in MODULE.layers.parameters())
    assert found.parameters == shared + extra[embedding].numel() + extra[head].numel()
    other = random_module(MODEL)
    with torch.no_grad():
        other.embed_tokens.weight.mul_(2).add_(1)
        other.shared_head.weight.mul_(3)
    same(drafted(found), wanted(other))


def test_of_several_modules_the_first_drafts(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="specstream.model")
    extra = deepseek(tensors_of(MODULE))
    second = deepseek(tensors_of(random_module(MODEL, seed=8)))
    later = {n.replace(f".{LAYERS}.", f".{LAYERS + 1}."): t for n, t in second.items()}
    same(drafted(load(write(tmp_path, extra | later), RUNNER)), wanted(MODULE))
    assert "holds 2 prediction modules; the first drafts" in caplog.text


def test_of_a_hub_id_the_files_are_found_by_its_index(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, {})
    (tmp_path / "model.safetensors").rename(tmp_path / "model-1.safetensors")
    save_file(qwen(tensors_of(MODULE)), tmp_path / "model-2.safetensors", {"format": "pt"})
    shards = {"a": "model-1.safetensors", "b": "model-2.safetensors"}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": shards}))

    def kept(name: str, file: str, *, local_files_only: bool, **_: object) -> str | None:
        assert (name, local_files_only) == ("some/target", True)
        return str(tmp_path / file) if (tmp_path / file).is_file() else None

    monkeypatch.setattr(mtp_format, "cached_file", kept)
    same(drafted(load("some/target", RUNNER)), wanted(MODULE))
    (tmp_path / "model.safetensors.index.json").write_text("[]")
    with pytest.raises(ModelBroken, match=r"index\.json can't be read"):
        load("some/target", RUNNER)


def test_a_target_without_a_module_is_refused_in_a_sentence(tmp_path: Path) -> None:
    name = write(tmp_path, {})
    assert find(name, RUNNER) is None
    with pytest.raises(ModelUnsupported, match="holds no multi-token prediction module"):
        load(name, RUNNER)


@pytest.mark.parametrize(
    ("tensor", "said"),
    [
        ("mlp.experts.0.gate_proj.weight", "experts (MoE)"),
        ("mlp.gate.weight", "experts (MoE)"),
        ("self_attn.kv_a_proj_with_mqa.weight", "latent attention (MLA)"),
        ("self_attn.q_proj.weight_scale_inv", "quantised weights"),
    ],
)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_other_layers_are_refused_by_name(layout: Any, tensor: str, said: str, tmp_path: Path) -> None:
    extra = tensors_of(MODULE) | {tensor: torch.ones(4, 4)}
    with pytest.raises(ModelUnsupported, match=re.escape(f"has {said}")):
        load(write(tmp_path, layout(extra)), RUNNER)


def without(name: str) -> Callable[[dict[str, Tensor]], None]:
    return lambda tensors: tensors.__delitem__(name)


def changed(name: str, change: Callable[[Tensor], Tensor]) -> Callable[[dict[str, Tensor]], None]:
    return lambda tensors: tensors.update({name: change(tensors[name])})


@pytest.mark.parametrize(
    ("spoil", "error", "said"),
    [
        (without("enorm.weight"), ModelBroken, "enorm.weight is missing"),
        (without("norm.weight"), ModelBroken, "norm.weight is missing"),
        (without("self_attn.o_proj.weight"), ModelBroken, "o_proj.weight is missing"),
        (changed("eh_proj.weight", lambda t: t[:, :-2]), ModelBroken, "should have"),
        (changed("mlp.up_proj.weight", lambda t: t[:-1]), ModelBroken, "should have"),
        (
            changed("self_attn.q_proj.weight", lambda t: torch.cat([t, t])),
            ModelUnsupported,
            "gated attention",
        ),
        (
            changed("mlp.down_proj.weight", lambda t: t.to(torch.float8_e4m3fn)),
            ModelUnsupported,
            "quantised",
        ),
        (changed("hnorm.weight", lambda t: t.long()), ModelUnsupported, "int64"),
        (lambda t: t.update({"more.weight": torch.ones(1)}), ModelBroken, "more.weight"),
        (
            lambda t: t.update({"self_attn.q_proj.bias": torch.ones(64)}),
            ModelBroken,
            "k_proj.bias is missing",
        ),
    ],
)
def test_bad_modules_get_one_clear_error(
    spoil: Any, error: type[ModelError], said: str, tmp_path: Path
) -> None:
    tensors = tensors_of(MODULE)
    spoil(tensors)
    with pytest.raises(error, match=said):
        load(write(tmp_path, deepseek(tensors)), RUNNER)


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    name = write(tmp_path, qwen(tensors_of(MODULE)))
    (tmp_path / "extra.safetensors").write_bytes(b"no tensors")
    with pytest.raises(ModelBroken, match=r"extra\.safetensors can't be read"):
        load(name, RUNNER)


def test_a_target_without_hidden_states_is_refused(tmp_path: Path) -> None:
    name = write(tmp_path, qwen(tensors_of(MODULE)))
    with pytest.raises(ModelUnsupported, match="hidden states"):
        load(name, ModelRunner(MODEL, lean=False))
    with pytest.raises(ModelUnsupported, match="reproducible"):
        load(name, ModelRunner(MODEL, fixed_width=8))
