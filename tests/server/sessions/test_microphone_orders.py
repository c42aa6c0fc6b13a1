"""Audio input in any order with everything else: no event order breaks a session."""

import base64
from random import Random
from typing import Any

import pytest

from specstream.listening.ears import Ears
from specstream.testing import ScriptedEngine, ScriptedRecognizer, ScriptedTurnDetector
from tests.server.doubles import Stand, Wire

EXPECTED = {
    "input_audio_buffer_commit_empty",
    "conversation_already_has_active_response",
    "response_cancel_not_active",
    "invalid_value",
}
TURNS: list[dict[str, Any] | None] = [
    None,
    {"type": "server_vad", "silence_duration_ms": 100},
    {"type": "server_vad", "interrupt_response": False},
    {"type": "semantic_vad", "eagerness": "high"},
]


def frame(random: Random) -> tuple[str, dict[str, Any]]:
    """What a client may send next."""
    sound = random.choice([b"\x01\x02", b"\0\0"]) * random.choice([1, 480, 4800, 12_000])
    append = ("input_audio_buffer.append", {"audio": base64.b64encode(sound).decode()})
    audio = {
        "input": {
            "turn_detection": random.choice(TURNS),
            "transcription": random.choice([None, {}]),
            "format": {"type": random.choice(["audio/pcm", "audio/pcmu", "audio/pcma"])},
        }
    }
    others: list[tuple[str, dict[str, Any]]] = [
        ("input_audio_buffer.commit", {}),
        ("input_audio_buffer.clear", {}),
        ("response.create", {}),
        ("response.cancel", {}),
        (
            "session.update",
            {
                "session": {
                    "type": "realtime",
                    "audio": audio,
                    "specstream": {"interrupt": random.choice(["voice", "words"])},
                }
            },
        ),
    ]
    return append if random.random() < 0.7 else random.choice(others)


def check(wire: Wire) -> None:
    """Turns and items are announced in order, and every item ends once."""
    started, stopped, committed = list[str](), list[str](), list[str]()
    for event in wire.seen:
        kind, item = event["type"], event.get("item_id", "")
        if kind == "error":
            assert event["error"]["code"] in EXPECTED, event
        elif kind == "input_audio_buffer.speech_started":
            started.append(item)
        elif kind == "input_audio_buffer.speech_stopped":
            assert item in started
            stopped.append(item)
        elif kind == "input_audio_buffer.committed":
            assert item not in committed
            committed.append(item)
        elif kind.endswith(("transcription.completed", "transcription.failed")):
            assert item in committed
    assert len(started) == len(set(started))
    assert set(stopped) <= set(committed)
    assert [event["specstream"]["seq"] for event in wire.seen] == list(range(len(wire.seen)))


@pytest.mark.parametrize("seed", range(6))
async def test_any_order_leaves_the_session_alive(seed: int) -> None:
    random = Random(seed)
    recognizer = ScriptedRecognizer(["what is it", "", ValueError("a cold"), "it is", "and"])
    ears = Ears(recognizer, ScriptedTurnDetector())
    async with Stand(ScriptedEngine(["Fine."]), ears=lambda: ears, voice=None).alone() as wire:
        for _ in range(80):
            kind, fields = frame(random)
            await wire.send(kind, **fields)
        quiet = {"input": {"turn_detection": None}}
        await wire.send("session.update", session={"type": "realtime", "audio": quiet})
        await wire.send("conversation.item.retrieve", item_id="the-end")
        while True:
            event = await wire.next()
            if event["type"] == "error" and "the-end" in event["error"]["message"]:
                break
        wire.seen.pop()
        check(wire)
        await wire.send("response.create", response={"conversation": "none"})
        while True:  # others may end first
            event = await wire.next()
            if event["type"] == "error":  # another one waits for a transcript
                assert event["error"]["code"] in EXPECTED, event
                await wire.until("response.done")
                await wire.send("response.create", response={"conversation": "none"})
            elif event["type"] == "response.done" and event["response"]["conversation_id"] is None:
                break
        assert event["response"]["status"] == "completed"
    assert recognizer.open_streams == 0
