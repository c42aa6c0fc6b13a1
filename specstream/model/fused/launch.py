"""The one place that launches kernels, so that a test can put another in its stead."""

from __future__ import annotations

from typing import Any

__all__ = ["launch"]


def launch(kernel: Any, grid: tuple[int, ...], *args: Any, **meta: Any) -> None:
    """Run ``kernel`` once for each place of ``grid``, on the current device and stream."""
    kernel[grid](*args, **meta)
