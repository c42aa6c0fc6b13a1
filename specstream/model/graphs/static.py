"""The forward pass of a fixed number of tokens of one sequence, as a graph that can be captured.

Nothing in it depends on the values of tensors, and all that depends on the sequence comes in as an
argument, so one graph serves every sequence at every length.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from specstream.model.weights import DecoderWeights

__all__ = ["Multiply", "StaticPass", "by_matrix", "by_rows", "settled"]

Multiply = Callable[[Tensor, Tensor], Tensor]
"""``[W, in]`` and ``[out, in]`` to ``[W, out]``."""

_NAMES: tuple[str, ...] = (
    "norm",
    "qkv",
    "qkv_bias",
    "query_norm",
    "key_norm",
    "out",
    "out_bias",
    "mlp_norm",
)
_NAMES += ("gate_up", "down")


def by_rows(x: Tensor, weight: Tensor) -> Tensor:
    """A product as one reduction for each of the few rows of x, in float32.

    A compiler makes one loop over the weight of them, read once, which for few rows is as fast as
    memory; and a row's sum has the same order however many rows there are.
    """
    wide, x = weight.float(), x.float()
    return torch.stack([(row * wide).sum(-1) for row in x.unbind()])


def by_matrix(x: Tensor, weight: Tensor) -> Tensor:
    """A product by the device's library, in the weight's dtype."""
    return F.linear(x.to(weight.dtype), weight)


class StaticPass(nn.Module):
    """Layers ``start`` to ``stop`` for ``width`` tokens; with the embedding and the head at the ends.

    Its buffers are the model's own tensors, not copies.
    """

    def __init__(
        self, weights: DecoderWeights, width: int, start: int, stop: int, multiply: Multiply
    ) -> None:
        super().__init__()
        self.width = width
        self._sizes = weights
        self.layers = stop - start
        self._multiply = multiply
        self._is_first, self._is_last = start == 0, stop == len(weights.layers)
        for index, layer in enumerate(weights.layers[start:stop]):
            for name in _NAMES:
                self._hold(f"{name}_{index}", getattr(layer, name))
        self._hold("embedding", weights.embedding if self._is_first else None)
        self._hold("final_norm", weights.norm if self._is_last else None)
        self._hold("head", weights.head if self._is_last else None)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, ruler: Tensor, *kv: Tensor) -> Tensor:
        """The pass as `torch.export` sees it.

        Args:
            x: ``[W]`` int64 tokens for the first layers, else hidden states ``[W, hidden]``.
            cos: ``[positions, head_dim]``; ``sin`` likewise, its first half negated.
            sin: See ``cos``.
            ruler: ``[n]``, n the sequence's length after the pass: only its length is looked at,
                which makes n a size and not a value.
            kv: For each layer its keys, then its values: ``[kv_heads, capacity, head_dim]``. The
                rows n - W to n are written.

        Returns:
            Logits ``[W, V]`` of the last layers, else hidden states ``[W, hidden]``.
        """
        length = ruler.shape[0]
        torch._check(length <= kv[0].shape[1])  # type: ignore[no-untyped-call]
        torch._check(length <= cos.shape[0])  # type: ignore[no-untyped-call]
        positions = torch.arange(length - self.width, length, device=ruler.device)
        columns = torch.arange(length, device=ruler.device)
        return self.run(x, cos, sin, positions, columns, kv).to(self._sizes.dtype)

    def run(
        self,
        x: Tensor,
        cos: Tensor,
        sin: Tensor,
        positions: Tensor,
        columns: Tensor,
        kv: tuple[Tensor, ...],
    ) -> Tensor:
        """The same with ``positions [W]`` of the tokens, and ``columns [n]`` = 0 … n - 1 to look at.

        Columns behind a token's position are hidden from it.
        """
        sizes = self._sizes
        half = sizes.head_dim // 2
        turn = (
            cos[positions][:, None, :half].float(),
            sin[positions][:, None, half:].float(),
        )
        later = columns[None] > positions[:, None]
        mask = torch.zeros_like(later, dtype=sizes.dtype).masked_fill_(later, -torch.inf)
        mask = mask.repeat(sizes.heads // sizes.kv_heads, 1)
        if self._is_first:
            x = F.embedding(x, self._get("embedding"))
        for index in range(self.layers):
            keys, values = kv[2 * index], kv[2 * index + 1]
            x = self._layer(index, x, turn, positions, mask, keys, values)
        if not self._is_last:
            return x
        return self._multiply(self._rms(x, self._get("final_norm")), self._get("head"))

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
        sizes, width = self._sizes, x.shape[0]
        weights = {name: self._get(f"{name}_{index}") for name in _NAMES}
        joint = self._product(self._rms(x, weights["norm"]), weights["qkv"], weights["qkv_bias"])
        joint = joint.view(width, sizes.heads + 2 * sizes.kv_heads, sizes.head_dim)
        queries, fresh, new_values = torch.split(
            joint, [sizes.heads, sizes.kv_heads, sizes.kv_heads], 1
        )
        if weights["query_norm"] is not None:
            queries = self._rms(queries, weights["query_norm"])
            fresh = self._rms(fresh, weights["key_norm"])
        keys.index_copy_(1, positions, _turned(fresh, turn).to(keys.dtype).transpose(0, 1))
        values.index_copy_(1, positions, new_values.to(values.dtype).transpose(0, 1))
        mixed = self._attend(_turned(queries, turn), keys, values, mask)
        x = (x + self._product(mixed, weights["out"], weights["out_bias"])).to(sizes.dtype)
        gate_up = self._product(self._rms(x, weights["mlp_norm"]), weights["gate_up"], None)
        gate, up = torch.split(gate_up, sizes.intermediate, -1)
        inner = settled(sizes.activation(gate) * up)
        return (x + self._product(inner, weights["down"], None)).to(sizes.dtype)

    def _attend(self, queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor) -> Tensor:
        """``[W, heads, head_dim]`` to ``[W, heads * head_dim]``.

        Query heads that share a key head stand in one matrix: no key is repeated for them.
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

    def _product(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        product = self._multiply(x, weight)
        return product if bias is None else product + bias

    def _rms(self, x: Tensor, weight: Tensor) -> Tensor:
        """Zhang and Sennrich 2019, in float32."""
        wide = x.float()
        scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + self._sizes.eps)
        return settled(wide * scale * weight)

    def _hold(self, name: str, tensor: Tensor | None) -> None:
        if tensor is not None:  # the exporter miscounts buffers that are None
            self.register_buffer(name, tensor)

    def _get(self, name: str) -> Any:
        return self._buffers.get(name)


def _turned(x: Tensor, turn: tuple[Tensor, Tensor]) -> Tensor:
    """Rotary positions (Su et al. 2021) of ``[W, heads, head_dim]``, in float32."""
    cos, sin = turn
    low, high = x.float().chunk(2, -1)
    return torch.cat((low * cos - high * sin, high * cos + low * sin), -1)


def settled(x: Tensor) -> Tensor:
    """The same tensor, computed once: a compiler would else repeat its sums for every later row."""
    return torch.as_strided(x, x.shape, x.stride())
