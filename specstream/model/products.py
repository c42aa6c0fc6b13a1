"""Products with a constant matrix: in native code, else by torch.

On a CPU torch's oneDNN reads a blocked layout and converts a plain matrix in every call, which costs
more than a product of a few rows. With a fixed layout a row's result also doesn't depend on the number
of rows.

oneDNN prepares a kernel for every number of rows, which takes longer than a product of few rows; so
larger numbers are rounded up to a few sizes.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from specstream.model.native.library import Library
from specstream.model.native.matrix import NativeMatrix, native_takes

__all__ = ["ROUNDED", "Product", "can_pack", "product"]

_EXACT = 16  # rows up to which every number has its own kernel: the widths of rounds
_STEPS = ((32, 4), (128, 8))  # (rows, multiple that numbers up to them are rounded up to)
_STEP = 32  # the multiple beyond
ROUNDED = (*range(1, _EXACT + 1), *range(20, 32, 4), *range(32, 128, 8), *range(128, 257, 32))
"""Numbers of rows that kernels are prepared for; beyond the last, its multiples of 32 follow."""

Product = Callable[[Tensor], Tensor]
"""``[n, in]`` to ``[n, out]``."""


def can_pack(dtype: torch.dtype, device: torch.device) -> bool:
    """Whether this build of torch has packed products on this CPU."""
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
    """``x @ weight.T + bias`` as a function of x.

    Args:
        weight: ``[out, in]``.
        bias: ``[out]``.
        packed: Use a copy of ``weight`` in the kernels' layout; see `can_pack`.
        native: Native code, which is preferred.
    """
    if native is not None and native_takes(weight):
        return NativeMatrix(native, weight, bias)
    return _by_torch(weight, bias, packed=packed)


def _by_torch(weight: Tensor, bias: Tensor | None, *, packed: bool) -> Product:
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
