from pathlib import Path

import pytest

from specstream.bench.prompts import Padding, check_gguf, parse_padding
from specstream.errors import ConfigError
from tests.bench.llama import gguf_file, install_llama_cpp


@pytest.mark.parametrize(
    ("text", "padding"), [("100M", Padding(100_000_000)), ("1.5b:28", Padding(1_500_000_000, 28))]
)
def test_sizes_are_read(text: str, padding: Padding) -> None:
    assert parse_padding(text) == padding


@pytest.mark.parametrize(
    "text", ["", "100", "100K", "8B:", "8B:0", "8B:999", "8B:" + "9" * 5000, "0M", "-1B", "9999B"]
)
def test_bad_sizes_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="--padded"):
        parse_padding(text)


def test_a_gguf_file_and_the_package_are_all_it_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install_llama_cpp(tmp_path, monkeypatch)
    check_gguf(str(gguf_file(tmp_path)))


def test_what_is_wrong_with_the_file_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install_llama_cpp(tmp_path, monkeypatch)
    (tmp_path / "model.safetensors").write_bytes(b"\x00" * 64)
    (tmp_path / "empty.gguf").write_bytes(b"")
    for name, says in (
        ("none.gguf", "No such file"),
        (".", "Is a directory"),
        ("model.safetensors", "is not a GGUF file.*convert_hf_to_gguf"),
        ("empty.gguf", "is not a GGUF file"),
    ):
        with pytest.raises(ConfigError, match=f"--llama-cpp.*{says}"):
            check_gguf(str(tmp_path / name))


def test_a_missing_package_is_named_with_the_command_that_brings_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("specstream.bench.prompts.importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="pip install llama-cpp-python"):
        check_gguf(str(gguf_file(tmp_path)))


def test_a_package_that_breaks_when_it_is_imported_is_a_usage_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install_llama_cpp(tmp_path, monkeypatch, "raise RuntimeError('no shared library libllama.so')")
    with pytest.raises(ConfigError, match=r"broken: no shared library libllama\.so"):
        check_gguf(str(gguf_file(tmp_path)))
