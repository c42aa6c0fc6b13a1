"""Root mean square normalisation (Zhang and Sennrich 2019) with a constant weight."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

__all__ = ["Norm", "rms_norm"]

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
    floor = torch.tensor(math.sqrt(size * eps))

    def run(x: Tensor) -> Tensor:
        wide = x.float() if x.dtype != torch.float32 else x.clone()
        length = torch.linalg.vector_norm(wide, 2, -1, True)
        return wide.div_(length.hypot_(floor)).mul_(scaled).type_as(x)

    return run
