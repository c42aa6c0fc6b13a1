"""A stand-in for the package llama-cpp-python, with the methods of ``Llama`` that the arm uses.

It keeps the library's own habits: ``reset`` only forgets how many tokens are cached, ``generate``
looks for the longest cached prefix of the prompt and never ends by itself, and a model file that it
can't read is a ``ValueError``.
"""

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

import pytest

from tests.support.tiny import EOS

__all__ = ["FakeLlama", "gguf_file", "install_llama_cpp"]

_MODULE = "from tests.bench.llama import FakeLlama as Llama\n"


class FakeLlama:
    """A model that counts up from the prompt's last token and ends after ``ends_after`` tokens."""

    vocabulary = 258
    ends_after = 99
    latest: ClassVar[Any] = None  # the model that was loaded last

    def __init__(
        self,
        model_path: str,
        *,
        n_gpu_layers: int = 0,
        n_ctx: int = 512,
        n_threads: int | None = None,
        n_threads_batch: int | None = None,
        verbose: bool = True,
    ) -> None:
        if "broken" in model_path:
            raise ValueError(f"Failed to load model from file: {model_path}")
        FakeLlama.latest = self
        self.n_threads = (n_threads, n_threads_batch)
        self.n_ctx = n_ctx
        self.n_tokens = 0
        self.prompts: list[list[int]] = []
        self.read: list[int] = []
        self.asked: dict[str, Any] = {}
        self.seed = -1

    def n_vocab(self) -> int:
        return self.vocabulary

    def reset(self) -> None:
        self.n_tokens = 0

    def set_seed(self, seed: int) -> None:
        self.seed = seed

    def generate(
        self,
        tokens: Sequence[int],
        top_k: int = 40,
        top_p: float = 0.95,
        min_p: float = 0.05,
        typical_p: float = 1.0,
        temp: float = 0.80,
        repeat_penalty: float = 1.0,
        reset: bool = True,
    ) -> Iterator[int]:
        self.asked = {
            "top_k": top_k,
            "top_p": top_p,
            "min_p": min_p,
            "temp": temp,
            "repeat_penalty": repeat_penalty,
        }
        cached = self.n_tokens if self.prompts and list(tokens) == self.prompts[-1] else 0
        self.prompts.append(list(tokens))
        self.read.append(len(tokens) - min(cached, len(tokens) - 1))
        self.n_tokens = len(tokens)
        for i in range(1, self.n_ctx):
            self.n_tokens += 1
            yield EOS if i > self.ends_after else (tokens[-1] + i) % self.vocabulary


def install_llama_cpp(folder: Path, monkeypatch: pytest.MonkeyPatch, text: str = _MODULE) -> None:
    """Put a module ``llama_cpp`` with this source on the import path."""
    package = folder / "packages"
    package.mkdir()
    (package / "llama_cpp.py").write_text(text)
    monkeypatch.syspath_prepend(package)
    monkeypatch.setitem(sys.modules, "llama_cpp", ModuleType("llama_cpp"))  # the import is undone
    del sys.modules["llama_cpp"]


def gguf_file(folder: Path, name: str = "tiny-f16.gguf") -> Path:
    """A file that begins as a GGUF file of version 3 does."""
    path = folder / name
    path.write_bytes(b"GGUF" + (3).to_bytes(4, "little") + bytes(16))
    return path
