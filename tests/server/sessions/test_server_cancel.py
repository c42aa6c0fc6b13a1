"""Stopping a response, in every phase of its life."""

import base64
import math
from collections.abc import AsyncGenerator
from contextlib import nullcontext

import anyio
import pytest

from specstream.playback import turn
from specstream.realtime.settings import SessionSettings
from specstream.server.sessions import response
from specstream.server.sessions.boxes import Outbox
from specstream.server.sessions.request import AdapterPool, Factories, ResponseRequest, Service
from specstream.stages.contract import Inlet
from specstream.testing import ScriptedEngine
from specstream.types import Phrase, SamplingParams, ScenePrompt
from specstream_adapters.avatar import VisemeScripter
from tests.server.doubles import (
    ALL_OWN,
    AUDIO_DONE,
    END,
    TEXT_DONE,
    WORDS,
    Gate,
    HandClock,
    Stand,
    Wire,
    WordVoice,
    settle,
    shape,
    wait_for,
)


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no test pass only because a hanging stage is stopped after the grace period."""
    monkeypatch.setattr(turn, "GRACE_S", math.inf)


async def test_cancel_before_the_first_token_keeps_what_was_said() -> None:
    gate = Gate()
    engine = ScriptedEngine(["one two three."], gate=gate)
    async with Stand(engine).alone() as wire:
        await wire.ask("Hi")
        await wire.until("response.created")
        await wait_for(lambda: bool(engine.generations))
        await wire.send("response.cancel")
        done = await wire.done()
        assert (done["status"], done["output"]) == ("cancelled", [])
        assert done["status_details"] == {"type": "cancelled", "reason": "client_cancelled"}
        assert wire.types()[-2:] == ["response.created", "response.done"]
        gate.open()
        await wire.reply("Are you there?", output_modalities=["text"])
        assert [m["content"] for m in engine.requests[1][0]] == ["Hi", "Are you there?"]


async def test_cancel_in_the_middle_of_the_text() -> None:
    gate = Gate(shut=False)
    engine = ScriptedEngine(["one two three four.", "five."], gate=gate)
    async with Stand(engine).alone() as wire:
        gate.shut(after=2)
        await wire.ask("Hi", output_modalities=["text"])
        await wire.until("response.output_text.delta")
        await wire.until("response.output_text.delta")
        await wire.send("response.cancel", response_id=wire.seen[-1]["response_id"])
        done = await wire.done()
        assert shape(wire.types()[-6:]) == ["deltas", *TEXT_DONE, *END]
        assert done["output"][0]["content"] == [{"type": "output_text", "text": "one two"}]
        assert done["output"][0]["status"] == "incomplete"
        assert engine.generations[0].report.finish_reason == "cancelled"
        gate.open()
        await wire.reply("Go on.", output_modalities=["text"])
        assert [m["content"] for m in engine.requests[1][0]] == ["Hi", "one two", "Go on."]


@pytest.mark.parametrize("buffer_s", [30.0, 0.5], ids=["roomy", "full"])
async def test_cancel_in_the_middle_of_the_audio(buffer_s: float) -> None:
    clock = HandClock()
    engine = ScriptedEngine([WORDS])
    async with Stand(engine, clock=clock, buffer_s=buffer_s).alone() as wire:
        await wire.configure(**ALL_OWN)
        await wire.ask("Hi")
        sent = 0
        while sent < 48000:
            sent = (await wire.until("response.output_audio.delta"))["specstream"]["samples"][1]
        assert sent == 48000, "two seconds ahead of the play-out, and no more"
        await settle()
        await wire.send("response.cancel")
        done = await wire.done()
        assert shape(wire.types())[-7:] == [*AUDIO_DONE, *END[:3], "specstream.report", END[3]]
        audio = wire.of("response.output_audio.delta")
        assert sum(len(base64.b64decode(e["delta"])) for e in audio) == 2 * 48000
        ten = " ".join(f"word{n}" for n in range(10))
        assert done["output"][0]["content"] == [{"type": "output_audio", "transcript": ten}]
        said = wire.of(AUDIO_DONE[1])[0]["transcript"]
        assert said == WORDS, "the transcript's end is that of its deltas"
        cues = [e["cue"]["name"] for e in wire.of("specstream.avatar.delta")]
        assert cues[-1] == "sil", "the face comes to rest"
        seen = len(wire.seen)
        clock.advance(60.0)
        await settle()
        error = await wire.refused("response.cancel")
        assert error["code"] == "response_cancel_not_active"
        assert len(wire.seen) == seen + 1, "nothing came after response.done"
        item = done["output"][0]["id"]
        await wire.truncate(item, 700)
        await wire.until("conversation.item.truncated")
        await wire.reply("And?", output_modalities=["text"])
        assert engine.requests[1][0][1] == {"role": "assistant", "content": "word0 word1 word2"}


class Talking:
    """A client that was sent the first two seconds of a reply whose face smiles, and then stops it."""

    def __init__(self, wire: Wire) -> None:
        self.wire = wire
        self.item = ""

    async def begin(self) -> None:
        await self.wire.configure(**ALL_OWN)
        await self.wire.ask("Hi")
        sent = 0
        while sent < 48000:
            delta = await self.wire.until("response.output_audio.delta")
            sent, self.item = delta["specstream"]["samples"][1], delta["item_id"]

    async def last_cues(self) -> list[tuple[str, float, list[int]]]:
        """The last two cues of the response; those that were under way before may come first."""
        await self.wire.until("response.done")
        cues = [e["cue"] for e in self.wire.of("specstream.avatar.delta")]
        return [(cue["name"], cue["t_ms"], cue["samples"]) for cue in cues[-2:]]


@pytest.mark.parametrize("how", ["cancel", "truncate", "speech"])
@pytest.mark.parametrize("buffer_s", [30.0, 0.5], ids=["all was made", "the stages go on"])
async def test_the_face_comes_to_rest_where_the_reply_was_heard(buffer_s: float, how: str) -> None:
    clock = HandClock()
    engine = ScriptedEngine(["[smile] " + WORDS + " [wave] Bye."])
    stand = Stand(engine, clock=clock, buffer_s=buffer_s, avatar=VisemeScripter)
    async with stand.running(), stand.client() as wire:
        talking = Talking(wire)
        await talking.begin()
        clock.advance(0.75)
        while wire.seen[-1].get("specstream", {}).get("samples", [0, 0])[1] != 66000:
            await wire.next()
        await settle()
        if how == "truncate":
            await wire.truncate(talking.item, 500)
        elif how == "speech":
            (connection,) = stand.server.sessions.connections
            await connection.responses.interrupt()
        else:
            await wire.send("response.cancel")
        at = 500 if how == "truncate" else 750
        place = (at, [at * 24, at * 24])
        assert await talking.last_cues() == [("sil", *place), ("neutral", *place)]


async def test_truncating_the_item_that_is_being_spoken_stops_it() -> None:
    async with Stand(ScriptedEngine([WORDS]), clock=HandClock()).alone() as wire:
        await wire.ask("Hi")
        delta = await wire.until("response.output_audio.delta")
        fields = {"item_id": delta["item_id"], "content_index": 0, "audio_end_ms": 50}
        await wire.send("conversation.item.truncate", **fields)
        assert (await wire.done())["status"] == "cancelled"
        answer = await wire.next()
        assert answer["type"] == "conversation.item.truncated"
        assert {key: answer[key] for key in fields} == fields
        item = await wire.retrieve(delta["item_id"])
        assert item["content"] == [{"type": "output_audio", "transcript": ""}]


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"audio_end_ms": 60_000}, "invalid_value"),
        ({"content_index": 1}, "unsupported_content_type"),
        ({"item_id": "item_of_nobody"}, "item_truncate_invalid_item_id"),
        ({"audio_end_ms": -1}, "invalid_value"),
    ],
)
async def test_a_truncation_that_is_refused_stops_nothing(fields: dict[str, object], code: str) -> None:
    clock = HandClock()
    async with Stand(ScriptedEngine([WORDS]), clock=clock).alone() as wire:
        await wire.ask("Hi")
        item = (await wire.until("response.output_audio.delta"))["item_id"]
        whole = {"item_id": item, "content_index": 0, "audio_end_ms": 50, **fields}
        await wire.send("conversation.item.truncate", **whole)
        assert (await wire.until("error"))["error"]["code"] == code
        while wire.seen[-1]["type"] != "response.done":
            clock.advance(60.0)  # lets two more seconds of audio leave
            await wire.next()
        done = wire.seen[-1]["response"]
        assert done["status"] == "completed"
        assert done["output"][0]["content"][0]["transcript"] == WORDS


async def test_truncating_an_item_of_text_stops_nothing() -> None:
    gate = Gate()
    gate.shut(after=1)
    async with Stand(ScriptedEngine(["one two three."], gate=gate)).alone() as wire:
        await wire.ask("Hi", output_modalities=["text"])
        item = (await wire.until("response.output_text.delta"))["item_id"]
        fields = {"item_id": item, "content_index": 0, "audio_end_ms": 0}
        error = await wire.refused("conversation.item.truncate", **fields)
        assert error["code"] == "unsupported_content_type"
        gate.open()
        assert (await wire.done())["status"] == "completed"


async def test_cancel_while_the_voice_hangs() -> None:
    voice_gate = Gate()
    stand = Stand(ScriptedEngine([WORDS]), voice=lambda: WordVoice(gate=voice_gate))
    async with stand.running(), stand.client() as wire:
        await wire.ask("Hi")
        await wait_for(lambda: stand.voices[-1].speaking == 1)
        await wire.send("response.cancel")
        assert (await wire.done())["status"] == "cancelled"
        assert stand.voices[-1].speaking == 0


class StubbornStage:
    """A stage that ignores a cancel until it is stopped."""

    name = "prompt"

    def __init__(self) -> None:
        self.released = False

    async def run(self, items: Inlet[Phrase]) -> AsyncGenerator[ScenePrompt, None]:
        try:
            async for _ in items:
                await anyio.sleep_forever()
                yield  # type: ignore[misc]
        finally:
            self.released = True


async def test_a_stage_that_does_not_come_to_rest_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turn, "GRACE_S", 0.01)
    stage = StubbornStage()
    async with Stand(ScriptedEngine(["one. two."]), prompts=lambda: stage).alone() as wire:
        await wire.configure(**ALL_OWN)
        await wire.ask("Hi", output_modalities=["text"])
        await wire.until("response.output_text.delta")
        await wire.send("response.cancel")
        assert (await wire.done())["status"] == "cancelled"
        assert stage.released


async def test_a_cancel_stops_the_model_at_once() -> None:
    engine = ScriptedEngine(["one two."], gate=Gate())
    request = ResponseRequest([], SamplingParams(), False, frozenset(), None)
    clock = HandClock()
    service = Service(engine, SessionSettings(type="realtime"), clock=clock)
    outbox = Outbox(clock.now)
    pipeline = await AdapterPool(Factories()).pipeline(audio=False, avatar=False, prompt=False)
    one = response.ResponseTurn(request, service, engine.session(), pipeline, outbox, nullcontext())
    async with anyio.create_task_group() as group:
        group.start_soon(one.run)
        await wait_for(lambda: bool(engine.generations))
        await anyio.wait_all_tasks_blocked()
        assert one.cancel()
        assert engine.generations[0].report.finish_reason == "cancelled", "in the same step of the loop"
        assert not one.cancel()
    assert not one.cancel()
    assert service.counters.responses == {"cancelled": 1}
