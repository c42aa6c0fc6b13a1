"""Heads by folder and by Hub id; the Hub's client is a stand-in that serves a folder."""

import json
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest

from specstream.errors import ModelBroken, ModelNotFound
from specstream.model.heads import recognise
from specstream.model.heads.recognise import head_folder

EXIT = {"model_type": "specstream-early-exit"}


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is fetched from the Hub, which has the repositories org/head and org/model."""
    names: list[str] = []
    for repository, config in (("head", EXIT), ("model", {"model_type": "llama"}), ("bad", [])):
        (tmp_path / "org" / repository).mkdir(parents=True)
        (tmp_path / "org" / repository / "config.json").write_text(json.dumps(config))

    def fetch(name: str, file: str = "everything", **options: Any) -> str:
        names.append(f"{name} {file}")
        if not (tmp_path / name).is_dir():
            raise OSError("404")
        return str(tmp_path / name / ("" if file == "everything" else file))

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", fetch)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", fetch)
    monkeypatch.setattr(recognise, "hub_options", lambda name: {})
    return names


def test_a_head_on_the_hub_is_fetched_whole_and_of_a_model_the_config_only(
    tmp_path: Path, asked: list[str]
) -> None:
    assert head_folder("org/head") == tmp_path / "org/head"
    assert head_folder("org/model") is None
    assert asked == ["org/head config.json", "org/head everything", "org/model config.json"]


def test_what_the_hub_lacks_and_what_is_damaged(asked: list[str]) -> None:
    with pytest.raises(ModelNotFound, match=r"org/none is no folder here .*404"):
        head_folder("org/none")
    with pytest.raises(ModelBroken, match="no JSON object"):
        head_folder("org/bad")


def test_a_folder_here_needs_no_hub(tmp_path: Path, asked: list[str]) -> None:
    assert head_folder(str(tmp_path / "org/head")) == tmp_path / "org/head"
    assert head_folder(str(tmp_path / "org/model")) is None
    assert head_folder(str(tmp_path / "model.gguf")) is None
    assert asked == []
