"""Ctrl-C during imports and model loading ends the process with one line, whatever its threads do."""

import os
import signal
import subprocess
import sys
import threading

import pytest

from specstream.commands.shared.terminal import ends_at_once

pytestmark = pytest.mark.slow

# Blocks the importing thread for ever: the main thread, or one that the interpreter's exit waits for.
STUCK = """
import sys, threading

def stuck(*args, **options):
    print("here", flush=True)
    threading.Event().wait()

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == wanted:
            stuck()

sys.meta_path.insert(0, Finder())
"""

# Work that blocks: the import of a module, or a line of code.
PLACES = {
    "parsing": ("specstream.commands.shared.common", ["generate", "x"]),
    "the command": ("specstream.commands.generate", ["generate", "x"]),
    "torch": ("torch", ["generate", "x"]),
    "torch, for a server": ("torch", ["serve", "--port", "0", "--voice", "reference"]),
    "a look": ("specstream.stages.adapters", ["doctor"]),
    "torch, for a check": ("torch", ["verify"]),
    "the Hub": ("huggingface_hub", ["generate", "x", "--target", "some-org/some-model"]),
}


def ended(code: str, *signals: int, ignores: bool = False) -> tuple[int, str, str]:
    """Exit code, stderr and later stdout of a process that gets ``signals`` once it says "here"."""

    def ignore() -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)

    with subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=ignore if ignores else None,
        env={key: value for key, value in os.environ.items() if key != "PYTHONUNBUFFERED"},
    ) as child:
        try:
            assert child.stdout is not None
            assert child.stdout.readline() == "here\n"
            for number in signals:
                child.send_signal(number)
            more, said = child.communicate(timeout=60)
        finally:
            child.kill()
    return child.returncode, said, more


def command(argv: list[str], wanted: str = "") -> str:
    start = f"from specstream.commands.main import main\nsys.exit(main({argv!r}))"
    return f"wanted = {wanted!r}\n{STUCK}\n{start}"


@pytest.mark.parametrize("place", PLACES)
def test_an_import_that_takes_long_is_not_waited_for(place: str) -> None:
    code = command(PLACES[place][1], PLACES[place][0])
    assert ended(code, signal.SIGINT) == (130, "specstream: interrupted\n", "")


def test_nor_is_a_model_that_takes_long_to_read() -> None:
    code = command(["generate", "x"]).replace(
        "from specstream.commands.main",
        """
import types

class EngineWorker:
    def __init__(self, *args):
        self.start = threading.Thread(target=stuck).start

sys.modules["specstream.engine.core.worker"] = types.SimpleNamespace(EngineWorker=EngineWorker)
from specstream.commands.main""",
    )
    assert ended(code, signal.SIGINT) == (130, "specstream: interrupted\n", "")
    assert ended(code, signal.SIGTERM) == (143, "specstream: terminated\n", "")
    # A shell script's background job: interrupts pass it by, a stop doesn't.
    both = signal.SIGINT, signal.SIGTERM
    assert ended(code, *both, ignores=True) == (143, "specstream: terminated\n", "")


def test_a_signal_that_does_not_wake_the_event_loop_is_noticed() -> None:
    """One that comes just before the loop goes to sleep, or reaches another thread."""
    code = command(["generate", "x"]).replace(
        "from specstream.commands.main",
        """
import signal, time, types

def interrupt():
    time.sleep(0.5)
    signal.pthread_kill(threading.get_ident(), signal.SIGINT)
    stuck()

class EngineWorker:
    def __init__(self, *args):
        self.start = threading.Thread(target=interrupt).start

sys.modules["specstream.engine.core.worker"] = types.SimpleNamespace(EngineWorker=EngineWorker)
from specstream.commands.main""",
    )
    assert ended(code) == (130, "specstream: interrupted\n", "")


def test_after_an_interrupt_everything_is_unwound_but_not_the_interpreter() -> None:
    code = """
import atexit, anyio
import specstream.commands.generate as command

async def run(args):
    print("here", flush=True)
    try:
        await anyio.sleep(60)
    finally:
        print("unwound", file=sys.stderr)
        print("kept")

command.run = run
atexit.register(stuck)
sys.argv[1:] = ["generate", "x"]
from specstream.commands.main import main
sys.exit(main())
"""
    done = ended(f"wanted = ''\n{STUCK}{code}", signal.SIGINT)
    assert done == (130, "unwound\nspecstream: interrupted\n", "kept\n")


def test_the_block_leaves_the_handlers_as_they_were() -> None:
    numbers = signal.SIGINT, signal.SIGTERM
    before = [signal.getsignal(number) for number in numbers]
    with ends_at_once():
        inside = [signal.getsignal(number) for number in numbers]
    assert inside != before == [signal.getsignal(number) for number in numbers]
    with pytest.raises(ValueError, match="x"), ends_at_once():
        raise ValueError("x")
    assert before == [signal.getsignal(number) for number in numbers]


def test_a_thread_may_enter_the_block_and_changes_nothing() -> None:
    before, found = signal.getsignal(signal.SIGINT), []

    def enter() -> None:
        with ends_at_once():
            found.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    assert found == [before]
