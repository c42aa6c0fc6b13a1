"""The threads of native passes: kept between calls, of a call's own, gone after a fork."""

import os
import subprocess
import sys
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from torch import Tensor

from specstream.model.native.library import library
from specstream.model.native.matrix import NativeMatrix

ROUNDS = 50


@pytest.fixture
def matrix() -> NativeMatrix:
    """A matrix whose products take several pieces for each of four threads."""
    code = library(True)
    assert code is not None
    torch.manual_seed(0)
    return NativeMatrix(code, torch.randn(1024, 256).bfloat16(), None)


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def product(matrix: NativeMatrix, x: Tensor, threads: int) -> Tensor:
    torch.set_num_threads(threads)
    return matrix(x)


def test_more_threads_than_cores_give_the_same_bits(matrix: NativeMatrix) -> None:
    x = torch.randn(3, 256)
    alone = product(matrix, x, 1)
    for _ in range(ROUNDS):
        for count in (2, 4, 2 * (os.cpu_count() or 1) + 1):
            assert torch.equal(product(matrix, x, count), alone)


def test_calls_at_the_same_time_do_not_share_threads(matrix: NativeMatrix) -> None:
    xs = [torch.randn(1 + i, 256) for i in range(8)]
    alone = [product(matrix, x, 1) for x in xs]

    def calls(i: int) -> bool:
        return all(torch.equal(product(matrix, xs[i], 4), alone[i]) for _ in range(ROUNDS))

    with ThreadPoolExecutor(len(xs)) as pool:
        assert all(pool.map(calls, range(len(xs))))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_process_has_threads_of_its_own(matrix: NativeMatrix) -> None:
    x = torch.randn(3, 256)
    alone = product(matrix, x, 2)
    with warnings.catch_warnings():  # newer Pythons warn of forks with threads, which is the point
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        try:
            os._exit(0 if torch.equal(matrix(x), alone) else 1)
        finally:
            os._exit(2)  # whatever was raised: nothing else of the tests runs here
    assert os.waitpid(child, 0)[1] == 0
    assert torch.equal(matrix(x), alone)


@pytest.mark.skipif(sys.platform != "linux", reason="reads the states of threads in /proc")
def test_they_sleep_when_there_is_nothing_to_do(matrix: NativeMatrix) -> None:
    def states() -> dict[str, str]:
        tasks = Path("/proc/self/task").iterdir()
        return {task.name: (task / "stat").read_text().rsplit(")", 1)[1].split()[0] for task in tasks}

    x = torch.randn(3, 256)
    product(matrix, x, 4)
    own = str(os.getpid())
    while {state for task, state in states().items() if task != own} - {"S"}:
        os.sched_yield()  # the test's time limit ends this


ENDS = """
import ctypes, threading
import torch
from specstream.model.native.library import library
from specstream.model.native.matrix import NativeMatrix

code, begun = library(True), threading.Event()
matrix = NativeMatrix(code, torch.randn(4096, 1024), None)
x, out = torch.randn(64, 1024), torch.empty(2, 64, 4096)

def endless(out):
    # Nothing of torch's, whose own code doesn't bear that Python ends its thread.
    while True:
        begun.set()
        code.run_product(ctypes.byref(matrix.struct), x.data_ptr(), 64, out.data_ptr(), 3)

for each in out:
    threading.Thread(target=endless, args=(each,), daemon=True).start()
begun.wait()
"""


@pytest.mark.slow
def test_a_process_may_end_in_the_middle_of_a_pass() -> None:
    done = subprocess.run([sys.executable, "-c", ENDS], capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stderr) == (0, "")
