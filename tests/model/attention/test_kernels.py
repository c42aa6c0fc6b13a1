"""The kernels of the pooled back-end agree with attention written out."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from specstream.model.attention.kernels import Kernel, Ragged, choose_kernel, flash, padded

QUERIES, KEYS = [1, 5, 2], [7, 5, 300]  # per sequence
STARTS = [40, 500, 60]  # rows of the pool, in no order


def ragged(device: str, keys: list[int]) -> Ragged:
    starts = [0, 1, 6, 8]

    def made(values: list[int]) -> Tensor:
        return torch.tensor(values, dtype=torch.int32, device=device)

    return Ragged(made(starts), made([*STARTS, 0]), made(keys), max(QUERIES), max(KEYS))


def compare(kernel: Kernel, device: str, dtype: torch.dtype, tolerance: float) -> None:
    """With several numbers of key heads, causal and not; the pool is full of junk elsewhere."""
    noise = torch.Generator().manual_seed(1)
    for kv_heads in (1, 2, 4):
        q = torch.randn(8, 4, 16, generator=noise).to(device, dtype)
        k, v = (torch.randn(600, kv_heads, 16, generator=noise).to(device, dtype) for _ in "kv")
        for causal in (True, False):
            out, lse = kernel(q, k, v, ragged(device, KEYS), causal)
            assert (out.shape, lse.shape) == ((8, 4, 16), (4, 8))
            at = 0
            for count, start, keys in zip(QUERIES, STARTS, KEYS, strict=True):
                for step in range(count):
                    seen = keys - count + 1 + step if causal else keys
                    rows = slice(start, start + seen)
                    repeats = 4 // kv_heads
                    key, value = (x[rows].float().repeat_interleave(repeats, 1) for x in (k, v))
                    scores = torch.einsum("hd,mhd->hm", q[at].float(), key) / 4
                    wanted = torch.einsum("hm,mhd->hd", scores.softmax(-1), value)
                    torch.testing.assert_close(out[at].float(), wanted, atol=tolerance, rtol=0)
                    torch.testing.assert_close(
                        lse[:, at], scores.logsumexp(-1), atol=tolerance, rtol=0
                    )
                    at += 1


def test_the_padded_kernel() -> None:
    compare(padded, "cpu", torch.float32, 1e-5)


@pytest.mark.gpu
def test_flash_attention() -> None:
    assert choose_kernel(torch.bfloat16, 16, torch.device("cuda")) is flash
    compare(flash, "cuda", torch.bfloat16, 0.03)


def test_rows_beyond_a_sequence_may_hold_anything() -> None:
    q, keys = torch.randn(8, 2, 16), torch.full((600, 2, 16), torch.nan)
    for start, count in zip(STARTS, [7, 0, 300], strict=True):
        keys[start : start + count] = 1.0
    out, _ = padded(q, keys, keys, ragged("cpu", [7, 0, 300]), False)
    assert bool((out[0] == 1.0).all() and out[6:].isfinite().all())


@pytest.mark.parametrize(
    ("dtype", "head_dim"), [(torch.float32, 64), (torch.bfloat16, 512), (torch.bfloat16, 20)]
)
def test_what_flash_attention_does_not_take_is_padded(dtype: torch.dtype, head_dim: int) -> None:
    assert choose_kernel(dtype, head_dim, torch.device("cuda")) is padded
    assert choose_kernel(torch.bfloat16, 64, torch.device("cpu")) is padded
