"""The Realtime server over real sockets: what is sent, in which order, and what is let go."""

from __future__ import annotations

import base64
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import anyio
import pytest
import pytest_asyncio
from websockets.exceptions import ConnectionClosed

from specstream.errors import EngineFailed, PromptError
from specstream.testing import ScriptedEngine, chunks_of
from specstream.types import Message, Phrase, SamplingParams, ScenePrompt
from tests.ws.doubles import (
    BrokenVoice,
    Gate,
    HandClock,
    OneShotBoard,
    Stand,
    Wire,
    WordVoice,
    wait_for,
)

WORDS = " ".join(f"word{n}" for n in range(30)) + "."  # 6 seconds of speech, one phrase
ALL_OWN = {"specstream": {"events": ["avatar", "prompt", "revoke", "report"]}}


@pytest_asyncio.fixture
async def stack() -> AsyncGenerator[AsyncExitStack, None]:
    async with AsyncExitStack() as stack:
        yield stack


async def settle() -> None:
    """Until nothing moves any more, sockets included."""
    for _ in range(200):
        await anyio.lowlevel.checkpoint()


def shape(types: Sequence[str]) -> list[str]:
    """The order of events, with runs of deltas (and what may lie among them) as one."""
    out: list[str] = []
    for type in types:
        name = "deltas" if type.endswith(".delta") else type
        if not (out and name == out[-1] == "deltas"):
            out.append(name)
    return out


AROUND = ["conversation.item.added", "conversation.item.done", "response.created"]
BEGIN = ["response.output_item.added", "conversation.item.added", "response.content_part.added"]
END = [
    "response.content_part.done",
    "response.output_item.done",
    "conversation.item.done",
    "response.done",
]
TEXT_DONE = ["response.output_text.done"]
AUDIO_DONE = ["response.output_audio.done", "response.output_audio_transcript.done"]


@pytest.mark.parametrize(
    ("modality", "middle"), [("text", TEXT_DONE), ("audio", AUDIO_DONE)], ids=["text", "audio"]
)
async def test_the_events_of_a_response_come_in_order(modality: str, middle: list[str]) -> None:
    stand = Stand(ScriptedEngine(["Hello [smile] there."]))
    async with stand.running(), stand.client() as wire:
        await wire.ask("Hi", output_modalities=[modality], metadata={"client_event_id": "x1"})
        done = (await wire.until("response.done"))["response"]
        assert shape(wire.types()[1:]) == [*AROUND, *BEGIN, "deltas", *middle, *END]
        assert [e["specstream"]["seq"] for e in wire.seen] == list(range(len(wire.seen)))
        assert len({e["event_id"] for e in wire.seen}) == len(wire.seen)
        assert not any(e["type"].startswith("specstream.") for e in wire.seen)
        assert done["status"] == "completed"
        created = next(e for e in wire.seen if e["type"] == "response.created")["response"]
        assert (created["id"], created["status"], created["output"]) == (
            done["id"],
            "in_progress",
            [],
        )
        assert created["metadata"] == done["metadata"] == {"client_event_id": "x1"}
        assert done["output_modalities"] == [modality]
        assert done["usage"]["total_tokens"] == 1 + done["usage"]["output_tokens"]
        deltas = [e for e in wire.seen if e["type"].endswith(("text.delta", "transcript.delta"))]
        text = "".join(e["delta"] for e in deltas)
        assert text == ("Hello [smile] there." if modality == "text" else "Hello there.")
        key = "text" if modality == "text" else "transcript"
        (part,) = done["output"][0]["content"]
        assert part == {"type": f"output_{modality}", key: text}
        final = next(e for e in wire.seen if e["type"] == middle[-1])
        assert final[key] == text
        part_types = {e["part"]["type"] for e in wire.seen if "part" in e}
        assert part_types == {modality}
        ids = {e["item_id"] for e in wire.seen if "item_id" in e}
        assert ids == {done["output"][0]["id"]}


