"""Models without layers, which cost next to nothing: logits are looked up by the tokens before them.

Their caches hold the tokens themselves, so that what is kept can be read back, and a wrong rollback
shows in the logits.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from specstream.model.forward import PLAIN, Extras, ForwardInput, ForwardOutput
from specstream.model.kv import KVCache
from specstream.model.runner import ModelRunner


class TableCache(KVCache):
    """The rows of a sequence; a row is its token."""

    def __init__(self) -> None:
        self.tokens: list[int] = []

    @property
    def length(self) -> int:
        return len(self.tokens)

    def rollback_to(self, length: int) -> None:
        self._check(length)
        del self.tokens[length:]

    def _copy_rows(self, other: TableCache, rows: int) -> None:
        self.tokens = other.tokens[:rows]

    def _move_rows(self, start: int, path: Sequence[int]) -> None:
        self.tokens[start : start + len(path)] = [self.tokens[start + node] for node in path]

    @property
    def nbytes(self) -> int:
        return 0


class TableRunner(ModelRunner):
    """What the engine asks of a `ModelRunner` but the pass itself, which a subclass looks up."""

    lean = True

    def __init__(self, vocab_size: int, context_length: int) -> None:
        stand_in: Any = SimpleNamespace(generation_config=None)
        self.model, self.device, self.dtype = stand_in, torch.device("cpu"), torch.float32
        self.vocab_size = self.model_vocab_size = vocab_size
        self.context_length = context_length
        self.fixed_width, self.quantised, self.forwards = None, False, 0
        self.slowed = None
        self.compiled = None

    def new_cache(self) -> KVCache:
        return TableCache()

    def cache_bytes(self, tokens: int) -> int:
        """A row is a number on the host."""
        return 0

    @property
    def free_cache_bytes(self) -> int | None:
        return None

    def chain(self, token_ids: Tensor, cache: KVCache, most: int, stop: Any = None) -> None:
        """None: its steps are made one by one."""

    def read(self, item: ForwardInput) -> list[int]:
        """Append an input to its cache; return all tokens there."""
        assert isinstance(item.cache, TableCache)
        self.forwards += 1
        item.cache.tokens.extend(item.token_ids.tolist())
        return item.cache.tokens


class ScriptedRunner(TableRunner):
    """A row follows from the last token and the number of tokens.

    ``script`` are the tokens it wants to write from ``start`` on.
    """

    def __init__(self, vocab_size: int, *, seed: int = 0, eager: float = 12.0) -> None:
        super().__init__(vocab_size, context_length=10_000)
        self.script: Sequence[int] = ()
        self.start = 0
        self._eager = eager
        self._noise = torch.randn(101, vocab_size, generator=torch.Generator().manual_seed(seed))

    def row(self, context: Sequence[int]) -> Tensor:
        """Logits ``[V]`` after ``context``."""
        at = len(context) - self.start
        row = self._noise[(context[-1] * 7 + len(context)) % 101].clone()
        if 0 <= at < len(self.script):
            row[self.script[at]] += self._eager
        return row

    def forward(self, inputs: Sequence[ForwardInput], extras: Extras = PLAIN) -> ForwardOutput:
        found = list[Tensor]()
        for item in inputs:
            tokens = self.read(item)
            ends = range(len(tokens) - item.keep + 1, len(tokens) + 1)
            found.append(torch.stack([self.row(tokens[:end]) for end in ends]))
        return ForwardOutput(found)
