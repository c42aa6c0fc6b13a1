"""The types of logits processors: processor, facts about the model, context of the processed rows."""

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
    """Tokenizer, prompt, width of the logits, end-of-sequence ids and device of a request's target."""

    tokenizer: Any
    prompt_ids: Sequence[int]
    vocab_size: int
    end_ids: frozenset[int]
    device: torch.device


@dataclass
class Context:
    """The tokens before each of n rows: row j follows ``token_ids`` and ``tokens[i] for i in paths[j]``.

    Attributes:
        token_ids: The prompt and the committed tokens.
        committed: ``token_ids`` on the logits' device, ``[m]``.
        tokens: The proposed tokens, ``[K]`` int64 on the logits' device, maybe not computed yet.
        paths: For each row the indices of the proposed tokens before it.
        may_wait: Whether the host may read values from the device: on a CPU, or to explain an error.
        faults: Errors by row. A row with an error becomes NaN; the error is raised only if the reply
            reaches that row.
    """

    token_ids: list[int]
    committed: Tensor
    tokens: Tensor
    paths: Sequence[Sequence[int]]
    may_wait: bool
    faults: dict[int, SpecstreamError] = field(default_factory=dict)

    @cached_property
    def host_tokens(self) -> list[int]:
        """The proposed tokens on the host. Reading this waits for the device."""
        ids: list[int] = self.tokens.tolist()
        return ids

    def ids(self, start: int = 0) -> Tensor:
        """Return the tokens before each row from position ``start`` on: ``[n, m]``, padded with -1."""
        count = len(self.tokens)
        width = max(map(len, self.paths))
        index = [[*path, *[count] * (width - len(path))] for path in self.paths]
        near = self.committed[start:].expand(len(self.paths), -1)
        return torch.cat([near, self._gather(self.tokens, index)], 1)

    def last(self, count: int) -> Tensor:
        """Return the last ``count`` tokens before each row: ``[n, count]``, padded in front with -1."""
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
    """One change of the model's logits before they are sampled from.

    Attributes:
        name: The processor's name in error messages.
        apply: Changes ``rows [n, V]`` float32 in place. A row must not depend on the other rows, to the
            last bit. Should stay on the device: `Context.host_tokens` costs a synchronisation per round.
    """

    name: str
    apply: Callable[[Tensor, Context], None]
