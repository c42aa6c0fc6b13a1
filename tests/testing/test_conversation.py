"""The same scenario with a Realtime server behind a socket: a scripted one, so that times are known."""

import argparse
import asyncio
import base64
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio
import pytest
from websockets.asyncio.server import ServerConnection, serve

from specstream.commands import latency
from specstream.errors import EngineError, ProtocolError, RequestError
from specstream.listening.ears import Ears
from specstream.signals import LoopClock
from specstream.testing import (
    LatencyReport,
    Scenario,
    ScriptedModel,
    ScriptedRecognizer,
    ScriptedTurnDetector,
    ScriptedVoice,
    VirtualTimeLoop,
    read_scenario,
)
from specstream.testing.conversation import run_live
from specstream_adapters.voice import ReferenceVoice
from tests.server.doubles import Stand

pytestmark = pytest.mark.virtual_time
SCENARIO = """
[listening]
silence_ms = 300
[[turns]]
user = "Tell me"
[[turns]]
user = "Stop it"
interrupts_after_ms = 500
[[turns]]
user = "Thanks"
typed = true
"""
REPLIES = ["One two three four five six seven eight.", "Fine.", "Bye."]


async def speak(text: str) -> bytes:
    """300 ms a word, after 100 ms of silence."""
    return bytes(4800) + b"\x28\x23" * 7200 * len(text.split()) + bytes(4800)


async def held(
    folder: Path,
    text: str = SCENARIO,
    told: list[tuple[int, int]] | None = None,
    says: Callable[[str], Awaitable[bytes]] = speak,
    first_token_ms: float = 200,
    **options: Any,
) -> LatencyReport:
    (folder / "talk.toml").write_text(text)
    told = [] if told is None else told
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualTimeLoop)
    loop.watch(anyio.to_thread.current_default_thread_limiter())
    recognizer = ScriptedRecognizer(["Tell me", "Stop it"])
    options.setdefault("ears", lambda: Ears(recognizer, ScriptedTurnDetector()))
    options.setdefault("voice", lambda: ScriptedVoice(first_audio_ms=80, leading_silence_ms=50))
    model = ScriptedModel(REPLIES, first_token_ms=first_token_ms, round_ms=30, drafted=0)
    stand = Stand(model, clock=LoopClock(), **options)
    async with stand.running():
        scenario, tell = read_scenario(folder / "talk.toml"), lambda *counts: told.append(counts)
        return await run_live(scenario, stand.url, speak=says, progress=tell)


async def test_a_servers_waits_are_measured_step_by_step(tmp_path: Path) -> None:
    told: list[tuple[int, int]] = []
    report = await held(tmp_path, told=told)
    assert report.clock == "wall"
    assert [done for done, _ in told] == sorted(done for done, _ in told)
    assert told[-1] == (len(report.turns), len(report.turns))
    first, second, third = report.turns
    assert [turn.reply for turn in report.turns[1:]] == REPLIES[1:]
    assert first.stages["turn_end"] == pytest.approx(310, abs=35)
    assert first.parts["first_token"] == pytest.approx(200, abs=5)
    assert third.parts["arrived"] == pytest.approx(80, abs=5)
    assert third.wait_ms == pytest.approx(200 + 80 + 50, abs=10)
    assert list(first.parts) == [
        *("turn_end", "transcript", "asked", "first_token", "arrived", "first_audio")
    ]
    assert list(third.parts) == ["asked", "first_token", "arrived", "first_audio"]
    assert told == [(0, 3), (1, 3), (2, 3), (3, 3)]
    assert all(abs(turn.residual_ms) < 1 for turn in report.turns)
    assert second.interrupts is True
    assert 0 < second.stages["interruption_silence"] < 100, "heard within a block of 32 ms"


@pytest.mark.parametrize("first_token_ms", [200, 1400])
async def test_an_answer_in_a_pause_of_the_user_is_not_the_answer(
    tmp_path: Path, first_token_ms: float
) -> None:
    async def hesitates(text: str) -> bytes:
        """A second and a half between the words; the first answer is audible in it, or isn't yet."""
        first, *rest = [b"\x28\x23" * 9600 for _ in text.split()]
        return first + b"".join(bytes(72_000) + word for word in rest)

    report = await held(
        tmp_path,
        "[listening]\nsilence_ms = 300\n[[turns]]\nuser = 'Tell me'\n[[turns]]\nuser = 'Thanks'",
        says=hesitates,
        first_token_ms=first_token_ms,
        ears=lambda: Ears(ScriptedRecognizer(["Tell", "me", "Thanks"]), ScriptedTurnDetector()),
    )
    assert [turn.reply for turn in report.turns] == REPLIES[1:]
    for turn in report.turns:
        assert turn.wait_ms == pytest.approx(310 + first_token_ms + 80 + 50, abs=70)
        assert turn.interrupts is None and "interruption_silence" not in turn.stages


async def test_a_turn_of_which_nothing_is_understood_is_an_error_at_once(tmp_path: Path) -> None:
    ears = Ears(ScriptedRecognizer([""]), ScriptedTurnDetector())
    with pytest.raises(EngineError, match="nothing was understood of 'Tell me'"):
        await held(tmp_path, ears=lambda: ears)


