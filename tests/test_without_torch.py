"""Hosts of a remote voice, clients and tests of agents run where torch and transformers are missing."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.missing import needs_installation

pytestmark = pytest.mark.slow

EXAMPLES = Path(__file__).parent.parent / "examples"

WITHOUT = """
import runpy, sys
sys.modules |= {"torch": None, "transformers": None}  # importing them raises ModuleNotFoundError
runpy.run_path(sys.argv[1], run_name="__main__")
"""

CLIENT = """
import asyncio
from specstream.testing import ScriptedEngine
from specstream.client.client import RealtimeClient, TextDelta
from specstream.server.server import RealtimeServer

async def main():
    server = RealtimeServer(ScriptedEngine(["Two at seven. Done!"]), port=0)
    async with server.start() as port, RealtimeClient.connect(f"ws://127.0.0.1:{port}") as client:
        events = [event async for event in client.respond("Book a table.", audio=False)]
    print("".join(event.text for event in events if isinstance(event, TextDelta)))

asyncio.run(main())
"""


def run(path: Path) -> str:
    command = [sys.executable, "-c", WITHOUT, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, cwd=EXAMPLES.parent)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_command_that_needs_an_engine_says_what_to_install() -> None:
    command = "import sys; from specstream.commands.main import main; sys.modules['torch'] = None; "
    command += "sys.exit(main(['generate', 'Hi']))"
    done = subprocess.run([sys.executable, "-c", command], capture_output=True, text=True, timeout=100)
    assert done.returncode == 1
    assert done.stderr == "specstream: this needs torch: pip install specstream-sdk\n"


@pytest.mark.parametrize(
    ("example", "said"), [("05_remote_voice.py", "s of speech"), ("09_latency.py", "first_audio")]
)
def test_a_remote_voice_and_the_testing_kit(example: str, said: str) -> None:
    needs_installation()
    assert said in run(EXAMPLES / example)


def test_a_client_of_a_server(tmp_path: Path) -> None:
    script = tmp_path / "client.py"
    script.write_text(CLIENT)
    assert run(script) == "Two at seven. Done!\n"
