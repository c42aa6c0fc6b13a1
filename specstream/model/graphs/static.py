"""The forward pass of a fixed number of tokens of one sequence, as graphs for the CPU's compiler.

A graph is made of the decoder's layers (`Layer`), with norms and products of its own: reductions, which
the compiler fuses with what is around them, where the decoder calls a library. Nothing in a graph
depends on the values of tensors, and all that depends on the sequence is an argument, so one graph
serves every sequence at every length.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from specstream.model.attention.base import AttentionPlan
from specstream.model.attention.heads import Heads
from specstream.model.layers import layer_of
from specstream.model.weights import DecoderWeights

__all__ = ["LENGTH", "Example", "StaticHead", "StaticPass", "by_rows", "causal", "fits", "settled"]

Example = tuple[tuple[Tensor, ...], tuple[Any, ...]]
"""Arguments to trace a graph with, and their dynamic shapes, as `torch.export.export` takes them."""

_ROWS, _LENGTH = 64, 40  # of the example; the values don't matter
CAPACITY = torch.export.Dim("capacity", min=16, max=2**24)
LENGTH = torch.export.Dim("length", min=2, max=2**23)


def by_rows(x: Tensor, weight: Tensor) -> Tensor:
    """``[W, in]`` times ``[out, in]`` transposed, as one float32 reduction per row of x.

    The compiler makes of them one loop that reads the weight once, as fast as memory for few rows; a
    row's sum has the same order however many rows there are.
    """
    wide, x = weight.float(), x.float()
    return torch.stack([(row * wide).sum(-1) for row in x.unbind()])


def settled(x: Tensor) -> Tensor:
    """The same tensor, computed once: the compiler would repeat its sums for every later row."""
    return torch.as_strided(x, x.shape, x.stride())


class _Product(nn.Module):
    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        super().__init__()
        self.register_buffer("weight", weight)
        self.biased = bias is not None
        if bias is not None:  # the exporter miscounts buffers that are None
            self.register_buffer("bias", bias)

    def forward(self, x: Tensor) -> Tensor:
        found = by_rows(settled(x), self.get_buffer("weight"))
        return found + self.get_buffer("bias") if self.biased else found


class _Norm(nn.Module):
    """RMS norm (Zhang and Sennrich 2019), in float32."""

    def __init__(self, weight: Tensor, eps: float) -> None:
        super().__init__()
        self.register_buffer("weight", weight)
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)
        return wide * scale * self.get_buffer("weight")


class _Plan(AttentionPlan):
    """Writes the last W of the n rows that ``mask [W, n]`` has columns for, and attends to all n."""

    def __init__(self, sizes: DecoderWeights, mask: Tensor, kv: Sequence[Tensor]) -> None:
        self._heads = Heads(sizes.heads, sizes.kv_heads, sizes.head_dim)
        width, self._length = mask.shape
        self._places, self._kv = torch.arange(self._length - width, self._length), kv
        self._mask = mask.repeat_interleave(self._heads.group, 0)

    def narrow(self) -> slice:
        return slice(None)

    def forward(self, layer: int, queries: Tensor, kv: Tensor) -> Tensor:
        shown = []
        for rows, fresh in zip(self._kv[2 * layer : 2 * layer + 2], kv.chunk(2, 1), strict=True):
            rows.index_copy_(1, self._places, fresh.to(rows.dtype).transpose(0, 1))
            shown.append(rows[:, : self._length].unsqueeze(0))
        keys, values = shown
        return self._heads.attend_few(queries.to(keys.dtype), keys, values, self._mask)


class StaticPass(nn.Module):
    """Layers ``start`` to ``stop`` for ``width`` tokens; with ``ends`` the embedding and head as well.

    Its buffers are the model's own tensors, not copies; those of equal blocks have equal names.
    """

    def __init__(
        self, weights: DecoderWeights, width: int, start: int, stop: int, *, ends: bool
    ) -> None:
        super().__init__()
        self.width, self.depth, self.ends = width, stop - start, ends
        self.title = f"a pass from {width} tokens, layers {start + 1} to {stop}"
        self._sizes = weights
        self.parts = nn.ModuleList()
        layers = weights.layers[start:stop]
        self._layers = [layer_of(weights, one, self._norm, self._product) for one in layers]
        if ends:
            self.register_buffer("embedding", weights.embedding)
            self.head = StaticHead(weights, width)

    def _norm(self, weight: Tensor) -> _Norm:
        self.parts.append(made := _Norm(weight, self._sizes.eps))
        return made

    def _product(self, weight: Tensor, bias: Tensor | None) -> _Product:
        self.parts.append(made := _Product(weight, bias))
        return made

    @property
    def recipe(self) -> dict[str, object]:
        """What distinguishes the code of this graph from others of the same weights' sizes."""
        return {"kind": "pass", "width": self.width, "layers": self.depth, "ends": self.ends}

    def example(self) -> Example:
        """See `Example`."""
        w, count = self._sizes, 2 * self.depth
        x = torch.zeros(self.width, dtype=torch.int64)
        if not self.ends:
            x = torch.zeros(self.width, w.hidden, dtype=w.dtype)
        angles = [torch.zeros(self.width, w.head_dim, dtype=w.dtype) for _ in range(2)]
        rows = [torch.zeros(w.kv_heads, _ROWS, w.head_dim, dtype=w.dtype) for _ in range(count)]
        mask = torch.zeros(self.width, _LENGTH, dtype=w.dtype)
        shapes: tuple[Any, ...] = ({}, {}, {}, {1: LENGTH}, ({1: CAPACITY},) * count)
        return (x, *angles, mask, *rows), shapes

    def forward(
        self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor, *kv: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The pass as `torch.export` sees it.

        Args:
            x: ``[W]`` int64 tokens with ``ends``, else hidden states ``[W, hidden]``.
            cos: ``[W, head_dim]`` of each token's position, see `RotaryTable`; ``sin`` likewise.
            sin: See ``cos``.
            mask: ``[W, n]``, n the sequence's length after the pass: what is added to the attention of
                each token to each row, 0 or minus infinity.
            kv: For each layer its keys, then its values: ``[kv_heads, capacity, head_dim]``. The
                rows n - W to n are written.

        Returns:
            Logits ``[W, V]`` with ``ends``, else hidden states ``[W, hidden]``; and the hidden states
            after each layer, ``[layers, W, hidden]``.
        """
        fits(mask.shape[1], kv)
        found, states = self.run(x, cos, sin, mask, kv)
        return found.to(self._sizes.dtype), torch.stack(states)

    def run(
        self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor, kv: Sequence[Tensor]
    ) -> tuple[Tensor, list[Tensor]]:
        """The same, logits in float32, the layers' states one by one."""
        plan, states = _Plan(self._sizes, mask, kv), list[Tensor]()
        angles = cos[:, None].float(), sin[:, None].float()
        x = F.embedding(x, self.get_buffer("embedding")) if self.ends else x.clone()
        for index, layer in enumerate(self._layers):
            x = layer(x, *angles, plan, index)
            states.append(x.clone())
        return self.head(x) if self.ends else x, states


class StaticHead(nn.Module):
    """The final norm and the output head: ``[W, hidden]`` to logits ``[W, V]``, in float32."""

    def __init__(self, weights: DecoderWeights, width: int) -> None:
        super().__init__()
        self.width, self.title = width, f"a head of {width} tokens"
        self._sizes = weights
        self.norm, self.head = _Norm(weights.norm, weights.eps), _Product(weights.head)

    @property
    def recipe(self) -> dict[str, object]:
        """See `StaticPass.recipe`."""
        return {"kind": "head", "width": self.width}

    def example(self) -> Example:
        """See `Example`."""
        return (torch.zeros(self.width, self._sizes.hidden, dtype=self._sizes.dtype),), ({},)

    def forward(self, x: Tensor) -> Tensor:
        """See the class."""
        found: Tensor = self.head(self.norm(x))
        return found


def fits(length: int, kv: Sequence[Tensor]) -> None:
    """Tell the exporter that a sequence of ``length`` rows is within the caches."""
    torch._check(length <= kv[0].shape[1])  # type: ignore[no-untyped-call]


def causal(width: int, length: int, dtype: torch.dtype) -> Tensor:
    """The mask ``[width, length]`` of a chain at the end of ``length`` rows."""
    later = torch.arange(length)[None] > torch.arange(length - width, length)[:, None]
    return torch.zeros_like(later, dtype=dtype).masked_fill_(later, -torch.inf)
