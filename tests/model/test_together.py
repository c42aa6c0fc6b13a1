"""Sequences that are read in one call get what each would get alone."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from specstream.model import lanes as lanes_module
from specstream.model import together as together_module
from specstream.model.lanes import Lanes, Seats
from specstream.model.runner import ForwardInput, ModelRunner
from specstream.model.slab import SlabCache
from specstream.model.together import Together
from tests.model.families import FAMILY, build, text, whole
from tests.transfers import transfers


@pytest.fixture
def used(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """However few they are, sequences are read in one call; how many they were is noted."""
    counts: list[int] = []
    real = Together.attend

    def attend(self: Together, *args: Any) -> torch.Tensor:
        counts.append(self.count)
        return real(self, *args)

    monkeypatch.setattr(together_module, "_CROWD", 2)
    monkeypatch.setattr(together_module, "_WASTE", 16.0)
    monkeypatch.setattr(Together, "attend", attend)
    return counts


class _Crowd:
    """Sequences that grow along texts of their own, checked against the model's own logits."""

    def __init__(self, model: Any, lengths: Sequence[int]) -> None:
        self.model, self.runner = model, ModelRunner(model)
        self.texts = [text(length, seed=number) for number, length in enumerate(lengths)]
        self.wanted = [whole(model, ids) for ids in self.texts]
        self.caches = [self.runner.new_cache() for _ in lengths]

    def go(self, counts: dict[int, int], keep: Callable[[int], int] = lambda n: n) -> None:
        """Advance some by so many tokens, in the order given."""
        inputs = [
            ForwardInput(self._next(which, n), self.caches[which], keep(n))
            for which, n in counts.items()
        ]
        found = self.runner.forward(inputs)
        for which, rows in zip(counts, found, strict=True):
            end = self.caches[which].length
            wanted = self.wanted[which][end - rows.shape[0] : end]
            torch.testing.assert_close(rows, wanted, atol=1e-4, rtol=1e-4)

    def mislead(self, counts: dict[int, int]) -> None:
        """The same with other tokens, taken back."""
        self.runner.forward(
            [ForwardInput(text(n, seed=90 + n), self.caches[i]) for i, n in counts.items()]
        )
        for which, n in counts.items():
            self.caches[which].rollback_to(self.caches[which].length - n)

    def _next(self, which: int, count: int) -> torch.Tensor:
        at = self.caches[which].length
        return self.texts[which][at : at + count]


@pytest.mark.parametrize("name", sorted(FAMILY))
@torch.inference_mode()
def test_ragged_sequences_get_the_models_own_logits(name: str, used: list[int]) -> None:
    """In any order, with long parts behind them, with few rows wanted, after rows taken back."""
    crowd = _Crowd(build(name), (60, 90, 140, 70, 150))
    crowd.go({0: 1, 1: 16, 2: 5})
    crowd.go({2: 2, 0: 1, 1: 1, 3: 30, 4: 90})
    crowd.mislead({0: 3, 1: 1, 2: 6, 3: 2})
    crowd.go({4: 1, 3: 3, 2: 2, 1: 4, 0: 2})
    crowd.go({0: 2, 1: 2, 2: 2, 3: 1, 4: 2}, keep=lambda n: 1)
    crowd.go({1: 7})
    crowd.go({1: 1, 4: 1})
    crowd.go({0: 1, 1: 1, 2: 1, 3: 1, 4: 1})
    layers = len(crowd.model.model.layers)
    assert [used[i] for i in range(0, len(used), layers)] == [3, 3, 4, 5, 5, 2, 5]


@torch.inference_mode()
def test_a_shared_pass_never_waits_for_the_device(used: list[int]) -> None:
    runner = ModelRunner(build("llama"))
    inputs = [ForwardInput(text(n), runner.new_cache(), keep=1) for n in (2, 1, 3)]
    for _ in range(2):  # entering lanes, and staying there
        with transfers() as counter:
            runner.forward(inputs)
        assert counter.where == []
    assert used


@torch.inference_mode()
def test_lanes_grow_with_the_sequences(used: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lanes_module, "_FIRST_ROWS", 16)
    monkeypatch.setattr(lanes_module, "_FIRST_LANES", 2)
    crowd = _Crowd(build("llama"), (80, 80, 80, 80, 80))
    crowd.go({0: 9, 1: 4})
    crowd.go({0: 9, 1: 4})  # more than 16 rows
    crowd.go({0: 2, 1: 2, 2: 2, 3: 2, 4: 2})  # more than two lanes, and more than four
    crowd.go({0: 30})  # it outgrows its lane alone, and returns
    for _ in range(3):
        crowd.go(dict.fromkeys(range(5), 5))
    assert 5 in used


