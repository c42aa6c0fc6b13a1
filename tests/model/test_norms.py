"""The norm in few operations is the one that it stands for."""

import pytest
import torch

from specstream.model.layers import rms_norm

HALF = (torch.bfloat16, torch.float16)


@pytest.mark.parametrize("dtype", [torch.float32, *HALF])
@pytest.mark.parametrize("eps", [1e-5, 1e-6, 0.0])
@pytest.mark.parametrize("scale", [1e-6, 1e-3, 1.0, 1e3, 3e4])
def test_it_is_the_root_mean_square_in_float32(dtype: torch.dtype, eps: float, scale: float) -> None:
    torch.manual_seed(0)
    x = (torch.randn(7, 3, 24) * scale).clamp(-6e4, 6e4).to(dtype)
    weight = torch.randn(24).to(dtype)
    exact = x.double()
    wanted = exact / (exact.square().mean(-1, keepdim=True) + eps).sqrt() * weight.double()
    found = rms_norm(weight, eps)(x)
    assert found.dtype is dtype
    ulp = torch.finfo(dtype).eps
    torch.testing.assert_close(found.double(), wanted, rtol=2 * ulp, atol=ulp)


def test_the_input_stays_as_it_is() -> None:
    x = torch.randn(2, 8)
    before = x.clone()
    rms_norm(torch.ones(8), 1e-5)(x)
    assert torch.equal(x, before)


def test_a_slice_is_as_good_as_a_tensor_of_its_own() -> None:
    wide = torch.randn(5, 4, 16)
    norm = rms_norm(torch.randn(16), 1e-5)
    assert torch.equal(norm(wide[:, 1:3]), norm(wide[:, 1:3].contiguous()))


def test_zeros_give_zeros_and_a_row_without_numbers_stays_alone() -> None:
    x = torch.randn(3, 8)
    x[0], x[1, 2] = 0.0, torch.nan
    found = rms_norm(torch.ones(8), 1e-5)(x)
    assert not found[0].any() and found[1].isnan().all() and found[2].isfinite().all()
