"""Tensors of a head's folder: errors name what is missing, misshapen or unreadable."""

import pickle
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from specstream.errors import ModelBroken
from specstream.model.heads.base import read_head_config
from specstream.model.heads.recognise import kind_of, load_head
from specstream.model.heads.tensors import Tensors


def test_each_tensor_is_taken_once_by_name_and_shape(tmp_path: Path) -> None:
    save_file({"a": torch.ones(2, 3), "b": torch.zeros(4)}, tmp_path / "model.safetensors")
    tensors = Tensors.read(tmp_path)
    assert "a" in tensors and torch.equal(tensors.take("a", (2, None)), torch.ones(2, 3))
    with pytest.raises(ModelBroken, match=r"belong to no known head: \['b'\]"):
        tensors.check_all_taken()
    tensors.check_all_taken(unless="b")
    with pytest.raises(ModelBroken, match="the tensor a is missing"):
        tensors.take("a", (2, 3))
    with pytest.raises(ModelBroken, match=r"b has shape \[4\] and should have \[5\]"):
        tensors.take("b", (5,))


def test_a_folder_without_weights_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelBroken, match="without weights"):
        Tensors.read(tmp_path)


class Harmful:
    ran = False

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return setattr, (Harmful, "ran", True)


def test_code_in_a_pickle_is_not_run(tmp_path: Path) -> None:
    (tmp_path / "pytorch_model.bin").write_bytes(pickle.dumps(Harmful()))
    with pytest.raises(ModelBroken, match="can't be read"):
        Tensors.read(tmp_path)
    assert not Harmful.ran


def test_a_pickle_of_tensors_is_read(tmp_path: Path) -> None:
    torch.save({"a": torch.ones(2)}, tmp_path / "medusa_lm_head.pt")
    assert torch.equal(Tensors.read(tmp_path, "medusa_lm_head.pt").take("a", (2,)), torch.ones(2))


def test_pickles_in_parts_are_read(tmp_path: Path) -> None:
    for number, name in enumerate("ab", 1):
        torch.save({name: torch.ones(2)}, tmp_path / f"pytorch_model-{number:05}-of-00002.bin")
    found = Tensors.read(tmp_path)
    assert "a" in found and "b" in found


@pytest.mark.parametrize("text", ["{", "[]", "\x00"])
def test_a_damaged_config_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(ModelBroken, match=r"config\.json"):
        read_head_config(tmp_path)


def test_an_ordinary_model_is_no_head(tmp_path: Path) -> None:
    assert read_head_config(tmp_path) == {}
    assert kind_of({"model_type": "llama", "architectures": ["LlamaForCausalLM"]}) is None
    from specstream.errors import ModelUnsupported

    with pytest.raises(ModelUnsupported, match="no drafting head"):
        load_head(tmp_path, None)  # type: ignore[arg-type]
