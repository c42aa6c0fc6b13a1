"""Function calls over the wire: settings, events, items, history, refusals."""

import base64
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from specstream.client.client import Done, Problem, RealtimeClient, ToolCalled, ToolDelta
from specstream.errors import RequestError
from specstream.testing import ScriptedEngine, chunks_of
from specstream.types import Chunk, Tool, ToolCall, Tools
from tests.server.doubles import (
    AROUND,
    BEGIN,
    END,
    TEXT_DONE,
    Gate,
    Stand,
    Wire,
    end_of,
    read,
    shape,
    text_of,
)

TOOL = {"type": "function", "name": "weather", "parameters": {"type": "object", "properties": {}}}
ROME = ToolCall("call00001", "weather", '{"city": "Rome"}')
OSLO = ToolCall("call00002", "weather", '{"city": "Oslo"}')
CALL = [
    "response.output_item.added",
    "conversation.item.added",
    "deltas",
    "response.function_call_arguments.done",
    "response.output_item.done",
    "conversation.item.done",
]


def calling(*replies: str | list[Chunk], **options: Any) -> ScriptedEngine:
    return ScriptedEngine(list(replies), calls_tools=True, **options)


@asynccontextmanager
async def agent(engine: ScriptedEngine, **session: Any) -> AsyncGenerator[Wire, None]:
    """A client with a tool, in text."""
    async with Stand(engine).alone() as wire:
        settings = {"output_modalities": ["text"], "tools": [TOOL], **session}
        event = await wire.configure(**settings)
        assert event["session"]["tools"][0]["name"] == "weather"
        wire.seen.clear()
        yield wire


async def test_a_call_is_an_item_of_its_own_behind_the_text() -> None:
    engine = calling(chunks_of("Let me see.", calls=[ROME]), "It is fine.")
    async with agent(engine) as wire:
        done = await wire.reply("How is it?")
        begin, end = BEGIN, END[:-1]
        expected = [*AROUND, *begin, "deltas", *CALL, *TEXT_DONE, *end, "response.done"]
        assert shape(wire.types()) == expected
        text, call = done["output"]
        assert text["content"] == [{"type": "output_text", "text": "Let me see."}]
        assert text["phase"] == "commentary"
        assert call == {
            "id": call["id"],
            "object": "realtime.item",
            "type": "function_call",
            "status": "completed",
            "call_id": "call00001",
            "name": "weather",
            "arguments": '{"city": "Rome"}',
        }
        assert done["status"] == "completed"
        of_call = [e for e in wire.seen if e["type"].startswith("response.function_call")]
        pieces = [event.get("delta", "") for event in of_call]
        assert "".join(pieces) == ROME.arguments and len(pieces) > 2
        same = ("item_id", "call_id", "output_index", "response_id")
        ids = (call["id"], "call00001", 1, done["id"])
        assert {tuple(event[name] for name in same) for event in of_call} == {ids}
        assert of_call[-1]["arguments"] == ROME.arguments and of_call[-1]["name"] == "weather"

        output = {"type": "function_call_output", "call_id": "call00001", "output": "22 C"}
        await wire.send("conversation.item.create", item=output)
        item = (await wire.until("conversation.item.done"))["item"]
        assert (item["type"], item["output"], item["call_id"]) == (
            "function_call_output", "22 C", "call00001",
        )  # fmt: skip
        await wire.send("response.create")
        answer = await wire.done()
        assert (answer["status"], answer["output"][0]["phase"]) == ("completed", "final_answer")
    assert engine.requests[1][0] == [
        {"role": "user", "content": "How is it?"},
        {"role": "assistant", "content": "Let me see.", "tool_calls": [ROME.message()]},
        {"role": "tool", "content": "22 C", "tool_call_id": "call00001", "name": "weather"},
    ]
    offered = Tools((Tool("weather"),))
    assert engine.tools == [offered, offered]


