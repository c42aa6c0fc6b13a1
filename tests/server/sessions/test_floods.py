"""Clients that send too much: in bytes, in frames, in what is echoed."""

from __future__ import annotations

import json
from typing import Any

import anyio
import pytest

from specstream.realtime.protocol import MAX_STRUCTURE, parse_client_event
from specstream.realtime.settings import MAX_SETTINGS
from specstream.realtime.wire import Refused
from specstream.server.limits import BURST, FRAMES_PER_S, RateLimit, cost
from specstream.server.sessions.entries import MAX_CHARS
from specstream.testing import ScriptedEngine
from tests.server.doubles import HandClock, Stand, settle

MIB = 1 << 20


def message(text: str) -> dict[str, Any]:
    return {"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]}


async def test_forty_megabytes_of_items_end_in_an_error_and_others_do_not_notice() -> None:
    engine = ScriptedEngine(["one two."])
    timer = HandClock()
    stand = Stand(engine, voice=None, timer=timer)
    async with stand.running(), stand.client() as hostile, stand.client() as other:
        answers = []
        for _ in range(40):
            timer.advance(10.0)
            await hostile.send("conversation.item.create", item=message("x" * (MIB - 500)))
            while (event := await hostile.next())["type"] == "conversation.item.added":
                pass
            answers.append(event.get("error", {}).get("code"))
        assert answers == [None] + ["conversation_full"] * 39
        assert "characters" in event["error"]["message"]
        await hostile.send("response.create")
        await hostile.until("response.done")
        asked = sum(len(m["content"]) for m in engine.requests[0][0])
        assert asked <= MAX_CHARS
        assert (await other.reply("Hi"))["status"] == "completed"


async def test_deleting_items_makes_room_again() -> None:
    timer = HandClock()
    async with Stand(ScriptedEngine(["one."]), voice=None, timer=timer).alone() as wire:
        for _ in range(5):
            timer.advance(10.0)
            item = {**message("x" * (MAX_CHARS - 1000)), "id": "big"}
            await wire.send("conversation.item.create", item=item)
            await wire.until("conversation.item.done")
            await wire.send("conversation.item.delete", item_id="big")
            await wire.until("conversation.item.deleted")


async def test_settings_are_bounded_and_a_refused_update_changes_nothing() -> None:
    async with Stand(ScriptedEngine(["one."]), voice=None).alone() as wire:
        error = await wire.refused(
            "session.update", session={"type": "realtime", "instructions": "é" * MAX_SETTINGS}
        )
        assert error["code"] == "settings_too_large"
        assert str(MAX_SETTINGS) in error["message"]
        most = {"instructions": "x" * (MAX_SETTINGS * 3 // 4)}
        await wire.configure(**most)
        more = {"specstream": {"chat_template_kwargs": {"a": "x" * (MAX_SETTINGS // 3)}}}
        error = await wire.refused("session.update", session={"type": "realtime", **more})
        assert error["code"] == "settings_too_large", "together they are too large"
        await wire.send(
            "session.update", session={"type": "realtime", "tracing": "x" * (MIB - 200)}
        )
        session = (await wire.until("session.updated"))["session"]
        assert session["instructions"] == most["instructions"]
        assert not session["specstream"]["chat_template_kwargs"]
        assert session.get("tracing") is None, "nothing that isn't served is kept or echoed"


@pytest.mark.parametrize("part", ["0,", "[],", '"",', '{"":1},', '"\\"",', '"\\\\",'])
def test_a_frame_of_nothing_but_structure_is_not_read(part: str) -> None:
    value = "[" + part * ((MIB - 200) // len(part)) + "0]"
    frame = '{"type":"session.update","session":{"type":"realtime","tracing":' + value + "}}"
    with pytest.raises(Refused, match=f"{MAX_STRUCTURE} characters outside of its strings"):
        parse_client_event(frame)


def test_a_large_text_full_of_punctuation_is_read() -> None:
    text = '[{"a\\b": 1}, "' * 50_000
    frame = json.dumps({"type": "conversation.item.create", "item": message(text)})
    assert len(frame) > MAX_STRUCTURE
    parse_client_event(frame)


@pytest.mark.parametrize("quote", ['"', '"' + '\\"' * 500_000, '"\\'])
def test_a_string_without_an_end_is_refused(quote: str) -> None:
    with pytest.raises(Refused):
        parse_client_event('{"type":' + quote)


async def test_who_sends_too_fast_waits() -> None:
    clock = HandClock()
    allowance = RateLimit(clock)
    for _ in range(BURST):
        await allowance.take(1.0)
    taken: list[float] = []

    async def more() -> None:
        for _ in range(3):
            await allowance.take(FRAMES_PER_S)
            taken.append(clock.now())

    async with anyio.create_task_group() as group:
        group.start_soon(more)
        for _ in range(3):
            await anyio.wait_all_tasks_blocked()
            clock.advance(1.0)
    assert taken == [1.0, 2.0, 3.0]
    clock.advance(1e6)
    for _ in range(BURST):
        await allowance.take(1.0)
    assert cost(4096) == 1.0


async def test_a_flood_of_small_frames_is_read_no_faster_than_is_allowed() -> None:
    timer = HandClock()
    stand = Stand(ScriptedEngine(["one two."]), voice=None, timer=timer)
    async with stand.running(), stand.client() as hostile, stand.client() as other:
        for _ in range(BURST + 2 * FRAMES_PER_S):
            await hostile.socket.send("{")

        async def read() -> None:
            while True:
                await hostile.next()

        async def answered() -> int:
            before = -1
            while before != len(hostile.seen):
                before = len(hostile.seen)
                await settle()
            return before - 1  # session.created

        async with anyio.create_task_group() as group:
            group.start_soon(read)
            assert BURST - 2 <= await answered() <= BURST
            timer.advance(1.0)
            assert BURST + FRAMES_PER_S - 2 <= await answered() <= BURST + FRAMES_PER_S
            assert (await other.reply("Hi"))["status"] == "completed"
            timer.advance(60.0)
            assert await answered() == BURST + 2 * FRAMES_PER_S
            group.cancel_scope.cancel()
