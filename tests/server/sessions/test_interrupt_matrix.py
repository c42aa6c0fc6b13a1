"""Cancel, truncate and disconnect, at every phase of a response, over a socket.

The clock stands still unless a test moves it, so what was sent is exact: a word is 200 ms.
"""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from specstream.testing import ScriptedEngine
from tests.server.doubles import Gate, HandClock, Stand, Wire, settle, wait_for
from tests.support.turns import TEXT, WORD_MS, first

LEAD_MS = 500
WHOLE = len(TEXT.split())


@dataclass(frozen=True)
class Phase:
    """What happens once ``sent_ms`` of audio were sent; the model is held after ``tokens``, if any."""

    sent_ms: int
    tokens: int | None = None
    created: bool = True
    done: bool = False

    @property
    def words(self) -> int:
        return self.sent_ms // WORD_MS


PHASES = {
    "before prefill": Phase(0, 0, created=False),
    "before the first chunk": Phase(0, 0),
    "mid-phrase": Phase(500, 7),
    "between phrases": Phase(1000, 7),
    "text over, audio not": Phase(1500),
    "over": Phase(2000, done=True),
}
# Name → the frames that are sent (a number truncates to so many ms), and how many words they leave.
ACTIONS: dict[str, tuple[list[str | int], int]] = {
    "cancel": (["cancel"], WHOLE),
    "cancel twice": (["cancel", "cancel"], WHOLE),
    "truncate": ([300], 1),
    "truncate to nothing": ([0], 0),
    "cancel, truncate": (["cancel", 300], 1),
    "truncate, cancel": ([300, "cancel"], 1),
    "truncate twice": ([450, 250], 1),
    "truncate to more": (["cancel", 5000], WHOLE),
}


@dataclass
class Scene:
    stand: Stand
    gate: Gate
    clock: HandClock

    @property
    def asked(self) -> list[str]:
        messages, _ = self.stand.engine.requests[-1]
        return [f"{m['role']}: {m['content']}" for m in messages]


@asynccontextmanager
async def scene() -> AsyncGenerator[Scene, None]:
    gate, clock = Gate(shut=False), HandClock()
    stand = Stand(ScriptedEngine([TEXT], gate=gate), clock=clock, lead_s=LEAD_MS / 1000)
    async with stand.running():
        yield Scene(stand, gate, clock)
        await wait_for(lambda: all(voice.speaking == 0 for voice in stand.voices))


async def reach(wire: Wire, on: Scene, phase: Phase) -> str:
    """Bring a response to the phase; returns its item's id, or one that does not exist."""
    item, sent = "item_none", 0
    if phase.tokens is not None:
        on.gate.shut(after=phase.tokens)
    await wire.ask("Hi")
    if not phase.created:
        return item
    await wire.until("response.created")
    if phase.sent_ms == 0:
        await settle()
    played_ms = 0
    while sent < phase.sent_ms * 24:
        event = await wire.until("response.output_audio.delta")
        sent, item = event["specstream"]["samples"][1], event["item_id"]
        if sent // 24 > played_ms + LEAD_MS - 125 and played_ms < phase.sent_ms - LEAD_MS:
            on.clock.advance(0.125)  # a sum of eighths is exact
            played_ms += 125
    assert sent == phase.sent_ms * 24
    if phase.done:
        await wire.until("response.done")
    return item


async def answers(wire: Wire) -> list[dict[str, Any]]:
    """Everything that the server has to say to what it was sent so far."""
    await wire.send("session.update", session={"type": "realtime"})
    events = []
    while (event := await wire.next())["type"] != "session.updated":
        events.append(event)
    return events


def expected_errors(phase: Phase, frames: list[str | int]) -> list[str]:
    """The codes that the frames are refused with, in order."""
    active, sent, codes = not phase.done, phase.sent_ms, []
    for frame in frames:
        if frame == "cancel":
            if not active:
                codes.append("response_cancel_not_active")
            active = False
            continue
        assert isinstance(frame, int)
        if phase.sent_ms == 0:
            codes.append("item_truncate_invalid_item_id")
            continue
        active = False
        if frame > sent:
            codes.append("invalid_value")
        sent = min(sent, frame)
    return codes


@pytest.mark.parametrize("action", ACTIONS)
@pytest.mark.parametrize("phase", PHASES)
async def test_the_conversation_ends_at_the_last_word_heard_and_the_next_response_works(
    phase: str, action: str
) -> None:
    when, (frames, most) = PHASES[phase], ACTIONS[action]
    async with scene() as on, on.stand.client() as wire:
        item = await reach(wire, on, when)
        for frame in frames:
            if frame == "cancel":
                await wire.send("response.cancel")
            elif isinstance(frame, int):
                await wire.truncate(item, frame)
        events = await answers(wire)
        if "response.done" not in wire.types():  # nothing of this stops it
            await wire.send("response.cancel")
            events += await answers(wire)
        errors = [event["error"]["code"] for event in events if event["type"] == "error"]
        assert errors == expected_errors(when, frames)
        assert wire.types().count("response.done") == 1
        words = min(when.words, most)
        before = ["user: Hi"] + ([f"assistant: {first(words)}"] if words else [])
        on.gate.open()
        done = await wire.reply("Next", output_modalities=["text"])
        assert on.asked == [*before, "user: Next"]
        assert done["output"][0]["content"][0]["text"] == TEXT


@pytest.mark.parametrize("phase", PHASES)
async def test_a_client_that_disconnects_leaves_nothing_running(phase: str) -> None:
    when = PHASES[phase]
    async with scene() as on:
        async with on.stand.client() as wire:
            await reach(wire, on, when)
        await wait_for(lambda: all(voice.speaking == 0 for voice in on.stand.voices))
        on.gate.open()
        made = on.stand.engine.generations
        await wait_for(lambda: all(reply.report.finish_reason is not None for reply in made))
        async with on.stand.client() as wire:
            await wire.ask("Hello again")
            await wire.until("response.created")
            await wait_for(lambda: on.asked == ["user: Hello again"])