async def test_a_reply_of_calls_has_no_message_and_each_call_its_place() -> None:
    engine = calling(chunks_of("", calls=[ROME, OSLO]))
    async with agent(engine) as wire:
        done = await wire.reply("Both!")
    assert [item["call_id"] for item in done["output"]] == ["call00001", "call00002"]
    added = wire.of("response.output_item.added")
    assert [event["output_index"] for event in added] == [0, 1]
    assert shape(wire.types()) == [*AROUND, *CALL, *CALL, "response.done"]


async def test_nothing_of_a_call_is_spoken() -> None:
    engine = calling(chunks_of("One moment.", calls=[ROME]))
    async with agent(engine, output_modalities=["audio"]) as wire:
        done = await wire.reply("How is it?")
    said = wire.of("response.output_audio_transcript.delta")
    assert "".join(event["delta"] for event in said) == "One moment."
    audio = wire.of("response.output_audio.delta")
    samples = sum(len(base64.b64decode(event["delta"])) // 2 for event in audio)
    assert samples == 2 * 24_000 * 0.2, "two words"
    assert {event["output_index"] for event in audio} == {0}
    assert [item["type"] for item in done["output"]] == ["message", "function_call"]


async def test_a_reply_that_calls_nothing_is_as_ever() -> None:
    async with agent(calling("It is fine.")) as wire:
        await wire.reply("How is it?")
    assert shape(wire.types()) == [*AROUND, *BEGIN, "deltas", *TEXT_DONE, *END]


async def test_an_empty_reply_still_has_its_item() -> None:
    async with agent(calling([*chunks_of("")])) as wire:
        done = await wire.reply("How is it?")
    assert [item["type"] for item in done["output"]] == ["message"]


async def test_a_call_is_retrieved_and_deleted_with_what_the_model_reads_of_it() -> None:
    engine = calling(chunks_of("", calls=[ROME]), "Fine.")
    async with agent(engine) as wire:
        call = (await wire.reply("How is it?"))["output"][0]
        output = {"type": "function_call_output", "call_id": "call00001", "output": "22 C"}
        await wire.send("conversation.item.create", item={**output, "id": "out"})
        await wire.until("conversation.item.done")
        for item_id, kind in ((call["id"], "function_call"), ("out", "function_call_output")):
            assert (await wire.retrieve(item_id))["type"] == kind
        await wire.send("conversation.item.delete", item_id=call["id"])
        await wire.until("conversation.item.deleted")
        await wire.send("response.create")
        await wire.until("response.done")
    assert [m["role"] for m in engine.requests[1][0]] == ["user"]


async def test_calls_of_an_earlier_session_are_put_into_this_one() -> None:
    engine = calling("Fine.")
    async with agent(engine) as wire:
        call = {"type": "function_call", "call_id": "old", "name": "weather", "arguments": "{}"}
        output = {"type": "function_call_output", "call_id": "old", "output": "22 C"}
        for item in (call, output):
            await wire.send("conversation.item.create", item=item)
            await wire.until("conversation.item.done")
        await wire.send("response.create")
        await wire.until("response.done")
        await wire.send("response.create", response={"input": [call, output]})
        await wire.until("response.done")
    for messages, _ in engine.requests[:2]:
        assert [m["role"] for m in messages[:2]] == ["assistant", "tool"]
        assert messages[0]["tool_calls"][0]["id"] == messages[1]["tool_call_id"] == "old"


async def test_a_call_of_no_function_is_refused() -> None:
    async with agent(calling("Fine.")) as wire:
        call = {"type": "function_call", "call_id": "one", "name": "", "arguments": "{}"}
        error = await wire.refused("conversation.item.create", item=call)
        assert error["param"] == "item.name"


async def test_an_output_without_its_call_is_refused() -> None:
    async with agent(calling("Fine.")) as wire:
        output = {"type": "function_call_output", "call_id": "nope", "output": "22 C"}
        error = await wire.refused("conversation.item.create", item=output, event_id="mine")
        assert (error["code"], error["event_id"]) == ("invalid_tool_call_id", "mine")
        assert error["message"] == "Tool call ID 'nope' not found in conversation."


@pytest.mark.parametrize(
    ("problem", "status"),
    [("bad_json", "completed"), ("unknown_tool", "completed"), ("cut_off", "incomplete")],
)
async def test_a_call_with_a_problem_says_so(problem: Any, status: str) -> None:
    call = ToolCall("call00001", "weather", '{"city": Ro', problem)
    engine = calling(chunks_of("", calls=[call], finish_reason="length"), "Fine.")
    async with agent(engine) as wire:
        done = await wire.reply("How is it?")
        await wire.reply("And?")
    (item,) = done["output"]
    assert (item["status"], item["arguments"]) == (status, '{"city": Ro')
    (event,) = wire.of("response.function_call_arguments.done")
    assert event["specstream"]["problem"] == problem
    kept = any("tool_calls" in message for message in engine.requests[1][0])
    assert kept == (status == "completed"), "a call that was cut off is not remembered"


async def test_a_call_that_is_cancelled_is_incomplete() -> None:
    gate = Gate(shut=False)
    chunks = chunks_of("", calls=[ROME])
    gate.shut(after=3)
    engine = calling(chunks, gate=gate)
    async with agent(engine) as wire:
        await wire.ask("How is it?")
        await wire.until("response.function_call_arguments.delta")
        await wire.send("response.cancel")
        done = await wire.done()
    assert done["status"] == "cancelled"
    (item,) = done["output"]
    assert item["status"] == "incomplete" and ROME.arguments.startswith(item["arguments"])
    assert wire.types()[-4:] == [
        "response.function_call_arguments.done",
        "response.output_item.done",
        "conversation.item.done",
        "response.done",
    ]


async def test_the_choice_and_the_number_of_calls_reach_the_engine() -> None:
    engine = calling("Fine.")
    async with agent(engine, tool_choice="none", parallel_tool_calls=False) as wire:
        other = {"tools": [{**TOOL, "name": "time"}], "parallel_tool_calls": True}
        responses: list[dict[str, Any]] = [
            {},
            {"tool_choice": {"type": "function", "name": "weather"}},
            {**other, "tool_choice": "required"},
            {"tools": []},
        ]
        for response in responses:
            await wire.reply("Hi", **response)
    weather = (Tool("weather"),)
    assert engine.tools == [
        Tools(weather, "none", False),
        Tools(weather, "weather", False),
        Tools((Tool("time"),), "required"),
        None,
    ]


@pytest.mark.parametrize(
    ("settings", "code", "param"),
    [
        ({"tools": [{"type": "function"}]}, "missing_required_parameter", "session.tools[0].name"),
        ({"tools": [{**TOOL, "x": 1}]}, "unknown_parameter", "session.tools[0].x"),
        ({"tools": [{**TOOL, "name": "a b"}]}, "invalid_value", "session.tools"),
        ({"tools": [TOOL, TOOL]}, "invalid_value", "session.tools"),
        ({"tool_choice": "always"}, "invalid_value", "session.tool_choice"),
        ({"tool_choice": {"type": "function", "name": "time"}}, "invalid_value", "session.tool_choice"),
    ],
)
async def test_settings_of_tools_are_checked(settings: dict[str, Any], code: str, param: str) -> None:
    async with agent(calling("Fine.")) as wire:
        update = {"type": "realtime", **settings}
        error = await wire.refused("session.update", session=update)
        assert (error["code"], error["param"]) == (code, param)


async def test_a_call_of_no_tools_is_refused_and_the_sessions_choice_is_not() -> None:
    engine = calling("Fine.", "Fine.")
    async with agent(engine, tool_choice="required") as wire:
        asked = {"tools": [], "tool_choice": "required"}
        error = await wire.refused("response.create", response=asked)
        assert (error["code"], error["param"]) == ("invalid_value", "response.tool_choice")
        await wire.reply("Hi", tools=[])
    assert engine.tools == [None]


async def test_hosted_tools_are_ignored_and_named() -> None:
    async with agent(calling("Fine.")) as wire:
        tools = [TOOL, {"type": "mcp", "server_label": "x"}]
        event = await wire.configure(tools=tools)
    assert [tool["name"] for tool in event["session"]["tools"]] == ["weather"]
    assert [i["param"] for i in event["specstream"]["ignored"]] == ["session.tools[1]"]


async def test_a_model_that_calls_no_tools_is_not_told_of_them() -> None:
    engine = ScriptedEngine(["Fine."])
    async with Stand(engine).alone() as wire:
        settings = {"output_modalities": ["text"], "tools": [TOOL], "tool_choice": "required"}
        event = await wire.configure(**settings)
        names = [ignored["param"] for ignored in event["specstream"]["ignored"]]
        assert names == ["session.tools", "session.tool_choice"]
        assert event["session"]["tools"] == []
        error = await wire.refused("response.create", response={"tools": [TOOL]})
        assert (error["code"], error["param"]) == ("invalid_value", "response.tools")
        await wire.reply("Hi")
    assert engine.tools == [None]


async def test_the_client_makes_a_call_and_reads_on() -> None:
    engine = calling(chunks_of("One moment.", calls=[ROME]), "It is fine.")
    async with Stand(engine, voice=None).python(events=()) as client:
        await client.update(output_modalities=["text"], tools=[Tool("weather", "How it is.")])
        called, written = [], ""
        async for event in client.respond("How is it?", audio=False):
            match event:
                case ToolDelta(call_id="call00001", arguments=arguments):
                    written += arguments
                case ToolCalled(call=call):
                    called.append(call)
                    await client.add_result(call, "22 C")
                case Done(text=text):
                    assert text == "One moment."
        assert called == [ROME] and written == ROME.arguments
        events = await read(client.respond(None, audio=False))
        assert text_of(events) == "It is fine."
        await client.add_result(OSLO, "12 C")
        events = await read(client.respond("And?", audio=False))
        assert [e.code for e in events if isinstance(e, Problem)] == ["invalid_tool_call_id"]
    assert [m["role"] for m in engine.requests[1][0]] == ["user", "assistant", "tool"]
    assert engine.tools[0] == Tools((Tool("weather", "How it is."),))


async def test_the_client_is_told_of_calls_alone_and_of_models_that_make_none() -> None:
    stand = Stand(calling(chunks_of("", calls=[ROME])), voice=None)
    async with stand.running(), RealtimeClient.connect(stand.url, events=()) as client:
        await client.update(output_modalities=["text"], tools=[Tool("weather")])
        done = end_of(await read(client.respond("How is it?", audio=False)))
        assert (done.status, done.text) == ("completed", "") and done.item_id
    stand = Stand(ScriptedEngine(["Fine."]), voice=None)
    async with stand.running(), RealtimeClient.connect(stand.url, events=()) as client:
        with pytest.raises(RequestError, match="calls no tools"):
            await client.update(output_modalities=["text"], tools=[Tool("weather")])


async def test_an_output_whose_call_was_deleted_counts_for_no_other_call() -> None:
    """A model that counts its calls from 0 in every reply."""
    first = ToolCall("0", "weather", "{}")
    engine = calling(chunks_of("", calls=[first]), chunks_of("", calls=[first]), "Fine.")
    output = {"type": "function_call_output", "call_id": "0", "output": "22 C"}
    async with agent(engine) as wire:
        call = (await wire.reply("Rome?"))["output"][0]["id"]
        await wire.send("conversation.item.create", item=output)
        await wire.until("conversation.item.done")
        await wire.send("conversation.item.delete", item_id=call)
        await wire.until("conversation.item.deleted")
        await wire.reply("Oslo?")
        await wire.send("conversation.item.create", item=output)
        assert (await wire.until("conversation.item.done"))["item"]["call_id"] == "0"
        error = await wire.refused("conversation.item.create", item=output)
        assert "has its output already" in error["message"]