async def test_own_events_go_only_to_those_who_asked() -> None:
    stand = Stand(ScriptedEngine(["Hello there. Bye."]))
    async with stand.running(), stand.client() as plain, stand.client() as ours:
        await ours.send("session.update", session={"type": "realtime", **ALL_OWN})
        await ours.until("session.updated")
        for wire in (plain, ours):
            await wire.ask("Hi")
            await wire.until("response.done")
        own = {kind for kind in ours.types() if kind.startswith("specstream.")}
        assert own == {"specstream.avatar.delta", "specstream.prompt.delta", "specstream.report"}
        assert ours.types()[-2:] == ["specstream.report", "response.done"]
        standard = [kind for kind in ours.types() if not kind.startswith("specstream.")]
        standard.remove("session.updated")
        assert shape(standard) == shape(plain.types())
        report = ours.seen[-2]["report"]
        assert {"acceptance_rate", "ttft_ms", "first_audio_ms", "ttfa_ms"} <= set(report)


async def test_a_round_is_told_with_its_text() -> None:
    stand = Stand(ScriptedEngine([chunks_of("one two three four five six", [1, 3, 2])]))
    async with stand.running(), stand.client() as wire:
        await wire.ask("Hi", output_modalities=["text"])
        await wire.until("response.done")
        deltas = [e for e in wire.seen if e["type"] == "response.output_text.delta"]
        told = [
            (
                e["delta"],
                e["specstream"]["tokens"],
                e["specstream"]["round"],
                e["specstream"]["accepted"],
            )
            for e in deltas
        ]
        assert told == [
            ("one", [0, 1], 0, 0),
            (" two three four", [1, 4], 1, 2),
            (" five six", [4, 6], 2, 1),
        ]


async def test_settings_of_one_response_are_its_own() -> None:
    engine = ScriptedEngine(["one two three"])
    stand = Stand(engine, params=SamplingParams(max_tokens=77, temperature=0.3), system="Default.")
    async with stand.running(), stand.client() as wire:
        await wire.ask("Hi", output_modalities=["text"])
        await wire.until("response.done")
        item = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "B"}]}
        first = wire.seen[1]["item"]["id"]
        await wire.send(
            "response.create",
            response={
                "output_modalities": ["text"],
                "conversation": "none",
                "instructions": "Only now.",
                "input": [{"type": "item_reference", "id": first}, item],
                "max_output_tokens": 5,
                "specstream": {"sampling": {"temperature": 0}},
            },
        )
        done = (await wire.until("response.done"))["response"]
        assert done["conversation_id"] is None
        assert done["max_output_tokens"] == 5
        tail = wire.types()[wire.types().index("response.done") + 1 :]
        assert not any(kind.startswith("conversation.") for kind in tail)
        await wire.send("response.create", response={"output_modalities": ["text"], "input": []})
        await wire.until("response.done")
    asked = [([m["content"] for m in messages], params) for messages, params in engine.requests]
    assert asked[0] == (["Default.", "Hi"], SamplingParams(max_tokens=77, temperature=0.3))
    assert asked[1] == (["Only now.", "Hi", "B"], SamplingParams(max_tokens=5))
    assert asked[2][0] == ["Default."]


async def test_a_reply_that_hits_its_limit_is_incomplete() -> None:
    stand = Stand(ScriptedEngine([chunks_of("one two", finish_reason="length")]))
    async with stand.running(), stand.client() as wire:
        await wire.ask("Hi", output_modalities=["text"])
        done = (await wire.until("response.done"))["response"]
        assert done["status"] == "incomplete"
        assert done["status_details"] == {"type": "incomplete", "reason": "max_output_tokens"}
        assert done["output"][0]["status"] == "incomplete"


async def test_cancel_before_the_first_token() -> None:
    engine = ScriptedEngine(["one two three."], gate=Gate())
    stand = Stand(engine)
    async with stand.running(), stand.client() as wire:
        await wire.ask("Hi")
        await wire.until("response.created")
        await wait_for(lambda: bool(engine.generations))
        await wire.send("response.cancel")
        done = (await wire.until("response.done"))["response"]
        assert (done["status"], done["output"]) == ("cancelled", [])
        assert done["status_details"] == {"type": "cancelled", "reason": "client_cancelled"}
        assert wire.types()[-2:] == ["response.created", "response.done"]


