"""What is launched, with nothing launched; and whether all of it compiles for an H100."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from specstream.model import fused
from specstream.model.attention.base import Ragged
from specstream.model.fused import launch
from tests.model.fused.cases import Appended, make_pass, tree

# `cases` skips this module where Triton is missing.
from specstream.model.fused import attention, elementwise  # isort: skip

SHARED = 227 * 1024  # bytes that a program may have on an H100


@pytest.fixture
def grids(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    found = list[tuple[int, ...]]()

    def record(kernel: Any, grid: tuple[int, ...], *args: Any, **meta: Any) -> None:
        found.append(grid)

    monkeypatch.setattr(launch, "launch", record)
    return found


def test_installed() -> None:
    assert fused.installed()


def test_one_kernel_or_two(grids: list[tuple[int, ...]]) -> None:
    made = make_pass([Appended(99, 1, tree(8)), Appended(40, 2)], 8, 2, 64, torch.bfloat16)
    arguments = made.queries, made.keys, made.values, made.places
    assert attention.attend(*arguments, splits=1).shape == made.queries.shape
    assert grids == [(2, 2, 1)]
    attention.attend(*arguments)
    assert grids[1:] == [(2, 2, 2), (11, 8)]  # two splits of at least 64 keys


def test_the_grid_does_not_follow_the_lengths(grids: list[tuple[int, ...]]) -> None:
    """As a CUDA graph needs it."""
    for before in (3, 700):
        made = make_pass([Appended(before, 5)], 8, 2, 64, torch.bfloat16)
        p = made.places
        places = Ragged(p.query_starts, p.key_starts, p.key_counts, p.limits, None, 5, 32768)
        attention.attend(made.queries, made.keys, made.values, places)
    assert grids[:2] == grids[2:]
    assert grids[0] == (1, 2, 64)


def test_one_kernel_each(grids: list[tuple[int, ...]]) -> None:
    x, joint = torch.zeros(3, 64), torch.zeros(3, 9, 64)
    assert elementwise.add_norm(x, x.clone(), x[0], 1e-5).shape == (3, 64)
    assert elementwise.silu_mul(x).shape == (3, 32)
    rows, pool = torch.arange(3), torch.zeros(2, 7, 2, 64)
    assert elementwise.rotate_and_store(joint, x, x, rows, pool, 5).shape == (3, 5, 64)
    assert grids == [(3,), (3, 1), (3, 3)]


@pytest.mark.parametrize(
    ("programs", "keys", "splits"),
    [(1, 8192, 64), (8, 8192, 32), (8, 64, 1), (8, 65, 2), (100, 8192, 2), (300, 8192, 1), (0, 0, 1)],
)
def test_splits(programs: int, keys: int, splits: int) -> None:
    assert attention.choose_splits(programs, keys, 132) == splits


@pytest.mark.parametrize(
    ("group", "queries", "rows", "steps"),
    [(1, 1, 16, 16), (3, 1, 16, 5), (3, 6, 32, 10), (4, 17, 128, 32), (8, 500, 128, 16)],
)
def test_tiles(group: int, queries: int, rows: int, steps: int) -> None:
    tile = attention.choose_tile(group, 128, torch.bfloat16, queries)
    assert (tile.rows, tile.steps) == (rows, steps)


def test_all_compile_for_an_h100(tmp_path: Path) -> None:
    """In a process of its own: the interpreter is chosen when the kernels are imported."""
    root = Path(__file__).parents[3]
    paths = [str(root), os.environ.get("PYTHONPATH", "")]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "TRITON_CACHE_DIR": str(tmp_path)}
    env.pop("TRITON_INTERPRET", None)
    command = [sys.executable, "-m", "tests.model.fused.ahead"]
    done = subprocess.run(command, cwd=root, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    names = {each["name"] for each in found}
    assert names == {"_attend", "_merge", "_add_norm", "_rotate_and_store", "_silu_mul"}
    for each in found:
        assert each["shared"] < SHARED, each
        if each["name"] == "_attend":
            assert each["async"], each  # keys are loaded ahead
            assert each["matrix"] or "fp32" in each["label"], each
