"""The kernels of the pooled back-end agree with attention written out."""

import logging
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from specstream.model.attention import kernels
from specstream.model.attention.kernels import Kernel, Kernels, Ragged, choose_kernels, flash, padded
from specstream.model.attention.pooled import Layout
from specstream.model.tree import Tree

STARTS, BEFORE = [40, 500, 60], [6, 0, 298]  # rows of the pool, in no order; rows before the pass
COUNTS = [1, 5, 4]
CHAINS: list[Tree | None] = [None, None, None]
TREES: list[Tree | None] = [None, Tree((-1, -1, 0, 2, 0)), Tree((-1, -1))]


def ragged(trees: list[Tree | None], device: str = "cpu", counts: list[int] = COUNTS) -> Ragged:
    layout = Layout()
    for start, before, count, tree in zip(STARTS, BEFORE, counts, trees, strict=True):
        layout.append(start, before, count, tree)
    packed = torch.tensor(layout.packed, device=device).split_with_sizes(layout.sizes)
    return layout.placed(packed, max(layout.key_counts), nodes=layout.trees).ragged


def written_out(q: Tensor, k: Tensor, v: Tensor, trees: list[Tree | None]) -> Tensor:
    """In double precision, one query after the other, by the tree's own masks."""
    found, at, each = [], 0, zip(STARTS, BEFORE, COUNTS, trees, strict=True)
    for start, before, count, tree in each:
        shape = tree or Tree(())
        seen = shape.seen_behind(before, count, before + count, torch.device("cpu"))
        repeats = q.shape[1] // k.shape[1]
        key, value = (
            one[start : start + before + count].cpu().double().repeat_interleave(repeats, 1)
            for one in (k, v)
        )
        for row in seen:
            scores = torch.einsum("hd,mhd->hm", q[at].cpu().double(), key) * q.shape[2] ** -0.5
            weights = scores.masked_fill(~row, -torch.inf).softmax(-1)
            found.append(torch.einsum("hm,mhd->hd", weights, value))
            at += 1
    return torch.stack(found)


def off(kernel: Kernel, trees: list[Tree | None], device: str, dtype: torch.dtype) -> float:
    """The largest relative error, with several numbers of key heads and NaN in all unused rows."""
    noise, worst = torch.Generator().manual_seed(1), 0.0
    for kv_heads in (1, 2, 4):
        q = torch.randn(sum(COUNTS), 4, 16, generator=noise).to(device, dtype)
        pool = torch.full((2, 900, kv_heads, 16), torch.nan).to(device, dtype)
        for start, before, count in zip(STARTS, BEFORE, COUNTS, strict=True):
            shape = 2, before + count, kv_heads, 16
            rows = torch.randn(shape, generator=noise).to(device, dtype)
            pool[:, start : start + before + count] = rows
        keys, values = pool
        wanted = written_out(q, keys, values, trees)
        found = kernel(q, keys, values, ragged(trees, device)).cpu().double()
        error = (found - wanted).norm() / wanted.norm()
        worst = max(worst, float(error.nan_to_num(torch.inf)))
    return worst


@pytest.mark.parametrize("trees", [CHAINS, TREES], ids=["chains", "trees"])
def test_the_padded_kernel(trees: list[Tree | None]) -> None:
    assert off(padded, trees, "cpu", torch.float32) < 1e-6


@pytest.mark.parametrize("wrong", ["limits", "nodes", "key_starts"])
def test_wrong_places_are_seen(wrong: str) -> None:
    def shifted(q: Tensor, k: Tensor, v: Tensor, places: Ragged) -> Tensor:
        value = getattr(places, wrong)
        other = value << 1 if wrong == "nodes" else value - 1
        return padded(q, k, v, replace(places, **{wrong: other}))

    assert not off(shifted, TREES, "cpu", torch.float32) < 1e-3


def test_the_deepest_tree_uses_the_sign_bit() -> None:
    """64 nodes; the last one sees the first and itself."""
    tree = Tree((*[-1] * 63, 0))
    assert tree.bits[-1] == 1 - 2**63
    q, pool = torch.zeros(66, 1, 8), torch.arange(900.0).view(900, 1, 1).expand(900, 1, 8)
    places = ragged([None, tree, None], counts=[1, 64, 1])
    found = padded(q, pool, pool, places)
    assert found[64, 0, 0] == (500 + 563) / 2 and found[1, 0, 0] == 500


@pytest.mark.gpu
def test_kernels_on_a_real_gpu() -> None:
    for trees in (CHAINS, TREES):
        chosen = choose_kernels(torch.bfloat16, 16, 4, 4, torch.device("cuda"))
        assert off(chosen, trees, "cuda", torch.bfloat16) < 1e-2
    assert off(flash, CHAINS, "cuda", torch.bfloat16) < 1e-2


def test_flash_attention_is_called_as_this_torch_declares_it() -> None:
    """The operation is no public interface: its name and its arguments may change with torch."""
    schema = torch.ops.aten._flash_attention_forward.default._schema
    assert [one.name for one in schema.arguments[:10]] == [
        *("query", "key", "value", "cum_seq_q", "cum_seq_k"),
        *("max_q", "max_k", "dropout_p", "is_causal", "return_debug_mask"),
    ]
    named = {one.name for one in schema.arguments if one.kwarg_only or one.has_default_value()}
    assert {"scale", "window_size_left", "window_size_right", "seqused_k"} <= named


def on_a_card(monkeypatch: pytest.MonkeyPatch, *broken: str) -> list[str]:
    """Kernels are tried on a card where those named don't work; returns those that were tried."""
    tried: list[str] = []

    def works(kernel: Kernel, *shapes: object, trees: bool = False) -> bool:
        tried.append(kernel.__name__)
        return kernel.__name__ not in broken

    monkeypatch.setattr(kernels, "works", works)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr("specstream.model.fused.installed", lambda: False)
    return tried


def test_what_no_kernel_takes_or_does_right_is_padded(monkeypatch: pytest.MonkeyPatch) -> None:
    slow, card = Kernels(padded, padded, padded), torch.device("cuda")
    tried = on_a_card(monkeypatch)
    assert choose_kernels(torch.bfloat16, 64, 4, 2, card) == Kernels(flash, padded, flash)
    assert tried.pop() == "flash"
    for dtype, head_dim in ((torch.float32, 64), (torch.bfloat16, 512), (torch.bfloat16, 20)):
        assert choose_kernels(dtype, head_dim, 4, 2, card) == slow
    assert choose_kernels(torch.bfloat16, 64, 4, 2, torch.device("cpu")) == slow
    assert not tried
    on_a_card(monkeypatch, "flash")
    assert choose_kernels(torch.bfloat16, 64, 4, 2, card) == slow


def test_a_kernel_that_raises_or_is_wrong_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    sizes = (8, 4, 16), (160, 2, 16), torch.float32, torch.device("cpu")

    def raises(*args: object) -> Tensor:
        raise RuntimeError("no kernel image is available for execution on the device")

    def double(q: Tensor, k: Tensor, v: Tensor, places: Ragged) -> Tensor:
        return padded(q * 2, k, v, places)

    assert kernels.works(padded, *sizes, trees=True)
    with caplog.at_level(logging.WARNING, "specstream.model"):
        assert not kernels.works(double, *sizes)
        assert not kernels.works(raises, *sizes)
    assert "attention by raises is left out: no kernel image" in caplog.text
    assert "attention by double is left out: its results are off by" in caplog.text