async def test_cancel_in_the_middle_of_the_text() -> None:
    gate = Gate(shut=False)
    engine = ScriptedEngine(["one two three four.", "five."], gate=gate)
    stand = Stand(engine)
    async with stand.running(), stand.client() as wire:
        gate.shut(after=2)
        await wire.ask("Hi", output_modalities=["text"])
        await wire.until("response.output_text.delta")
        await wire.until("response.output_text.delta")
        await wire.send("response.cancel", response_id=wire.seen[-1]["response_id"])
        done = (await wire.until("response.done"))["response"]
        assert shape(wire.types()[-6:]) == ["deltas", *TEXT_DONE, *END]
        assert done["output"][0]["content"] == [{"type": "output_text", "text": "one two"}]
        assert done["output"][0]["status"] == "incomplete"
        assert engine.generations[0].report.finish_reason == "cancelled"
        gate.open()
        await wire.ask("Go on.", output_modalities=["text"])
        await wire.until("response.done")
        assert [m["content"] for m in engine.requests[1][0]] == ["Hi", "one two", "Go on."]


async def test_cancel_in_the_middle_of_the_audio() -> None:
    clock = HandClock()
    engine = ScriptedEngine([WORDS])
    stand = Stand(engine, clock=clock)
    async with stand.running(), stand.client() as wire:
        await wire.send("session.update", session={"type": "realtime", **ALL_OWN})
        await wire.ask("Hi")
        sent = 0
        while sent < 48000:
            sent = (await wire.until("response.output_audio.delta"))["specstream"]["samples"][1]
        assert sent == 48000, "two seconds ahead of the play-out, and no more"
        await wire.send("response.cancel")
        done = (await wire.until("response.done"))["response"]
        assert shape(wire.types())[-7:] == [*AUDIO_DONE, *END[:3], "specstream.report", END[3]]
        audio = [e for e in wire.seen if e["type"] == "response.output_audio.delta"]
        assert sum(len(base64.b64decode(e["delta"])) for e in audio) == 2 * 48000
        ten = " ".join(f"word{n}" for n in range(10))
        assert done["output"][0]["content"] == [{"type": "output_audio", "transcript": ten}]
        said = next(e for e in wire.seen if e["type"] == AUDIO_DONE[1])["transcript"]
        assert said == WORDS, "the transcript's end is that of its deltas"
        cues = [e["cue"]["name"] for e in wire.seen if e["type"] == "specstream.avatar.delta"]
        assert cues[-1] == "sil", "the face comes to rest"
        seen = len(wire.seen)
        clock.advance(60.0)
        await settle()
        error = await wire.refused("response.cancel")
        assert error["code"] == "response_cancel_not_active"
        assert len(wire.seen) == seen + 1, "nothing came after response.done"
        item = done["output"][0]["id"]
        await wire.send(
            "conversation.item.truncate", item_id=item, content_index=0, audio_end_ms=700
        )
        await wire.until("conversation.item.truncated")
        await wire.ask("And?", output_modalities=["text"])
        await wire.until("response.done")
        assert engine.requests[1][0][1] == {"role": "assistant", "content": "word0 word1 word2"}


async def test_truncating_the_item_that_is_being_spoken_stops_it() -> None:
    stand = Stand(ScriptedEngine([WORDS]), clock=HandClock())
    async with stand.running(), stand.client() as wire:
        await wire.ask("Hi")
        delta = await wire.until("response.output_audio.delta")
        fields = {"item_id": delta["item_id"], "content_index": 0, "audio_end_ms": 50}
        await wire.send("conversation.item.truncate", **fields)
        done = (await wire.until("response.done"))["response"]
        assert done["status"] == "cancelled"
        answer = await wire.next()
        assert answer["type"] == "conversation.item.truncated"
        assert {key: answer[key] for key in fields} == fields
        await wire.send("conversation.item.retrieve", item_id=delta["item_id"])
        item = (await wire.until("conversation.item.retrieved"))["item"]
        assert item["content"] == [{"type": "output_audio", "transcript": ""}]


