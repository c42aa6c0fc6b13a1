"""What a session notes for its journal, where writing fails and where the server stops."""

import json
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest
from websockets.exceptions import ConnectionClosed

from specstream.errors import JournalFailed
from specstream.server.journal.base import Change, Put
from specstream.server.journal.record import SessionRecord
from specstream.server.journal.sqlite import SqliteJournal
from tests.server.journal.test_restart import served
from tests.server.sessions.test_resume import Client, ask

TEXT = " ".join(f"word{number}" for number in range(80)) + "."


class FailingOnce:
    """Writes nothing at the first commit: it fails, or is cancelled."""

    def __init__(self, *, fails: bool) -> None:
        self.written: list[Change] = []
        self._fails, self._calls = fails, 0

    async def commit(self, changes: Sequence[Change]) -> None:
        self._calls += 1
        if self._calls == 1 and self._fails:
            raise JournalFailed("no room")
        await anyio.lowlevel.checkpoint()  # where a call is cancelled before it begins
        self.written += changes

    async def aclose(self, *, remove: bool) -> None:
        """Nothing is held."""


@pytest.mark.parametrize("fails", [True, False])
async def test_what_could_not_be_written_comes_first_in_the_next_commit(fails: bool) -> None:
    log = FailingOnce(fails=fails)
    record = SessionRecord(log)
    record.applied(1)
    if fails:
        with pytest.raises(JournalFailed):
            await record.commit()
    else:
        with anyio.CancelScope() as scope:
            scope.cancel()
            await record.commit()
    record.applied(2)
    await record.commit()
    assert log.written == [Put("applied", "1"), Put("applied", "2")]


@pytest.mark.parametrize("modality", ["text", pytest.param("audio", marks=pytest.mark.slow)])
async def test_wherever_a_server_stops_the_reply_goes_on(modality: str, tmp_path: Path) -> None:
    """At every sixteenth turn of its loop, in which the scripted engine writes as fast as it can."""
    for turns in range(0, 240, 16):
        folder = tmp_path / str(turns)
        first, second = (served(SqliteJournal(folder), TEXT, gate=lambda: None) for _ in range(2))
        client = Client(first, acknowledges=False)
        async with first.running():
            socket = await client.begin()
            await ask(socket, output_modalities=[modality])
            for _ in range(turns):
                await anyio.lowlevel.checkpoint()
        with suppress(ConnectionClosed):
            await client.read(socket, 10_000)
        async with second.running():
            client.stand = second
            if client.events[-1]["type"] != "response.done":
                async with await client.again() as socket:
                    assert client.resumed["type"] == "specstream.resumed", (turns, client.resumed)
                    received = client.resumed["received"]
                    await ask(socket, skip=received, output_modalities=[modality])
                    with anyio.fail_after(10):
                        await client.read(socket, 10_000)
        kinds = ("response.output_text.delta", "response.output_audio_transcript.delta")
        said = "".join(event["delta"] for event in client.events if event["type"] in kinds)
        done = client.events[-1]["response"]
        assert (said, done["status"]) == (TEXT, "completed"), (turns, json.dumps(done)[:300])
