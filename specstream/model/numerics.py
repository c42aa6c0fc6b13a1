"""One upload for many numbers, the comparison of logits up to rounding, and the thread's own device."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor
from torch._C import _len_torch_function_stack

__all__ = ["off_by", "own_device", "rounding", "to_device", "trial_tokens"]


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


def trial_tokens(count: int, vocab_size: int, device: torch.device) -> Tensor:
    """Return ``[count]`` token ids for a trial pass, spread evenly over the vocabulary.

    The lowest ids are avoided: they are often control tokens, whose embeddings are unlike those of text
    and whose hidden states are so large that rounding alone shows in the logits.
    """
    spread = torch.arange(1, count + 1, device=device) * vocab_size // (count + 1)
    return spread.clamp_max(vocab_size - 1)


def off_by(found: Tensor, wanted: Tensor) -> float:
    """The largest difference of logits, relative to the largest wanted one (at least 1); inf for NaN.

    Tokens whose wanted logit isn't finite don't count.
    """
    finite = wanted.isfinite()
    found, wanted = found.float().where(finite, 0.0), wanted.float().where(finite, 0.0)
    off = (found - wanted).abs().amax() / wanted.abs().amax().clamp_min(1.0)
    return float(off.nan_to_num(torch.inf))


def rounding(dtype: torch.dtype) -> float:
    """The largest `off_by` that sums in another order may cause, in units in the last place.

    16 units in half precision are .125 in bfloat16. Tiny random models come to 8, the bundled one to 2;
    attention with a scale of twice the right one is off by 32 there. Float32 has room for 64.
    """
    return (64 if dtype == torch.float32 else 16) * torch.finfo(dtype).eps


@contextmanager
def own_device() -> Iterator[None]:
    """Put back the thread's default device, should a request's function or a proposer leave another.

    A default device is a torch function mode. Counting modes takes a hundredth of asking for the device.
    """
    none = torch.device("cpu")
    before = torch.get_default_device() if _len_torch_function_stack() else none
    try:
        yield
    finally:
        if (_len_torch_function_stack() or before != none) and torch.get_default_device() != before:
            torch.set_default_device(None if before.type == "cpu" else before)