async def test_cancel_while_the_voice_hangs() -> None:
    voice_gate = Gate()
    stand = Stand(ScriptedEngine([WORDS]), voice=lambda: WordVoice(gate=voice_gate))
    async with stand.running(), stand.client() as wire:
        await wire.ask("Hi")
        await wait_for(lambda: stand.voices[-1].speaking == 1)
        await wire.send("response.cancel")
        assert (await wire.until("response.done"))["response"]["status"] == "cancelled"
        assert stand.voices[-1].speaking == 0


async def test_one_response_at_a_time_writes_to_the_conversation() -> None:
    gate = Gate()
    stand = Stand(ScriptedEngine(["one two."], gate=gate))
    async with stand.running(), stand.client() as wire:
        await wire.ask("Hi", output_modalities=["text"])
        await wire.until("response.created")
        error = await wire.refused("response.create", event_id="again")
        assert error["code"] == "conversation_already_has_active_response"
        assert error["event_id"] == "again"
        aside = {"output_modalities": ["text"], "conversation": "none", "metadata": {"n": "1"}}
        for _ in range(3):
            await wire.send("response.create", response=aside)
            await wire.until("response.created")
        error = await wire.refused("response.create", response=aside)
        assert error["code"] == "too_many_responses"
        gate.open()
        ended = [(await wire.until("response.done"))["response"] for _ in range(4)]
        assert all(response["status"] == "completed" for response in ended)
        assert sum(response["conversation_id"] is None for response in ended) == 3
        await wire.ask("Hi", output_modalities=["text"])
        assert (await wire.until("response.done"))["response"]["status"] == "completed"


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("session.upgrade", {}, "invalid_value"),
    ("session.update", {"session": {"type": "realtime", "colour": "red"}}, "unknown_parameter"),
    (
        "session.update",
        {"session": {"type": "realtime", "specstream": {"sampling": {"top_p": 2}}}},
        "invalid_value",
    ),
    ("response.cancel", {}, "response_cancel_not_active"),
    ("response.cancel", {"response_id": "resp_x"}, "response_cancel_not_active"),
    ("conversation.item.retrieve", {"item_id": "x"}, "item_not_found"),
    ("conversation.item.delete", {"item_id": "x"}, "item_not_found"),
    (
        "conversation.item.truncate",
        {"item_id": "x", "content_index": 0, "audio_end_ms": 0},
        "item_not_found",
    ),
    ("input_audio_buffer.append", {"audio": ""}, "input_audio_not_supported"),
    (
        "response.create",
        {"response": {"input": [{"type": "item_reference", "id": "x"}]}},
        "item_not_found",
    ),
    (
        "response.create",
        {"response": {"input": [{"type": "message"}]}},
        "missing_required_parameter",
    ),
]


async def test_refusals_are_answered_and_the_session_goes_on() -> None:
    stand = Stand(ScriptedEngine(["fine."]))
    async with stand.running(), stand.client() as wire:
        for number, (type, fields, code) in enumerate(REFUSED):
            error = await wire.refused(type, event_id=f"mine-{number}", **fields)
            assert (error["code"], error["event_id"]) == (code, f"mine-{number}"), error
            assert error["type"] == "invalid_request_error"
        await wire.socket.send("not json")
        assert (await wire.next())["error"]["code"] == "invalid_json"
        await wire.ask("Hi")
        assert (await wire.until("response.done"))["response"]["status"] == "completed"


@pytest.mark.parametrize(("frame", "code"), [(b"\x00", 1003), ("x" * 5000, 1009)])
async def test_frames_that_no_client_sends_close_the_connection(frame: Any, code: int) -> None:
    stand = Stand(ScriptedEngine(["fine."]), max_size=4096)
    async with stand.running(), stand.client() as wire:
        await wire.socket.send(frame)
        with pytest.raises(ConnectionClosed) as caught:
            await wire.next()
        assert caught.value.rcvd is not None
        assert caught.value.rcvd.code == code


