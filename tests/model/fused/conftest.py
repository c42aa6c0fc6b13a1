"""Bfloat16 in Triton's interpreter, which multiplies its bits as integers and cuts where GPUs round."""

from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest
import torch


@pytest.fixture(autouse=True)
def _bfloat16(monkeypatch: pytest.MonkeyPatch) -> None:
    if find_spec("triton") is None:
        return
    import triton.language as tl
    from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

    cast, dot = InterpreterBuilder.cast_impl, InterpreterBuilder.create_dot

    def rounding(self: Any, src: Any, dst_type: Any) -> Any:
        if (src.dtype.scalar, dst_type.scalar) != (tl.float32, tl.bfloat16):
            return cast(self, src, dst_type)
        wide = torch.from_numpy(np.array(src.data, np.float32))
        bits = wide.to(torch.bfloat16).view(torch.int16).numpy().view(np.uint16)
        return TensorHandle(bits, tl.bfloat16)

    def widening(self: Any, a: Any, b: Any, *rest: Any) -> Any:
        wide = (cast(self, x, tl.float32) if x.dtype.scalar == tl.bfloat16 else x for x in (a, b))
        return dot(self, *wide, *rest)

    monkeypatch.setattr(InterpreterBuilder, "cast_impl", rounding)
    monkeypatch.setattr(InterpreterBuilder, "create_dot", widening)
