import importlib.util
import json
import logging
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, PreTrainedModel

from specstream.config import DEFAULT_TARGET, EngineConfig
from specstream.engine.build import build_engine
from specstream.errors import (
    ConfigError,
    ModelBroken,
    ModelError,
    ModelNotFound,
    ModelUnsupported,
    PromptError,
)
from specstream.methods import OffProposerConfig
from specstream.model.load import (
    choose_device,
    choose_dtype,
    load_config,
    load_model,
    load_tokenizer,
    prepare_device,
)
from specstream.types import SamplingParams
from tests.support.tiny import answered, ask, byte_tokenizer, tiny_model


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "model"
    tokenizer = byte_tokenizer()
    tiny_model(len(tokenizer)).save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path


def build(target: object, draft: object = "", proposer: str = "off") -> None:
    build_engine(
        EngineConfig.model_validate(
            {"target": str(target), "draft": str(draft) or None, "proposer": {"kind": proposer}}
        )
    )


def test_a_sound_pair_loads(folder: Path) -> None:
    build(folder, folder, "draft")


@pytest.mark.parametrize(
    "name",
    ["/no/such/folder", "./nowhere", "some-org/some-model", "a/b/c/d"],
    ids=["absolute", "relative", "hub", "deep"],
)
def test_nothing_there(name: str) -> None:
    with pytest.raises(ModelNotFound) as caught:
        build(name)
    assert "\n" not in str(caught.value)


def test_a_folder_without_a_config(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match=r"without a config\.json"):
        build(tmp_path)


def damage_config(folder: Path) -> None:
    (folder / "config.json").write_text("{ not json")


def damage_architecture(folder: Path) -> None:
    (folder / "config.json").write_text(json.dumps({"model_type": "no-such-architecture"}))


def cut_weights(folder: Path) -> None:
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:5000])


def drop_a_weight(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    del tensors["model.layers.0.mlp.up_proj.weight"]
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})


def misshape_a_weight(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    tensors["model.norm.weight"] = torch.ones(7)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})


def remove_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()


def break_tokenizer(folder: Path) -> None:
    (folder / "tokenizer.json").write_text("[]")


@pytest.mark.parametrize(
    "damage",
    [
        damage_config,
        damage_architecture,
        cut_weights,
        drop_a_weight,
        misshape_a_weight,
        remove_weights,
        break_tokenizer,
    ],
)
def test_damaged_files_are_one_clear_line(folder: Path, damage: object) -> None:
    damage(folder)  # type: ignore[operator]
    with pytest.raises(ModelBroken) as caught:
        build(folder)
    assert "model" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert isinstance(caught.value, ModelError)


def said(folder: Path, kind: type[ModelError]) -> str:
    with pytest.raises(kind) as caught:
        build(folder)
    assert str(caught.value).startswith(f"{folder}: ")
    return str(caught.value)


def test_architectures_that_are_no_list_are_refused(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text()) | {"architectures": 1.5}
    (folder / "config.json").write_text(json.dumps(config))
    assert "architectures" in said(folder, ModelBroken)  # transformers may find it first
    with pytest.raises(ModelBroken, match="should be a list of names"):
        load_config(str(folder))


def test_a_folder_without_its_tokenizer_is_refused(folder: Path) -> None:
    """For some types transformers then makes a tokenizer of special tokens only."""
    config = json.loads((folder / "config.json").read_text()) | {"model_type": "qwen3"}
    (folder / "config.json").write_text(json.dumps(config))
    for path in folder.glob("*token*"):
        path.unlink()
    assert "save the tokenizer's files beside the weights" in said(folder, ModelBroken)


