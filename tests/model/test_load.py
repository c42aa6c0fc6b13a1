from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from specstream.config import EngineConfig
from specstream.engine.build import build_engine
from specstream.errors import (
    ConfigError,
    ModelBroken,
    ModelError,
    ModelNotFound,
    VocabularyMismatch,
)
from specstream.model.load import choose_device, choose_dtype
from tests.tiny import byte_tokenizer, tiny_model


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
            {"target": str(target), "draft": str(draft), "proposer": {"kind": proposer}}
        )
    )


def test_a_sound_pair_loads(folder: Path) -> None:
    build(folder, folder, "draft")


@pytest.mark.parametrize(
    "name",
    ["", "/no/such/folder", "./nowhere", "some-org/some-model", "a/b/c/d"],
    ids=["empty", "absolute", "relative", "hub", "deep"],
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


def test_a_draft_of_another_family_is_refused(folder: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    tokenizer = byte_tokenizer()
    tokenizer.add_tokens(["hello"])
    tiny_model(len(tokenizer)).save_pretrained(other)
    tokenizer.save_pretrained(other)
    with pytest.raises(VocabularyMismatch, match="hello"):
        build(folder, other, "draft")


def test_one_tokenizer_with_output_layers_of_two_widths_is_served(
    folder: Path, tmp_path: Path
) -> None:
    other = tmp_path / "wide"
    tokenizer = byte_tokenizer()
    tiny_model(len(tokenizer) + 13).save_pretrained(other)
    tokenizer.save_pretrained(other)
    build(folder, other, "draft")
    build(other, folder, "draft")


def test_devices_and_dtypes() -> None:
    cpu = torch.device("cpu")
    assert choose_device("cpu") == cpu
    assert choose_dtype("auto", cpu) is torch.float32
    assert choose_dtype("bfloat16", cpu) is torch.bfloat16
    with pytest.raises(ConfigError, match="nonsense"):
        choose_device("nonsense")
