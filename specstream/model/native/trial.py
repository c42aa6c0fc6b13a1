"""A small pass through native code beside torch's: ``python -m specstream.model.native.trial FILE``.

A process of its own, since code for another CPU ends it. Its exit status is 0 if all results agree, else
`WRONG`.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from specstream.config import Scheme
from specstream.model.decoder import Decoder
from specstream.model.native.builds import WRONG
from specstream.model.native.library import Library
from specstream.model.native.matrix import NativeMatrix

__all__ = ["agrees", "main"]

_ROWS, _COLUMNS, _MOST = 77, 192, 33  # odd numbers of rows reach the ends of tiles
_ALLOWED: dict[Scheme | None, float] = {None: 0.01, "int8": 0.02, "int4": 0.1}  # of a result's size


@torch.inference_mode()
def agrees(library: Library) -> bool:
    """Whether products of all kinds and passes of a tiny random model equal torch's but for rounding."""
    torch.manual_seed(0)
    products = all(_product(library, scheme) for scheme in _ALLOWED)
    return products and all(_pass(library, dtype) for dtype in (torch.float32, torch.bfloat16))


def _product(library: Library, scheme: Scheme | None) -> bool:
    weight, bias = torch.randn(_ROWS, _COLUMNS).bfloat16(), torch.randn(_ROWS, dtype=torch.float32)
    matrix = NativeMatrix(library, weight, bias, scheme)
    for count in (1, 7, _MOST):
        x = torch.randn(count, _COLUMNS, dtype=torch.float32)
        wanted = x @ weight.float().T + bias
        if not float((matrix(x) - wanted).norm() / wanted.norm()) < _ALLOWED[scheme]:
            return False
    return True


def _pass(library: Library, dtype: torch.dtype) -> bool:
    config = LlamaConfig(
        vocab_size=256,
        hidden_size=128,
        intermediate_size=192,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
    )
    model: Any = LlamaForCausalLM(config)
    model = model.to(dtype).eval()
    decoder = Decoder.of(model, native=library)  # compares its logits with the model's
    return decoder is not None and decoder.native is library


def main() -> int:
    """Try the file that the command line names."""
    return 0 if agrees(Library(Path(sys.argv[1]))) else WRONG


if __name__ == "__main__":
    os._exit(main())  # torch's own ending takes half a second, for which a first start would wait
