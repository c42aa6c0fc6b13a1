"""Native products: near those of float64, and the same bits for a row alone and among others."""

import pytest
import torch

from specstream.config import Scheme
from specstream.model.native.library import Library, library
from specstream.model.native.matrix import NativeMatrix, native_takes


@pytest.fixture(scope="module")
def code() -> Library:
    made = library(True)
    assert made is not None
    return made


@pytest.mark.parametrize("rows", [1, 4, 7, 65, 84])
@pytest.mark.parametrize(
    ("dtype", "scheme", "near"),
    [
        (torch.float32, None, 1e-5),
        (torch.bfloat16, None, 1e-5),
        (torch.float32, "int8", 0.02),
        (torch.bfloat16, "int4", 0.2),
    ],
)
def test_a_row_does_not_depend_on_the_others(
    code: Library, rows: int, dtype: torch.dtype, scheme: Scheme | None, near: float
) -> None:
    generator = torch.Generator().manual_seed(rows)
    weight = torch.randn(rows, 96, generator=generator).to(dtype)
    bias = torch.randn(rows, generator=generator) if rows % 2 else None
    x = torch.randn(53, 96, generator=generator)
    if scheme is None:
        x = x.to(dtype).float()  # some CPUs' products read both factors in bfloat16
    product = NativeMatrix(code, weight, bias, scheme)
    together = product(x)
    for count in (1, 2, 3, 4, 5, 6, 7, 13, 49):
        parts = [product(x[at : at + count]) for at in range(0, 53, count)]
        assert torch.equal(torch.cat(parts), together)
    exact = x.double() @ weight.double().T + (0 if bias is None else bias.double())
    assert (together - exact).abs().max() < near * exact.abs().max()


@pytest.mark.parametrize("columns", [32, 96, 1600])
def test_eight_bits_lose_nothing_but_what_the_matrix_lost(code: Library, columns: int) -> None:
    """x has 16 bits at least, and sums are exact, also those of the largest products."""
    generator = torch.Generator().manual_seed(columns)
    whole = torch.randint(-127, 128, (37, columns), generator=generator)
    whole[:, 0] = 127
    whole[0], whole[1] = 127, -127
    weight = whole / 127.0 * torch.rand(37, 1, generator=generator)
    product = NativeMatrix(code, weight, None, "int8")
    x = torch.randn(20, columns, generator=generator)
    x[0], x[1] = 3.0, -3.0
    exact, sizes = (x.double() @ weight.double().T, x.abs().amax(1, keepdim=True) * weight.abs().sum(1))
    assert ((product(x) - exact).abs() <= 2**-15 * sizes).all()


def test_results_have_the_inputs_dtype_and_strides_do_not_matter(code: Library) -> None:
    weight = torch.randn(64, 40, generator=torch.Generator().manual_seed(1)).T
    product = NativeMatrix(code, weight, None)
    x = torch.ones(64, 3).T
    assert torch.allclose(product(x), x @ weight.T, atol=1e-5)
    assert product(x.bfloat16()).dtype is torch.bfloat16


def test_what_it_takes() -> None:
    assert native_takes(torch.zeros(5, 32)) and native_takes(torch.zeros(5, 32).bfloat16())
    assert not native_takes(torch.zeros(5, 40)) and not native_takes(torch.zeros(5, 32).half())
    assert not native_takes(torch.zeros(5, 32, device="meta"))


def test_a_value_that_is_not_finite_is_seen_in_its_row_alone(code: Library) -> None:
    product = NativeMatrix(code, torch.ones(20, 32), None, "int8")
    x = torch.ones(3, 32)
    x[1, 5] = torch.nan
    found = product(x)
    assert found[1].isnan().all() and found[[0, 2]].isfinite().all()
    assert torch.equal(product(torch.zeros(1, 32)), torch.zeros(1, 20))