async def test_a_killed_client_leaves_nothing_and_others_do_not_notice() -> None:
    gate = Gate(shut=False)
    engine = ScriptedEngine(["Well, hello. " + WORDS, "Still here."], gate=gate)
    stand = Stand(engine, clock=HandClock())
    async with stand.running(), stand.client() as victim, stand.client() as other:
        gate.shut(after=20)
        await victim.ask("Hi")
        await victim.until("response.output_audio.delta")
        assert stand.server.counters.sessions == 2
        victim.socket.transport.abort()
        await wait_for(lambda: stand.server.counters.sessions == 1)
        assert engine.generations[0]._finish == "cancelled"
        gate.open()
        assert stand.voices[1].closed  # voices[0] was made for a trial at the start
        assert stand.voices[1].speaking == 0
        await other.ask("Hi")
        done = (await other.until("response.done"))["response"]
        assert done["output"][0]["content"][0]["transcript"] == "Still here."


async def test_a_client_that_does_not_read_stops_its_own_reply_only() -> None:
    long = " ".join(["word"] * 20_000)
    engine = ScriptedEngine([long, "Still here."])
    stand = Stand(engine)  # a free clock: nothing but the socket holds the audio back
    async with stand.running(), stand.client(max_queue=1) as lazy, stand.client() as other:
        await lazy.ask("Hi")
        await wait_for(lambda: bool(engine.generations))
        left, standing = len(engine.generations[0]._chunks), 0
        while standing < 20:
            await settle()
            now = len(engine.generations[0]._chunks)
            left, standing = now, standing + 1 if now == left else 0
        assert left > 5_000, "the model has stopped writing, far from the end"
        await other.ask("Hi")
        await other.until("response.done")
        assert len(engine.generations[0]._chunks) == left
        # Then it reads on, and has missed nothing.
        await lazy.until("response.created")
        words = 0
        while words < 200:
            delta = await lazy.until("response.output_audio_transcript.delta")
            words += delta["delta"].count("word")
        seqs = [event["specstream"]["seq"] for event in lazy.seen]
        assert seqs == list(range(len(seqs)))
        lazy.socket.transport.abort()
        await wait_for(lambda: stand.server.counters.sessions == 1)


async def test_closing_the_server_releases_a_reply_under_way(stack: AsyncExitStack) -> None:
    stand = Stand(ScriptedEngine([WORDS]), clock=HandClock())
    async with stand.running():
        wire = await stack.enter_async_context(stand.client())
        await wire.ask("Hi")
        await wire.until("response.output_audio.delta")
        assert stand.server.counters.sessions == 1
    assert stand.server.counters.sessions == 0
    assert len(stand.voices) == 2
    assert all(voice.closed for voice in stand.voices)
    with pytest.raises(ConnectionClosed) as caught:
        await wire.until("response.done")
    assert caught.value.rcvd is not None
    assert caught.value.rcvd.code == 1001


class _FailingEngine(ScriptedEngine):
    """Fails before (``PromptError``) or in the middle of a reply."""

    def __init__(self, error: Exception, after: int) -> None:
        super().__init__(["one two three."])
        self._error, self._after = error, after

    @asynccontextmanager
    async def generate(
        self,
        messages: Sequence[Message] | str,
        params: SamplingParams | None = None,
        *,
        reference: str = "",
    ) -> AsyncGenerator[Any, None]:
        if self._after == 0:
            raise self._error
        async with super().generate(messages, params, reference=reference) as generation:
            step = generation.__anext__
            count = 0

            async def failing() -> Any:
                nonlocal count
                count += 1
                if count > self._after:
                    raise self._error
                return await step()

            class Failing:
                cancel, report = generation.cancel, generation.report

                def __aiter__(self) -> Failing:
                    return self

                async def __anext__(self) -> Any:
                    return await failing()

            yield Failing()


@pytest.mark.parametrize(
    ("error", "after", "code", "text"),
    [
        (PromptError("the prompt is too long"), 0, "bad_prompt", None),
        (EngineFailed("out of memory"), 2, "engine_failed", "one two"),
        (RuntimeError("secret detail"), 2, "server_error", "one"),
    ],
)
async def test_a_broken_reply_fails_and_the_session_goes_on(
    error: Exception, after: int, code: str, text: str | None
) -> None:
    stand = Stand(_FailingEngine(error, after))
    async with stand.running(), stand.client() as wire:
        for _ in range(2):
            await wire.ask("Hi", output_modalities=["text"])
            done = (await wire.until("response.done"))["response"]
            assert done["status"] == "failed"
            failure = done["status_details"]["error"]
            assert failure["code"] == code
            assert "secret" not in failure["message"]
            if text is None:
                assert done["output"] == []
            else:
                assert done["output"][0]["content"][0]["text"].startswith(text)


