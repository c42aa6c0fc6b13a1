"""Products with matrices of eight-bit or four-bit integers.

On a CPU native code multiplies by them, see `NativeMatrix`: with four bits per value in the layers, the
output head has eight. On a GPU torch's kernel for four bits is used, and the output head stays as it is.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from specstream.config import Scheme
from specstream.errors import ConfigError, ModelUnsupported
from specstream.model.layers import Product, product
from specstream.model.native.library import library
from specstream.model.native.matrix import NativeMatrix, native_takes

__all__ = ["Multiply", "check_scheme", "loaded_scheme", "named", "native_product", "quantised_products"]

_GROUP = 32  # four-bit values that share a scale

Multiply = Callable[[Tensor, Tensor | None], Product]
"""Makes the product with a weight and a bias."""


@contextmanager
def named(setting: str) -> Iterator[None]:
    """Add the name of the setting that asks for quantised matrices to errors of making them."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(f"{setting}: {error}") from None
    except ModelUnsupported as error:
        raise ModelUnsupported(f"{setting}: {error}; leave {setting} off") from None


def check_scheme(scheme: Scheme, device: torch.device) -> None:
    """Refuse a device that can't multiply by quantised matrices, or not faster than without.

    Raises:
        ConfigError: another device than a CPU or a GPU, a CPU without native code, a GPU without
            torchao, or int8 on a GPU.
    """
    if device.type == "cuda":
        if scheme == "int8":
            raise ConfigError(
                "int8 on a GPU is slower than bfloat16 here: torchao writes each matrix in bfloat16 to "
                "memory before it multiplies; leave it off, or choose int4"
            )
        if importlib.util.find_spec("torchao") is None:
            raise ConfigError(
                f"{scheme} on a GPU takes the package torchao: pip install 'specstream-sdk[torchao]'"
            )
        return
    if device.type != "cpu":
        raise ConfigError(f"{scheme} needs a CPU or a GPU, not {device}")
    try:
        library(True)
    except ConfigError as error:
        raise ConfigError(f"{scheme} takes native passes. {error}") from None


def loaded_scheme(model: PreTrainedModel) -> str | None:
    """Return the quantisation scheme of a loaded transformers model; None if it is not quantised."""
    quantizer = getattr(model, "hf_quantizer", None)
    method = getattr(getattr(quantizer, "quantization_config", None), "quant_method", None)
    return None if method is None else str(getattr(method, "value", method))


def quantised_products(scheme: Scheme, device: torch.device) -> tuple[Multiply, Multiply]:
    """Return two makers of products: for the layers' matrices and for the output head."""
    if device.type == "cuda":
        return _four_bit_product, partial(product, packed=False)
    return partial(native_product, scheme=scheme), partial(native_product, scheme="int8")


def native_product(weight: Tensor, bias: Tensor | None = None, *, scheme: Scheme) -> Product:
    """Make the product in native code.

    Raises:
        ModelUnsupported: native code doesn't take the weight, see `native_takes`.
    """
    if not native_takes(weight):
        raise ModelUnsupported(
            f"a matrix of {tuple(weight.shape)} {weight.dtype} can't be quantised here (columns "
            "come in multiples of 32)"
        )
    code = library(True)
    assert code is not None
    return NativeMatrix(code, weight, bias, scheme)


def _four_bit_product(weight: Tensor, bias: Tensor | None = None) -> Product:
    """Make the product with torchao, which takes bfloat16 inputs and chooses the scales."""
    from torchao.quantization import Int4WeightOnlyConfig, quantize_

    linear = nn.Linear(weight.shape[1], weight.shape[0], bias is not None, device="meta")
    linear.weight = nn.Parameter(weight, requires_grad=False)
    if bias is not None:
        linear.bias = nn.Parameter(bias, requires_grad=False)
    # The layout of torch's own kernel; torchao's default takes a further package.
    four = Int4WeightOnlyConfig(_GROUP, int4_packing_format="tile_packed_to_4d")
    quantize_(linear, four)
    return linear
