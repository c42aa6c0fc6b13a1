"""Sessions that outlive the process: another server takes them from the journal and goes on."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest

from specstream.errors import JournalFailed
from specstream.server.journal import Change, Drop, Frame, SessionLog, SqliteJournal
from specstream.testing import ScriptedEngine
from tests.server.doubles import FreeClock, Stand
from tests.server.sessions.test_resume import Client, ask, plain


def served(
    journal: SqliteJournal, *replies: str, reproducible: bool = True, **options: Any
) -> Stand:
    scripted = {"gate": options.pop("gate")} if "gate" in options else {}
    engine = ScriptedEngine(list(replies), **scripted)
    engine.capabilities = replace(engine.capabilities, reproducible=reproducible)
    return Stand(engine, clock=FreeClock(), journal=journal, **options)


class Dying(SqliteJournal):
    """Writes so much of a session, and then no more: as a process that was killed at any moment."""

    steps = 0

    async def begin(self, token: str, owner: str) -> SessionLog:
        self.dead = anyio.Event()
        return DyingLog(await super().begin(token, owner), self.steps, self.dead)


class DyingLog:
    def __init__(self, log: SessionLog, steps: int, dead: anyio.Event) -> None:
        self.log, self.left, self.dead = log, steps, dead

    async def commit(self, changes: Sequence[Change]) -> None:
        for step in steps_of(changes):
            self.left -= 1
            if self.left == -1:
                self.dead.set()
                await anyio.sleep_forever()
            if self.left < 0:
                raise JournalFailed("dead")
            await self.log.commit(step)

    async def aclose(self, *, remove: bool) -> None:
        await self.log.aclose(remove=remove and self.left > 0)


TOGETHER = {  # events that are sent without a wait between them
    ("conversation.item.added", "conversation.item.done"),
    ("response.output_item.added", "conversation.item.added"),
    ("conversation.item.added", "response.content_part.added"),
    ("response.output_item.done", "conversation.item.done"),
}


def steps_of(changes: Sequence[Change]) -> list[list[Change]]:
    """The least parts of changes that a session ever writes: what is noted without a wait between."""
    steps: list[list[Change]] = [[]]
    before = ""
    for change in changes:
        begins = change == Drop("deferred")  # a response
        if isinstance(change, Frame):
            type = json.loads(change.text)["type"]
            begins, before = (before, type) not in TOGETHER, type
        if begins and steps[-1]:
            steps.append([])
        steps[-1].append(change)
    return steps


@asynccontextmanager
async def two(
    folder: Path, *replies: str, **options: Any
) -> AsyncGenerator[tuple[Stand, Dying, Stand], None]:
    """A server that dies, and one that goes on with what it has begun."""
    dying = Dying(folder)
    first = served(dying, *replies, max_sessions=1000, **options)
    second = served(SqliteJournal(folder), *replies, **options)
    async with first.running(), second.running():
        yield first, dying, second


def words(events: list[dict[str, Any]]) -> str:
    kinds = ("response.output_text.delta", "response.output_audio_transcript.delta")
    return "".join(event["delta"] for event in events if event["type"] in kinds)


def sounds(events: list[dict[str, Any]]) -> list[tuple[str, list[int]]]:
    """The words of the audio, whose samples go on without a gap; one that was cut is spoken again."""
    deltas = [e["specstream"] for e in events if e["type"] == "response.output_audio.delta"]
    ends = [0, *(delta["samples"][1] for delta in deltas)]
    assert [delta["samples"][0] for delta in deltas] == ends[:-1]
    return [(word["text"], word["chars"]) for delta in deltas for word in delta.get("words", ())]


def last(events: list[dict[str, Any]], type: str) -> dict[str, Any]:
    return [event for event in events if event["type"] == type][-1]


async def killed(
    first: Stand, dying: Dying, second: Stand, after: int, **response: Any
) -> Client | None:
    """A question to a server that dies after so many steps, the rest of the answer by another one.

    None: the first one had nothing left to do.
    """
    dying.steps = after
    client = Client(first)
    socket = await client.begin()
    await ask(socket, **response)
    async with anyio.create_task_group() as group:

        async def die() -> None:
            await dying.dead.wait()
            group.cancel_scope.cancel()

        group.start_soon(die)
        await client.read(socket, 10_000)
        group.cancel_scope.cancel()
    if not dying.dead.is_set():
        await socket.close()
        return None
    socket.transport.abort()
    client.stand = second
    async with await client.again() as socket:
        assert client.resumed["type"] == "specstream.resumed", client.resumed
        await ask(socket, skip=client.resumed["received"], **response)
        await client.read(socket, 10_000)
    return client


TEXT = "One two three [smile] four five. Six seven eight, nine ten."


@pytest.mark.parametrize(("modality", "step"), [("text", 1), ("audio", 3)])
async def test_wherever_the_process_dies_a_reproducible_reply_goes_on(
    tmp_path: Path, modality: str, step: int
) -> None:
    """Killed at each step: numbers without a gap, the very words, each closing event once."""
    async with two(tmp_path, TEXT, idle_s=1e6) as (first, dying, second):
        client = Client(second)
        async with await client.begin() as socket:
            await ask(socket, output_modalities=[modality])
            await client.read(socket, 10_000)
        whole, kills = client.events, 0
        for after in range(2, 10_000, step):
            found = await killed(first, dying, second, after, output_modalities=[modality])
            if found is None:
                break
            kills += 1
            events, place = found.events, f"killed after {after} steps"
            assert [e["specstream"]["seq"] for e in events] == list(range(len(events))), place
            assert words(events) == words(whole), place
            assert events[-1]["response"]["status"] == "completed", (
                f"{place}: {events[-1]['response']}"
            )
            closing = [event["type"] for event in events if event["type"].endswith(".done")]
            assert closing == [e["type"] for e in whole if e["type"].endswith(".done")], place
            if modality == "text":
                assert plain(events) == plain(whole), place
            else:
                assert sounds(events) == sounds(whole), place
        assert kills >= 20
