"""Native code that isn't available: an error if it was asked for, else torch runs the passes."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from specstream.errors import ConfigError
from specstream.model.native import library as module
from specstream.model.native.library import Library, library, native_library

pytestmark = pytest.mark.slow


@pytest.fixture
def fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """As in a new process, with a cache folder of its own."""
    monkeypatch.setenv("SPECSTREAM_CACHE", str(tmp_path))
    native_library.cache_clear()
    yield tmp_path / "compiled"
    native_library.cache_clear()


def script(path: Path, body: str) -> str:
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return str(path)


def refused(said: str) -> None:
    assert library(None) is None and library(False) is None
    with pytest.raises(ConfigError, match=said):
        library(True)


def test_without_a_compiler(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(fresh))
    monkeypatch.delenv("CXX", raising=False)
    refused("there is no C\\+\\+ compiler")


def test_with_one_that_fails(fresh: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", script(tmp_path / "cxx", "echo no such header >&2; exit 1"))
    refused("can't compile them .*no such header")


def test_with_one_that_hangs(fresh: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TIMEOUT_S", 0.01)
    monkeypatch.setenv("CXX", script(tmp_path / "cxx", "sleep 5"))
    refused("took longer than 0.01 s")


def test_in_a_folder_that_cannot_be_written(fresh: Path) -> None:
    fresh.write_text("a file")
    refused("set SPECSTREAM_CACHE to a folder that can be written")


def test_code_of_another_kind_is_made_once_more_and_then_refused(
    fresh: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = tmp_path / "calls"
    body = f"""echo >> {calls}
for last; do :; done; echo junk > "$last" """
    monkeypatch.setenv("CXX", script(tmp_path / "cxx", body))
    refused("no native passes")
    assert len(calls.read_text()) == 2


def test_it_is_compiled_once_and_kept_and_once_more_where_it_is_damaged(
    fresh: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls, compiled = list[Path](), module.compile_code

    def counted(compiler: str, to: Path) -> None:
        calls.append(to)
        if len(calls) == 1:
            to.write_bytes(b"junk")
        else:
            compiled(compiler, to)

    monkeypatch.setattr(module, "compile_code", counted)
    for _ in range(2):
        assert isinstance(library(True), Library) and library(None) is native_library()
        native_library.cache_clear()
    assert len(calls) == 2 and len(list(fresh.iterdir())) == 1
