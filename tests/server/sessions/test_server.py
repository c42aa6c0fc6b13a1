"""The Realtime server over real sockets: what is sent, and in which order."""

import json
from dataclasses import replace
from typing import Any

import pytest
from websockets.asyncio.client import connect

from specstream.testing import ScriptedEngine, chunks_of
from specstream.types import SamplingParams, Span
from tests.server.doubles import ALL_OWN, AROUND, AUDIO_DONE, BEGIN, END, TEXT_DONE, Gate, Stand, shape
from tests.support.standins import BitMark


@pytest.mark.parametrize(
    ("modality", "middle"), [("text", TEXT_DONE), ("audio", AUDIO_DONE)], ids=["text", "audio"]
)
async def test_the_events_of_a_response_come_in_order(modality: str, middle: list[str]) -> None:
    async with Stand(ScriptedEngine(["Hello [smile] there."])).alone() as wire:
        metadata = {"client_event_id": "x1"}
        done = await wire.reply("Hi", output_modalities=[modality], metadata=metadata)
        assert shape(wire.types()[1:]) == [*AROUND, *BEGIN, "deltas", *middle, *END]
        assert [e["specstream"]["seq"] for e in wire.seen] == list(range(len(wire.seen)))
        assert len({e["event_id"] for e in wire.seen}) == len(wire.seen)
        assert not any(e["type"].startswith("specstream.") for e in wire.seen)
        assert done["status"] == "completed"
        created = wire.of("response.created")[0]["response"]
        assert (created["id"], created["status"]) == (done["id"], "in_progress")
        assert created["output"] == []
        assert created["metadata"] == done["metadata"] == metadata
        assert done["output_modalities"] == [modality]
        assert done["usage"]["total_tokens"] == 1 + done["usage"]["output_tokens"]
        text = "".join(e["delta"] for e in wire.of("text.delta", "transcript.delta"))
        assert text == ("Hello [smile] there." if modality == "text" else "Hello there.")
        key = "text" if modality == "text" else "transcript"
        (part,) = done["output"][0]["content"]
        assert part == {"type": f"output_{modality}", key: text}
        assert wire.of(middle[-1])[0][key] == text
        part_types = {e["part"]["type"] for e in wire.seen if "part" in e}
        assert part_types == {modality}
        ids = {e["item_id"] for e in wire.seen if "item_id" in e}
        assert ids == {done["output"][0]["id"]}


async def test_own_events_go_only_to_those_who_asked() -> None:
    stand = Stand(ScriptedEngine(["Hello there. Bye."]))
    async with stand.running(), stand.client() as plain, stand.client() as ours:
        await ours.configure(**ALL_OWN)
        for wire in (plain, ours):
            await wire.reply("Hi")
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
        await wire.reply("Hi", output_modalities=["text"])
        deltas = wire.of("response.output_text.delta")
        assert [e["delta"] for e in deltas] == ["one", " two three four", " five six"]
        assert [e["specstream"]["tokens"] for e in deltas] == [[0, 1], [1, 4], [4, 6]]
        assert [e["specstream"]["round"] for e in deltas] == [0, 1, 2]
        assert [e["specstream"]["accepted"] for e in deltas] == [0, 2, 1]


async def test_a_delta_says_which_tokens_were_drafted_and_by_whom() -> None:
    first, second, *rest = chunks_of("one two three four", [1, 3])
    drafted = replace(second, proposer="eagle", drafted=3, accepted=2)
    stand = Stand(ScriptedEngine([[first, drafted, *rest]]))
    async with stand.running(), stand.client() as wire:
        await wire.reply("Hi", output_modalities=["text"])
        alone, round = (e["specstream"] for e in wire.of("response.output_text.delta"))
        assert (alone["kept"], alone["ends"]) == ([0, 0], [3])
        assert "proposer" not in alone
        assert (round["proposer"], round["kept"]) == ("eagle", [1, 3])
        assert (round["tokens"], round["ends"]) == ([1, 4], [7, 13, 18])


async def test_tokens_without_text_keep_their_place_in_the_next_delta() -> None:
    first, second, *rest = chunks_of("one two", [1, 1])
    silent = replace(first, text="", chars=Span(0, 0), ends=(0,))
    both = replace(second, text="one two", chars=Span(0, 7))
    stand = Stand(ScriptedEngine([[silent, both, *rest]]))
    async with stand.running(), stand.client() as wire:
        await wire.reply("Hi", output_modalities=["text"])
        (told,) = (e["specstream"] for e in wire.of("response.output_text.delta"))
        assert (told["tokens"], told["ends"], told["kept"]) == ([0, 2], [0, 7], [1, 1])


async def test_the_first_audio_says_when_token_phrase_and_voice_came() -> None:
    async with Stand(ScriptedEngine(["Hello there."])).alone() as wire:
        await wire.reply("Hi", output_modalities=["audio"])
        asked = wire.of("response.created")[0]["specstream"]["t_ms"]
        sound, *later = (e["specstream"] for e in wire.of("audio.delta"))
        first = sound["first"]
        assert list(first) == ["token_ms", "phrase_ms", "voice_ms"]
        assert asked <= first["token_ms"] <= first["phrase_ms"] <= first["voice_ms"] <= sound["t_ms"]
        assert later
        assert not any("first" in other for other in later)


