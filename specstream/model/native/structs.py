"""The structures that native code reads; fields and their order are those of the C++ declarations."""

from __future__ import annotations

import ctypes

__all__ = [
    "BFLOAT16",
    "FLOAT32",
    "INT4",
    "INT8",
    "Chain",
    "Layer",
    "Level",
    "Matrix",
    "Pass",
    "Sequence",
    "Sizes",
]

FLOAT32, BFLOAT16, INT8, INT4 = range(4)

_address, _count, _small = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32


class Matrix(ctypes.Structure):
    """See ``products.h``."""

    _fields_ = (
        ("values", _address),
        ("scales", _address),
        ("bias", _address),
        ("rows", _count),
        ("columns", _count),
        ("kind", _small),
    )


class Sequence(ctypes.Structure):
    """See ``attention.h``."""

    _fields_ = (
        ("kv", _address),
        ("capacity", _count),
        ("before", _count),
        ("count", _count),
        ("visible", _count),
        ("seen", _address),
    )


class Layer(ctypes.Structure):
    """See ``layers.h``."""

    _fields_ = (
        ("norm", _address),
        ("query_norm", _address),
        ("key_norm", _address),
        ("mlp_norm", _address),
        ("qkv", Matrix),
        ("out", Matrix),
        ("gate_up", Matrix),
        ("down", Matrix),
    )


class Sizes(ctypes.Structure):
    """See ``layers.h``."""

    _fields_ = (
        ("hidden", _count),
        ("heads", _count),
        ("kv_heads", _count),
        ("head_dim", _count),
        ("intermediate", _count),
        ("eps", ctypes.c_float),
        ("activation", _small),
        ("kind", _small),
    )


class Pass(ctypes.Structure):
    """See ``layers.h``."""

    _fields_ = (
        ("x", _address),
        ("entry", _address),
        ("cos", _address),
        ("sin", _address),
        ("positions", _address),
        ("sequences", _address),
        ("scratch", _address),
        ("n", _count),
        ("count", _count),
        ("first", _count),
        ("taps", _address),
    )


class Chain(ctypes.Structure):
    """See ``chain.h``."""

    _fields_ = (
        ("head", Matrix),
        ("norm", _address),
        ("embedding", _address),
        ("steps", _count),
        ("choices", _count),
        ("logits", _address),
        ("tokens", _address),
        ("confidences", _address),
        ("ends", _address),
        ("edges", _address),
        ("chances", _address),
        ("prices", _address),
        ("end_count", _count),
        ("edge_count", _count),
        ("survival", ctypes.c_double),
        ("ceiling", ctypes.c_double),
        ("made", _count),
    )


class Level(ctypes.Structure):
    """See ``level.h``."""

    _fields_ = (
        ("output", Matrix),
        ("embedding_norm", _address),
        ("feature_norm", _address),
        ("norm", _address),
        ("embedding", _address),
        ("tokens", _address),
        ("features", _address),
        ("kept", _address),
        ("entry", _address),
        ("finals", _address),
        ("states", _address),
        ("logits", _address),
        ("chances", _address),
        ("choices_of", _address),
        ("keeps", _count),
        ("choices", _count),
        ("residual_normed", _small),
        ("output_normed", _small),
    )
