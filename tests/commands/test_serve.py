"""The line that the server prints when it is ready."""

import asyncio
import signal
import socket
from pathlib import Path
from typing import Any, Self
from unittest.mock import Mock

import pytest

from specstream.client.client import RealtimeClient
from specstream.commands.cluster import Replica
from specstream.commands.main import main, read_arguments
from specstream.commands.serve import opened_server
from specstream.commands.shared.chain import names_of
from specstream.commands.shared.serving import server_config
from specstream.config import EngineConfig
from specstream.engine.engine import Engine
from specstream.errors import EngineFailed, JournalFailed


class Loaded(Engine):
    """An engine that loads nothing: the server needs replies only when a client speaks."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        pass


def test_it_says_that_it_is_ready_and_where(monkeypatch: pytest.MonkeyPatch) -> None:
    """The address is printed on one line, when a client can connect and not before."""
    said: list[str] = []
    tasks: list[asyncio.Task[None]] = []

    def note(text: str) -> None:
        said.append(text)
        if text.startswith("ready"):
            tasks.append(asyncio.create_task(connect(text)))

    async def connect(text: str) -> None:
        async with RealtimeClient.connect(text.partition("realtime: ")[2]):
            said.append("connected")
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr("specstream.commands.shared.common.Engine", Loaded)
    monkeypatch.setattr("specstream.commands.serve.note", note)
    assert main(["serve", "--port", "0", "--voice", "reference", "--ears", "off"]) == 130
    ready, places, speed, connected = said
    assert places == "0 replies are written side by side (--max-running sets it)"  # none is loaded
    assert speed.startswith("on ") and " (OMP_NUM_THREADS=N sets it)" in speed
    page, _, realtime = ready.removeprefix("ready – page: ").partition("   realtime: ")
    assert page.removeprefix("http") + "v1/realtime" == realtime.removeprefix("ws")
    assert connected == "connected"


def test_clients_are_told_names_and_no_folders(tmp_path: Path) -> None:
    def told(**options: Any) -> dict[str, str]:
        return names_of(EngineConfig(**options))

    assert told() == {"target": "bundled-target", "draft": "bundled-draft"}
    assert told(target="smollm2") == {"target": "smollm2", "draft": "smollm2-eagle"}
    assert told(target=str(tmp_path / "mine"), draft=(str(tmp_path / "a"), "org/b")) == {
        "target": "mine",
        "draft": "a, b",
    }
    assert told(proposer={"kind": "off"}) == {"target": "bundled-target"}
    assert told(proposer={"kind": "suffix"})["draft"] == "suffix"


async def test_a_replica_of_ray_whose_engine_has_ended_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    await Replica().check_health()
    monkeypatch.setattr(Replica, "engine", Mock(failure=SystemError("planted")))
    with pytest.raises(EngineFailed, match="planted"):
        await Replica().check_health()


async def test_a_journal_that_cannot_be_reached_is_told_before_anything_is_loaded() -> None:
    pytest.importorskip("asyncpg")
    with socket.socket() as bound:  # but nobody listens
        bound.bind(("127.0.0.1", 0))
        place = f"postgresql://somebody@127.0.0.1:{bound.getsockname()[1]}/x"
        args = read_arguments(["serve", "--journal", place])
        config = server_config(args, table=True)
        with pytest.raises(JournalFailed, match="--journal: sessions can't be written down there"):
            async with opened_server(args, config):
                pass
