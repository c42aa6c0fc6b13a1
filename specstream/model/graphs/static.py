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

__all__ = ["Example", "StaticHead", "StaticPass", "by_rows", "settled"]

Example = tuple[tuple[Tensor, ...], tuple[Any, ...]]
"""Arguments to trace a graph with, and their dynamic shapes, as `torch.export.export` takes them."""

_ROWS, _LENGTH = 64, 40  # of the example; the values don't matter


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
    """Writes the rows at ``positions [W]`` of ``kv``, and attends to the first ``length`` rows."""

    def __init__(
        self, sizes: DecoderWeights, positions: Tensor, length: int, kv: Sequence[Tensor]
    ) -> None:
        self._heads = Heads(sizes.heads, sizes.kv_heads, sizes.head_dim)
        self._positions, self._length, self._kv = positions, length, kv
        later = torch.arange(length)[None] > positions[:, None]
        mask = torch.zeros_like(later, dtype=sizes.dtype).masked_fill_(later, -torch.inf)
        self._mask = mask.repeat_interleave(self._heads.group, 0)

    def narrow(self) -> slice:
        return slice(None)

    def forward(self, layer: int, queries: Tensor, kv: Tensor) -> Tensor:
        shown = []
        for rows, fresh in zip(self._kv[2 * layer : 2 * layer + 2], kv.chunk(2, 1), strict=True):
            rows.index_copy_(1, self._positions, fresh.to(rows.dtype).transpose(0, 1))
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
        angles = [torch.zeros(_ROWS, w.head_dim, dtype=w.dtype) for _ in range(2)]
        rows = [torch.zeros(w.kv_heads, _ROWS, w.head_dim, dtype=w.dtype) for _ in range(count)]
        positions = {0: torch.export.Dim("positions", min=16, max=2**24)}
        capacity = {1: torch.export.Dim("capacity", min=16, max=2**24)}
        length = {0: torch.export.Dim("length", min=2, max=2**23)}
        shapes: tuple[Any, ...] = ({}, positions, positions, length, (capacity,) * count)
        return (x, *angles, torch.empty(_LENGTH, dtype=torch.uint8), *rows), shapes

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, ruler: Tensor, *kv: Tensor) -> Tensor:
        """The pass as `torch.export` sees it.

        Args:
            x: ``[W]`` int64 tokens with ``ends``, else hidden states ``[W, hidden]``.
            cos: ``[positions, head_dim]``, see `RotaryTable`; ``sin`` likewise.
            sin: See ``cos``.
            ruler: ``[n]``, n the sequence's length after the pass: only its length is used, which
                makes n a size and not a value.
            kv: For each layer its keys, then its values: ``[kv_heads, capacity, head_dim]``. The
                rows n - W to n are written.

        Returns:
            Logits ``[W, V]`` with ``ends``, else hidden states ``[W, hidden]``.
        """
        length = ruler.shape[0]
        positions = torch.arange(length - self.width, length)
        fits(length, cos, kv)
        return self.run(x, cos, sin, positions, length, kv).to(self._sizes.dtype)

    def run(
        self,
        x: Tensor,
        cos: Tensor,
        sin: Tensor,
        positions: Tensor,
        length: int,
        kv: Sequence[Tensor],
    ) -> Tensor:
        """The same with ``positions [W]`` of the tokens, ``length`` rows being looked at."""
        plan = _Plan(self._sizes, positions, length, kv)
        angles = cos[positions][:, None].float(), sin[positions][:, None].float()
        x = F.embedding(x, self.get_buffer("embedding")) if self.ends else x.clone()
        for index, layer in enumerate(self._layers):
            x = layer(x, *angles, plan, index)
        found: Tensor = self.head(x) if self.ends else x
        return found


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


def fits(length: int, cos: Tensor, kv: Sequence[Tensor]) -> None:
    """Tell the exporter that a sequence of ``length`` rows is within the tables and the caches."""
    torch._check(length <= kv[0].shape[1])  # type: ignore[no-untyped-call]
    torch._check(length <= cos.shape[0])  # type: ignore[no-untyped-call]
