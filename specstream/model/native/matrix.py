"""A constant matrix as native code reads it: as it is, or in eight or four bits a value."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from specstream.config import Scheme
from specstream.model.native.library import Library
from specstream.model.native.structs import BFLOAT16, FLOAT32, INT4, INT8, Matrix

__all__ = ["COLUMNS", "NativeMatrix", "native_takes"]

COLUMNS = 32
"""Those of a matrix come in such multiples; so many share a scale of four-bit values."""

_LEAST = 1e-30  # divides a row of zeros


_DTYPES = (torch.float32, torch.bfloat16)


def native_takes(weight: Tensor) -> bool:
    """Whether native code multiplies by this ``[rows, columns]``."""
    return weight.device.type == "cpu" and weight.dtype in _DTYPES and not weight.shape[1] % COLUMNS


class NativeMatrix:
    """``[rows, columns]``, the columns a multiple of 32; as a function ``x @ matrix.T + bias``.

    Eight bits: each row has a scale. Four bits: every 32 values of a row have a scale and a lowest
    value; both float32. A matrix that is not quantised is the weight itself, not a copy.

    x is multiplied in float32, or, by any matrix that isn't float32, in bfloat16 where the CPU
    multiplies pairs of them (AMD's from Zen 4 on, Intel's with a matrix unit, AMX). By an eight-bit
    matrix CPUs with AVX-512 VNNI multiply x as integers of 16 bits, scaled by its row's largest value.

    Args:
        library: Native code.
        weight: float32 or bfloat16, on the CPU.
        bias: ``[rows]``.
        scheme: Bits of a value; None: as they are.
    """

    def __init__(
        self, library: Library, weight: Tensor, bias: Tensor | None, scheme: Scheme | None = None
    ) -> None:
        self._library = library
        self.shape = weight.shape
        self._bias = None if bias is None else bias.float().contiguous()
        self._scales: Tensor | None = None
        if scheme is None:
            self._values = weight.contiguous()
            kind = FLOAT32 if weight.dtype is torch.float32 else BFLOAT16
        elif scheme == "int8":
            self._values, self._scales = _eight_bits(weight.float())
            kind = INT8
        else:
            self._values, self._scales = _four_bits(weight.float())
            kind = INT4
        self.struct = Matrix(
            self._values.data_ptr(),
            None if self._scales is None else self._scales.data_ptr(),
            None if self._bias is None else self._bias.data_ptr(),
            *weight.shape,
            kind,
        )

    def __call__(self, x: Tensor) -> Tensor:
        """``[…, columns]`` to ``[…, rows]``, in the dtype of x.

        Raises:
            RuntimeError: gradients are wanted, which there are none of.
        """
        if x.requires_grad and torch.is_grad_enabled():
            raise RuntimeError("native products have no gradients")
        entry = x.float().contiguous()
        found = torch.empty((*x.shape[:-1], self.shape[0]))
        self._library.run_product(
            ctypes.byref(self.struct),
            entry.data_ptr(),
            x.numel() // self.shape[1],
            found.data_ptr(),
            torch.get_num_threads(),
        )
        return found.to(x.dtype)


def _eight_bits(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Integers -127 to 127, and ``[rows]`` scales."""
    scales = (weight.abs().amax(1) / 127).clamp_min(_LEAST)
    # Native code reads columns by 64: behind the last row it may read some more.
    values = torch.zeros(weight.numel() + 2 * COLUMNS, dtype=torch.int8)[: weight.numel()]
    values.copy_((weight / scales.unsqueeze(1)).round_().view(-1))
    return values.view(weight.shape), scales


def _four_bits(weight: Tensor) -> tuple[Tensor, Tensor]:
    """``[rows, groups, 16]`` bytes, value i below i + 16; ``[rows, groups, 2]``, scale and least."""
    rows, columns = weight.shape
    groups = weight.view(rows, columns // COLUMNS, COLUMNS)
    low, high = groups.amin(-1, keepdim=True), groups.amax(-1, keepdim=True)
    scale = ((high - low) / 15).clamp_min(_LEAST)
    values = ((groups - low) / scale).round_().clamp_(0, 15).to(torch.uint8)
    first, second = values.chunk(2, -1)
    return first | (second << 4), torch.cat([scale, low], -1).contiguous()