async def test_an_empty_transcript_of_a_part_may_come_after_the_whole(tmp_path: Path) -> None:
    """A cough in the pause is an item of its own, whose empty transcript comes late."""
    begun = {"id": "r", "object": "realtime.response", "status": "in_progress", "output": []}
    sound = {"response_id": "r", "item_id": "i", "output_index": 0, "content_index": 0}
    sound["delta"] = base64.b64encode(b"\x28\x23" * 2400).decode()
    stopped = {"type": "input_audio_buffer.speech_stopped", "audio_end_ms": 0}
    heard = {
        "type": "conversation.item.input_audio_transcription.completed",
        "content_index": 0,
        "usage": {"type": "duration", "seconds": 1},
    }
    first = [{**stopped, "item_id": "a"}]
    last = [
        {**stopped, "item_id": "b"},
        {**heard, "item_id": "a", "transcript": ""},
        {**heard, "item_id": "b", "transcript": "Hello"},
        {"type": "response.created", "response": begun},
        {"type": "response.output_audio.delta", **sound},
        {"type": "response.done", "response": {**begun, "status": "completed"}},
    ]

    async def answer(socket: ServerConnection) -> None:
        async def send(*events: dict[str, Any]) -> None:
            for event in events:
                await socket.send(json.dumps({"event_id": "e", **event}))

        await send({"type": "session.created", "session": {"type": "realtime"}})
        heard_s = 0.0
        async for message in socket:
            event = json.loads(message)
            if event["type"] == "session.update":
                await send({"type": "session.updated", "session": {"type": "realtime"}})
            elif event["type"] == "input_audio_buffer.append":
                before = heard_s
                heard_s += len(base64.b64decode(event["audio"])) / 48_000
                for at, events in ((0.2, first), (0.9, last)):  # the voice ends after .8 s
                    if before < at <= heard_s:
                        await send(*events)

    scenario = Scenario.model_validate({"turns": [{"user": "Hello you"}]})
    async with serve(answer, "127.0.0.1", 0) as server:
        port = next(iter(server.sockets)).getsockname()[1]
        report = await run_live(scenario, f"ws://127.0.0.1:{port}/v1/realtime", speak=speak)
    assert report.turns[0].wait_ms > 0


@pytest.mark.parametrize(
    ("delta", "told"), [("@@@", "is no base64"), ("AQID", "ends within a sample: it has 3 bytes")]
)
async def test_audio_that_is_none_is_an_error(delta: str, told: str) -> None:
    async def answer(socket: ServerConnection) -> None:
        sent = {"response_id": "r", "item_id": "i", "output_index": 0, "content_index": 0}
        begun = {"id": "r", "object": "realtime.response", "status": "in_progress", "output": []}
        kinds: list[dict[str, Any]] = [
            {"type": "session.created", "session": {"type": "realtime"}},
            {"type": "session.updated", "session": {"type": "realtime"}},
            {"type": "response.created", "response": begun},
            {"type": "response.output_audio.delta", "delta": delta, **sent},
        ]
        for number, event in enumerate(kinds):
            if number:
                await socket.recv()
            await socket.send(json.dumps({"event_id": "e", **event}))
        await socket.wait_closed()

    scenario = Scenario.model_validate({"turns": [{"user": "Hi", "typed": True}]})
    async with serve(answer, "127.0.0.1", 0) as server:
        port = next(iter(server.sockets)).getsockname()[1]
        with pytest.raises(ProtocolError, match=told):
            await run_live(scenario, f"ws://127.0.0.1:{port}/v1/realtime", speak=speak)


async def test_the_command_prints_percentiles_and_waterfalls_of_a_server(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file that runs in virtual time without an address; the user speaks with a local voice."""
    monkeypatch.setattr(latency, "load_voice", lambda name: ReferenceVoice())
    out = tmp_path / "out"
    (tmp_path / "talk.toml").write_text(f"name = 'talk'\n{SCENARIO}")
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualTimeLoop)
    loop.watch(anyio.to_thread.current_default_thread_limiter())
    recognizer = ScriptedRecognizer(["Tell me", "Stop it"])
    model = ScriptedModel(REPLIES, first_token_ms=200, round_ms=30, drafted=0)
    stand = Stand(
        model,
        clock=LoopClock(),
        ears=lambda: Ears(recognizer, ScriptedTurnDetector()),
        voice=lambda: ScriptedVoice(first_audio_ms=80, leading_silence_ms=50),
    )
    async with stand.running():
        file = str(tmp_path / "talk.toml")
        args = {"scenario": file, "url": stand.url, "voice": "reference"}
        await latency.run(argparse.Namespace(**args, out=str(out), json=True))
    printed = capsys.readouterr()
    assert printed.err.splitlines()[:2] == [
        "loading the voice reference",
        f"connecting to {stand.url} (a server that is still loading is waited for: 30 s at most)",
    ]
    lines = printed.out.splitlines()
    document = json.loads((out / "latency.json").read_text())
    assert lines[0] == "talk: 3 turns, wall clock" and document["clock"] == "wall"
    assert json.loads(lines[-1])["stages_ms"] == document["stages_ms"]
    assert [line.split()[0] for line in lines if line.startswith(("first_audio", "p"))] == [
        *("first_audio", "p50", "p95")
    ]
    for turn in document["each"]:
        assert turn["residual_ms"] < 1
        assert turn["wait_ms"] == pytest.approx(sum(turn["parts_ms"].values()), abs=0.01)
        told = f"{turn['parts_ms']['first_token']:9.1f} ms  first_token"
        assert turn["user"] != "Thanks" or any(line.startswith(told) for line in lines)


async def test_what_a_server_refuses_or_breaks_is_told(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="turn_detection"):
        await held(tmp_path, ears=None)
    with pytest.raises(EngineError, match="nothing was heard in answer to 'Thanks'"):
        await held(
            tmp_path,
            "[[turns]]\nuser = 'Thanks'\ntyped = true",
            voice=lambda: ScriptedVoice(word_ms=0, leading_silence_ms=60),
        )
