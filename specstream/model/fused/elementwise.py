"""The operations between a layer's matrix products, one kernel each; all compute in float32."""

from __future__ import annotations

import triton.language as tl
from torch import Tensor

from specstream.model.fused import launch
from specstream.model.fused.launch import jit

__all__ = ["add_norm", "rotate_and_store", "silu_mul"]

_HEADS = 4  # that one program rotates
_BLOCK = 1024  # values that one program multiplies


def add_norm(x: Tensor, more: Tensor | None, weight: Tensor, eps: float) -> Tensor:
    """Do ``x += more``, if there is more, and return ``torch.rms_norm(x, (hidden,), weight, eps)``.

    The sum is rounded to x's dtype before it is normed, the norm once at the end. RMS norm: Zhang and
    Sennrich 2019.

    Args:
        x: ``[n, hidden]``, with up to 16384 contiguous values a row; overwritten.
        more: ``[n, hidden]``, with contiguous rows. May be wider than ``x``.
        weight: ``[hidden]``.
        eps: Added to the mean square.

    Returns:
        ``[n, hidden]``, contiguous, in x's dtype.
    """
    n, hidden = x.shape
    out = x.new_empty((n, hidden))
    block = 1 << (hidden - 1).bit_length()
    strides = x.stride(0), x.stride(0) if more is None else more.stride(0)
    warps = 4 if block <= 2048 else 8 if block <= 8192 else 16
    launch.launch(
        *(_add_norm, (n,), x, more, weight, out, eps, *strides),
        SIZE=hidden,
        BLOCK=block,
        num_warps=warps,
    )
    return out


def rotate_and_store(
    joint: Tensor, cos: Tensor, sin: Tensor, rows: Tensor, both: Tensor, heads: int
) -> Tensor:
    """Rotate queries and keys by their positions; write keys and values to a pool.

    Rotary positions: Su et al. 2021. ``cos`` and ``sin`` are as in `RotaryTable`: the first half of each
    row of sines is negated.

    Args:
        joint: ``[n, heads + 2 * kv_heads, head_dim]``, contiguous: heads of queries, which are
            overwritten, of keys and of values.
        cos: ``[n, head_dim]`` or ``[n, 1, head_dim]``, contiguous.
        sin: As ``cos``.
        rows: ``[n]`` int64, the pool's row of each token.
        both: ``[2, pool_rows, kv_heads, head_dim]``, keys and values; any strides but the last.
        heads: Number of query heads.

    Returns:
        The rotated queries ``[n, heads, head_dim]``, a view of ``joint``.
    """
    n, all_heads, dim = joint.shape
    launch.launch(
        _rotate_and_store,
        (n, -(-all_heads // _HEADS)),
        *(joint, cos, sin, rows, both, heads, *both.stride()[:3]),
        ALL=all_heads,
        HALF=dim // 2,
        HEADS=_HEADS,
        D=1 << (dim // 2 - 1).bit_length(),
        num_warps=2,
    )
    return joint[:, :heads]


def silu_mul(joint: Tensor) -> Tensor:
    """Return ``silu(gate) * up [n, inner]``; ``joint [n, 2 * inner]`` is gate, then up, in each row."""
    n, inner = joint.shape[0], joint.shape[1] // 2
    out = joint.new_empty((n, inner))
    grid = n, -(-inner // _BLOCK)
    launch.launch(_silu_mul, grid, joint, out, joint.stride(0), inner, BLOCK=_BLOCK, num_warps=4)
    return out


# Only what follows runs on the device. `None` and the constants in capitals are known when it compiles.


@jit()
def _add_norm(
    x: tl.tensor,
    more: tl.tensor,
    weight: tl.tensor,
    out: tl.tensor,
    eps: tl.tensor,
    stride: tl.tensor,
    more_stride: tl.tensor,
    SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64)
    d = tl.arange(0, BLOCK)
    inside = d < SIZE
    at = x + row * stride + d
    value = tl.load(at, mask=inside, other=0.0)
    if more is not None:
        added = tl.load(more + row * more_stride + d, mask=inside, other=0.0)
        value = (value.to(tl.float32) + added.to(tl.float32)).to(value.dtype)
        tl.store(at, value, mask=inside)
    wide = value.to(tl.float32)
    scale = tl.rsqrt(tl.sum(wide * wide, 0) / SIZE + eps)
    scaled = wide * scale * tl.load(weight + d, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row * SIZE + d, scaled.to(out.dtype.element_ty), mask=inside)


@jit("rows", "heads")
def _rotate_and_store(
    joint: tl.tensor,
    cos: tl.tensor,
    sin: tl.tensor,
    rows: tl.tensor,
    both: tl.tensor,
    heads: tl.tensor,
    part_stride: tl.tensor,  # from keys to values
    row_stride: tl.tensor,
    head_stride: tl.tensor,
    ALL: tl.constexpr,
    HALF: tl.constexpr,
    HEADS: tl.constexpr,
    D: tl.constexpr,
) -> None:
    """Rotate some heads of one token, each as two halves: so no thread reads what another writes."""
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * HEADS + tl.arange(0, HEADS)
    kv_heads = (ALL - heads) // 2
    d = tl.arange(0, D)
    half = d < HALF
    inside = (head < ALL)[:, None] & half[None, :]
    source = joint + ((token * ALL + head) * (2 * HALF))[:, None] + d[None, :]
    left = tl.load(source, mask=inside, other=0.0)
    right = tl.load(source + HALF, mask=inside, other=0.0)
    angles = token * (2 * HALF) + d
    left_cos = tl.load(cos + angles, mask=half, other=0.0).to(tl.float32)[None, :]
    right_cos = tl.load(cos + angles + HALF, mask=half, other=0.0).to(tl.float32)[None, :]
    left_sin = tl.load(sin + angles, mask=half, other=0.0).to(tl.float32)[None, :]
    right_sin = tl.load(sin + angles + HALF, mask=half, other=0.0).to(tl.float32)[None, :]
    turned_left = left.to(tl.float32) * left_cos + right.to(tl.float32) * left_sin
    turned_right = right.to(tl.float32) * right_cos + left.to(tl.float32) * right_sin

    query = head < heads
    value = head >= heads + kv_heads
    left = tl.where(value[:, None], left, turned_left.to(left.dtype))
    right = tl.where(value[:, None], right, turned_right.to(right.dtype))
    tl.store(source, left, mask=inside & query[:, None])
    tl.store(source + HALF, right, mask=inside & query[:, None])

    row = tl.load(rows + token)
    own = tl.where(value, head - heads - kv_heads, head - heads).to(tl.int64)
    place = row * row_stride + own * head_stride + tl.where(value, 1, 0).to(tl.int64) * part_stride
    target = both + place[:, None] + d[None, :]
    tl.store(target, left, mask=inside & (head >= heads)[:, None])
    tl.store(target + HALF, right, mask=inside & (head >= heads)[:, None])


@jit()
def _silu_mul(
    joint: tl.tensor, out: tl.tensor, stride: tl.tensor, inner: tl.tensor, BLOCK: tl.constexpr
) -> None:
    row = tl.program_id(0).to(tl.int64)
    d = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = d < inner
    gate = tl.load(joint + row * stride + d, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(joint + row * stride + inner + d, mask=inside, other=0.0).to(tl.float32)
    found = gate * tl.sigmoid(gate) * up
    tl.store(out + row * inner + d, found.to(out.dtype.element_ty), mask=inside)
