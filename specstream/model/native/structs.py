"""The structures that native code reads; fields and their order are those of the C++ declarations."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence as Items
from typing import Any

from torch import Tensor

__all__ = [
    "BFLOAT16",
    "FLOAT32",
    "INT4",
    "INT8",
    "ChainStruct",
    "LayerStruct",
    "LevelStruct",
    "Matrix",
    "PassStruct",
    "Sequence",
    "Sizes",
    "array",
]

FLOAT32, BFLOAT16, INT8, INT4 = range(4)

_address, _count, _small = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32


def array(kind: Any, items: Items[Any]) -> Any:
    """Return a ctypes array of ``items``, which keeps them alive."""
    made = (kind * len(items))(*items)
    made.alive = items
    return made


def _fields(*lines: tuple[Any, str]) -> list[tuple[str, Any]]:
    """The fields in the form that ctypes takes; a line is a type and the names of its fields."""
    return [(name, kind) for kind, names in lines for name in names.split()]


class _Struct(ctypes.Structure):
    """A structure that keeps alive what it was made from.

    A contiguous tensor or an array given for an address becomes its address; None becomes null.
    """

    def __init__(self, *values: object) -> None:
        self.alive = values
        super().__init__(*map(_plain, values))


def _plain(value: object) -> object:
    if value is None or type(value) is int:  # most fields of the structures made for each pass
        return value
    if isinstance(value, Tensor):
        return value.data_ptr()
    return ctypes.addressof(value) if isinstance(value, ctypes.Array) else value


class Matrix(_Struct):
    """See ``matrix.h``."""

    _fields_ = _fields((_address, "values scales bias"), (_count, "rows columns"), (_small, "kind"))


class Sequence(_Struct):
    """See ``attention.h``."""

    _fields_ = _fields((_address, "kv"), (_count, "capacity before count visible"), (_address, "seen"))


class LayerStruct(_Struct):
    """See ``layers.h``."""

    _fields_ = _fields((_address, "norm query_norm key_norm mlp_norm"), (Matrix, "qkv out gate_up down"))


class Sizes(_Struct):
    """See ``layers.h``."""

    _fields_ = _fields(
        (_count, "hidden heads kv_heads head_dim intermediate"),
        (ctypes.c_float, "eps"),
        (_small, "activation kind"),
    )


class PassStruct(_Struct):
    """See ``layers.h``."""

    _fields_ = _fields(
        (_address, "x entry cos sin positions sequences scratch"),
        (_count, "n count first"),
        (_address, "taps"),
    )


class ChainStruct(_Struct):
    """See ``chain.h``."""

    _fields_ = _fields(
        (Matrix, "head"),
        (_address, "norm embedding"),
        (_count, "steps choices"),
        (_address, "logits tokens confidences ends edges chances prices"),
        (_count, "end_count edge_count"),
        (ctypes.c_double, "survival ceiling"),
        (_count, "made"),
    )


class LevelStruct(_Struct):
    """See ``level.h``."""

    _fields_ = _fields(
        (Matrix, "output"),
        (_address, "embedding_norm feature_norm norm embedding tokens features kept"),
        (_address, "entry finals states logits chances choices_of"),
        (_count, "keeps choices"),
        (_small, "residual_normed output_normed"),
    )
