"""Slots of a pool: who has which rows, and that nobody loses a row."""

import random
import threading

import pytest
import torch

from specstream.model.kv import KVPool, PooledCache
from specstream.model.weights import DecoderWeights
from tests.model.families import build, valid_rows


def pool_of(rows: int) -> KVPool:
    weights = DecoderWeights.of(build("llama"))
    assert weights is not None
    return KVPool(weights, rows)


def grown(pool: KVPool, rows: int, value: float) -> PooledCache:
    cache = PooledCache(pool)
    extend(cache, rows, value)
    return cache


def extend(cache: PooledCache, rows: int, value: float) -> None:
    start = cache.length
    cache.reserve(start + rows)
    cache.append_to(start + rows)
    valid_rows(cache)[:, :, start:].fill_(value)


def test_an_empty_sequence_takes_no_rows_and_a_dropped_one_returns_its_own() -> None:
    pool = pool_of(1024)
    cache = PooledCache(pool)
    assert (cache.nbytes, pool.free_rows) == (0, 1024)
    extend(cache, 10, 1.0)
    assert cache.nbytes == 256 * pool.row_bytes and pool.free_rows == 768
    del cache
    assert pool.free_rows == 1024


def test_a_grown_sequence_takes_its_rows_along() -> None:
    pool = pool_of(4096)
    first, second = grown(pool, 200, 1.0), grown(pool, 10, 2.0)
    extend(first, 100, 3.0)
    rows = valid_rows(first)
    assert rows.shape[2] == 300
    assert bool((rows[:, :, :200] == 1.0).all()) and bool((rows[:, :, 200:] == 3.0).all())
    assert bool((valid_rows(second) == 2.0).all())
    assert pool.free_rows == 4096 - 512 - 256  # the smaller slot was returned


def test_a_full_pool_gives_what_is_needed_and_then_says_so() -> None:
    pool = pool_of(700)
    first = grown(pool, 256, 1.0)
    second = grown(pool, 300, 2.0)  # 144 rows are left
    with pytest.raises(torch.OutOfMemoryError, match="pool of 700 rows has no 257 adjacent"):
        first.reserve(257)
    assert first.length == 256 and bool((valid_rows(first) == 1.0).all())
    del second
    first.reserve(444)  # no 512 rows are free, but as many as are needed
    assert first.slot.rows == 444 and bool((valid_rows(first) == 1.0).all())


def test_free_neighbours_become_one_range() -> None:
    pool = pool_of(1024)
    caches = [grown(pool, 256, float(n)) for n in range(4)]
    del caches[1:3]
    assert grown(pool, 512, 9.0).slot.start == 256


def test_rolled_back_and_kept_paths() -> None:
    pool = pool_of(1024)
    grown(pool, 5, 0.0)
    cache = PooledCache(pool)
    for row in range(8):
        extend(cache, 1, float(row))
    cache.keep_path(3, (1, 3, 4))
    assert cache.length == 6
    assert valid_rows(cache)[0, 0, :, 0, 0].tolist() == [0.0, 1.0, 2.0, 4.0, 6.0, 7.0]
    cache.rollback_to(2)
    cache.rollback_to(2)
    assert cache.length == 2
    with pytest.raises(ValueError, match="2 rows are valid"):
        cache.rollback_to(3)


def test_a_sequence_may_be_dropped_on_any_thread() -> None:
    pool = pool_of(512)
    held = [grown(pool, 1, 1.0)]
    thread = threading.Thread(target=held.clear)
    thread.start()
    thread.join()
    assert pool.free_rows == 512


@pytest.mark.parametrize("seed", range(5))
def test_no_row_belongs_to_two(seed: int) -> None:
    rng, pool = random.Random(seed), pool_of(4000)
    caches: dict[float, PooledCache] = {}
    for step in range(200):
        if caches and rng.random() < 0.3:
            del caches[rng.choice(list(caches))]
        elif caches and rng.random() < 0.5:
            value = rng.choice(list(caches))
            try:
                extend(caches[value], rng.randint(1, 200), value)
            except torch.OutOfMemoryError:
                del caches[value]
        else:
            try:
                caches[float(step)] = grown(pool, rng.randint(1, 300), float(step))
            except torch.OutOfMemoryError:
                continue
        assert all(bool((valid_rows(c) == value).all()) for value, c in caches.items())
        assert pool.free_rows + sum(c.slot.rows for c in caches.values()) == 4000


def test_a_sequence_begins_as_a_copy_of_another() -> None:
    pool = pool_of(2048)
    source = grown(pool, 300, 1.0)
    extend(source, 20, 2.0)
    copy = grown(pool, 5, 9.0)
    copy.begin_as(source, 310)
    assert copy.length == 310
    rows = valid_rows(copy)
    assert bool((rows[:, :, :300] == 1.0).all()) and bool((rows[:, :, 300:] == 2.0).all())
    extend(copy, 4, 3.0)
    assert source.length == 320 and bool((valid_rows(source)[:, :, 300:] == 2.0).all())
    with pytest.raises(ValueError, match="320 rows are valid"):
        copy.begin_as(source, 321)
