"""The fused operations between a layer's products agree with torch's."""

import pytest
import torch
from torch import Tensor

from specstream.model.layers import rotated
from tests.model.fused.cases import interpreted

# `cases` skips this module where Triton is missing.
from specstream.model.fused.elementwise import (  # isort: skip
    add_norm,
    rotate_and_store,
    silu_mul,
)

pytestmark = interpreted

DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)


def noise(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


def ulps(found: Tensor, want: Tensor) -> float:
    """The largest difference, in units of the last place of the numbers that are wanted in float64."""
    unit = torch.finfo(found.dtype).eps * torch.maximum(want.abs(), torch.tensor(1e-3))
    return float(((found.double() - want).abs() / unit).max().nan_to_num(torch.inf))


@DTYPES
@pytest.mark.parametrize("hidden", [64, 600, 2304])
def test_norm_of_a_sum(hidden: int, dtype: torch.dtype) -> None:
    wide = noise(3, hidden + 8, dtype=dtype)
    x, more = wide[:, :hidden], noise(3, hidden, dtype=dtype).flip(0)
    weight, before = noise(hidden, dtype=dtype), wide.clone()
    found = add_norm(x, more, weight, 1e-5)
    assert torch.equal(x, before[:, :hidden] + more)
    assert torch.equal(wide[:, hidden:], before[:, hidden:])
    want = torch.rms_norm(x.double(), (hidden,), weight.double(), 1e-5)
    assert (found.dtype, found.is_contiguous()) == (dtype, True)
    assert ulps(found, want) < (3 if dtype == torch.float32 else 0.51)


@DTYPES
def test_norm_alone_changes_nothing(dtype: torch.dtype) -> None:
    x, weight = noise(5, 80, dtype=dtype), noise(80, dtype=dtype)
    before = x.clone()
    found = add_norm(x, None, weight, 1e-2)
    assert torch.equal(x, before)
    want = torch.rms_norm(x.double(), (80,), weight.double(), 1e-2)
    assert ulps(found, want) < (3 if dtype == torch.float32 else 0.51)


def test_a_wider_sum_is_rounded_once() -> None:
    x, more, weight = noise(2, 64, dtype=torch.bfloat16), noise(2, 64), noise(64)
    want = x.clone()
    want += more
    add_norm(x, more, weight, 1e-5)
    assert torch.equal(x, want)


def stored(dim: int, dtype: torch.dtype) -> tuple[Tensor, ...]:
    """A joint product, cosines, sines, rows of the pool, and a pool of NaN with strange strides."""
    joint, angles = noise(3, 5 + 2 * 3, dim, dtype=dtype), noise(3, 1, dim)
    pool = torch.full((11, 2, 3, dim + 8), torch.nan, dtype=dtype).transpose(0, 1)[..., :dim]
    cos, sin = angles.cos().to(dtype), angles.sin().to(dtype)
    return joint, cos, sin, torch.tensor([9, 0, 4]), pool


@DTYPES
@pytest.mark.parametrize("dim", [64, 80])
def test_rotates_and_stores(dim: int, dtype: torch.dtype) -> None:
    joint, cos, sin, rows, pool = stored(dim, dtype)
    before = joint.clone()
    want = rotated(before[:, :8].double(), cos.double(), sin.double())
    queries = rotate_and_store(joint, cos, sin, rows, pool, 5)
    assert queries.data_ptr() == joint.data_ptr() and queries.shape == (3, 5, dim)
    tolerance = 1e-6 if dtype == torch.float32 else 0.016  # half a unit of 4
    assert (queries.double() - want[:, :5]).abs().max() < tolerance
    assert (pool[0, rows].double() - want[:, 5:]).abs().max() < tolerance
    assert torch.equal(pool[1, rows], before[:, 8:])
    others = [row for row in range(11) if row not in rows]
    assert pool[:, others].isnan().all()
    assert torch.equal(joint[:, 5:], before[:, 5:])  # keys and values are only read


def test_a_rotation_the_other_way_is_seen() -> None:
    joint, cos, sin, rows, pool = stored(64, torch.bfloat16)
    want = rotated(joint[:, :5].double(), cos.double(), -sin.double())
    queries = rotate_and_store(joint, cos[:, 0], sin[:, 0], rows, pool, 5)
    assert (queries.double() - want).abs().max() > 0.5


@DTYPES
@pytest.mark.parametrize("inner", [96, 1100])
def test_silu_times_up(inner: int, dtype: torch.dtype) -> None:
    joint = 3 * noise(3, 2 * inner + 8, dtype=dtype)[:, : 2 * inner]
    gate, up = joint.double().chunk(2, -1)
    found = silu_mul(joint)
    assert (found.dtype, found.shape, found.is_contiguous()) == (dtype, (3, inner), True)
    assert ulps(found, torch.nn.functional.silu(gate) * up) < (5 if dtype == torch.float32 else 0.51)