def test_a_chat_template_that_is_no_jinja_is_refused(folder: Path) -> None:
    (folder / "chat_template.jinja").write_text(
        "{% for m in messages %}\n{{ m.content | nonsense }}{% endfor %}"
    )
    assert "not valid Jinja: line 2: No filter named 'nonsense'" in said(folder, ModelBroken)
    text = "{{ raise_exception('no') }}{% for m in messages %}{{ m.content }}{% endfor %}"
    (folder / "chat_template.jinja").write_text(text)
    build(folder)  # what a template refuses may depend on the messages


def test_what_is_wrong_with_weights_is_told_by_their_names(folder: Path) -> None:
    misshape_a_weight(folder)
    assert "model.norm.weight has shape [7] and should have [32]" in said(folder, ModelBroken)


def test_missing_weights_are_counted_and_a_few_named(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    kept = {name: tensor for name, tensor in tensors.items() if "mlp" not in name}
    save_file(kept, folder / "model.safetensors", {"format": "pt"})
    message = said(folder, ModelBroken)
    assert "6 weights are missing: " in message and message.endswith(", and 3 more")


def test_an_unknown_model_type_is_told_whole(folder: Path) -> None:
    damage_architecture(folder)
    message = said(folder, ModelBroken)
    assert "'no-such-architecture'" in message and message.endswith("config.json is wrong)")
    config = {"model_type": "no-such-architecture", "auto_map": {"AutoConfig": "their.Config"}}
    (folder / "config.json").write_text(json.dumps(config))
    assert "code of their own, which is not run" in said(folder, ModelBroken)


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("t5", "encoder-decoder models are not supported"),
        ("bart", "encoder-decoder models are not supported"),
        ("mamba", "can't be rolled back"),
        ("moshi", "moshi"),
        ("vit", "no causal language model of type 'vit'"),
    ],
)
def test_what_is_no_decoder_is_refused_before_a_weight_is_read(
    folder: Path, kind: str, words: str
) -> None:
    CONFIG_MAPPING[kind]().save_pretrained(folder)
    remove_weights(folder)
    assert words in said(folder, ModelUnsupported)


