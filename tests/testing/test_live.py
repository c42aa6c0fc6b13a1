"""The same scenario with a Realtime server behind a socket: a scripted one, so that times are known."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import anyio
import pytest

from specstream.errors import EngineError, RequestError
from specstream.listening.ears import Ears
from specstream.pipeline.clock import LoopClock
from specstream.testing import (
    LatencyReport,
    ScriptedModel,
    ScriptedRecognizer,
    ScriptedTurnDetector,
    ScriptedVoice,
    VirtualTimeLoop,
    read_scenario,
)
from specstream.testing.live import run_live
from tests.ws.doubles import Stand

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


async def held(folder: Path, text: str = SCENARIO, **options: Any) -> LatencyReport:
    (folder / "talk.toml").write_text(text)
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualTimeLoop)
    loop.watch(anyio.to_thread.current_default_thread_limiter())
    recognizer = ScriptedRecognizer(["Tell me", "Stop it"])
    options.setdefault("ears", lambda: Ears(recognizer, ScriptedTurnDetector()))
    options.setdefault("voice", lambda: ScriptedVoice(first_audio_ms=80, leading_silence_ms=50))
    model = ScriptedModel(REPLIES, first_token_ms=200, round_ms=30, drafted=0)
    stand = Stand(model, clock=LoopClock(), **options)
    async with stand.running():
        return await run_live(read_scenario(folder / "talk.toml"), stand.url, speak=speak)


async def test_a_servers_waits_are_measured_step_by_step(tmp_path: Path) -> None:
    report = await held(tmp_path)
    assert report.clock == "wall"
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
    assert all(abs(turn.residual_ms) < 1 for turn in report.turns)
    assert second.interrupts is True
    assert 0 < second.stages["interruption_silence"] < 100, "heard within a block of 32 ms"


async def test_what_a_server_refuses_or_breaks_is_told(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="turn_detection"):
        await held(tmp_path, ears=None)
    with pytest.raises(EngineError, match="nothing was heard in answer to 'Thanks'"):
        await held(
            tmp_path,
            "[[turns]]\nuser = 'Thanks'\ntyped = true",
            voice=lambda: ScriptedVoice(word_ms=0, leading_silence_ms=60),
        )
