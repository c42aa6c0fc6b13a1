"""What a processor is, what it gets of the model, and what it knows of the rows it processes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Self

import torch
from torch import Tensor

from specstream.errors import SpecstreamError
from specstream.model.transfer import to_device
from specstream.params import SamplingParams

__all__ = ["Context", "ModelFacts", "Processor"]


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What processors may need besides the parameters.

    Attributes:
        tokenizer: The target's.
        prompt_ids: The request's prompt.
        vocab_size: Width of the logits.
        end_ids: The model's own end-of-sequence ids.
        device: Where the logits are.
    """

    tokenizer: Any
    prompt_ids: Sequence[int]
    vocab_size: int
    end_ids: frozenset[int]
    device: torch.device


@dataclass
class Context:
    """The tokens before n rows: row j follows ``token_ids`` and ``tokens[i] for i in paths[j]``.

    The device may not have computed the proposed tokens yet; only `host_tokens` waits for it.

    Attributes:
        token_ids: The prompt and the committed tokens.
        tokens: ``[K]`` int64 on the logits' device, the proposed tokens of a chain or tree.
        paths: For each row the indices of the proposed tokens before it, from the root down.
        may_wait: Whether values on the device may be read: on a CPU, or to explain an error.
        faults: Errors by row. Such a row becomes NaN; the error counts if the reply gets to it.
    """

    token_ids: list[int]
    tokens: Tensor
    paths: Sequence[Sequence[int]]
    may_wait: bool
    faults: dict[int, SpecstreamError] = field(default_factory=dict)

    @cached_property
    def host_tokens(self) -> list[int]:
        """The proposed tokens, read from the device."""
        ids: list[int] = self.tokens.tolist()
        return ids

    @cached_property
    def committed(self) -> Tensor:
        """``token_ids`` on the device."""
        return to_device(self.token_ids, self.tokens.device)

    def ids(self, row: int) -> Tensor:
        """``[m]``: all tokens before a row."""
        path = to_device(list(self.paths[row]), self.tokens.device)
        return torch.cat([self.committed, self.tokens[path]])

    def proposed(self) -> Tensor:
        """``[n, D]``: the proposed tokens before each row; -1 at the end of shorter ones."""
        width = max(map(len, self.paths))
        empty = self.tokens.shape[0]
        return self._gather([], [[*p, *[empty] * (width - len(p))] for p in self.paths])

    def tail(self, count: int) -> Tensor:
        """``[n, count]``: the last tokens before each row; -1 in front of shorter ones."""
        near = self.token_ids[max(0, len(self.token_ids) - count) :]
        first, empty = self.tokens.shape[0], self.tokens.shape[0] + len(near)
        rows = [[*[empty] * count, *range(first, empty), *path] for path in self.paths]
        return self._gather(near, [row[len(row) - count :] for row in rows])

    def _gather(self, near: list[int], index: list[list[int]]) -> Tensor:
        """Entries of the proposed tokens, ``near`` and -1, one behind the other."""
        device = self.tokens.device
        return torch.cat([self.tokens, to_device([*near, -1], device)])[to_device(index, device)]


class Processor:
    """Changes the logits of one request. A class per sampling parameter, or for a few of one kind.

    Rows must not depend on which others are processed along with them, to the last bit. A processor that
    needs the values of proposed tokens computes on the device where it can: reading them there
    (`Context.host_tokens`) costs a wait in every round.
    """

    name: str
    """What error messages call it."""

    def __init__(self, params: SamplingParams, model: ModelFacts) -> None:
        """Prepare what does not change.

        Raises:
            SamplingError: the parameter can't be honoured with this model.
        """

    @classmethod
    def build(cls, params: SamplingParams, model: ModelFacts) -> list[Self]:
        """The processors for a request's parameters: one, for most classes."""
        return [cls(params, model)]

    def apply(self, rows: Tensor, context: Context) -> None:
        """Change ``rows [n, V]`` float32 in place; a row's error goes to ``context.faults``."""
        raise NotImplementedError

    def commit(self, token: int) -> None:
        """A token of the reply is final. Called for every one, in order."""
