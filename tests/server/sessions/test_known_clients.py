"""What the protocol's known clients send as a matter of course, and what they match in answers.

openai-python, @openai/agents-realtime, pipecat and LiveKit send tools, turn detection and microphone
frames to every server. pipecat stops reading at any ``error`` but two, agents-js does without its
settings when the update that holds them is refused.
"""

import asyncio
import json
import logging
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from openai.types.realtime import RealtimeResponse

from specstream.listening.ears import Ears
from specstream.testing import ScriptedEngine, ScriptedRecognizer, ScriptedTurnDetector
from specstream.types import Manner, SamplingParams, Truncation
from tests.server.doubles import Gate, Stand, Wire

TOOL = {"type": "function", "name": "weather", "parameters": {"type": "object"}}
BORNE = {"response_cancel_not_active", "conversation_already_has_active_response"}
AGENT = {
    "type": "realtime",
    "instructions": "Be kind.",
    "output_modalities": ["text"],
    "audio": {
        "input": {
            "format": {"type": "audio/pcm", "rate": 24000},
            "turn_detection": {"type": "semantic_vad", "create_response": True},
            "transcription": {"model": "gpt-4o-mini-transcribe"},
            "noise_reduction": None,
        },
        "output": {"voice": "marin", "speed": 1.0},
    },
    "tools": [TOOL],
    "tool_choice": "auto",
    "tracing": "auto",
}


def fatal(wire: Wire) -> list[dict[str, Any]]:
    """The events at which the least patient of the clients gives up."""
    errors = [event["error"] for event in wire.of("error")]
    return [error for error in errors if error["code"] not in BORNE]


async def test_an_agent_with_tools_and_a_microphone_is_served_in_text(
    caplog: pytest.LogCaptureFixture,
) -> None:
    engine = ScriptedEngine(["fine."])
    async with Stand(engine).alone() as wire:
        await wire.send("session.update", session=AGENT)
        for _ in range(50):
            await wire.send("input_audio_buffer.append", audio="AAAA" * 100)
        await wire.send("input_audio_buffer.commit")
        await wire.send("input_audio_buffer.clear")
        with caplog.at_level(logging.WARNING, "specstream.realtime"):
            done = await wire.reply("Hi")
    assert done["status"] == "completed"
    assert fatal(wire) == []
    ((messages, _),) = engine.requests
    assert [m["content"] for m in messages] == ["Be kind.", "Hi"], "the instructions were taken"
    answers = wire.of("session.updated")
    ignored = [[i["param"] for i in event["specstream"]["ignored"]] for event in answers]
    assert ignored == [
        [
            "session.audio.input.format",
            "session.audio.input.turn_detection",
            "session.audio.input.transcription",
            "session.tools",
        ],
        ["type"],
    ], "the settings are named in their answer, the microphone once for all frames"
    assert answers[0]["session"]["tools"] == []
    assert answers[0]["session"]["audio"]["input"]["turn_detection"] is None
    assert answers[1]["specstream"]["ignored"][0]["code"] == "input_audio_not_supported"
    assert len([r for r in caplog.records if "microphone" in r.message]) == 1


async def test_refusals_have_the_words_that_clients_match() -> None:
    gate = Gate()
    item = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "A"}]}
    async with Stand(ScriptedEngine(["fine."], gate=gate)).alone() as wire:
        error = await wire.refused("response.cancel")
        assert error["code"] == "response_cancel_not_active"
        assert error["message"].startswith("Cancellation failed: no active response found")
        await wire.send("conversation.item.create", item={**item, "id": "a"})
        await wire.until("conversation.item.done")
        error = await wire.refused("conversation.item.create", item={**item, "id": "a"})
        assert error["code"] == "item_create_duplicate_item_id"
        for verb, doing in (("retrieve", "retrieving"), ("delete", "deleting")):
            error = await wire.refused(f"conversation.item.{verb}", item_id="b", event_id="rci_b")
            assert error["code"] == f"item_{verb}_invalid_item_id"
            assert error["event_id"] == "rci_b"
            assert error["message"] == (f"Error {doing} item: the item with id 'b' does not exist.")
        await wire.ask("Hi", output_modalities=["text"])
        active = (await wire.until("response.created"))["response"]["id"]
        error = await wire.refused("response.create")
        assert error["code"] == "conversation_already_has_active_response"
        assert error["message"].startswith(
            f"Conversation already has an active response in progress: {active}"
        )
        gate.open()
        await wire.until("response.done")


