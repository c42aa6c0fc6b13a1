"""Random sequences of client events against a model of what a session must answer.

Each event's answers are checked against openai-python's types, too. The long form, 100,000 sequences:
``pytest tests/server/sessions/test_event_sequences.py -m nightly``.
"""

import asyncio
import base64
import json
import logging
from dataclasses import replace
from typing import Any, cast, get_args

import anyio
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st
from openai.types.realtime import RealtimeServerEvent
from pydantic import BaseModel

from specstream.listening.ears import Ears
from specstream.server.limits import Meter
from specstream.server.sessions import request
from specstream.server.sessions.connection import RealtimeConnection
from specstream.signals import LoopClock
from specstream.testing import ScriptedEngine, ScriptedRecognizer, ScriptedTurnDetector
from specstream.testing.engine import chunks_of
from specstream.types import ToolCall
from tests.server.doubles import Gate, Stand
from tests.server.sessions.test_floods import Scripted
from tests.support.client_events import (
    ASKED,
    NAMES,
    UPDATES,
    WRONG_ASKED,
    WRONG_FRAMES,
    WRONG_ITEMS,
    WRONG_SETTINGS,
    Direct,
    InlineLoop,
)

Answers = list[dict[str, Any]]
OFFICIAL: dict[str, type[BaseModel]] = {
    get_args(model.model_fields["type"].annotation)[0]: model
    for model in get_args(get_args(RealtimeServerEvent)[0])
}


