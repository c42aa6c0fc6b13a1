"""The Python client against a real server on loopback."""

import json
import subprocess
import sys
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
from websockets.asyncio.server import ServerConnection

from specstream.client.client import (
    AudioDelta,
    AvatarDelta,
    Done,
    Problem,
    PromptDelta,
    RealtimeClient,
    RealtimeEvent,
    RealtimeReport,
    Reply,
    TextDelta,
)
from specstream.errors import (
    ConfigError,
    ConnectionFailed,
    PromptError,
    ProtocolError,
    RequestError,
    SamplingError,
)
from specstream.testing import ScriptedEngine, ScriptedGeneration
from specstream.types import AvatarCue, Message, RawPrompt, SamplingParams, ScenePrompt
from tests.server.doubles import BrokenVoice, Gate, Stand, WordVoice, end_of, read, text_of, wait_for
from tests.support.sockets import listen

SAID = "Hello [smile] there, dear friend. How are you?"
HEARD = "Hello there, dear friend. How are you?"


async def test_an_audio_reply_brings_everything_and_it_all_fits_together() -> None:
    stand = Stand(ScriptedEngine([SAID]), voice=lambda: WordVoice(22050))
    async with stand.running(), RealtimeClient.connect(f"ws://127.0.0.1:{stand.port}") as client:
        events = await read(client.respond("Hi"))
    text = text_of(events)
    audio = [event for event in events if isinstance(event, AudioDelta)]
    assert text == HEARD
    at = 0
    for event in audio:
        assert event.samples == (at, at + len(event.pcm) // 2)
        at = event.samples.end
    words = [word for event in audio for word in event.words]
    assert [word.text for word in words] == [word.strip(",.?") for word in HEARD.split()]
    assert all(SAID[word.chars.start : word.chars.end] == word.text for word in words)
    assert at == 7 * 4800 == words[-1].samples.end
    cues = [event.cue for event in events if isinstance(event, AvatarDelta)]
    assert isinstance(cues[0], AvatarCue)
    assert [cue.samples for cue in cues if cue.name == "aa"] == [word.samples for word in words]
    assert all(isinstance(e.shot, ScenePrompt) for e in events if isinstance(e, PromptDelta))
    report, done = events[-2:]
    assert isinstance(report, RealtimeReport)
    assert report.figures["text"] == SAID
    assert report.figures["audio_seconds"] == pytest.approx(at / 24000, abs=1e-3)
    assert isinstance(done, Done)
    assert (done.status, done.text, done.error) == ("completed", HEARD, None)
    assert done.usage is not None
    assert done.usage.output_tokens == len(report.figures["token_ids"])
    times = [event.t_ms for event in events]
    assert times == sorted(times)


async def test_a_text_reply_is_verbatim_and_takes_its_own_settings() -> None:
    engine = ScriptedEngine([SAID])
    stand = Stand(engine)
    async with (
        stand.running(),
        RealtimeClient.connect(stand.url, events=(), instructions="Be kind.") as client,
    ):
        params = SamplingParams(temperature=0.5, seed=3, stop=("END",), max_tokens=99)
        events = await read(client.respond("Hi", audio=False, sampling=params, max_tokens=7))
    assert {type(event) for event in events} == {TextDelta, Done}
    text = text_of(events)
    assert text and SAID.startswith(text)
    messages, used = engine.requests[0]
    assert [m["content"] for m in messages] == ["Be kind.", "Hi"]
    assert used == SamplingParams(temperature=0.5, seed=3, stop=("END",), max_tokens=7)


async def test_cancel_ends_the_reply_and_the_next_one_is_whole() -> None:
    gate = Gate(shut=False)
    async with Stand(ScriptedEngine(["one two three four.", "five."], gate=gate)).python() as client:
        reply = client.respond("Hi", audio=False)
        gate.shut(after=2)
        first = await anext(reply)
        assert isinstance(first, TextDelta)
        await client.cancel()
        done = end_of(await read(reply))
        assert (done.status, done.reason) == ("cancelled", "client_cancelled")
        await client.cancel()  # nothing is under way: no effect
        gate.open()
        assert text_of(await read(client.respond("And?", audio=False))) == "five."


async def test_asking_again_ends_a_reply_that_was_left() -> None:
    gate = Gate(shut=False)
    stand = Stand(ScriptedEngine(["one two three four.", "five."], gate=gate))
    async with stand.running(), RealtimeClient.connect(stand.url) as client:
        gate.shut(after=2)
        async for _ in client.respond("Hi", audio=False):
            break
        gate.open()
        assert text_of(await read(client.respond("And?", audio=False))) == "five."
        assert stand.server.counters.responses == {"cancelled": 1, "completed": 1}


@pytest.mark.parametrize("begun", [True, False])
async def test_a_request_of_another_task_ends_the_reply_for_its_reader(begun: bool) -> None:
    gate = Gate(shut=False)
    engine = ScriptedEngine(["one two three four five six."] + ["seven."] * 2, gate=gate)
    async with Stand(engine).python() as client, anyio.create_task_group() as tasks:
        first, second = list[RealtimeEvent](), list[RealtimeEvent]()
        gate.shut(after=2)
        tasks.start_soon(_read_on, client.respond("Hi", audio=False), first)
        if begun:
            await wait_for(lambda: bool(first))
        tasks.start_soon(_read_on, client.respond("And?", audio=False), second)
        await wait_for(lambda: bool(first) and isinstance(first[-1], Done))
        gate.open()
        await wait_for(lambda: bool(second) and isinstance(second[-1], Done))
    assert [end_of(events).status for events in (first, second)] == ["cancelled", "completed"]


@pytest.mark.parametrize("by_another_task", [False, True])
async def test_settings_change_while_a_reply_is_read_and_none_of_it_is_lost(
    by_another_task: bool,
) -> None:
    gate = Gate(shut=False)
    engine = ScriptedEngine(["Hello there.", "one two three four."], gate=gate)
    async with Stand(engine).python() as client, anyio.create_task_group() as tasks:
        spoken = await read(client.respond("Before"))
        item_id = end_of(spoken).item_id
        assert item_id is not None
        gate.shut(after=2)
        reply = client.respond("Hi", audio=False)
        events = [await anext(reply)]
        changed = anyio.Event()

        async def change() -> None:
            assert (await client.update(instructions="Be brief."))["instructions"] == "Be brief."
            with pytest.raises(RequestError, match="nonsense"):
                await client.update(nonsense=1)
            await client.truncate(item_id, heard_ms=0)
            changed.set()

        if by_another_task:
            tasks.start_soon(change)
            tasks.start_soon(_read_on, reply, events)
            await changed.wait()
        else:
            await change()
        gate.open()
        if not by_another_task:
            await _read_on(reply, events)
    assert text_of(events) == "one two three four."
    assert end_of(events).status == "completed"


async def _read_on(reply: Reply, events: list[RealtimeEvent]) -> None:
    async for event in reply:
        events.append(event)


async def test_a_change_ends_no_reply_that_was_left_and_what_it_keeps_has_a_bound(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("specstream.client.exchange._MOST_KEPT", 2)
    gate = Gate(shut=False)
    stand = Stand(ScriptedEngine(["one two three four five six.", "seven."], gate=gate))
    async with stand.running(), RealtimeClient.connect(stand.url) as client:
        gate.shut(after=2)
        async for _ in client.respond("Hi", audio=False):
            break
        gate.open()
        await wait_for(lambda: stand.server.counters.responses == {"completed": 1})
        with pytest.raises(RequestError, match="read it meanwhile"):
            await client.update(instructions="Be brief.")
        assert text_of(await read(client.respond("And?", audio=False))) == "seven."


async def test_what_was_not_heard_is_forgotten() -> None:
    engine = ScriptedEngine(["Hello there, dear friend."])
    async with Stand(engine).python() as client:
        done = end_of(await read(client.respond("Hi")))
        assert done.item_id is not None
        await client.truncate(done.item_id, heard_ms=450)
        with pytest.raises(RequestError, match="already shorter"):
            await client.truncate(done.item_id, heard_ms=451)
        await read(client.respond("And?", audio=False))
    assert [m["content"] for m in engine.requests[1][0]] == ["Hi", "Hello there,", "And?"]


async def test_a_failed_reply_ends_with_its_error() -> None:
    async with Stand(ScriptedEngine([SAID]), voice=BrokenVoice).python() as client:
        events = await read(client.respond("Hi"))
        done = end_of(events)
        assert done.status == "failed"
        assert done.error is not None
        assert done.error[0] == "adapter_failed"
        assert "on fire" in done.error[1]
        assert text_of(events) == HEARD
        assert not any(isinstance(event, Problem) for event in events)


class ChoosyEngine(ScriptedEngine):
    """Refuses long prompts, as an engine does."""

    @asynccontextmanager
    async def generate(
        self, messages: Sequence[Message] | RawPrompt | str, *args: Any, **options: Any
    ) -> AsyncGenerator[ScriptedGeneration, None]:
        assert not isinstance(messages, RawPrompt | str)
        if any(len(message["content"]) > 99 for message in messages):
            raise PromptError("the prompt has 100 tokens; shorten it")
        async with super().generate(messages, *args, **options) as generation:
            yield generation


async def test_words_that_were_refused_are_taken_back_before_the_next_are_said() -> None:
    engine = ChoosyEngine(["five.", "six."])
    async with Stand(engine, voice=None).python(events=()) as client:
        (done,) = await read(client.respond("x" * 100, audio=False))
        assert isinstance(done, Done)
        assert done.error is not None
        assert (done.status, done.error[0]) == ("failed", "bad_prompt")
        with pytest.raises(RequestError, match="no voice"):
            await read(client.respond("Speak!", audio=True))
        for text in ("Hi", "And?"):
            end_of(await read(client.respond(text, audio=False)))
    assert [m["content"] for m in engine.requests[1][0]] == ["Hi", "five.", "And?"]


async def test_words_before_an_interrupted_reply_stay_said() -> None:
    gate = Gate()
    engine = ScriptedEngine(["five.", "six."], gate=gate)
    async with Stand(engine).python(events=()) as client:
        reply = client.respond("Hi", audio=False)
        async with anyio.create_task_group() as group:
            group.start_soon(read, reply)
            await wait_for(lambda: bool(engine.generations))
            await client.cancel()
        gate.open()
        await read(client.respond("And?", audio=False))
    assert [m["content"] for m in engine.requests[1][0]] == ["Hi", "And?"]


async def test_a_refused_request_raises_and_the_client_stays_usable() -> None:
    async with Stand(ScriptedEngine(["five."]), voice=None).python() as client:
        with pytest.raises(RequestError, match="no voice"):
            await read(client.respond("Hi", audio=True))
        with pytest.raises(RequestError, match="unknown_parameter"):
            await client.update(colour="red")
        assert (await client.update(instructions="x"))["instructions"] == "x"
        end_of(await read(client.respond("Hi", audio=False)))
        with pytest.raises(SamplingError, match="processors"):
            client.respond("Hi", sampling=SamplingParams(processors=(lambda i, s: s,)))


@pytest.mark.parametrize(
    ("url", "error", "reason"),
    [
        ("http://127.0.0.1:1", ConfigError, "ws://"),
        ("ws://", ConfigError, "ws://"),
        ("ws://127.0.0.1:{port}/elsewhere", ConnectionFailed, "no Realtime endpoint"),
        ("ws://127.0.0.1:{port}", ConnectionFailed, "wants a key"),
        ("ws://127.0.0.1:1", ConnectionFailed, "no Realtime server answers"),
    ],
)
async def test_connecting_fails_with_one_clear_error(
    url: str, error: type[Exception], reason: str
) -> None:
    stand = Stand(ScriptedEngine(["x"]), keys=["secret"])
    async with stand.running():
        with pytest.raises(error, match=reason):
            async with RealtimeClient.connect(url.format(port=stand.port), ready_timeout=0):
                raise AssertionError("connected")
        async with RealtimeClient.connect(stand.url, api_key="secret") as client:
            assert client.session["model"] == "specstream"


@pytest.mark.parametrize(
    ("frame", "reason"),
    [
        ("hello", "can't be read"),
        ('{"type": "session.created"}', "can't be read"),
        ('{"type": "weather.report"}', "begins with session.created"),
        ("[1]", "can't be read"),
    ],
)
async def test_a_peer_that_speaks_otherwise_is_a_protocol_error(frame: str, reason: str) -> None:
    async def other(socket: ServerConnection) -> None:
        await socket.send(frame)
        await socket.wait_closed()

    async with listen(other) as port:
        with pytest.raises(ProtocolError, match=reason):
            async with RealtimeClient.connect(f"ws://127.0.0.1:{port}"):
                raise AssertionError("connected")


async def test_a_connection_that_breaks_ends_the_reply_with_an_error() -> None:
    async def breaks(socket: ServerConnection) -> None:
        for type in ("session.created", "session.updated"):
            await socket.send(json.dumps({"type": type, "session": {}}))
        async for frame in socket:
            if json.loads(frame)["type"] == "response.create":
                await socket.close(1011, "out of luck")

    async with listen(breaks) as port, RealtimeClient.connect(f"ws://127.0.0.1:{port}") as client:
        reply = client.respond("Hi")
        with pytest.raises(ConnectionFailed, match="out of luck"):
            await anext(reply)
        assert [event async for event in reply] == []


async def test_unknown_events_and_keys_are_passed_over() -> None:
    response: dict[str, Any] = {"id": "r", "status": "completed", "output_modalities": ["text"]}

    async def newer(socket: ServerConnection) -> None:
        await socket.send(json.dumps({"type": "session.created", "session": {}, "new": 1}))
        await socket.send(json.dumps({"type": "session.updated", "session": {}}))
        async for frame in socket:
            if json.loads(frame)["type"] == "response.create":
                begun = {**response, "status": "in_progress", "mood": "good"}
                for event in (
                    {"type": "response.created", "response": begun},
                    {"type": "weather.report", "sun": True},
                    {"type": "response.done", "response": response},
                ):
                    await socket.send(json.dumps(event))

    async with listen(newer) as port, RealtimeClient.connect(f"ws://127.0.0.1:{port}") as client:
        (done,) = await read(client.respond("Hi"))
        assert isinstance(done, Done)
        assert (done.status, done.text, done.item_id) == ("completed", "", None)


async def test_cancelling_a_step_of_the_iteration_loses_nothing() -> None:
    gate = Gate()
    async with Stand(ScriptedEngine(["one two."], gate=gate)).python(events=()) as client:
        reply = client.respond("Hi", audio=False)
        for _ in range(3):
            with anyio.CancelScope() as scope:
                async with anyio.create_task_group() as group:
                    group.start_soon(anext, reply)
                    await anyio.wait_all_tasks_blocked()
                    scope.cancel()
        gate.open()
        assert text_of(await read(reply)) == "one two."


def test_the_client_needs_no_torch() -> None:
    code = "import sys, specstream.client.client; print('torch' in sys.modules)"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "False"