def fill_with_nan(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    nan = {name: torch.full_like(tensor, torch.nan) for name, tensor in tensors.items()}
    save_file(nan, folder / "model.safetensors", {"format": "pt"})


def test_weights_that_are_no_numbers_are_found(folder: Path, tmp_path: Path) -> None:
    draft = tmp_path / "draft"
    shutil.copytree(folder, draft)
    fill_with_nan(draft)
    with pytest.raises(ModelBroken, match=f"{draft}: its logits are not numbers"):
        build(folder, draft, "draft")
    fill_with_nan(folder)
    assert "not numbers" in said(folder, ModelBroken)


def test_a_tokenizer_larger_than_its_model_is_refused_with_the_remedy(folder: Path) -> None:
    tokenizer = byte_tokenizer()
    tokenizer.add_tokens(["hello"])
    tokenizer.save_pretrained(folder)
    rows = len(tokenizer) - 1
    with pytest.raises(ModelBroken, match="'hello'") as caught:
        build(folder)
    assert f"{rows} output rows" in str(caught.value)
    assert f"resize_token_embeddings({rows + 1})" in str(caught.value)


def test_a_special_token_without_a_row_is_told_and_a_prompt_with_it_refused(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tokenizer = byte_tokenizer()
    tokenizer.add_special_tokens({"pad_token": "<pad>"})
    tokenizer.chat_template = (
        "{% set said = messages[-1].content %}{{ said }}{% if said == 'pad' %}<pad>{% endif %}"
    )
    tokenizer.save_pretrained(folder)
    config = EngineConfig(target=str(folder), proposer=OffProposerConfig())
    core = build_engine(config)
    assert "<pad>" in caplog.messages[0]
    _, inbox = ask(core, "pad", SamplingParams(max_tokens=4))
    _, other = answered(core, "hello <pad> you", SamplingParams(max_tokens=4))  # only spelled
    (error,) = inbox.errors
    assert isinstance(error, PromptError) and "'<pad>'" in str(error)
    assert not inbox.chunks and len(other.token_ids) == 4


def test_a_draft_whose_tokenizer_has_more_tokens_added_is_served(folder: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    tokenizer = byte_tokenizer()
    tokenizer.add_tokens(["hello"])
    tiny_model(len(tokenizer)).save_pretrained(other)
    tokenizer.save_pretrained(other)
    build(folder, other, "draft")


def test_one_tokenizer_with_output_layers_of_two_widths_is_served(folder: Path, tmp_path: Path) -> None:
    other = tmp_path / "wide"
    tokenizer = byte_tokenizer()
    tiny_model(len(tokenizer) + 13).save_pretrained(other)
    tokenizer.save_pretrained(other)
    build(folder, other, "draft")
    build(other, folder, "draft")


def test_tied_weights_are_tied_though_another_thread_loads(monkeypatch: pytest.MonkeyPatch) -> None:
    """transformers replaces this method meanwhile, for all threads."""
    monkeypatch.setattr(PreTrainedModel, "tie_weights", lambda *_, **options: None)
    ready: Any = AutoModelForCausalLM.from_pretrained

    def mixed(name: str, **options: Any) -> Any:
        made, info = ready(name, **options)
        made.model.norm.weight.data = made.model.norm.weight.data.double()
        return made, info

    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", mixed)
    model: Any = load_model(DEFAULT_TARGET, EngineConfig(), "float32")
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert {weight.dtype for weight in model.parameters()} == {torch.float32}


def test_devices_and_dtypes() -> None:
    cpu = torch.device("cpu")
    assert choose_device("cpu") == cpu
    assert choose_dtype("auto", cpu) is torch.float32
    assert choose_dtype("bfloat16", cpu) is torch.bfloat16
    for missing in ("nonsense", "xpu"):
        with pytest.raises(ConfigError, match=f"'{missing}' can't be used here .*; choose auto or cpu"):
            choose_device(missing)


def test_a_gpu_is_used_without_cudnns_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[bool] = []
    monkeypatch.setattr(torch.backends.cuda, "enable_cudnn_sdp", told.append)
    prepare_device(torch.device("cpu"))
    assert told == []
    prepare_device(torch.device("cuda"))
    assert told == [False]


@pytest.mark.parametrize(
    ("method", "missing", "wanted"),
    [
        ("gptq", "gptqmodel", "gptqmodel optimum"),
        ("gptq", "optimum", "gptqmodel optimum"),
        ("awq", "gptqmodel", "gptqmodel"),
        ("bitsandbytes", "accelerate", "bitsandbytes accelerate"),
        ("compressed-tensors", "compressed_tensors", "compressed-tensors"),
        ("torchao", "torchao", "torchao"),
    ],
)
def test_quantised_weights_without_their_packages_are_refused_by_name(
    folder: Path, tmp_path: Path, method: str, missing: str, wanted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where one of two is there."""
    find = importlib.util.find_spec
    there = {"gptqmodel", "bitsandbytes", "compressed_tensors", "torchao", "accelerate", "optimum"}

    def found(name: str, *args: Any) -> Any:
        if name == missing:
            return None
        return object() if name in there else find(name, *args)

    monkeypatch.setattr("importlib.util.find_spec", found)
    other = tmp_path / "quantised"
    shutil.copytree(folder, other)
    values = json.loads((other / "config.json").read_text())
    values["quantization_config"] = {"quant_method": method, "bits": 4}
    (other / "config.json").write_text(json.dumps(values))
    with pytest.raises(ModelUnsupported, match=f"pip install {wanted}$"):
        build(other)


def test_a_tokenizer_tells_nothing_of_long_prompts(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine checks them against the model's context."""
    monkeypatch.setattr(logging.getLogger("transformers"), "propagate", True)
    load_tokenizer(DEFAULT_TARGET).encode("word " * 3000)
    assert "longer than" not in caplog.text
