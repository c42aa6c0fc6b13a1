"""What a processor is, what it may need of the model, and what it knows of the rows it processes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from specstream.errors import SpecstreamError
from specstream.model.transfer import to_device

__all__ = ["Context", "ModelFacts", "Processor"]


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """The target's tokenizer, the prompt, the width of the logits, the model's own ends, the device."""

    tokenizer: Any
    prompt_ids: Sequence[int]
    vocab_size: int
    end_ids: frozenset[int]
    device: torch.device


@dataclass
class Context:
    """The tokens before n rows: row j follows ``token_ids`` and ``tokens[i] for i in paths[j]``.

    Attributes:
        token_ids: The prompt and the committed tokens.
        committed: The same on the logits' device, ``[m]``.
        tokens: ``[K]`` int64 there: the proposed tokens, maybe not computed yet.
        paths: For each row the indices of the proposed tokens before it.
        may_wait: Whether values on the device may be read: on a CPU, or to explain an error.
        faults: Errors by row. Such a row becomes NaN; its error counts if the reply gets to it.
    """

    token_ids: list[int]
    committed: Tensor
    tokens: Tensor
    paths: Sequence[Sequence[int]]
    may_wait: bool
    faults: dict[int, SpecstreamError] = field(default_factory=dict)

    @cached_property
    def host_tokens(self) -> list[int]:
        """The proposed tokens, read from the device: the one attribute that waits for it."""
        ids: list[int] = self.tokens.tolist()
        return ids

    def ids(self, start: int = 0) -> Tensor:
        """``[n, m]``: the tokens before each row from position ``start`` on; -1 behind shorter ones."""
        count = len(self.tokens)
        width = max(map(len, self.paths))
        index = [[*path, *[count] * (width - len(path))] for path in self.paths]
        near = self.committed[start:].expand(len(self.paths), -1)
        return torch.cat([near, self._gather(self.tokens, index)], 1)

    def last(self, count: int) -> Tensor:
        """``[n, count]``: the last tokens before each row; -1 in front of shorter ones."""
        near = self.committed[max(0, len(self.committed) - count) :]
        known = torch.cat([near, self.tokens])
        rows = [[*range(len(near)), *(len(near) + i for i in path)] for path in self.paths]
        padded = [[*[len(known)] * count, *row] for row in rows]
        return self._gather(known, [row[len(row) - count :] for row in padded])

    def _gather(self, known: Tensor, index: list[list[int]]) -> Tensor:
        """Entries of ``known``; -1 for the index one past its end."""
        padded = torch.cat([known, known.new_full((1,), -1)])
        return padded[to_device(index, known.device)]


@dataclass(frozen=True, slots=True)
class Processor:
    """One step on the way from the model's logits to those that are sampled from.

    Attributes:
        name: What error messages call it.
        apply: Changes ``rows [n, V]`` float32 in place. A row must not depend on the other rows, to the
            last bit. Works on the device where possible: `Context.host_tokens` costs a wait a round.
    """

    name: str
    apply: Callable[[Tensor, Context], None]
