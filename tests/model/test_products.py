"""Packed products: the same sums, for a handful of numbers of rows."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from specstream.model.layers import ROUNDED, can_pack, product

CPU = torch.device("cpu")


class Rows(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes the numbers of rows that kernels are called with."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seen: set[int] = set()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        if "linear_pointwise" in str(func):
            self.seen.add(args[0].shape[0])
        run: Callable[..., Any] = func
        return run(*args, **(kwargs or {}))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("biased", [False, True])
def test_packed_products_are_those_of_the_plain_matrix(dtype: torch.dtype, biased: bool) -> None:
    if not can_pack(dtype, CPU):
        pytest.skip("this CPU has no packed products in this dtype")
    torch.manual_seed(0)
    weight = torch.randn(24, 32).to(dtype)
    bias = torch.randn(24).to(dtype) if biased else None
    packed, plain = product(weight, bias, packed=True), product(weight, bias, packed=False)
    x = torch.randn(300, 32).to(dtype)
    all_rows = packed(x)
    torch.testing.assert_close(all_rows, plain(x), atol=2e-2, rtol=2e-2)
    for count in (1, 7, 16, 17, 21, 32, 48, 63, 65, 129, 257):
        rows = packed(x[:count])
        assert rows.shape == (count, 24)
        assert torch.equal(rows, all_rows[:count])  # whoever else is multiplied


def test_kernels_are_prepared_for_few_numbers_of_rows() -> None:
    if not can_pack(torch.float32, CPU):
        pytest.skip("this CPU has no packed products")
    run = product(torch.randn(8, 8), packed=True)
    with Rows() as rows:
        for count in range(1, 257):
            run(torch.randn(count, 8))
    assert sorted(rows.seen) == list(ROUNDED)
