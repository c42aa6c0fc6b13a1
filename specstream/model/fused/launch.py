"""How kernels are made and launched: typed, and in one place that a test can replace.

Importing this module needs no Triton; `jit` does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = ["jit", "launch"]


def jit(*any_value: str) -> Callable[[Callable[..., Any]], Any]:
    """Return a decorator that makes a kernel.

    Triton compiles a kernel anew for each combination of what it sees in the arguments: whether an
    integer is 1 or a multiple of 16, and whether a pointer is aligned to 16 bytes. Indices are parts of
    one transfer, so that their alignment follows from the batch, and a new one would stop a running
    conversation for a second.

    Args:
        any_value: Names of the arguments that are not looked at.
    """
    import triton

    def make(function: Callable[..., Any]) -> Any:
        return triton.jit(function, do_not_specialize=any_value)

    return make


def launch(kernel: Any, grid: tuple[int, ...], *args: Any, **meta: Any) -> None:
    """Run ``kernel`` once for each place of ``grid``, on the current device and stream."""
    kernel[grid](*args, **meta)
