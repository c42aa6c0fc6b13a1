"""Several sequences in turn: each as if it were alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as functional

from specstream.model.attention import Alone, Heads, InTurn, Masks
from specstream.model.slab import SlabCache

_LAYERS, _DIM = 2, 8
_CPU = torch.device("cpu")


def _caches(heads: Heads, held: list[int], fixed: list[int | None]) -> list[SlabCache]:
    noise = torch.Generator().manual_seed(len(held))
    caches = []
    for rows, capacity in zip(held, fixed, strict=True):
        cache = SlabCache(_LAYERS, heads.keys, _DIM, torch.float32, _CPU, capacity)
        if rows:
            for layer in cache.views(rows)[0]:
                layer.normal_(generator=noise)
            cache.extend(rows)
        caches.append(cache)
    return caches


@pytest.mark.parametrize("keys", [1, 2, 6])
@pytest.mark.parametrize(
    ("held", "counts", "keeps"),
    [
        ([9, 0, 300], [1, 1, 1], [1, 1, 1]),
        ([9, 40, 0, 255], [3, 1, 5, 2], [3, 1, 5, 2]),
        ([9, 40, 0, 255], [3, 1, 5, 2], [1, 1, 2, 2]),
        ([0, 17], [64, 2], [1, 2]),
    ],
)
@torch.inference_mode()
def test_in_turn_is_what_each_would_be_alone(
    keys: int, held: list[int], counts: list[int], keeps: list[int]
) -> None:
    """In the rows that it writes, in what it reads, and when few rows are asked for."""
    heads = Heads(6, keys, _DIM)
    masks = Masks(heads.group, torch.float32, _CPU)
    fixed: list[int | None] = [None] * (len(held) - 1) + [512]
    ours, theirs = _caches(heads, held, fixed), _caches(heads, held, fixed)
    turn = InTurn(heads, masks, ours, counts)
    each = [Alone(heads, masks, cache, n) for cache, n in zip(theirs, counts, strict=True)]
    noise = torch.Generator().manual_seed(7)
    for layer in range(_LAYERS):
        joint = torch.randn(sum(counts), 6 + 2 * keys, _DIM, generator=noise)
        parts = joint.split_with_sizes(counts)
        if layer == _LAYERS - 1:
            turn.ask(keeps)
            for reader, keep in zip(each, keeps, strict=True):
                reader.ask([keep])
            kept = [part[reader.kept] for reader, part in zip(each, parts, strict=True)]
            assert torch.equal(joint[turn.kept], torch.cat(kept))
        wanted = [r.attend(layer, part) for r, part in zip(each, parts, strict=True)]
        torch.testing.assert_close(turn.attend(layer, joint), torch.cat(wanted))
    for our, their, count in zip(ours, theirs, counts, strict=True):
        our.extend(count)
        their.extend(count)
        for mine, other in zip(our.views(1)[1], their.views(1)[1], strict=True):
            assert torch.equal(mine[:, :, : our.length], other[:, :, : our.length])


@pytest.mark.parametrize("counts", [[1], [3], [70], [1, 3, 2]])
@torch.inference_mode()
def test_a_kernels_result_may_lie_in_any_order(
    counts: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some devices' kernels write queries before heads."""
    heads = Heads(6, 2, _DIM)
    masks = Masks(heads.group, torch.float32, _CPU)
    joint = torch.randn(sum(counts), 10, _DIM, generator=torch.Generator().manual_seed(3))
    real = functional.scaled_dot_product_attention

    def attend() -> torch.Tensor:
        caches = _caches(heads, [9] * len(counts), [None] * len(counts))
        if len(counts) == 1:
            return Alone(heads, masks, caches[0], counts[0]).attend(0, joint)
        return InTurn(heads, masks, caches, counts).attend(0, joint)

    def queries_first(*args: Any, **options: Any) -> torch.Tensor:
        return real(*args, **options).transpose(1, 2).contiguous().transpose(1, 2)

    wanted = attend()
    monkeypatch.setattr(functional, "scaled_dot_product_attention", queries_first)
    assert torch.equal(attend(), wanted)
