"""Kernels in Triton that do in one launch what torch does in several.

Importing this package needs no Triton. `attention` and `elementwise` do: import them only where
`installed` says so.
"""

from __future__ import annotations

from importlib.util import find_spec

__all__ = ["installed"]


def installed() -> bool:
    """Whether Triton can be imported; torch's builds for CUDA bring it."""
    return find_spec("triton") is not None