async def test_a_voice_that_is_named_by_an_object_is_a_text_in_responses() -> None:
    """openai-python's types have ``{"id": …}`` in sessions only."""
    async with Stand(ScriptedEngine(["fine."])).alone() as wire:
        output = {"voice": {"id": "voice_1"}}
        session = (await wire.configure(audio={"output": output}))["session"]
        assert session["audio"]["output"]["voice"] == output["voice"]
        await wire.reply("Hi")
        for event in wire.of("response.created", "response.done"):
            assert event["response"]["audio"]["output"]["voice"] == "voice_1"
            RealtimeResponse.model_validate(event["response"], strict=True)


async def test_a_response_that_never_began_has_its_counts() -> None:
    gate = Gate()
    async with Stand(ScriptedEngine(["fine."], gate=gate)).alone() as wire:
        await wire.ask("Hi", output_modalities=["text"])
        await wire.send("response.cancel")
        done = await wire.done()
        assert done["status"] == "cancelled"
        assert done["usage"]["output_tokens"] == 0
        assert done["usage"]["input_token_details"]["cached_tokens"] == 0


async def test_an_agent_speaks_first() -> None:
    """LiveKit's and pipecat's greeting: a response to instructions, without a user's message."""
    engine = ScriptedEngine(["Hello!"])
    async with Stand(engine).alone() as wire:
        await wire.configure(instructions="Be kind.", output_modalities=["text"])
        await wire.send("response.create")
        assert (await wire.done())["status"] == "completed"
        await wire.send("response.create", response={"instructions": "Greet the user."})
        assert (await wire.done())["status"] == "completed"
    (first, _), (second, _) = engine.requests
    assert first == [{"role": "system", "content": "Be kind."}]
    hello = {"role": "assistant", "content": "Hello!"}
    assert second == [{"role": "system", "content": "Greet the user."}, hello]


async def test_truncation_is_set_as_openai_names_it() -> None:
    engine = ScriptedEngine(["fine."])
    ratio = {"type": "retention_ratio", "retention_ratio": 0.5}
    limited = {**ratio, "token_limits": {"post_instructions": 500}}
    async with Stand(engine).alone() as wire:
        for setting in ("auto", "disabled", ratio, limited):
            answer = await wire.configure(truncation=setting, output_modalities=["text"])
            assert answer["session"]["truncation"] == setting
            await wire.reply("Hi")
        wrong = {"type": "retention_ratio", "retention_ratio": 2}
        error = await wire.refused("session.update", session={"type": "realtime", "truncation": wrong})
        assert error["param"].startswith("session.truncation")
    assert engine.truncations == [
        Truncation(0.8),
        None,
        Truncation(0.5),
        Truncation(0.5, post_instructions=500),
    ]


async def test_a_session_begins_with_the_manner_of_its_model() -> None:
    engine = ScriptedEngine(["fine."])
    engine.manner = Manner(SamplingParams(temperature=0.3), "Be brief.")
    async with Stand(engine).alone() as wire:
        assert wire.seen[0]["session"]["instructions"] == "Be brief."
        await wire.reply("Hi", output_modalities=["text"])
        await wire.configure(instructions="")
        await wire.reply("Hi", output_modalities=["text"])
    assert [params.temperature for _, params in engine.requests] == [0.3, 0.3]
    assert [messages[0]["role"] for messages, _ in engine.requests] == ["system", "user"]
    async with Stand(engine, system="", params=SamplingParams()).alone() as wire:
        assert wire.seen[0]["session"]["instructions"] == ""
        await wire.reply("Hi", output_modalities=["text"])
    assert engine.requests[-1][1].greedy


MODULES = os.environ.get("SPECSTREAM_NODE_MODULES", "")


@pytest.mark.skipif(
    not (shutil.which("node") and Path(MODULES, "node_modules/@openai/agents-realtime").is_dir()),
    reason="SPECSTREAM_NODE_MODULES names no folder where `npm install @openai/agents-realtime` ran",
)
async def test_agents_realtime_greets_and_survives_a_spoken_turn(tmp_path: Path) -> None:
    sound = tmp_path / "question.pcm"
    sound.write_bytes(bytes(24_000) + b"\x01\x02" * 48_000 + bytes(72_000))
    recognizer = ScriptedRecognizer(["what is the capital of France"])
    ears = Ears(recognizer, ScriptedTurnDetector())
    stand = Stand(ScriptedEngine(["Hello there.", "Paris."]), ears=lambda: ears)
    script = Path(__file__).with_name("agents_realtime.mjs")
    async with stand.running():
        process = await asyncio.create_subprocess_exec(
            *("node", str(script), stand.url, str(sound), MODULES),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        out, complaints = await process.communicate()
    assert (process.returncode, complaints) == (0, b"")
    history = json.loads(out)
    assert [item["role"] for item in history] == ["assistant", "user", "assistant"]
