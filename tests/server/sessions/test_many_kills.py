"""Many sessions whose sockets die at random events: nothing of them is left in the server.

The long form: ``pytest tests/server/sessions/test_many_kills.py -m nightly``.
"""

import asyncio
import base64
import gc
import json
import re
import threading
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import anyio
import psutil
import pytest
from websockets.asyncio.client import ClientConnection, connect

from specstream.listening.ears import Ears
from specstream.server.journal.sqlite import SqliteJournal
from specstream.server.sessions.connection import RealtimeConnection
from specstream.testing import ScriptedEngine, ScriptedRecognizer, ScriptedSession, ScriptedTurnDetector
from tests.server.doubles import FreeClock, Stand, wait_for
from tests.server.journal.test_restart import words
from tests.server.sessions.test_microphone import silence, voice

REPLY = "One two three, four five six. Seven eight nine, ten eleven twelve. The end."
AT_ONCE = 20
RESUME_S = 0.15
POOLS = re.compile("AnyIO worker thread|asyncio_")


class CountedEngine(ScriptedEngine):
    """Knows its conversations, too."""

    def __init__(self) -> None:
        super().__init__([REPLY])
        self.conversations: list[ScriptedSession] = []

    def session(self, system: str | None = None) -> ScriptedSession:
        self.conversations.append(super().session(system))
        return self.conversations[-1]

    def open(self) -> tuple[int, int]:
        """Generations and conversations that have not ended."""
        unended = sum(made.report.finish_reason is None for made in self.generations)
        return unended, sum(not made.closed for made in self.conversations)


class Hall:
    """A server with voice and ears, and what is open in it."""

    def __init__(self, folder: Path | None) -> None:
        self.engine, self.folder = CountedEngine(), folder
        self.recognizer = ScriptedRecognizer(["and what is that"])
        self.stand = Stand(
            self.engine,
            clock=FreeClock(),
            ears=lambda: Ears(self.recognizer, ScriptedTurnDetector()),
            journal=SqliteJournal(folder) if folder is not None else None,
            resume_s=RESUME_S,
            max_sessions=4 * AT_ONCE,
        )

    @property
    def sessions(self) -> int:
        return self.stand.server.counters.sessions

    def left(self) -> dict[str, Any]:
        """All that a session may leave behind."""
        gc.collect()
        server, process = self.stand.server, psutil.Process()
        return {
            "tasks": len(asyncio.all_tasks()),
            "files and sockets": process.num_fds(),
            # The pools' idle threads wait for more work; there are never more than a pool may have.
            "threads": [one.name for one in threading.enumerate() if not POOLS.match(one.name)],
            "work in threads": anyio.to_thread.current_default_thread_limiter().borrowed_tokens,
            "sessions": self.sessions,
            "places": server.limit.clients.total(),
            "resumable": len(server.sessions.resumables) + len(server.sessions.tasks),
            "connections": sum(type(one) is RealtimeConnection for one in gc.get_objects()),
            "generations and conversations": self.engine.open(),
            "voices": sum(made.speaking + (not made.closed) for made in self.stand.voices),
            "recognisers": self.recognizer.open_streams,
            "journal": len(list(self.folder.iterdir())) if self.folder is not None else 0,
        }


