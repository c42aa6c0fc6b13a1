"""Layers of the Llama family in torch operations: norms, joined products, one decoder layer."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers.activations import ACT2FN

from specstream.model.attention.base import AttentionPlan
from specstream.model.native.library import Library
from specstream.model.native.matrix import NativeMatrix, native_takes
from specstream.model.weights import DecoderWeights, LayerWeights

__all__ = [
    "ROUNDED",
    "Layer",
    "Norm",
    "Product",
    "can_pack",
    "layer_of",
    "product",
    "rms_norm",
    "rotated",
    "select",
]

Norm = Callable[[Tensor], Tensor]
"""A norm over the last dimension: ``[..., n]`` to ``[..., n]``."""


def rms_norm(weight: Tensor, eps: float) -> Norm:
    """Return the norm ``x / sqrt(mean(x²) + eps) * weight``, computed in float32; ``weight [n]``.

    On a GPU torch has one kernel for it. On a CPU torch runs ten small operations, which for a few rows
    take longer than a matrix product; this version needs five.
    """
    size = weight.shape[0]
    if weight.device.type != "cpu":
        return lambda x: torch.rms_norm(x, (size,), weight, eps)
    # With s the root of the sum of squares: x * weight * sqrt(n) / sqrt(s² + n * eps).
    scaled = weight.float() * math.sqrt(size)
    floor = torch.tensor(math.sqrt(size * eps), dtype=torch.float32)

    def run(x: Tensor) -> Tensor:
        wide = x.float() if x.dtype != torch.float32 else x.clone()
        length = torch.linalg.vector_norm(wide, 2, -1, True)
        return wide.div_(length.hypot_(floor)).mul_(scaled).type_as(x)

    return run


_EXACT = 16  # up to so many rows, the widths of usual rounds, numbers are not rounded
_STEPS = ((32, 4), (128, 8))  # (n, multiple that numbers of rows up to n are rounded up to)
_STEP = 32  # the multiple for still larger numbers
ROUNDED = (*range(1, _EXACT + 1), *range(20, 32, 4), *range(32, 128, 8), *range(128, 257, 32))
"""Numbers of rows after rounding, up to 256; then multiples of 32 follow."""

Product = Callable[[Tensor], Tensor]
"""Multiplies ``[n, in]`` by a matrix; returns ``[n, out]``."""


def can_pack(dtype: torch.dtype, device: torch.device) -> bool:
    """Whether this build of torch can multiply by packed matrices of this dtype on this device."""
    if device.type != "cpu" or not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return False
    ops = torch.ops.mkldnn
    if not (hasattr(ops, "_reorder_linear_weight") and hasattr(ops, "_linear_pointwise")):
        return False
    if dtype is torch.bfloat16:
        return bool(ops._is_mkldnn_bf16_supported())
    return dtype is torch.float32


def product(
    weight: Tensor, bias: Tensor | None = None, *, packed: bool, native: Library | None = None
) -> Product:
    """Return the function ``x @ weight.T + bias`` of x.

    Args:
        weight: ``[out, in]``.
        bias: ``[out]``.
        packed: Use a copy of ``weight`` in the kernels' layout; needs `can_pack`.
        native: Native code, which is preferred for a weight that it takes.
    """
    if native is not None and native_takes(weight):
        return NativeMatrix(native, weight, bias)
    if not packed:
        return lambda x: F.linear(x, weight, bias)
    laid_out = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), None)
    multiply: Callable[..., Tensor] = torch.ops.mkldnn._linear_pointwise.default

    def run(x: Tensor) -> Tensor:
        rows = x.shape[0]
        if rows <= _EXACT:
            return multiply(x, laid_out, bias, "none", [], "")
        step = next((step for most, step in _STEPS if rows <= most), _STEP)
        surplus = -rows % step
        if surplus:
            x = F.pad(x, (0, 0, 0, surplus))
        return multiply(x, laid_out, bias, "none", [], "")[:rows]

    return run


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer as norms and matrix products; products that read the same input are joined.

    Norms and products may return a wider dtype than that of the hidden states, which keep theirs.
    """

    rotated: int  # number of query and key heads, which get rotary positions
    heads: int  # of queries, keys and values
    head_dim: int
    split: tuple[int, int]  # number of query heads; of key and value heads
    activation: Callable[[Tensor], Tensor]
    norm: Norm
    qkv: Product
    query_norm: Norm | None
    key_norm: Norm | None
    out: Product
    mlp_norm: Norm
    gate_up: Product
    down: Product

    def __call__(
        self,
        x: Tensor,
        cos: Tensor,
        sin: Tensor,
        plan: AttentionPlan,
        index: int,
        rows: slice | Tensor | None = None,
        entry: Tensor | None = None,
    ) -> Tensor:
        """Return hidden states ``[n, hidden]`` after the layer; ``x`` is overwritten.

        Args:
            x: ``[N, hidden]``.
            cos: ``[N, 1, head_dim]``, of each token's position; see `RotaryTable`.
            sin: As ``cos``.
            plan: Attention of the pass.
            index: The layer's number in ``plan``.
            rows: The n rows to compute states of: those that ``plan`` has been narrowed to. The others
                only give keys and values. None: all N.
            entry: ``[N, wide]``, the input of queries, keys and values. Default: ``norm(x)``.
        """
        joint = self.qkv(self.norm(x) if entry is None else entry)
        queries, kv = self._rotated(joint, cos, sin).split_with_sizes(self.split, 1)
        if rows is not None:
            x, queries = select(x, rows), select(queries, rows)
        x += self.out(plan.forward(index, queries, kv))
        gate, up = self.gate_up(self.mlp_norm(x)).chunk(2, -1)
        x += self.down(self.activation(gate).mul_(up))
        return x

    def _rotated(self, joint: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Norm queries and keys, if the model does, and rotate them by their positions, in place.

        Returns ``[N, heads + 2 * kv_heads, head_dim]``. Rotary positions: Su et al. 2021.
        """
        joint = joint.view(-1, self.heads, self.head_dim)
        self.norm_heads(joint)
        turned = joint[:, : self.rotated]
        swapped = turned.roll(self.head_dim // 2, -1)
        turned.mul_(cos).addcmul_(swapped, sin)
        return joint

    def norm_heads(self, joint: Tensor) -> None:
        """Norm the query and key heads of ``joint [N, heads, head_dim]`` in place, if the model does."""
        if self.query_norm is not None and self.key_norm is not None:
            queries, keys = joint[:, : self.split[0]], joint[:, self.split[0] : self.rotated]
            queries.copy_(self.query_norm(queries))
            keys.copy_(self.key_norm(keys))


def layer_of(
    sizes: DecoderWeights,
    weights: LayerWeights,
    norm: Callable[[Tensor], Norm],
    product: Callable[[Tensor, Tensor | None], Product],
) -> Layer:
    """Make a layer; ``norm`` makes a norm of its weight, ``product`` a product of weight and bias."""
    w = weights
    return Layer(
        rotated=sizes.heads + sizes.kv_heads,
        heads=sizes.heads + 2 * sizes.kv_heads,
        head_dim=sizes.head_dim,
        split=(sizes.heads, 2 * sizes.kv_heads),
        activation=F.silu if sizes.activation == "silu" else ACT2FN[sizes.activation],
        norm=norm(w.norm),
        qkv=product(w.qkv, w.qkv_bias),
        query_norm=None if w.query_norm is None else norm(w.query_norm),
        key_norm=None if w.key_norm is None else norm(w.key_norm),
        out=product(w.out, w.out_bias),
        mlp_norm=norm(w.mlp_norm),
        gate_up=product(w.gate_up, None),
        down=product(w.down, None),
    )


def select(x: Tensor, rows: slice | Tensor) -> Tensor:
    """Rows of ``x``, given by a slice or by their numbers."""
    return x.index_select(0, rows) if isinstance(rows, Tensor) else x[rows]


def rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Apply rotary positions to ``x [..., head_dim]``; ``cos`` and ``sin`` as in `RotaryTable`."""
    return x * cos + x.roll(x.shape[-1] // 2, -1) * sin
