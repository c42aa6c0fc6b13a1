"""Who has which lane, and that nobody loses a row on the way in or out."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from specstream.model import lanes as lanes_module
from specstream.model.lanes import Lanes
from specstream.model.runner import ModelRunner
from specstream.model.slab import SlabCache
from tests.model.families import build


def made(count: int, rows: int = 4) -> tuple[Lanes, list[SlabCache]]:
    """Lanes, and caches of ``rows`` random rows."""
    lean = ModelRunner(build("llama"))._lean
    assert lean is not None
    caches = [lean.new_cache() for _ in range(count)]
    for cache in caches:
        for layer in cache.views(rows)[0]:
            layer.normal_()
        cache.extend(rows)
    return Lanes(lean.weights), caches


def contents(cache: SlabCache) -> Tensor:
    """All rows in use, as attention reads them."""
    return torch.stack(cache.views(1)[1])[..., : cache.length, :].clone()


def seat(lanes: Lanes, caches: Sequence[SlabCache], rows: int = 8) -> list[int]:
    seats = lanes.seat(caches, [rows] * len(caches))
    assert seats is not None
    for cache, lane in zip(caches, seats.lanes, strict=True):
        assert cache.lives_in(lanes._lanes[lane].slab)
    return seats.lanes


def let_time_pass(lanes: Lanes, caches: Sequence[SlabCache]) -> None:
    for _ in range(lanes_module._IDLE):
        seat(lanes, caches)


def test_a_lane_is_kept_until_it_is_free_or_long_unused() -> None:
    lanes, caches = made(20)
    assert seat(lanes, caches[:4]) == [0, 1, 2, 3]
    assert sorted(seat(lanes, caches[3:5])) == [0, 1]  # there are more now, all given out anew
    assert seat(lanes, caches[:5]) == [2, 3, 4, 0, 1]
    del caches[1]
    gc.collect()
    assert sorted(seat(lanes, [caches[0], caches[10]])) == [2, 3]  # of the one that is gone
    let_time_pass(lanes, [caches[0], caches[10]])
    assert seat(lanes, [caches[0], caches[10], caches[2]]) == [2, 1, 0]  # 1: long unused, and near
    assert seat(lanes, [caches[0], caches[10], caches[11]]) == [2, 1, 3]  # 0 was in use just now


def test_who_has_to_leave_takes_its_rows_along() -> None:
    lanes, caches = made(8)
    before = [contents(cache) for cache in caches]
    seat(lanes, caches[:4])
    let_time_pass(lanes, caches[:2])
    seat(lanes, caches[:2])
    taken = seat(lanes, [*caches[:2], *caches[4:6]])
    assert sorted(taken) == [0, 1, 2, 3]
    for cache in caches[4:6]:
        cache.views(3)[0][0].fill_(9.0)
    for cache, rows in zip(caches, before, strict=True):
        assert torch.equal(contents(cache), rows)
    assert len({id(cache._slab) for cache in caches}) == 8


def test_those_that_pass_together_move_together() -> None:
    lanes, caches = made(8)
    assert seat(lanes, caches) == list(range(8))
    assert seat(lanes, [caches[0], caches[7]]) == [0, 7]  # the others may be back at once
    let_time_pass(lanes, [caches[0], caches[7]])
    assert seat(lanes, [caches[7], caches[0]]) == [1, 0]


def test_who_took_part_lately_is_not_sent_away() -> None:
    """Of more than sixteen the others are read one by one: sequences don't chase each other."""
    lanes, caches = made(20)
    assert seat(lanes, caches[:16]) == list(range(16))
    assert lanes.seat(caches[12:20], [8] * 8) is None
    assert lanes.seat(caches[:17], [8] * 17) is None
    assert seat(lanes, caches[:16]) == list(range(16))


def test_memory_is_bounded_and_used_for_those_who_are_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lanes, caches = made(16)
    monkeypatch.setattr(lanes, "_bound", lanes._bytes(16, 1024))
    seat(lanes, caches, 1000)
    assert lanes.seat(caches[:4], [1100] * 4) is None  # as long as the others may be back
    let_time_pass(lanes, caches[:4])
    seat(lanes, caches[:4])
    assert seat(lanes, caches[:4], 1100) == [0, 1, 2, 3]
    assert lanes.seat(caches[:4], [9000] * 4) is None
    assert lanes._pool.nbytes <= lanes._bytes(16, 1024)


