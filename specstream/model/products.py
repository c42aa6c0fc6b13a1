"""Products with a constant matrix: in native code, else by torch.

On a CPU torch's oneDNN kernels read a blocked layout. A plain matrix is converted in every call, which
costs more than the product itself for a few rows, so the matrix is packed once. With a packed matrix a
row's result also doesn't depend on the number of rows.

oneDNN prepares a kernel for every number of rows, which takes longer than a product of a few rows. So
numbers above 16 are rounded up to a few sizes, and the rows padded.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from specstream.model.native.library import Library
from specstream.model.native.matrix import NativeMatrix, native_takes

__all__ = ["ROUNDED", "Product", "can_pack", "product"]

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
