"""Copies numbers to a device without waiting for it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

__all__ = ["to_device"]


def to_device(
    values: Sequence[int] | Sequence[float] | Sequence[Sequence[int]] | Sequence[Sequence[float]],
    device: torch.device,
    dtype: torch.dtype = torch.int64,
) -> Tensor:
    """Return ``torch.tensor(values, dtype, device)`` without waiting for the work queued on the GPU.

    The driver reads pageable memory before the call returns, so the source may be freed at once.
    """
    made = torch.tensor(values, dtype=dtype)
    return made if device.type == "cpu" else made.to(device, non_blocking=True)
