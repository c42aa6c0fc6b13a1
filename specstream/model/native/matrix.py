"""Constant matrices for native products: as they are, or quantised to eight or four bits a value."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from specstream.config import Scheme
from specstream.model.native.library import Library
from specstream.model.native.structs import BFLOAT16, FLOAT32, INT4, INT8, Matrix

__all__ = ["COLUMNS", "NativeMatrix", "native_takes"]

COLUMNS = 32
"""A matrix's number of columns must be a multiple of this; a group of four-bit values has this size."""

_MIN_SCALE = 1e-30  # the scale of values that are all equal, which avoids a division by 0

_DTYPES = (torch.float32, torch.bfloat16)


def native_takes(weight: Tensor) -> bool:
    """Whether native code can multiply by this weight ``[rows, columns]``."""
    return weight.device.type == "cpu" and weight.dtype in _DTYPES and not weight.shape[1] % COLUMNS


class NativeMatrix:
    """A matrix ``[rows, columns]`` of a linear layer; calling it computes ``x @ matrix.T + bias``.

    With eight bits each row has a scale; with four bits each group of 32 values of a row has a scale and
    a least value; scales and least values are float32. A matrix that isn't quantised is the weight
    itself, not a copy.

    Products are computed in float32, with two exceptions. If the matrix isn't float32 and the CPU
    multiplies pairs of bfloat16 fast (AMD's from Zen 4 on, Intel's with the matrix unit AMX, ARM's with
    ``bfdot``), x is rounded to bfloat16. For an eight-bit matrix CPUs with AVX-512 VNNI, or ARM's with
    ``sdot``, convert x to integers of 16 bits, scaled by its row's largest absolute value.

    Args:
        library: The native library.
        weight: float32 or bfloat16, on the CPU; the number of columns is a multiple of 32.
        bias: ``[rows]``.
        scheme: How values are quantised; None: not at all.
    """

    def __init__(
        self, library: Library, weight: Tensor, bias: Tensor | None, scheme: Scheme | None = None
    ) -> None:
        self._library = library
        self.shape = weight.shape
        scales: Tensor | None = None
        if scheme is None:
            values = weight.contiguous()
            kind = FLOAT32 if weight.dtype is torch.float32 else BFLOAT16
        elif scheme == "int8":
            (values, scales), kind = _eight_bits(weight.float()), INT8
        else:
            (values, scales), kind = _four_bits(weight.float()), INT4
        wide = None if bias is None else bias.float().contiguous()
        self.struct = Matrix(values, scales, wide, *weight.shape, kind)

    def __call__(self, x: Tensor) -> Tensor:
        """Multiply ``[…, columns]`` to ``[…, rows]``, in the dtype of x.

        Raises:
            RuntimeError: x requires gradients, which native products can't compute.
        """
        if x.requires_grad and torch.is_grad_enabled():
            raise RuntimeError("native products have no gradients")
        entry = x.float().contiguous()
        found = torch.empty((*x.shape[:-1], self.shape[0]), dtype=torch.float32)
        self._library.run_product(
            ctypes.byref(self.struct),
            entry.data_ptr(),
            x.numel() // self.shape[1],
            found.data_ptr(),
            torch.get_num_threads(),
        )
        return found.to(x.dtype)


def _eight_bits(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Integers from -127 to 127, and ``[rows]`` scales."""
    scales = (weight.abs().amax(1) / 127).clamp_min(_MIN_SCALE)
    # Padded, because native code reads 64 columns at a time and may read beyond the last row.
    values = torch.zeros(weight.numel() + 2 * COLUMNS, dtype=torch.int8)[: weight.numel()]
    values.copy_((weight / scales.unsqueeze(1)).round_().view(-1))
    return values.view(weight.shape), scales


def _four_bits(weight: Tensor) -> tuple[Tensor, Tensor]:
    """``[rows, groups, 16]`` bytes and ``[rows, groups, 2]``: each group's scale and least value.

    Byte i has value i of its group in the low four bits and value i + 16 in the high ones.
    """
    rows, columns = weight.shape
    groups = weight.view(rows, columns // COLUMNS, COLUMNS)
    low, high = groups.amin(-1, keepdim=True), groups.amax(-1, keepdim=True)
    scale = ((high - low) / 15).clamp_min(_MIN_SCALE)
    values = ((groups - low) / scale).round_().clamp_(0, 15).to(torch.uint8)
    first, second = values.chunk(2, -1)
    return first | (second << 4), torch.cat([scale, low], -1).contiguous()