class SessionModel:
    """What a session must hold and answer, beside the session itself."""

    def __init__(self, connection: RealtimeConnection, socket: Scripted, gate: Gate) -> None:
        self.connection, self.socket, self.gate = connection, socket, gate
        self.items: list[str] = []
        self.calls: dict[str, str] = {}  # call ids, by item
        self.outputs = dict[str, str]()
        self.sent: dict[str, int] = {}  # samples of spoken items
        self.running: dict[str, str | None] = {}  # responses, and the conversation they write to
        self.ended: list[str] = []
        self.written: dict[str, str] = {}  # items by response
        self.made: set[str] = set()  # items that the step adds, other than a response's
        self.held_ms = 0
        self.refused = set[str]()
        self.seen = self.frames = 0

    @property
    def active(self) -> str | None:
        return next((id for id, where in self.running.items() if where is not None), None)

    async def step(self, kind: str, n: int, m: int) -> None:
        """Send an event of that kind; ``n`` and ``m`` choose among its forms."""
        await getattr(self, kind)(n, m)

    async def settled(self) -> Answers:
        """The events that were sent since, once nothing moves any more; checked one by one."""
        ready = cast(Any, asyncio.get_running_loop())._ready
        await asyncio.sleep(0)
        while ready:  # noqa: ASYNC110  # there is nothing else to wait for
            await asyncio.sleep(0)
        new = self.socket.sent[self.seen :]
        for event in new:
            assert event["specstream"]["seq"] == self.seen, "numbers without a gap"
            assert event["event_id"] == f"event_{self.seen}"
            self.seen += 1
            if not event["type"].startswith("specstream."):
                OFFICIAL[event["type"]].model_validate(event, strict=True)
            self._follow(event)
        return new

    async def say(self, frame: str, *codes: str) -> Answers:
        """Send a frame; ``codes``: of the errors that must answer it."""
        self.socket.frames.put_nowait(frame)
        new = await self.settled()
        errors = [event["error"] for event in new if event["type"] == "error"]
        assert [error["code"] for error in errors] == [*codes], (frame, errors)
        assert all(error["type"] == "invalid_request_error" for error in errors)
        assert not codes or len(new) == 1, "a refusal changes nothing"
        return new

    async def ask(self, type: str, *codes: str, **fields: Any) -> Answers:
        self.frames += 1
        id = f"frame_{self.frames}"
        new = await self.say(json.dumps({"type": type, "event_id": id, **fields}), *codes)
        assert all(e["error"]["event_id"] == id for e in new if e["type"] == "error")
        return new

    def _follow(self, event: dict[str, Any]) -> None:
        type, id = event["type"], event.get("response_id")
        if id is not None:
            assert id in self.running, f"{type} of a response that isn't there"
        if type == "response.created":
            self.running[event["response"]["id"]] = event["response"]["conversation_id"]
        elif type == "response.done":
            done = event["response"]
            assert done["status"] != "in_progress"
            assert done["id"] in self.running, "each response ends once"
            del self.running[done["id"]]
            self.ended.append(done["id"])
        elif type == "conversation.item.added":
            item = event["item"]
            if item["id"] not in self.made:
                assert event["previous_item_id"] == (self.items[-1] if self.items else None)
                self.items.append(item["id"])
                if item["type"] == "function_call":
                    self.calls[item["id"]] = item["call_id"]
        elif type == "response.output_item.added" and self.running[event["response_id"]]:
            self.written[event["response_id"]] = event["item"]["id"]
        elif type == "response.content_part.added" and event["part"]["type"] == "audio":
            self.sent[event["item_id"]] = 0
        elif type == "response.output_audio.delta":
            self.sent[event["item_id"]] = event["specstream"]["samples"][1]

    # Items

    async def create(self, n: int, m: int) -> None:
        id = NAMES[n % 4]
        roles = {"user": "input_text", "system": "input_text", "assistant": "output_text"}
        role, part = list(roles.items())[n // 4 % 3]
        content = [{"type": part, "text": "text " * (m % 3)}]
        item: dict[str, Any] = {"type": "message", "id": id, "role": role, "content": content}
        await self._create(item, m)

    async def create_call(self, n: int, m: int) -> None:
        call = {"type": "function_call", "name": "look", "arguments": "{}"}
        await self._create({**call, "id": NAMES[n % 4], "call_id": f"call_{n % 3}"}, m)

    async def create_output(self, n: int, m: int) -> None:
        calls = [*self.calls.values(), "call_0", "call_9"]
        output = {"type": "function_call_output", "output": "5"}
        await self._create({**output, "id": NAMES[n % 4], "call_id": calls[n % len(calls)]}, m)

    async def _create(self, item: dict[str, Any], m: int) -> None:
        places = [None, None, "root", "nowhere", *self.items]
        after, id = places[m % len(places)], item["id"]
        fields = {"item": item} if after is None else {"item": item, "previous_item_id": after}
        code = None
        if id in self.items:
            code = "item_create_duplicate_item_id"
        elif after == "nowhere":
            code = "item_not_found"
        elif "call_id" in item and not self._fits(item, after):
            code = "invalid_tool_call_id"
        if code is not None:
            await self.ask("conversation.item.create", code, **fields)
            return
        at = 0 if after == "root" else len(self.items)
        if after in self.items:
            at = self.items.index(after) + 1
        before = self.items[at - 1] if at else None
        self.items.insert(at, id)
        self.made.add(id)
        if item["type"] == "function_call":
            self.calls[id] = item["call_id"]
        elif item["type"] == "function_call_output":
            self.outputs[id] = item["call_id"]
        added, done = await self.ask("conversation.item.create", **fields)
        assert (added["type"], done["type"]) == tuple(
            f"conversation.item.{what}" for what in ("added", "done")
        )
        assert added["item"]["id"] == id and added["previous_item_id"] == before
        self.made.clear()

    def _fits(self, item: dict[str, Any], after: str | None) -> bool:
        """Whether a call may be opened, or an output has an open call before it."""
        calls = [id for id, call in self.calls.items() if call == item["call_id"]]
        outputs = list(self.outputs.values()).count(item["call_id"])
        if item["type"] == "function_call":
            return len(calls) <= outputs
        before = [] if after == "root" else self.items
        if after in self.items:
            before = self.items[: self.items.index(after) + 1]
        return sum(id in before for id in calls) > outputs

    async def create_wrong(self, n: int, m: int) -> None:
        item, code = WRONG_ITEMS[n % len(WRONG_ITEMS)]
        await self.ask("conversation.item.create", code, item=item)

    def _named(self, n: int) -> tuple[str, bool]:
        ids = [*self.items, NAMES[n % 4], "nowhere"]
        return ids[n % len(ids)], ids[n % len(ids)] in self.items

    async def delete(self, n: int, m: int) -> None:
        id, there = self._named(n)
        if not there:
            await self.ask("conversation.item.delete", "item_delete_invalid_item_id", item_id=id)
            return
        (deleted,) = await self.ask("conversation.item.delete", item_id=id)
        assert (deleted["type"], deleted["item_id"]) == ("conversation.item.deleted", id)
        self.items.remove(id)
        self.calls.pop(id, None)
        self.outputs.pop(id, None)
        self.sent.pop(id, None)

    async def retrieve(self, n: int, m: int) -> None:
        id, there = self._named(n)
        codes = [] if there else ["item_retrieve_invalid_item_id"]
        (answer,) = await self.ask("conversation.item.retrieve", *codes, item_id=id)
        assert not there or answer["item"]["id"] == id

    async def truncate(self, n: int, m: int) -> None:
        spoken = [id for id in self.sent if id in self.items]
        id, there = (spoken[n % len(spoken)], True) if spoken and n % 3 else self._named(n)
        index, ms = int(m % 7 == 0), (0, 100, 10**6)[m % 3]
        fields = {"item_id": id, "content_index": index, "audio_end_ms": ms}
        code = None
        if not there:
            code = "item_truncate_invalid_item_id"
        elif id not in self.sent or index:
            code = "unsupported_content_type"
        elif ms * 24 > self.sent[id]:
            code = "invalid_value"
        if code is not None:
            await self.ask("conversation.item.truncate", code, **fields)
            return
        active = self.active
        *_, answer = await self.ask("conversation.item.truncate", **fields)
        assert (answer["type"], answer["item_id"]) == ("conversation.item.truncated", id)
        self.sent[id] = min(self.sent[id], ms * 24)
        assert active is None or self.written.get(active) != id or active in self.ended

    # Responses

    async def respond(self, n: int, m: int) -> None:
        apart, form = m % 3 == 0, ASKED[n % len(ASKED)]
        asked = {**form, "conversation": "none"} if apart else form
        code = None
        if apart and sum(where is None for where in self.running.values()) >= 3:
            code = "too_many_responses"
        elif not apart and self.active is not None:
            code = "conversation_already_has_active_response"
        if code is not None:
            await self.ask("response.create", code, response=asked)
            return
        created, *_ = await self.ask("response.create", response=asked)
        assert created["type"] == "response.created"
        assert (created["response"]["conversation_id"] is None) is apart

    async def respond_wrong(self, n: int, m: int) -> None:
        asked, code = WRONG_ASKED[n % len(WRONG_ASKED)]
        await self.ask("response.create", code, response=asked)

    async def cancel(self, n: int, m: int) -> None:
        ids = [None, None, "nowhere", *self.running, *self.ended[-1:]]
        id = ids[n % len(ids)]
        target = self.active if id is None else id if id in self.running else None
        fields = {} if id is None else {"response_id": id}
        if target is None:
            await self.ask("response.cancel", "response_cancel_not_active", **fields)
            return
        await self.ask("response.cancel", **fields)
        last = [e for e in self.socket.sent if e["type"] == "response.done"][-1]["response"]
        assert target in self.ended and target not in self.running
        assert self.ended[-1] != target or last["status"] == "cancelled"

    async def write(self, n: int, m: int) -> None:
        """The model writes some chunks of each reply."""
        for _ in range(n % 6 + 1):
            self.gate.open()
            self.gate.shut()
            await self.settled()

    async def write_all(self, n: int, m: int) -> None:
        self.gate.open()
        await self.settled()
        self.gate.shut()
        assert not self.running, "every reply has ended"

    # The rest

    async def update(self, n: int, m: int) -> None:
        session = {"type": "realtime", **UPDATES[n % len(UPDATES)]}
        (answer,) = await self.ask("session.update", session=session)
        assert answer["type"] == "session.updated"
        for name in {"instructions", "output_modalities", "max_output_tokens"} & session.keys():
            assert answer["session"][name] == session[name]

    async def update_wrong(self, n: int, m: int) -> None:
        session, code = WRONG_SETTINGS[n % len(WRONG_SETTINGS)]
        await self.ask("session.update", code, session=session)

    async def wrong(self, n: int, m: int) -> None:
        frame, code = WRONG_FRAMES[n % len(WRONG_FRAMES)]
        await self.say(frame, code)

    async def append(self, n: int, m: int) -> None:
        ms = (0, 40, 80, 200)[n % 4]
        audio = base64.b64encode(b"\x01\x02" * (24 * ms)).decode()
        assert await self.ask("input_audio_buffer.append", audio=audio) == []
        self.held_ms += ms

    async def append_wrong(self, n: int, m: int) -> None:
        audio = ("no base64!", "AAAA")[n % 2]
        codes = [] if audio in self.refused else ["invalid_value"]
        await self.ask("input_audio_buffer.append", *codes, audio=audio)
        self.refused.add(audio)

    async def commit(self, n: int, m: int) -> None:
        if self.held_ms < 95:
            await self.ask("input_audio_buffer.commit", "input_audio_buffer_commit_empty")
            return
        new = await self.ask("input_audio_buffer.commit")
        types = [event["type"] for event in new]
        assert types[0] == "input_audio_buffer.committed", types
        assert new[0]["item_id"] == self.items[-1]
        self.held_ms = 0
        self.refused.clear()

    async def clear(self, n: int, m: int) -> None:
        (answer,) = await self.ask("input_audio_buffer.clear")
        assert answer["type"] == "input_audio_buffer.cleared"
        self.held_ms = 0
        self.refused.clear()


STEPS = [
    *("create", "create_call", "create_output", "create_wrong", "delete", "retrieve", "truncate"),
    *("respond", "respond", "respond_wrong", "cancel", "write", "write", "write_all", "truncate"),
    *("update", "update_wrong", "wrong", "append", "append_wrong", "commit", "clear"),
]
Sequence = list[tuple[str, int, int]]
SEQUENCES = st.lists(
    st.tuples(st.sampled_from(STEPS), st.integers(0, 59), st.integers(0, 59)), max_size=30
)


class Bench:
    """One server for all sequences; each has a session of its own."""

    def __init__(self) -> None:
        self.gate = Gate()
        self.engine = ScriptedEngine([""], gate=self.gate, calls_tools=True)
        service = Stand(self.engine).server.service
        ears = Ears(ScriptedRecognizer(["what was said"]), ScriptedTurnDetector())
        self.service = replace(service, ears=ears)

    async def play(self, sequence: Sequence) -> None:
        calls = [chunks_of("So.", calls=[ToolCall(f"made_{n}", "look", "{}")]) for n in range(30)]
        replies = [reply for call in calls for reply in ("One two. [smile] Three, four five.", call)]
        self.engine = ScriptedEngine(replies, gate=self.gate, calls_tools=True)
        self.gate.shut()
        socket = Scripted()
        meter = Meter(LoopClock(), [])
        connection = RealtimeConnection(
            cast(Any, socket), replace(self.service, engine=self.engine), None, meter
        )
        model = SessionModel(connection, socket, self.gate)
        async with anyio.create_task_group() as group:
            group.start_soon(connection.serve)
            (created,) = await model.settled()
            assert created["type"] == "session.created"
            manual = {"type": "realtime", "audio": {"input": {"turn_detection": None}}}
            await model.ask("session.update", session=manual)
            for kind, n, m in sequence:
                await model.step(kind, n, m)
                held = connection.session.conversation.entries
                assert [entry.id for entry in held] == model.items, kind
            await model.write_all(0, 0)
            group.cancel_scope.cancel()
        assert socket.closed is None
        assert all(made.report.finish_reason is not None for made in self.engine.generations)


@pytest.mark.slow
@pytest.mark.parametrize(
    "count", [200, pytest.param(100_000, marks=[pytest.mark.nightly, pytest.mark.timeout(7200)])]
)
def test_what_a_session_answers_is_what_its_model_says(
    count: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(request, "to_thread", Direct)
    bench, played = Bench(), 0
    with asyncio.Runner(loop_factory=InlineLoop) as runner:

        @settings(
            max_examples=count,
            derandomize=True,
            database=None,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        )
        @given(SEQUENCES)
        def play(sequence: Sequence) -> None:
            nonlocal played
            played += 1
            caplog.clear()
            runner.run(bench.play(sequence))
            assert [r for r in caplog.records if r.levelno >= logging.ERROR] == []

        play()
    assert played >= count
