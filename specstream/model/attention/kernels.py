"""Attention kernels for sequences of different lengths over slots of a key-value pool, in one call."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from specstream.checks import first_line
from specstream.model import fused
from specstream.model.attention.base import Ragged
from specstream.model.numerics import rounding, to_device

__all__ = ["Kernel", "Kernels", "Ragged", "choose_kernels", "flash", "padded", "works"]

_log = logging.getLogger("specstream.model")

_FEW = 64  # most queries of a sequence for the kernel of rounds; prompts are read by another


Kernel = Callable[[Tensor, Tensor, Tensor, Ragged], Tensor]
"""``(queries [T, heads, dim], keys [rows, kv_heads, dim], values, ragged)`` to ``[T, heads, dim]``.

Every query sees at least one row. Rows behind ``key_counts`` may hold anything, NaN included.
"""


@dataclass(frozen=True, slots=True)
class Kernels:
    """The kernels of one device, by the kind of pass.

    Attributes:
        rounds: For chains of up to `_FEW` tokens a sequence.
        trees: For passes with a token tree.
        prompts: For longer chains.
    """

    rounds: Kernel
    trees: Kernel
    prompts: Kernel

    def __call__(self, queries: Tensor, keys: Tensor, values: Tensor, ragged: Ragged) -> Tensor:
        """Run the kernel for this kind of pass; see `Kernel`."""
        if ragged.nodes is not None:
            return self.trees(queries, keys, values, ragged)
        many = ragged.max_queries > _FEW
        return (self.prompts if many else self.rounds)(queries, keys, values, ragged)

    @property
    def names(self) -> str:
        """The kernels' names, for reports."""
        each = dict.fromkeys(one.__name__ for one in (self.rounds, self.trees, self.prompts))
        return ", ".join(each)


def flash(queries: Tensor, keys: Tensor, values: Tensor, ragged: Ragged) -> Tensor:
    """Run torch's FlashAttention-2 for variable lengths; see `Kernel`. Chains only.

    The operation is called by its name in ``torch.ops``: the public function for it got grouped heads
    and numbers of used keys only after torch 2.11. It uses a sequence's first row and its number of
    keys, so that slots may be in any order and have gaps between them.
    """
    # A single query sees all keys anyway, and without a mask the kernel packs a group's heads.
    causal = ragged.max_queries > 1
    found = torch.ops.aten._flash_attention_forward(
        queries,
        keys,
        values,
        ragged.query_starts,
        ragged.key_starts,
        ragged.max_queries,
        ragged.max_keys,
        0.0,
        causal,
        False,
        scale=None,
        window_size_left=-1,
        window_size_right=0 if causal else -1,
        seqused_k=ragged.key_counts,
    )
    out: Tensor = found[0]
    return out


def padded(queries: Tensor, keys: Tensor, values: Tensor, ragged: Ragged) -> Tensor:
    """See `Kernel`; plain torch operations in float32, padded to the longest sequence, on any device."""
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
    behind = columns - ragged.limits.long()[places][..., None]
    seen = behind < 0
    if ragged.nodes is not None:
        bits = ragged.nodes[places][..., None] >> behind.clamp(0, 63)
        seen = seen | ((bits & 1 != 0) & (behind < 64))
    seen = seen & valid[:, None]
    scores = torch.einsum("nqkgd,nmkd->nkgqm", q, k) * dim**-0.5
    scores = scores.masked_fill(~seen[:, None, None], -torch.inf)
    mixed = torch.einsum("nkgqm,nmkd->nqkgd", scores.softmax(-1).nan_to_num(0.0), v)
    # Back from [sequence, step] to tokens.
    tokens = torch.arange(queries.shape[0], device=queries.device)
    which = torch.searchsorted(starts[1:].contiguous(), tokens, right=True)
    step = tokens - starts[which]
    return mixed[which, step].reshape(-1, heads, dim).to(queries.dtype)


def choose_kernels(
    dtype: torch.dtype, head_dim: int, heads: int, kv_heads: int, device: torch.device
) -> Kernels:
    """Return the fastest kernels that work on this device; each is tried on a few tokens first.

    The order is our Triton kernel for rounds and trees, torch's FlashAttention for chains, then
    `padded`. A kernel that raises or computes something else is left out with a warning.
    """
    slow = Kernels(padded, padded, padded)
    if device.type != "cuda":
        return slow
    why = ""
    if torch.cuda.get_device_capability(device) < (8, 0):
        why = "the card is older than compute capability 8.0"
    elif head_dim % 8 or head_dim > 256:
        why = f"heads have {head_dim} values, and fast kernels take multiples of 8 up to 256"
    if why:
        _log.warning("attention runs in plain torch operations, which is slow: %s", why)
    if why or dtype not in (torch.float16, torch.bfloat16):
        return slow  # in float32 what counts is agreement with other devices
    shapes = (8, heads, head_dim), (160, kv_heads, head_dim)
    quick = flash if works(flash, *shapes, dtype, device) else None
    if fused.installed():
        from specstream.model.fused.attention import attend

        if works(attend, *shapes, dtype, device, trees=True):
            return Kernels(attend, attend, quick or attend)
    return slow if quick is None else Kernels(quick, padded, quick)


@torch.inference_mode()
def works(
    kernel: Kernel,
    queries: tuple[int, int, int],
    keys: tuple[int, int, int],
    dtype: torch.dtype,
    device: torch.device,
    trees: bool = False,
) -> bool:
    """Whether a kernel runs and agrees with `padded` on two sequences in slots out of order.

    ``queries`` and ``keys`` are the shapes of 8 queries and 160 rows of a pool.
    """
    try:
        noise = torch.Generator(device).manual_seed(1)
        q, k, v = (
            torch.randn(shape, generator=noise, device=device, dtype=torch.float32).to(dtype)
            for shape in (queries, keys, keys)
        )
        off = max(_off(kernel, q, k, v, case) for case in _trial_cases(device, trees))
        why = f"its results are off by {off:.2g}" if off > rounding(dtype) else ""
    except Exception as error:  # whatever a kernel's compiler or driver raises
        why = first_line(error)
    if why:
        _log.warning("attention by %s is left out: %s", kernel.__name__, why)
    return not why


def _trial_cases(device: torch.device, trees: bool) -> list[Ragged]:
    """Sequences of 3 and 5 queries with 6 and 65 rows before them, as chains and as trees."""

    def ints(*values: int) -> Tensor:
        return to_device(values, device, torch.int32)

    places = ints(0, 3, 8), ints(100, 0, 0), ints(9, 70)
    cases = [Ragged(*places, ints(7, 8, 9, *range(66, 71)), None, 5, 70)]
    if trees:  # the first token of each sequence, then nodes that all follow it
        nodes = to_device([0, 1, 2, 0, 1, 2, 4, 8], device)
        cases.append(Ragged(*places, ints(7, 7, 7, *[66] * 5), nodes, 5, 70))
    return cases


def _off(kernel: Kernel, q: Tensor, k: Tensor, v: Tensor, case: Ragged) -> float:
    found, wanted = kernel(q, k, v, case).float(), padded(q, k, v, case).float()
    return float(((found - wanted).norm() / wanted.norm()).nan_to_num(torch.inf))