async def test_a_session_is_told_what_answers() -> None:
    names = {"target": "big", "draft": "small"}
    stand = Stand(ScriptedEngine(["Hi"]), names=names, mark=BitMark)
    async with stand.running(), connect(stand.url, proxy=None) as socket:
        created = json.loads(await socket.recv())
        named, generated = (created["specstream"][name] for name in ("names", "generated"))
        assert named == {"target": "big", "draft": "small", "voice": "words", "mark": "bit"}
        assert generated.pop("source").endswith("/trainedAlgorithmicMedia")
        assert generated == {"model": "big", "voice": "words", "mark": "bit"}


async def test_settings_of_one_response_are_its_own() -> None:
    engine = ScriptedEngine(["one two three"])
    stand = Stand(engine, params=SamplingParams(max_tokens=77, temperature=0.3), system="Default.")
    async with stand.running(), stand.client() as wire:
        await wire.reply("Hi", output_modalities=["text"])
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
        done = await wire.done()
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
    async with Stand(ScriptedEngine([chunks_of("one two", finish_reason="length")])).alone() as wire:
        done = await wire.reply("Hi", output_modalities=["text"])
        assert done["status"] == "incomplete"
        assert done["status_details"] == {"type": "incomplete", "reason": "max_output_tokens"}
        assert done["output"][0]["status"] == "incomplete"


async def test_one_response_writes_to_the_conversation_and_at_most_three_stay_out_of_it() -> None:
    gate = Gate()
    async with Stand(ScriptedEngine(["one two."], gate=gate)).alone() as wire:
        aside = {"output_modalities": ["text"], "conversation": "none", "metadata": {"n": "1"}}
        for _ in range(3):
            await wire.send("response.create", response=aside)
            await wire.until("response.created")
        error = await wire.refused("response.create", response=aside)
        assert error["code"] == "too_many_responses"
        assert error["message"].startswith("3 out-of-band responses")
        await wire.ask("Hi", output_modalities=["text"])
        created = (await wire.until("response.created"))["response"]
        assert created["conversation_id"] is not None
        error = await wire.refused("response.create", event_id="again")
        assert error["code"] == "conversation_already_has_active_response"
        assert error["event_id"] == "again"
        error = await wire.refused("response.create", response=aside)
        assert error["code"] == "too_many_responses"
        gate.open()
        ended = [await wire.done() for _ in range(4)]
        assert all(response["status"] == "completed" for response in ended)
        assert sum(response["conversation_id"] is None for response in ended) == 3
        for response in (aside, {"output_modalities": ["text"]}):
            assert (await wire.reply("Hi", **response))["status"] == "completed"


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
    ("conversation.item.retrieve", {"item_id": "x"}, "item_retrieve_invalid_item_id"),
    ("conversation.item.delete", {"item_id": "x"}, "item_delete_invalid_item_id"),
    (
        "conversation.item.truncate",
        {"item_id": "x", "content_index": 0, "audio_end_ms": 0},
        "item_truncate_invalid_item_id",
    ),
    (
        "response.create",
        {"response": {"input": [{"type": "item_reference", "id": "x"}]}},
        "item_not_found",
    ),
    ("response.create", {"response": {"input": [{"type": "message"}]}}, "missing_required_parameter"),
]


async def test_refusals_are_answered_and_the_session_goes_on() -> None:
    async with Stand(ScriptedEngine(["fine."])).alone() as wire:
        for number, (type, fields, code) in enumerate(REFUSED):
            error = await wire.refused(type, event_id=f"mine-{number}", **fields)
            assert (error["code"], error["event_id"]) == (code, f"mine-{number}"), error
            assert error["type"] == "invalid_request_error"
        await wire.socket.send("not json")
        assert (await wire.next())["error"]["code"] == "invalid_json"
        assert (await wire.reply("Hi"))["status"] == "completed"


@pytest.mark.parametrize(("frame", "code"), [(b"\x00", 1003), ("x" * 5000, 1009)])
async def test_frames_that_no_client_sends_close_the_connection(frame: Any, code: int) -> None:
    async with Stand(ScriptedEngine(["fine."]), max_frame=4096).alone() as wire:
        await wire.socket.send(frame)
        assert (await wire.closed())[0] == code


async def test_without_a_voice_the_server_answers_in_text() -> None:
    async with Stand(ScriptedEngine(["one."]), voice=None).alone() as wire:
        assert wire.seen[0]["session"]["output_modalities"] == ["text"]
        error = await wire.refused("response.create", response={"output_modalities": ["audio"]})
        assert error["code"] == "audio_not_available"
        assert (await wire.reply("Hi"))["output_modalities"] == ["text"]


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
        whole = {"id": "a", "object": "realtime.item", "status": "completed", **item}
        assert added["item"] == done["item"] == whole
        await wire.send("conversation.item.create", item={**item, "id": "b"})
        assert (await wire.next())["previous_item_id"] == "a"
        await wire.next()
        assert (await wire.retrieve("b"))["content"] == content
        await wire.send("conversation.item.delete", item_id="a")
        assert (await wire.until("conversation.item.deleted"))["item_id"] == "a"


async def test_a_response_may_be_decoded_without_speculation_and_learning() -> None:
    stand = Stand(ScriptedEngine(["fine."]))
    async with stand.running(), stand.client() as wire:
        for own in ({}, {"speculate": False, "learn": False}):
            await wire.reply("Hi", output_modalities=["text"], specstream=own)
        await wire.configure(specstream={"learn": False})
        await wire.reply("Hi", output_modalities=["text"])
    assert stand.engine.speculated == [True, False, True]
    assert stand.engine.learnt == [True, False, False]
