"""Attention kernels for sequences of different lengths over slots of a key-value pool, in one call."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["Kernel", "Ragged", "choose_kernel", "flash", "padded"]


@dataclass(frozen=True, slots=True)
class Ragged:
    """The places of N sequences' queries and keys; int32 tensors on the device.

    Attributes:
        query_starts: ``[N + 1]``, cumulative numbers of queries.
        key_starts: ``[N + 1]``, each sequence's first row in the pool; the last entry is unused.
        key_counts: ``[N]``, number of rows to attend to; 0 is allowed.
        max_queries: Upper bound of the number of a sequence's queries.
        max_keys: Upper bound of ``key_counts``.
    """

    query_starts: Tensor
    key_starts: Tensor
    key_counts: Tensor
    max_queries: int
    max_keys: int


Kernel = Callable[[Tensor, Tensor, Tensor, Ragged, bool], tuple[Tensor, Tensor]]
"""``(queries [T, heads, dim], keys [rows, kv_heads, dim], values, ragged, causal)`` to the output
``[T, heads, dim]`` and its log-sum-exp ``[heads, T]`` in float32. Causal: a sequence's last query sees
all its keys, the query before it one less, and so on. Without keys the log-sum-exp is unspecified."""


def flash(
    queries: Tensor, keys: Tensor, values: Tensor, ragged: Ragged, causal: bool
) -> tuple[Tensor, Tensor]:
    """Run torch's FlashAttention for variable lengths; see `Kernel`.

    The kernel uses only a sequence's first row and its number of keys. So slots may be in any order and
    have gaps between them.
    """
    from torch.nn.attention.varlen import AuxRequest, varlen_attn

    found = varlen_attn(
        queries,
        keys,
        values,
        ragged.query_starts,
        ragged.key_starts,
        ragged.max_queries,
        ragged.max_keys,
        return_aux=AuxRequest(lse=True),
        # A single query sees all keys anyway, and without a mask the kernel packs a group's heads.
        window_size=(-1, 0) if causal and ragged.max_queries > 1 else (-1, -1),
        enable_gqa=queries.shape[1] != keys.shape[1],
        seqused_k=ragged.key_counts,
    )
    return found[0], found[1]  # `return_aux` makes the result a pair


def padded(
    queries: Tensor, keys: Tensor, values: Tensor, ragged: Ragged, causal: bool
) -> tuple[Tensor, Tensor]:
    """As `flash`, in plain torch operations padded to the longest sequence: for any device and dtype."""
    heads, kv_heads, dim = queries.shape[1], keys.shape[1], queries.shape[2]
    starts, counts = ragged.query_starts.long(), ragged.key_counts.long()
    columns = torch.arange(ragged.max_keys, device=queries.device)
    steps = torch.arange(ragged.max_queries, device=queries.device)
    valid = columns < counts[:, None]
    rows = torch.where(valid, ragged.key_starts.long()[:-1, None] + columns, 0)
    # A padded row's value is zeroed: 0 times NaN is NaN.
    k = keys[rows].masked_fill(~valid[..., None, None], 0.0).float()
    v = values[rows].masked_fill(~valid[..., None, None], 0.0).float()
    places = (starts[:-1, None] + steps).clamp_max(queries.shape[0] - 1)
    q = queries[places].view(*places.shape, kv_heads, heads // kv_heads, dim).float()
    seen = valid[:, None]
    if causal:
        limits = (counts - starts.diff())[:, None] + steps
        seen = seen & (columns <= limits[..., None])
    scores = torch.einsum("nqkgd,nmkd->nkgqm", q, k) * dim**-0.5
    scores = scores.masked_fill(~seen[:, None, None], -torch.inf)
    lse = scores.logsumexp(-1)
    mixed = torch.einsum("nkgqm,nmkd->nqkgd", scores.softmax(-1).nan_to_num(0.0), v)
    # Back from [sequence, step] to tokens.
    tokens = torch.arange(queries.shape[0], device=queries.device)
    which = torch.searchsorted(starts[1:].contiguous(), tokens, right=True)
    step = tokens - starts[which]
    out = mixed[which, step].reshape(-1, heads, dim).to(queries.dtype)
    return out, lse.permute(0, 3, 1, 2)[which, step].reshape(-1, heads).T


def choose_kernel(dtype: torch.dtype, head_dim: int, device: torch.device) -> Kernel:
    """Return `flash` if it supports this device, dtype and head size, else `padded`."""
    fits = dtype in (torch.float16, torch.bfloat16) and head_dim % 8 == 0 and head_dim <= 256
    if device.type != "cuda" or not fits or torch.cuda.get_device_capability(device) < (8, 0):
        return padded
    return flash
