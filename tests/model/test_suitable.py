"""A config that describes more than the files hold is refused before anything is allocated."""

import json
from pathlib import Path

import pytest
from transformers import AutoConfig

from specstream.config import EngineConfig
from specstream.errors import ModelBroken
from specstream.model.load import check_config, load_model, parameters_of
from tests.support.tiny import tiny_model


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "model"
    tiny_model(64).save_pretrained(path)
    return path


def test_parameters_are_those_of_the_model(folder: Path) -> None:
    held = sum(parameter.numel() for parameter in tiny_model(64).parameters())
    assert parameters_of(AutoConfig.from_pretrained(folder)) == held


def test_a_config_without_sizes_is_refused(folder: Path) -> None:
    """transformers would take the sizes of a model with 6.7 billion parameters."""
    (folder / "config.json").write_text(json.dumps({"model_type": "llama"}))
    with pytest.raises(ModelBroken, match="at least 131,072 parameters") as caught:
        load_model(str(folder), EngineConfig())
    assert str(caught.value).startswith(f"{folder}: ") and "correct the sizes" in str(caught.value)


def test_a_config_with_countless_layers_is_refused_at_once(folder: Path) -> None:
    config = AutoConfig.from_pretrained(folder)
    config.num_hidden_layers = 2**40
    with pytest.raises(ModelBroken, match="correct the sizes"):
        check_config(str(folder), config)


def test_quantised_weights_may_take_less_than_a_byte_each(folder: Path) -> None:
    config = AutoConfig.from_pretrained(folder)
    bits = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(bits[: parameters_of(config) // 2])
    with pytest.raises(ModelBroken):
        check_config(str(folder), config)
    config.quantization_config = {"quant_method": "fbgemm_fp8"}
    check_config(str(folder), config)


def test_a_context_without_positions_is_refused(folder: Path) -> None:
    config = AutoConfig.from_pretrained(folder)
    config.max_position_embeddings = -5
    with pytest.raises(ModelBroken, match="max_position_embeddings is -5"):
        check_config(str(folder), config)