class Mortal:
    """A client whose connections die at random moments; ``random`` decides all that it does."""

    def __init__(self, hall: Hall, random: Random, fates: Counter[str]) -> None:
        self.hall, self.random, self.fates = hall, random, fates
        self.resumable = random.random() < 0.6
        self.modality = random.choice(["text", "audio"])
        self.speaks = random.random() < 0.3
        self.events: list[dict[str, Any]] = []
        self.frames = self._frames()

    def _frames(self) -> list[str]:
        asked = {"output_modalities": [self.modality]}
        made: list[dict[str, Any]] = [
            {"type": "session.update", "session": {"type": "realtime", **asked}}
        ]
        if self.speaks:
            sound = voice(0.6) + (silence(0.8) if self.random.random() < 0.7 else b"")
            for at in range(0, len(sound), 9600):
                audio = base64.b64encode(sound[at : at + 9600]).decode()
                made.append({"type": "input_audio_buffer.append", "audio": audio})
        else:
            content = [{"type": "input_text", "text": "Hi"}]
            item = {"type": "message", "role": "user", "content": content}
            made.append({"type": "conversation.item.create", "item": item})
            made.append({"type": "response.create"})
        return [json.dumps(event) for event in made]

    async def live(self) -> None:
        query = "?resumable=1" if self.resumable else ""
        socket = await connect(self.hall.stand.url + query, proxy=None)
        self.events.append(json.loads(await socket.recv()))
        sent = 0
        for life in range(4):  # its death after so many frames, or after so many events
            if life == 3:
                frames = events = 10_000
            elif self.random.random() < 0.25:
                frames, events = self.random.randrange(len(self.frames)), 0
            else:
                frames, events = 10_000, len(self.events) + self.random.randrange(60)
            if await self._live_on(socket, sent, frames, events):
                await socket.close()
                self.fates["lived"] += 1
                return
            socket.transport.abort()
            if not self.resumable:
                self.fates["died"] += 1
                return
            if life == 3 or self.random.random() < 0.3:
                self.fates["stayed away"] += 1
                return
            await asyncio.sleep(0.01 * self.random.random())
            token = self.events[0]["specstream"]["resume"]["token"]
            seen = f"?resume={token}&seq={len(self.events) - 1}"
            socket = await connect(self.hall.stand.url + seen, proxy=None)
            resumed = json.loads(await socket.recv())
            if resumed["type"] == "error":
                assert resumed["error"]["code"] == "resume_expired"
                self.fates["too late"] += 1
                await socket.close()
                return
            sent = resumed["received"]
            self.fates["came back"] += 1

    async def _live_on(self, socket: ClientConnection, sent: int, frames: int, events: int) -> bool:
        """Send and read so much; returns whether the reply came to its end before that."""
        for frame in self.frames[sent:frames]:
            await socket.send(frame)
        if frames < len(self.frames):
            return False
        if self.speaks and "AAAA" * 100 not in self.frames[-1]:  # a turn that doesn't end
            await self._read(socket, min(events, 3))
            return False
        await self._read(socket, events)
        if self.events[-1]["type"] != "response.done":
            return False
        assert self.events[-1]["response"]["status"] == "completed"
        assert words(self.events) == REPLY
        return True

    async def _read(self, socket: ClientConnection, until: int) -> None:
        while len(self.events) < until and self.events[-1]["type"] != "response.done":
            event = json.loads(await socket.recv())
            assert event["type"] != "error", event
            assert event["specstream"]["seq"] == len(self.events), "each event comes once"
            self.events.append(event)


async def kill(hall: Hall, seed: int, count: int) -> Counter[str]:
    """So many sessions, some at a time; what became of them, once the server is done with them."""
    fates = Counter[str]()
    seeds = iter(range(count))

    async def lives() -> None:
        for number in seeds:
            await Mortal(hall, Random(f"{seed} {number}"), fates).live()

    async with anyio.create_task_group() as group:
        for _ in range(AT_ONCE):
            group.start_soon(lives)
    with anyio.fail_after(20):
        await wait_for(lambda: not hall.sessions and not hall.stand.server.sessions.tasks)
    for _ in range(20):  # closing handshakes, and the files that threads close
        await asyncio.sleep(0.01)
    return fates


@pytest.mark.slow
@pytest.mark.parametrize("journal", [False, True], ids=["memory", "journal"])
@pytest.mark.parametrize(
    "count", [30, pytest.param(2500, marks=[pytest.mark.nightly, pytest.mark.timeout(1800)])]
)
async def test_nothing_is_left_of_sessions_whose_sockets_died(
    tmp_path: Path, count: int, journal: bool, caplog: pytest.LogCaptureFixture
) -> None:
    hall = Hall(tmp_path if journal else None)
    async with hall.stand.running():
        await kill(hall, 0, AT_ONCE)  # what is made once and kept is made now
        before = hall.left()
        fates = await kill(hall, 1, count)
        assert hall.left() == before
    assert all(before[what] == 0 for what in ("sessions", "places", "resumable", "connections"))
    assert before["generations and conversations"] == (0, 0)
    assert not [record for record in caplog.records if record.levelname == "ERROR"]
    ended = sum(fates[fate] for fate in ("lived", "died", "stayed away", "too late"))
    assert ended == count
    assert min(fates[fate] for fate in ("lived", "died", "stayed away", "came back")) > count / 20
    assert hall.stand.server.counters.responses["abandoned"] > count / 50, "in the middle of replies"
