"""Products with matrices of eight-bit or four-bit integers.

On a CPU both are torch's own kernels, and a row's result doesn't depend on what else is in the pass, to
the last bit.

Eight bits: each row of the matrix has its own scale. A row of the input becomes two rows of eight-bit
integers, the second for what the first leaves over: a product of few rows waits for the matrix, so the
second row costs little, and one row of eight bits loses what stands beside large values. Sums are exact
integers.

Four bits: every 32 values of a row of the matrix have a scale and a middle; the input is bfloat16. The
output head keeps eight bits.

On a GPU both are torchao's weight-only schemes.
"""

from __future__ import annotations

import importlib.util
import math
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from specstream.config import Scheme
from specstream.errors import ConfigError
from specstream.model.products import Product

__all__ = ["Multiply", "check_scheme", "int4_product", "int8_product", "quantised_products"]

_LEAST = 1e-30  # divides a row of zeros
_GROUP = 32  # values with a scale of their own, in four bits

Multiply = Callable[[Tensor, Tensor | None], Product]
"""Makes the product of a weight and a bias."""


def check_scheme(scheme: Scheme, device: torch.device) -> None:
    """Refuse a device without these products.

    Raises:
        ConfigError: another device than an x86 CPU or a GPU, a build of torch without its quantised
            kernels, or a GPU without torchao.
    """
    if device.type == "cuda":
        if importlib.util.find_spec("torchao") is None:
            raise ConfigError(
                f"quantize: {scheme} on a GPU takes the package torchao: "
                "pip install 'specstream-sdk[torchao]'"
            )
        return
    engines = torch.backends.quantized.supported_engines
    if device.type != "cpu" or "x86" not in engines:
        raise ConfigError(
            f"quantize: {scheme} products need an x86 CPU and torch's kernels for it, or a GPU (here: "
            f"{device}, {', '.join(engines)}); leave quantize off"
        )


def quantised_products(scheme: Scheme, device: torch.device) -> tuple[Multiply, Multiply]:
    """What makes the products of the layers and that of the output head."""
    if device.type == "cuda":
        multiply = partial(_torchao_product, scheme=scheme)
        return multiply, partial(_torchao_product, scheme="int8")
    return (int4_product if scheme == "int4" else int8_product), int8_product


def int8_product(weight: Tensor, bias: Tensor | None = None) -> Product:
    """About ``x @ weight.T + bias`` as a function of x, float32 or bfloat16; results have its dtype.

    Args:
        weight: ``[out, in]``; a copy of eight bits a value is kept.
        bias: ``[out]``, added unquantised.
    """
    # Without VNNI pairs of products are added in 16 bits, which seven bits of input can't exceed.
    most = 127 if torch.cpu._is_vnni_supported() else 63
    packed = _packed(weight.float(), most)
    multiply: Callable[..., Tensor]
    multiply = torch.ops.quantized.linear_with_input_q_dq_qweight_dq_output_fp32.default
    finer = 2.0 * most  # steps of the second row in one of the first
    steps = torch.tensor([most, most * finer]).view(2, 1, 1)

    def run(x: Tensor) -> Tensor:
        # One call of many operations costs as much as a small product: as few as possible.
        largest = torch.linalg.vector_norm(x, math.inf, 1, True, dtype=torch.float32)
        both = x * (steps / largest.clamp_min_(_LEAST))
        coarse, fine = both.unbind()
        fine.sub_(coarse.round(), alpha=finer)
        sums: Tensor = multiply(both, 1.0, most + 1, packed)
        result, rest = sums.unbind()
        result.add_(rest, alpha=1.0 / finer).mul_(largest)
        if bias is not None:
            result += bias
        found: Tensor = result.to(x.dtype)
        return found

    return run


def _packed(weight: Tensor, most: int) -> Any:
    """The matrix for torch's kernels; results come divided by ``most``."""
    scales = (weight.abs().amax(1) / 127).clamp_min(_LEAST)
    values = (weight / scales.unsqueeze(1)).round_().to(torch.int8)
    zeros = torch.zeros(weight.shape[0], dtype=torch.int64)
    before = torch.backends.quantized.engine
    torch.backends.quantized.engine = "x86"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # quantised tensors are said to go; the products stay
            eight = torch._make_per_channel_quantized_tensor(
                values, scales.double() / most, zeros, 0
            )
            return torch.ops.quantized.linear_prepack(eight, None)
    finally:
        torch.backends.quantized.engine = before


def int4_product(weight: Tensor, bias: Tensor | None = None) -> Product:
    """As `int8_product`, with a copy of four bits a value; x is rounded to bfloat16.

    A matrix whose sizes the kernel doesn't take (``out`` in sixteens, ``in`` in groups of 32) keeps
    eight bits.
    """
    rows, width = weight.shape
    if rows % 16 or width % _GROUP:
        return int8_product(weight, bias)
    values, scales = _grouped(weight.float().view(rows, -1, _GROUP))
    packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(values.view(rows, width), 1)
    multiply: Callable[..., Tensor] = torch.ops.aten._weight_int4pack_mm_for_cpu.default

    def run(x: Tensor) -> Tensor:
        result = multiply(x.to(torch.bfloat16), packed, _GROUP, scales)
        if bias is not None:
            result = result + bias
        return result.to(x.dtype)

    return run


def _grouped(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Integers 0 to 15 of ``[rows, groups, 32]``; ``[groups, rows, 2]`` scales and what 8 stands for."""
    low, high = weight.amin(-1, keepdim=True), weight.amax(-1, keepdim=True)
    scale = ((high - low) / 15).clamp_min(_LEAST).bfloat16().float()
    middle = (low + 8 * scale).bfloat16().float()
    values = ((weight - middle) / scale + 8).round_().clamp_(0, 15)
    scales = torch.cat([scale, middle], -1).transpose(0, 1).contiguous()
    return values.int(), scales.bfloat16()


def _torchao_product(weight: Tensor, bias: Tensor | None = None, *, scheme: Scheme) -> Product:
    """As `int8_product` and `int4_product`, by torchao: bfloat16 inputs and scales of its own choice."""
    from torchao.quantization import Int4WeightOnlyConfig, Int8WeightOnlyConfig, quantize_

    linear = nn.Linear(weight.shape[1], weight.shape[0], bias is not None, device="meta")
    linear.weight = nn.Parameter(weight, requires_grad=False)
    if bias is not None:
        linear.bias = nn.Parameter(bias, requires_grad=False)
    if scheme == "int4" and weight.device.type == "cuda":
        # The layout of torch's own kernel; torchao's default takes a further package.
        four = Int4WeightOnlyConfig(_GROUP, int4_packing_format="tile_packed_to_4d")
        quantize_(linear, four)
    else:
        quantize_(linear, Int8WeightOnlyConfig())
    return linear