@torch.inference_mode()
def test_another_ones_broken_numbers_stay_its_own(used: list[int]) -> None:
    """Neither a neighbour's, nor those of who was there before, nor rows that were taken back."""
    crowd = _Crowd(build("llama"), (40, 40, 40))
    crowd.go({0: 5, 1: 8, 2: 20})
    neighbour, broken = crowd.caches[1:]
    assert isinstance(neighbour, SlabCache) and isinstance(broken, SlabCache)
    neighbour.views(4)[0][0].fill_(torch.nan)  # as a pass that overflowed leaves them
    broken._slab.fill_(torch.nan)
    poisoned = [ForwardInput(text(3), cache) for cache in crowd.caches]
    rows = crowd.runner.forward(poisoned)
    assert rows[2].isnan().all() and not rows[0].isnan().any() and not rows[1].isnan().any()
    for cache, length in zip(crowd.caches, (5, 8, 20), strict=True):
        cache.rollback_to(length)
    crowd.caches[2] = crowd.runner.new_cache()  # the lane is free, and is taken by another
    poisoned.clear()
    del broken
    gc.collect()
    crowd.go({2: 3, 0: 2, 1: 2})


def test_what_would_waste_too_much_is_read_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(together_module, "_CROWD", 2)
    runner = ModelRunner(build("llama"))
    assert runner._lean is not None
    lean = runner._lean

    def together(lengths: Sequence[int], counts: Sequence[int]) -> int:
        caches = [lean.new_cache() for _ in lengths]
        for cache, length in zip(caches, lengths, strict=True):
            cache.reserve(length)
            cache.extend(length)
        made = Together.of(lean._heads, lean._masks, lean._lanes, caches, counts)
        return made.count if made is not None else 0

    assert together([100, 90, 110], [1, 1, 2]) == 3
    assert together([100, 90, 110], [1, 1, 200]) == 2  # a prompt's part reads for itself
    assert together([100, 90, 110], [200, 1, 1]) == 0
    assert together([1000, 90, 110], [1, 1, 1]) == 0  # two would be read to 1000 rows
    assert together([100, 90, 110], [1, 1, 9]) == 0  # two would ask nine times
    assert together([50] * 17, [1] * 17) == 0  # more than there are lanes


def _lanes(count: int) -> tuple[Lanes, list[SlabCache]]:
    lean = ModelRunner(build("llama"))._lean
    assert lean is not None
    return Lanes(lean.weights), [lean.new_cache() for _ in range(count)]


def _seat(lanes: Lanes, caches: Sequence[SlabCache], rows: int = 8) -> list[int]:
    seats = lanes.seat(caches, [rows] * len(caches))
    assert isinstance(seats, Seats)
    return seats.lanes


def test_a_lane_is_kept_until_it_is_free_or_long_unused() -> None:
    lanes, caches = _lanes(20)
    assert _seat(lanes, caches[:4]) == [0, 1, 2, 3]
    assert _seat(lanes, caches[3:5]) == [3, 4]  # nobody had to leave
    assert _seat(lanes, caches[:4]) == [0, 1, 2, 3]
    del caches[1]
    assert _seat(lanes, [caches[0], caches[10]]) == [0, 1]  # the place of the one that is gone
    for _ in range(lanes_module._IDLE + 1):
        _seat(lanes, [caches[0], caches[10]])
    assert _seat(lanes, [caches[0], caches[10], caches[11]]) == [0, 1, 2]  # of one long unused


def test_those_that_pass_together_move_together() -> None:
    lanes, caches = _lanes(8)
    assert _seat(lanes, caches) == list(range(8))
    assert _seat(lanes, [caches[0], caches[7]]) == [0, 7]  # the others may be back at once
    for _ in range(lanes_module._IDLE + 1):
        _seat(lanes, [caches[0], caches[7]])
    assert _seat(lanes, [caches[7], caches[0]]) == [1, 0]


def test_there_are_at_most_sixteen_lanes_of_bounded_size(monkeypatch: pytest.MonkeyPatch) -> None:
    lanes, caches = _lanes(20)
    assert _seat(lanes, caches[:16]) == list(range(16))
    assert sorted(_seat(lanes, caches[12:20])) == [0, 1, 2, 3, 12, 13, 14, 15]
    assert lanes.seat(caches[:17], [8] * 17) is None
    monkeypatch.setattr(lanes_module, "_BYTES", 1)
    assert lanes.seat(caches[:4], [10_000] * 4) is None


@torch.inference_mode()
def test_a_sequence_in_a_lane_can_do_all_that_it_could_before() -> None:
    """Its rows as compiled code writes them, its own growth, its leaving."""
    lanes, caches = _lanes(3)
    for cache in caches:
        fresh, _ = cache.views(4)
        for layer in fresh:
            layer.normal_()
        cache.extend(4)
    before = [torch.stack(cache.views(1)[1])[..., :4, :].clone() for cache in caches]
    _seat(lanes, caches)
    for cache, rows in zip(caches, before, strict=True):
        assert torch.equal(torch.stack(cache.views(1)[1])[..., :4, :], rows)
    middle = caches[1]
    middle.rows(5)[1][:, 4] = 7.0  # the values of the first layer
    assert bool((middle.views(1)[0][0][1] == 7.0).all())
    middle.views(2000)
    assert torch.equal(torch.stack(middle.views(1)[1])[..., :4, :], before[1])
    caches[0].move_out()
    assert torch.equal(torch.stack(caches[0].views(1)[1])[..., :4, :], before[0])
    assert _seat(lanes, [caches[2], caches[0]]) in ([1, 0], [2, 1], [0, 1], [1, 2])
