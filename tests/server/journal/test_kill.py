"""A server of its own process, killed with SIGKILL in mid-reply and started again: nothing is lost."""

import asyncio
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from random import Random

import anyio
import anyio.lowlevel
import pytest

from specstream.client import RealtimeClient
from specstream.client.client import AudioDelta, Done, TextDelta
from specstream.server.journal.sqlite import SqliteJournal
from specstream.testing import ScriptedEngine
from tests.server.doubles import Stand

TEXT = " ".join(f"Sentence {number} has a few words." for number in range(12))


def slowly() -> anyio.Event:
    """Let a model write a piece in five milliseconds."""
    event = anyio.Event()
    asyncio.get_running_loop().call_later(0.005, event.set)
    return event


async def main(port: int, folder: Path, *, reproducible: bool) -> None:
    """What the process that is killed does."""
    engine = ScriptedEngine([TEXT], gate=slowly)
    engine.capabilities = replace(engine.capabilities, reproducible=reproducible)
    stand = Stand(engine, port=port, journal=SqliteJournal(folder))
    async with stand.running():
        sys.stdout.write(f"{stand.port}\n")
        sys.stdout.flush()
        await anyio.sleep_forever()


class Victim:
    """The process, and the next one at the same port."""

    def __init__(self, folder: Path, *, reproducible: bool) -> None:
        self.folder, self.reproducible, self.port = folder, reproducible, 0

    def begin(self) -> None:
        arguments = [str(self.port), str(self.folder), str(int(self.reproducible))]
        command = [sys.executable, "-m", __name__, *arguments]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.port = int(self.process.stdout.readline())

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


@pytest.mark.parametrize(
    "kills",
    [
        pytest.param(3, marks=pytest.mark.slow),
        pytest.param(50, marks=[pytest.mark.nightly, pytest.mark.timeout(600)]),
    ],
)
@pytest.mark.parametrize("reproducible", [True, False])
async def test_killed_at_random_points_every_event_comes_once(
    tmp_path: Path, kills: int, *, reproducible: bool
) -> None:
    """The client comes back by itself; a reproducible reply is whole, another one is told to be cut."""
    victim, chance = Victim(tmp_path, reproducible=reproducible), Random(kills)
    await anyio.to_thread.run_sync(victim.begin)
    try:
        async with RealtimeClient.connect(f"ws://127.0.0.1:{victim.port}") as client:
            for number in range(kills):
                at, audio = chance.randint(1, 60), bool(number % 2)
                text, samples, events, done = "", 0, 0, None
                async for event in client.respond("Tell me", audio=audio):
                    events += 1
                    if events == at:
                        victim.kill()
                        await anyio.to_thread.run_sync(victim.begin)
                    if isinstance(event, TextDelta):
                        text += event.text
                    elif isinstance(event, AudioDelta):
                        assert event.samples.start == samples
                        samples = event.samples.end
                    elif isinstance(event, Done):
                        done = event
                assert done is not None, f"kill {number} after {at} events"
                assert TEXT.startswith(text)
                if reproducible or events < at:
                    assert (done.status, text) == ("completed", TEXT), f"after {at} events"
                elif done.status != "completed":  # it was if nothing was missing but the end
                    assert (done.status, done.reason) == ("incomplete", "server_restarted")
        await anyio.lowlevel.checkpoint()
    finally:
        victim.kill()


if __name__ == "__main__":
    anyio.run(lambda: main(int(sys.argv[1]), Path(sys.argv[2]), reproducible=sys.argv[3] == "1"))
