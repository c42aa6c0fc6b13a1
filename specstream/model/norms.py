"""Root mean square normalisation (Zhang and Sennrich 2019) with a constant weight."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

__all__ = ["Norm", "rms_norm"]

Norm = Callable[[Tensor], Tensor]
"""``[..., n]`` to the same shape."""


def rms_norm(weight: Tensor, eps: float) -> Norm:
    """``x / sqrt(mean(x²) + eps) * weight`` over the last dimension, in float32; ``weight [n]``.

    A GPU has a kernel for it. On a CPU torch runs ten small operations, which for a few rows take
    longer than a matrix product; here they are five.
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
