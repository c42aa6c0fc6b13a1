"""Sequences that are read in one call get what each would get alone."""

from __future__ import annotations

import gc
import random
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import pytest
import torch

from specstream.model import attention
from specstream.model import lanes as lanes_module
from specstream.model import together as together_module
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
    crowd = _Crowd(build(name), (60, 90, 160, 70, 170))
    crowd.go({0: 1, 1: 16, 2: 5})
    crowd.go({2: 2, 0: 1, 1: 1, 3: 30, 4: 90})
    crowd.mislead({0: 3, 1: 1, 2: 6, 3: 2})
    crowd.go({4: 1, 3: 3, 2: 2, 1: 4, 0: 2})
    crowd.go({0: 2, 1: 2, 2: 2, 3: 1, 4: 2}, keep=lambda n: 1)
    crowd.go({3: 1, 0: 3, 1: 2, 2: 40, 4: 30}, keep=lambda n: 2 if n in (3, 30) else 1)
    crowd.go({1: 7})
    crowd.go({1: 1, 4: 1})
    crowd.go({0: 1, 1: 1, 2: 1, 3: 1, 4: 1})
    layers = len(crowd.model.model.layers)
    assert [used[i] for i in range(0, len(used), layers)] == [3, 3, 4, 5, 5, 3, 2, 5]


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
    del broken, cache
    gc.collect()
    crowd.go({2: 3, 0: 2, 1: 2})


@torch.inference_mode()
def test_what_a_shared_pass_broke_is_gone_with_its_rows(used: list[int]) -> None:
    """Two tokens that overflow are taken back; the next pass of all hides their rows."""
    crowd = _Crowd(build("llama"), (40, 40))
    crowd.go({0: 9, 1: 3})
    crowd.go({0: 3, 1: 1})
    short, other = crowd.caches
    assert isinstance(short, SlabCache)
    short._slab[:, :, :, 10:12] = torch.nan
    short.rollback_to(10)
    other.rollback_to(3)
    crowd.go({0: 1, 1: 9})


@pytest.mark.parametrize("seed", range(12))
@torch.inference_mode()
def test_whatever_happens_to_them_they_stay_themselves(
    seed: int, used: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Growing, rolled back, let go, interrupted, in any company; more of them than lanes."""
    rng = random.Random(seed)
    for name, choices in (("_FIRST_ROWS", (1, 16)), ("_FIRST_LANES", (1, 4)), ("_IDLE", (0, 3))):
        monkeypatch.setattr(lanes_module, name, rng.choice(choices))
    monkeypatch.setattr(together_module, "_WASTE", rng.choice((1.5, 3.0, 100.0)))
    crowd = _Crowd(build(rng.choice(sorted(FAMILY))), [90] * rng.choice((3, 9, 19)))
    everybody = range(len(crowd.caches))
    for _ in range(60):
        who, what = rng.choice(everybody), rng.random()
        if what < 0.15:
            crowd.caches[who].rollback_to(rng.randint(0, crowd.caches[who].length))
        elif what < 0.25:
            crowd.caches[who] = crowd.runner.new_cache()
        else:
            some = rng.sample(everybody, rng.randint(2, len(everybody)))
            counts = {i: rng.choice((1, 1, 2, 5, 20)) for i in some}
            fits = {i: n for i, n in counts.items() if crowd.caches[i].length + n <= 90}
            if what < 0.35:
                _interrupt(crowd, fits, rng.randint(1, 6))
            elif what < 0.5:
                crowd.mislead(fits)
            elif fits:
                crowd.go(fits, keep=lambda n: rng.randint(1, n))
        slabs = [cache._slab for cache in crowd.caches if isinstance(cache, SlabCache)]
        assert len({id(slab) for slab in slabs}) == len(slabs)  # no lane has two
    assert used


class _Interrupted(Exception):
    pass


def _interrupt(crowd: _Crowd, counts: dict[int, int], after: int) -> None:
    """A pass that breaks after so many reads counts for nothing."""
    lengths = [cache.length for cache in crowd.caches]
    reads = iter(range(after))
    with pytest.MonkeyPatch.context() as patch:
        real = attention.Heads.read

        def read(*args: Any) -> torch.Tensor:
            if next(reads, None) is None:
                raise _Interrupted
            return real(*args)

        patch.setattr(attention.Heads, "read", read)
        with suppress(_Interrupted):
            crowd.mislead(counts)
    assert [cache.length for cache in crowd.caches] == lengths


@torch.inference_mode()
def test_long_contexts_are_masked_without_stored_masks(
    used: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attention, "_STORED", 20)
    crowd = _Crowd(build("llama"), (80, 80))
    for counts in ({0: 30, 1: 5}, {0: 3}, {0: 20, 1: 4}, {1: 20}, {0: 3, 1: 2}):
        crowd.go(counts)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@torch.inference_mode()
def test_half_precision_is_as_near_together_as_alone(dtype: torch.dtype, used: list[int]) -> None:
    model, exact = build("qwen3"), build("qwen3")
    for parameter in model.parameters():
        parameter.data = parameter.data.to(dtype)
    runner = ModelRunner(model)
    assert runner.lean
    texts = [text(n, seed=n) for n in (20, 33)]
    caches = [runner.new_cache() for _ in texts]
    for start, stop in ((0, 17), (17, 18), (18, 20)):
        found = runner.forward(
            [
                ForwardInput(t[start:stop], c, stop - start)
                for t, c in zip(texts, caches, strict=True)
            ]
        )
        for ids, rows in zip(texts, found, strict=True):
            wanted = whole(exact, ids[:stop])[start:]
            theirs = whole(model, ids[:stop])[start:].float()
            off, allowed = (rows.float() - wanted).abs(), (theirs - wanted).abs()
            assert off.mean() < 1.5 * allowed.mean()
    assert used


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
    assert together([50] * 18, [1] * 18) == 16  # more than there are lanes
    fixed = [lean.new_cache(64) for _ in range(3)]  # these show all their rows, and have their own
    assert Together.of(lean._heads, lean._masks, lean._lanes, fixed, [1] * 3) is None


def test_lanes_far_apart_are_read_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """What lies between them would be read for nothing."""
    monkeypatch.setattr(together_module, "_CROWD", 2)
    lean = ModelRunner(build("llama"))._lean
    assert lean is not None
    caches = [lean.new_cache() for _ in range(8)]

    def together(some: Sequence[SlabCache]) -> bool:
        counts = [1] * len(some)
        return Together.of(lean._heads, lean._masks, lean._lanes, some, counts) is not None

    assert together(caches)
    assert not together([caches[0], caches[3]])
    assert together([caches[0], caches[3], caches[1]])