async def test_a_broken_voice_fails_the_response_but_not_its_text() -> None:
    stand = Stand(ScriptedEngine(["one two three."]), voice=BrokenVoice)
    async with stand.running(), stand.client() as wire:
        await wire.ask("Hi")
        done = (await wire.until("response.done"))["response"]
        assert done["status"] == "failed"
        assert done["status_details"]["error"]["code"] == "adapter_failed"
        assert done["output"][0]["content"][0]["transcript"] == "one two three."
        assert shape(wire.types())[-6:] == [*AUDIO_DONE, *END]


async def test_a_broken_rewriter_is_told_and_the_response_completes() -> None:
    class BrokenBoard(OneShotBoard):
        async def add(self, phrase: Phrase) -> Sequence[ScenePrompt]:
            raise ValueError("no paint left")

    stand = Stand(ScriptedEngine(["one two three."]), prompt=BrokenBoard)
    async with stand.running(), stand.client() as wire:
        await wire.send("session.update", session={"type": "realtime", **ALL_OWN})
        await wire.ask("Hi")
        error = (await wire.until("error"))["error"]
        assert (error["type"], error["code"]) == ("server_error", "adapter_failed")
        assert (await wire.until("response.done"))["response"]["status"] == "completed"


async def test_without_a_voice_the_server_answers_in_text() -> None:
    stand = Stand(ScriptedEngine(["one."]), voice=None)
    async with stand.running(), stand.client() as wire:
        assert wire.seen[0]["session"]["output_modalities"] == ["text"]
        error = await wire.refused("response.create", response={"output_modalities": ["audio"]})
        assert error["code"] == "audio_not_available"
        await wire.ask("Hi")
        assert (await wire.until("response.done"))["response"]["output_modalities"] == ["text"]


async def test_items_of_a_conversation_are_told() -> None:
    stand = Stand(ScriptedEngine(["one."]))
    async with stand.running(), stand.client("?model=tiny") as wire:
        assert wire.seen[0]["session"]["model"] == "tiny"
        content = [{"type": "input_text", "text": "A"}]
        item = {"type": "message", "role": "user", "content": content}
        await wire.send("conversation.item.create", item={**item, "id": "a"})
        added, done = await wire.next(), await wire.next()
        assert [added["type"], done["type"]] == AROUND[:2]
        assert (added["previous_item_id"], added["item"]["id"]) == (None, "a")
        assert (
            added["item"]
            == done["item"]
            == {
                "id": "a",
                "object": "realtime.item",
                "type": "message",
                "status": "completed",
                "role": "user",
                "content": content,
            }
        )
        await wire.send("conversation.item.create", item={**item, "id": "b"})
        assert (await wire.next())["previous_item_id"] == "a"
        await wire.next()
        await wire.send("conversation.item.delete", item_id="a")
        assert (await wire.until("conversation.item.deleted"))["item_id"] == "a"


async def run_of(wire: Wire, text: str) -> str:
    await wire.ask(text, output_modalities=["text"])
    done = (await wire.until("response.done"))["response"]
    reply: str = done["output"][0]["content"][0]["text"]
    return reply


async def test_many_sessions_come_and_go_without_a_trace() -> None:
    engine = ScriptedEngine(["one two."])
    stand = Stand(engine)
    async with stand.running():
        for round in range(10):
            async with anyio.create_task_group() as group:
                for number in range(4):

                    async def visit(number: int = number, round: int = round) -> None:
                        async with stand.client() as wire:
                            assert await run_of(wire, f"{round}.{number}") == "one two."

                    group.start_soon(visit)
        await wait_for(lambda: stand.server.counters.sessions == 0)
        assert stand.server.counters.sessions_total == 40
        assert stand.server.counters.responses == {"completed": 40}
