"""The forward pass of a fixed number of tokens of one sequence, as graphs for the CPU's compiler.

Nothing in a graph depends on the values of tensors, and all that depends on the sequence is an
argument, so one graph serves every sequence at every length. Products are written as reductions, which
the compiler fuses with what is around them; the decoder's own products are library calls.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from specstream.model.weights import DecoderWeights

__all__ = ["Example", "StaticHead", "StaticPass", "by_rows", "settled"]

Example = tuple[tuple[Tensor, ...], tuple[Any, ...]]
"""Arguments to trace a graph with, and their dynamic shapes, as `torch.export.export` takes them."""

_NAMES = (
    "norm", "qkv", "qkv_bias", "query_norm", "key_norm", "out", "out_bias", "mlp_norm", "gate_up",
    "down",
)  # fmt: skip
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


class StaticPass(nn.Module):
    """Layers ``start`` to ``stop`` for ``width`` tokens; with ``ends`` the embedding and head as well.

    Its buffers are the model's own tensors, not copies.
    """

    def __init__(
        self, weights: DecoderWeights, width: int, start: int, stop: int, *, ends: bool
    ) -> None:
        super().__init__()
        self.width, self.layers, self.ends = width, stop - start, ends
        self.title = f"a pass from {width} tokens, layers {start + 1} to {stop}"
        self._sizes = weights
        for index, layer in enumerate(weights.layers[start:stop]):
            for name in _NAMES:
                tensor = getattr(layer, name)
                if tensor is not None:  # the exporter miscounts buffers that are None
                    self.register_buffer(f"{name}_{index}", tensor)
        if ends:
            self.register_buffer("embedding", weights.embedding)
            self.head = StaticHead(weights, width)

    @property
    def recipe(self) -> dict[str, object]:
        """What distinguishes the code of this graph from others of the same weights' sizes."""
        return {"kind": "pass", "width": self.width, "layers": self.layers, "ends": self.ends}

    def example(self) -> Example:
        """See `Example`."""
        w = self._sizes
        x = torch.zeros(self.width, dtype=torch.int64)
        if not self.ends:
            x = torch.zeros(self.width, w.hidden, dtype=w.dtype)
        angles = torch.zeros(_ROWS, w.head_dim, dtype=w.dtype)
        rows = [
            torch.zeros(w.kv_heads, _ROWS, w.head_dim, dtype=w.dtype)
            for _ in range(2 * self.layers)
        ]
        positions = {0: torch.export.Dim("positions", min=16, max=2**24)}
        capacity = {1: torch.export.Dim("capacity", min=16, max=2**24)}
        length = {0: torch.export.Dim("length", min=2, max=2**23)}
        shapes: tuple[Any, ...] = ({}, positions, positions, length, tuple(capacity for _ in rows))
        return (x, angles, angles.clone(), torch.empty(_LENGTH, dtype=torch.uint8), *rows), shapes

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, ruler: Tensor, *kv: Tensor) -> Tensor:
        """The pass as `torch.export` sees it.

        Args:
            x: ``[W]`` int64 tokens with ``ends``, else hidden states ``[W, hidden]``.
            cos: ``[positions, head_dim]``; ``sin`` likewise, its first half negated.
            sin: See ``cos``.
            ruler: ``[n]``, n the sequence's length after the pass: only its length is used, which
                makes n a size and not a value.
            kv: For each layer its keys, then its values: ``[kv_heads, capacity, head_dim]``. The
                rows n - W to n are written.

        Returns:
            Logits ``[W, V]`` with ``ends``, else hidden states ``[W, hidden]``.
        """
        length = ruler.shape[0]
        torch._check(length <= kv[0].shape[1])  # type: ignore[no-untyped-call]
        torch._check(length <= cos.shape[0])  # type: ignore[no-untyped-call]
        positions = torch.arange(length - self.width, length)
        return self.run(x, cos, sin, positions, length, kv).to(self._sizes.dtype)

    def run(
        self,
        x: Tensor,
        cos: Tensor,
        sin: Tensor,
        positions: Tensor,
        length: int,
        kv: tuple[Tensor, ...],
    ) -> Tensor:
        """The same with ``positions [W]`` of the tokens, ``length`` rows being looked at."""
        sizes = self._sizes
        half = sizes.head_dim // 2
        turn = cos[positions][:, None, :half].float(), sin[positions][:, None, half:].float()
        later = torch.arange(length)[None] > positions[:, None]
        mask = torch.zeros_like(later, dtype=sizes.dtype).masked_fill_(later, -torch.inf)
        mask = mask.repeat(sizes.heads // sizes.kv_heads, 1)
        if self.ends:
            x = F.embedding(x, self.get_buffer("embedding"))
        for index in range(self.layers):
            x = self._layer(index, x, turn, positions, mask, kv[2 * index], kv[2 * index + 1])
        return self.head(x) if self.ends else x

    def _layer(
        self,
        index: int,
        x: Tensor,
        turn: tuple[Tensor, Tensor],
        positions: Tensor,
        mask: Tensor,
        keys: Tensor,
        values: Tensor,
    ) -> Tensor:
        sizes, eps = self._sizes, self._sizes.eps
        weights: dict[str, Any] = {name: self._buffers.get(f"{name}_{index}") for name in _NAMES}
        joint = _linear(_rms(x, weights["norm"], eps), weights["qkv"], weights["qkv_bias"])
        joint = joint.view(x.shape[0], sizes.heads + 2 * sizes.kv_heads, sizes.head_dim)
        queries, fresh, new_values = torch.split(
            joint, [sizes.heads, sizes.kv_heads, sizes.kv_heads], 1
        )
        if weights["query_norm"] is not None:
            queries = _rms(queries, weights["query_norm"], eps)
            fresh = _rms(fresh, weights["key_norm"], eps)
        keys.index_copy_(1, positions, _turned(fresh, turn).to(keys.dtype).transpose(0, 1))
        values.index_copy_(1, positions, new_values.to(values.dtype).transpose(0, 1))
        mixed = self._attend(_turned(queries, turn), keys, values, mask)
        x = (x + _linear(mixed, weights["out"], weights["out_bias"])).to(sizes.dtype)
        gate_up = by_rows(_rms(x, weights["mlp_norm"], eps), weights["gate_up"])
        gate, up = torch.split(gate_up, sizes.intermediate, -1)
        inner = settled(sizes.activation(gate) * up)
        return (x + by_rows(inner, weights["down"])).to(sizes.dtype)

    def _attend(self, queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor) -> Tensor:
        """``[W, heads, head_dim]`` to ``[W, heads * head_dim]``.

        Query heads that share a key head are folded into one matrix: no key is repeated.
        """
        width, heads, dim = queries.shape
        kv_heads, shown = self._sizes.kv_heads, mask.shape[1]
        group = heads // kv_heads
        folded = queries.reshape(width, kv_heads, group, dim).permute(1, 2, 0, 3)
        mixed = F.scaled_dot_product_attention(
            folded.reshape(1, kv_heads, group * width, dim).to(keys.dtype),
            keys[:, :shown].unsqueeze(0),
            values[:, :shown].unsqueeze(0),
            attn_mask=mask,
        )
        unfolded = mixed.view(kv_heads, group, width, dim).permute(2, 0, 1, 3)
        return settled(unfolded.reshape(width, heads * dim))


class StaticHead(nn.Module):
    """The final norm and the output head: ``[W, hidden]`` to logits ``[W, V]``, in float32."""

    def __init__(self, weights: DecoderWeights, width: int) -> None:
        super().__init__()
        self.width, self.title = width, f"a head of {width} tokens"
        self._sizes = weights
        self.register_buffer("norm", weights.norm)
        self.register_buffer("head", weights.head)

    @property
    def recipe(self) -> dict[str, object]:
        """See `StaticPass.recipe`."""
        return {"kind": "head", "width": self.width}

    def example(self) -> Example:
        """See `Example`."""
        return (torch.zeros(self.width, self._sizes.hidden, dtype=self._sizes.dtype),), ({},)

    def forward(self, x: Tensor) -> Tensor:
        """See the class."""
        normed = _rms(x, self.get_buffer("norm"), self._sizes.eps)
        return by_rows(normed, self.get_buffer("head"))


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    product = by_rows(x, weight)
    return product if bias is None else product + bias


def _rms(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """RMS norm (Zhang and Sennrich 2019), in float32."""
    wide = x.float()
    scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return settled(wide * scale * weight)


def _turned(x: Tensor, turn: tuple[Tensor, Tensor]) -> Tensor:
    """Rotary positions (Su et al. 2021) of ``[W, heads, head_dim]``, in float32."""
    cos, sin = turn
    low, high = x.float().chunk(2, -1)
    return torch.cat((low * cos - high * sin, high * cos + low * sin), -1)
