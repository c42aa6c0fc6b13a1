"""Probabilities of a vocabulary and draws from them in native code, on a CPU.

Each function returns None if the caller has to use torch's operations instead: no model in this process
has loaded native code, a tensor has another device, dtype or layout or requires gradients, or there are
too many values.
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

_MAX_VALUES = 2**20  # of all rows together: other threads wait for Python's lock meanwhile
_KINDS = {torch.float32: FLOAT32, torch.bfloat16: BFLOAT16}


def native_softmax(logits: Tensor, scale: float) -> Tensor | None:
    """``softmax(scale * logits)`` over the last axis, float32; a row's bits don't depend on the others.

    Args:
        logits: ``[..., V]`` float32 or bfloat16.
        scale: A positive factor, the inverse of the temperature.
    """
    library = _for(logits, *_KINDS)
    if library is None or not logits.numel():
        return None
    probs = torch.empty(logits.shape, dtype=torch.float32)
    width = logits.shape[-1]
    library.run_softmax(
        logits.data_ptr(), _KINDS[logits.dtype], logits.numel() // width, width, scale,
        probs.data_ptr(),
    )  # fmt: skip
    return probs


def native_draw(weights: Tensor, uniform: float) -> int | None:
    """The index at which the running sum of ``weights [n]`` passes ``uniform`` times the whole sum.

    -1 if the sum isn't positive and finite.
    """
    library = _for(weights, torch.float32)
    if library is None:
        return None
    index: int = library.run_drawn(weights.data_ptr(), weights.shape[0], uniform)
    return index


def native_without(weights: Tensor, index: int) -> Tensor | None:
    """``weights [n]`` with 0 at ``index``, scaled to sum 1."""
    library = _for(weights, torch.float32)
    if library is None:
        return None
    rest = torch.empty_like(weights)
    library.run_without(weights.data_ptr(), weights.shape[0], index, rest.data_ptr())
    return rest


def native_residual(own: Tensor, drafted: Tensor, weight: float) -> Tensor | None:
    """``max(weight * own - drafted, 0)`` for rows ``[n]``."""
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
    if library is None or not 0 < rows.numel() <= _MAX_VALUES:
        return None
    count = rows.numel() // width
    return bool(library.run_distributions(rows.data_ptr(), count, width, tolerance))


def native_spread(rows: Tensor, ids: Tensor, size: int, rest: float) -> Tensor | None:
    """Spread ``rows [..., n]`` to the columns ``ids [n]`` of ``[..., size]``, ``rest`` elsewhere."""
    library, width = _for(rows, torch.float32), rows.shape[-1]
    if library is None or _for(ids, torch.int64) is None or ids.shape != rows.shape[-1:]:
        return None
    count = rows.numel() // max(width, 1)
    if not 0 < count * size <= _MAX_VALUES:
        return None
    wide = torch.empty(*rows.shape[:-1], size, dtype=torch.float32)
    addresses = rows.data_ptr(), ids.data_ptr()
    library.run_spread(*addresses, count, width, size, rest, wide.data_ptr())
    return wide


def native_gumbel_max(probs: Tensor, ids: Tensor | None, seed: int, position: int) -> int | None:
    """See `specstream.model.tokens.noise.gumbel_max`, of one row ``probs [n]`` of ``ids [n]``."""
    library = _for(probs, torch.float32)
    if library is None or not (ids is None or ids.is_contiguous()):
        return None
    tokens = None if ids is None else ids.data_ptr()
    index: int = library.run_keyed(probs.data_ptr(), tokens, probs.shape[0], seed, position)
    return index


def _for(rows: Tensor, *dtypes: torch.dtype) -> Library | None:
    """The library if it is loaded and can read ``rows``."""
    plain = rows.device.type == "cpu" and rows.is_contiguous() and not rows.requires_grad
    return loaded_library() if plain and rows.dtype in dtypes else None
