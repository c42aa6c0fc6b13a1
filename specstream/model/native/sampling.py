"""Rows of a vocabulary on a CPU: probabilities and draws in native code, where a model had it compiled.

Each function gives None where torch's operations are to be used instead: no native code in this process,
another device, dtype or layout, gradients that may be wanted, or very many values.
"""

from __future__ import annotations

import torch
from torch import Tensor

from specstream.model.native.library import Library, loaded_library
from specstream.model.native.structs import BFLOAT16, FLOAT32

__all__ = [
    "native_distributions",
    "native_draw",
    "native_gumbel_max",
    "native_residual",
    "native_softmax",
    "native_spread",
    "native_without",
]

_MOST = 2**20  # values of several rows: others wait for Python's lock meanwhile
_KINDS = {torch.float32: FLOAT32, torch.bfloat16: BFLOAT16}


def native_softmax(logits: Tensor, scale: float) -> Tensor | None:
    """``softmax(scale * logits)`` over the last axis, float32; a row's bits don't depend on the others.

    Args:
        logits: ``[..., V]`` float32 or bfloat16.
        scale: Above 0.
    """
    library = _for(logits, *_KINDS)
    if library is None or not logits.numel():
        return None
    probs = torch.empty(logits.shape)
    width = logits.shape[-1]
    library.run_softmax(
        logits.data_ptr(), _KINDS[logits.dtype], logits.numel() // width, width, scale,
        probs.data_ptr(),
    )  # fmt: skip
    return probs


def native_draw(weights: Tensor, uniform: float) -> int | None:
    """Where the running sum of ``weights [n]`` passes ``uniform`` of all; -1: there is no mass."""
    library = _for(weights, torch.float32)
    if library is None:
        return None
    index: int = library.run_drawn(weights.data_ptr(), weights.shape[0], uniform)
    return index


def native_without(weights: Tensor, index: int) -> Tensor | None:
    """``weights [n]`` with 0 at ``index`` and sum 1."""
    library = _for(weights, torch.float32)
    if library is None:
        return None
    rest = torch.empty_like(weights)
    library.run_without(weights.data_ptr(), weights.shape[0], index, rest.data_ptr())
    return rest


def native_residual(own: Tensor, drafted: Tensor, weight: float) -> Tensor | None:
    """``max(weight * own - drafted, 0)`` of rows ``[n]``."""
    library = _for(own, torch.float32)
    if library is None or _for(drafted, torch.float32) is None or own.shape != drafted.shape:
        return None
    left = torch.empty_like(own)
    addresses = own.data_ptr(), drafted.data_ptr()
    library.run_residual(*addresses, own.shape[0], weight, left.data_ptr())
    return left


def native_distributions(rows: Tensor, tolerance: float) -> bool | None:
    """Whether all ``rows [..., V]`` have no value below 0 and sums within ``tolerance`` of 1."""
    library, width = _for(rows, torch.float32), rows.shape[-1]
    if library is None or not 0 < rows.numel() <= _MOST:
        return None
    count = rows.numel() // width
    return bool(library.run_distributions(rows.data_ptr(), count, width, tolerance))


def native_spread(rows: Tensor, ids: Tensor, size: int, rest: float) -> Tensor | None:
    """``rows [..., n]`` of the columns ``ids [n]`` to ``[..., size]``, ``rest`` elsewhere."""
    library, width = _for(rows, torch.float32), rows.shape[-1]
    if library is None or _for(ids, torch.int64) is None or ids.shape != rows.shape[-1:]:
        return None
    count = rows.numel() // max(width, 1)
    if not 0 < count * size <= _MOST:
        return None
    wide = torch.empty(*rows.shape[:-1], size)
    addresses = rows.data_ptr(), ids.data_ptr()
    library.run_spread(*addresses, count, width, size, rest, wide.data_ptr())
    return wide


def native_gumbel_max(probs: Tensor, ids: Tensor | None, seed: int, position: int) -> int | None:
    """See `specstream.model.noise.gumbel_max`, for one row ``probs [n]`` of the tokens ``ids [n]``."""
    library = _for(probs, torch.float32)
    if library is None or not (ids is None or ids.is_contiguous()):
        return None
    tokens = None if ids is None else ids.data_ptr()
    index: int = library.run_keyed(probs.data_ptr(), tokens, probs.shape[0], seed, position)
    return index


def _for(rows: Tensor, *dtypes: torch.dtype) -> Library | None:
    if rows.device.type != "cpu" or rows.dtype not in dtypes or not rows.is_contiguous():
        return None
    if rows.requires_grad:
        return None
    return loaded_library()
