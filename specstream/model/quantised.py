"""Products with a matrix of eight-bit integers, on a CPU.

Each row of the matrix has its own scale. A row of the input becomes two rows of eight-bit integers, the
second for what the first leaves over: a product of few rows waits for the matrix, so the second row
costs little, and one row of eight bits loses what stands beside large values. Sums are exact integers.

torch chooses one scale for a whole input; here each row is scaled to at most 1 first, and two columns of
1 and -1 against weights of 0 make the scale that is then chosen the same for all. So a row's result
doesn't depend on what else is in the pass, to the last bit.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable

import torch
from torch import Tensor

from specstream.errors import ConfigError
from specstream.model.products import Product

__all__ = ["check_int8", "int8_product"]

_LEAST = 1e-30  # divides a row of zeros
_ROOM = 0.9  # of the range of eight bits that values take: rounding stays within it


def check_int8(device: torch.device) -> None:
    """Refuse a device without these products.

    Raises:
        ConfigError: no CPU, or a build of torch without its quantised kernels.
    """
    engines = torch.backends.quantized.supported_engines
    if device.type != "cpu" or "x86" not in engines:
        raise ConfigError(
            f"quantize: int8 products need an x86 CPU and torch's kernels for it (here: {device}, "
            f"{', '.join(engines)}); leave quantize off"
        )


def int8_product(weight: Tensor, bias: Tensor | None = None) -> Product:
    """About ``x @ weight.T + bias`` as a function of x, float32 or bfloat16; results have its dtype.

    Args:
        weight: ``[out, in]``; a copy of eight bits a value is kept.
        bias: ``[out]``, added unquantised.
    """
    wide = torch.cat([weight.float(), weight.new_zeros((weight.shape[0], 2)).float()], 1)
    scales = (wide.abs().amax(1) / 127).clamp_min(_LEAST).double()
    before = torch.backends.quantized.engine
    torch.backends.quantized.engine = "x86"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # quantised tensors are said to go; the products stay
            zeros = torch.zeros(wide.shape[0], dtype=torch.int64)
            eight = torch.quantize_per_channel(wide, scales, zeros, 0, torch.qint8)
            packed = torch.ops.quantized.linear_prepack(eight, None)
    finally:
        torch.backends.quantized.engine = before
    multiply: Callable[..., Tensor] = torch.ops.quantized.linear_dynamic.default
    # Without VNNI pairs of products are added in 16 bits, which seven bits of input can't exceed.
    narrow = not torch.cpu._is_vnni_supported()
    step = 2.0 / (127 if narrow else 255)  # what torch makes of the range from -1 to 1
    ends = torch.tensor([[1.0, -1.0]])

    def run(x: Tensor) -> Tensor:
        values, rows = x.float(), x.shape[0]
        largest = values.abs().amax(1, keepdim=True).clamp_min(_LEAST) / _ROOM
        scaled = values / largest
        coarse = (scaled / step).round() * step
        fine = (scaled - coarse) * (_ROOM * 2.0 / step)
        both = torch.cat([torch.cat([coarse, fine]), ends.expand(2 * rows, 2)], 1)
        products = multiply(both, packed, narrow)
        result: Tensor = products[:rows]
        result.add_(products[rows:], alpha=step / (_ROOM * 2.0)).mul_(largest)
        if bias is not None:
            result += bias
        return result.to(x.dtype)

    return run
