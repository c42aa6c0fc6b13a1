"""A model that is a table: each next token follows from the last one and the position, for next to
no cost. Its cache holds the tokens themselves, so that what is kept can be read back.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from specstream.model.forward import PLAIN, Extras, ForwardInput, ForwardOutput


class TableCache:
    """The rows of a sequence; a row is its token."""

    def __init__(self) -> None:
        self.tokens: list[int] = []

    @property
    def length(self) -> int:
        return len(self.tokens)

    def rollback_to(self, length: int) -> None:
        assert 0 <= length <= len(self.tokens)
        del self.tokens[length:]

    def keep_path(self, start: int, path: Sequence[int]) -> None:
        self.tokens[start:] = [self.tokens[start + node] for node in path]


class TableRunner:
    """Stands in for a `ModelRunner`. ``script`` are the tokens it wants to write from ``start`` on."""

    fixed_width = None
    lean, quantised = True, False
    device = torch.device("cpu")
    dtype = torch.float32

    def __init__(self, vocab_size: int, *, seed: int = 0, eager: float = 12.0) -> None:
        self.vocab_size = self.model_vocab_size = vocab_size
        self.context_length = 10_000
        self.script: Sequence[int] = ()
        self.start = 0
        self.forwards = 0
        self._eager = eager
        self._noise = torch.randn(101, vocab_size, generator=torch.Generator().manual_seed(seed))

    def new_cache(self) -> Any:
        return TableCache()

    def row(self, context: Sequence[int]) -> Tensor:
        """Logits ``[V]`` after ``context``."""
        at = len(context) - self.start
        row = self._noise[(context[-1] * 7 + len(context)) % 101].clone()
        if 0 <= at < len(self.script):
            row[self.script[at]] += self._eager
        return row

    def forward(self, inputs: Sequence[ForwardInput], extras: Extras = PLAIN) -> ForwardOutput:
        return ForwardOutput([self._one(item) for item in inputs])

    def chain(self, token_ids: Tensor, cache: Any, most: int, stop: Any = None) -> None:
        """Nothing is captured."""

    def _one(self, item: ForwardInput) -> Tensor:
        self.forwards += 1
        tokens: list[int] = item.cache.tokens  # type: ignore[attr-defined]
        tokens.extend(item.token_ids.tolist())
        ends = range(len(tokens) - item.keep + 1, len(tokens) + 1)
        return torch.stack([self.row(tokens[:end]) for end in ends])