def test_memory_that_is_not_there_is_not_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    lanes, caches = made(8)
    before = [contents(cache) for cache in caches]
    seat(lanes, caches[:4])
    asked: list[int] = []
    allocate = lanes._allocate

    def short(lanes_wanted: int, rows: int) -> Any:
        asked.append(lanes_wanted)
        if lanes_wanted > 4:
            raise torch.OutOfMemoryError("not that much")
        return allocate(lanes_wanted, rows)

    monkeypatch.setattr(lanes, "_allocate", short)
    assert lanes.seat(caches, [8] * 8) is None
    assert lanes.seat(caches, [8] * 8) is None
    assert asked == [0, 8]
    assert seat(lanes, caches[2:6]) == [0, 1, 2, 3]
    for cache, rows in zip(caches, before, strict=True):
        assert torch.equal(contents(cache), rows)


def test_an_interrupted_move_leaves_no_lane_with_two(monkeypatch: pytest.MonkeyPatch) -> None:
    lanes, caches = made(4)
    before = [contents(cache) for cache in caches]
    move = SlabCache.move

    def interrupted(self: SlabCache, slab: Tensor) -> None:
        move(self, slab)
        if self is caches[1]:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(SlabCache, "move", interrupted)
        with pytest.raises(KeyboardInterrupt):
            lanes.seat(caches, [8] * 4)
    assert sorted(seat(lanes, caches)) == [0, 1, 2, 3]
    for cache, rows in zip(caches, before, strict=True):
        assert torch.equal(contents(cache), rows)


@torch.inference_mode()
def test_a_sequence_in_a_lane_can_do_all_that_it_could_before() -> None:
    """Its rows as compiled code writes them, its own growth, its leaving."""
    lanes, caches = made(3)
    before = [contents(cache) for cache in caches]
    stale = [cache.rows(8) for cache in caches]
    seat(lanes, caches)
    for cache, rows, old in zip(caches, before, stale, strict=True):
        assert torch.equal(contents(cache), rows)
        assert cache.rows(8)[0].data_ptr() != old[0].data_ptr()
    middle = caches[1]
    middle.rows(5)[1][:, 4] = 7.0  # the values of the first layer
    assert bool((middle.views(1)[0][0][:, 1] == 7.0).all())
    middle.views(2000)
    assert torch.equal(contents(middle), before[1])
    caches[0].move_out()
    assert torch.equal(contents(caches[0]), before[0])
    assert contents(caches[0]).shape == before[0].shape


@pytest.mark.parametrize("length", [255, 256, 257, 600])
def test_who_leaves_has_room_for_its_rows(length: int) -> None:
    _, (cache,) = made(1, length)
    before = contents(cache)
    cache.move_out()
    assert torch.equal(contents(cache), before)
    assert cache._slab.shape[3] >= length


def test_what_was_taken_back_is_zero_for_those_who_hide_it() -> None:
    lanes, caches = made(2, 6)
    for cache in caches:
        cache.rollback_to(5)
    kept = [contents(cache) for cache in caches]
    seat(lanes, caches, 6)
    for cache, rows in zip(caches, kept, strict=True):
        assert torch.equal(contents(cache), rows)
        assert not cache._slab[:, :, :, 5:].any()
    for count in (1, 3):  # the same of rows that were written in the lane
        for cache in caches:
            cache.reserve(5 + count)
            cache._slab[:, :, :, 5 : 5 + count] = torch.nan
        seat(lanes, caches, 6)
        for cache, rows in zip(caches, kept, strict=True):
            assert torch.equal(contents(cache), rows)
            assert not cache._slab[:, :, :, 5:].any()


def test_lanes_made_in_inference_mode_serve_outside_it() -> None:
    lanes, caches = made(2)
    with torch.inference_mode():
        seat(lanes, caches)
    caches[0].views(1)[0][0].fill_(1.0)
    seat(lanes, caches, 2000)
