"""The protocol without sockets: what is refused, how settings merge, the numbered log."""

import json
import re
from dataclasses import fields
from pathlib import Path
from typing import Any, get_args

import anyio
import pytest

from specstream.errors import ProtocolError
from specstream.realtime import events as ev, protocol as pr
from specstream.realtime.client_events import translate
from specstream.realtime.protocol import SessionUpdate, parse_client_event
from specstream.realtime.resources import Extra
from specstream.realtime.settings import Sampling, SessionSettings, sampling_params
from specstream.realtime.wire import Ignored, Refused
from specstream.server.sessions.boxes import MAX_BYTES, MAX_EVENTS, Outbox
from specstream.server.sessions.entries import _MISSING
from specstream.types import SamplingParams, Span

USER = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hi"}]}


def frame(type: str, **fields: Any) -> str:
    return json.dumps({"type": type, "event_id": "e1", **fields})


def asking(response: object) -> str:
    return frame("response.create", response=response)


def adding(item: dict[str, object]) -> str:
    return frame("conversation.item.create", item=item)


def setting(session: dict[str, object]) -> str:
    return frame("session.update", session={"type": "realtime", **session})


def updated(old: SessionSettings, **session: Any) -> SessionSettings:
    event = parse_client_event(setting(session))
    assert isinstance(event, SessionUpdate)
    return old.merged(event.session)


PART = {"type": "input_text", "text": "Hi"}


BAD_FRAMES = [
    ("{", "invalid_json", None),
    ("[1]", "invalid_json", None),
    ("[" * 100_000, "invalid_json", None),
    # What could never be sent back.
    ('{"type": "\\ud800"}', "invalid_json", None),
    ('{"type": "conversation.item.delete", "item_id": "\\udfff"}', "invalid_json", None),
    (setting({"tracing": "@"}).replace('"@"', "[" * 300 + "]" * 300), "invalid_json", None),
    (frame("session.update"), "missing_required_parameter", "session"),
    (frame("session.update", session={}), "missing_required_parameter", "session.type"),
    ('{"event_id": "e1"}', "missing_required_parameter", "type"),
    ('{"event_id": "e1", "type": {"a": 1}}', "invalid_value", "type"),
    (frame("session.upgrade"), "invalid_value", "type"),
    (frame("response.cancel", why="x"), "unknown_parameter", "why"),
    (frame("response.cancel", response_id=1), "invalid_type", "response_id"),
    (asking([]), "invalid_type", "response"),
    (asking({"modalities": []}), "unknown_parameter", None),
    (asking({"output_modalities": ["text", "audio"]}), "invalid_value", "response.output_modalities"),
    (asking({"metadata": {"a": "b" * 513}}), "invalid_value", "response.metadata"),
    (asking({"metadata": {str(i): "" for i in range(17)}}), "invalid_value", "response.metadata"),
    (asking({"max_output_tokens": 0}), "invalid_value", None),
    (asking({"max_output_tokens": 4097}), "invalid_value", None),
    (asking({"max_output_tokens": True}), "invalid_value", None),
    (asking({"tools": [{"type": "function", "name": "f"}]}), "invalid_value", "response.tools"),
    (asking({"prompt": {"id": "p"}}), "invalid_value", None),
    (adding({**USER, "content": [{**PART, "x": 1}]}), "unknown_parameter", "item.content[0].x"),
    (adding({**USER, "content": [{"type": "input_audio"}]}), "invalid_value", "item.content[0]"),
    (adding({**USER, "role": "assistant"}), "invalid_value", "item"),
    (adding({**USER, "id": "a b"}), "invalid_value", "item.id"),
    (adding({"type": "mcp_call"}), "invalid_value", "item.type"),
    (adding({"type": "function_call", "call_id": "a"}), "missing_required_parameter", "item.name"),
    (
        adding({"type": "function_call_output", "output": "a"}),
        "missing_required_parameter",
        "item.call_id",
    ),
    (
        frame("conversation.item.truncate", item_id="a", content_index=0, audio_end_ms=-1),
        "invalid_value",
        "audio_end_ms",
    ),
    (setting({"audio": {"input": {"gain": 2}}}), "unknown_parameter", "session.audio.input.gain"),
    (setting({"audio": {"output": {"voice": 5}}}), "invalid_value", "session.audio.output.voice"),
    (
        asking({"audio": {"output": {"voice": {"id": 5}}}}),
        "invalid_value",
        "response.audio.output.voice",
    ),
    (
        asking({"specstream": {"sampling": {"logit_bias": {"a": 1}}}}),
        "invalid_type",
        "response.specstream.sampling.logit_bias.a",
    ),
    (frame("output_audio_buffer.clear"), "output_audio_buffer_not_supported", "type"),
]


@pytest.mark.parametrize(("text", "code", "param"), BAD_FRAMES)
def test_what_is_wrong_is_named(text: str, code: str, param: str | None) -> None:
    with pytest.raises(Refused) as caught:
        parse_client_event(text)
    error = caught.value
    assert error.code == code
    if param is not None:
        assert error.param == param
    assert error.event_id == (None if code == "invalid_json" else "e1")
    assert len(error.message) < 400


def test_updates_change_what_they_name_and_nothing_else() -> None:
    start = SessionSettings(type="realtime", instructions="Be kind.")
    one = updated(
        start,
        audio={"output": {"voice": "marin"}},
        specstream={"events": ["avatar"], "sampling": {"temperature": 0.5}},
    )
    assert (one.instructions, one.audio.output.voice) == ("Be kind.", "marin")
    assert one.audio.output.format.rate == 24000
    two = updated(
        one,
        instructions="",
        audio={"output": {"format": {"type": "audio/pcm", "rate": 24000}}},
        specstream={"sampling": {"seed": 7, "logit_bias": {"5": -2}}},
    )
    assert two.instructions == ""
    assert two.audio.output.voice == "marin"
    assert two.specstream.events == ["avatar"]
    sampling = two.specstream.sampling
    assert (sampling.temperature, sampling.seed, sampling.logit_bias) == (0.5, 7, {5: -2.0})
    three = updated(two, specstream={"events": [], "sampling": {"temperature": None}})
    assert (three.specstream.events, three.specstream.sampling.temperature) == ([], None)
    assert three.specstream.sampling.seed == 7
    for bad in (
        {"audio": {"output": {"format": {"type": "audio/pcm", "rate": 16000}}}},
        {"specstream": {"events": ["weather"]}},
    ):
        with pytest.raises(Refused):
            updated(two, **bad)


UNSERVED = {
    "tools": [{"type": "function", "name": "f"}],
    "tool_choice": "required",
    "parallel_tool_calls": False,
    "prompt": {"id": "p"},
    "reasoning": {"effort": "low"},
    "tracing": {"workflow_name": "w" * 100_000},
    "include": ["item.input_audio_transcription.logprobs"],
    "audio": {
        "input": {
            "format": {"type": "audio/pcmu"},
            "noise_reduction": {"type": "near_field"},
            "transcription": {"model": "whisper-1"},
            "turn_detection": {"type": "semantic_vad", "eagerness": "high"},
        },
        "output": {"speed": 1.5, "voice": "marin"},
    },
}


def test_settings_that_cannot_be_served_are_left_out_and_named() -> None:
    event = parse_client_event(setting({"instructions": "Be kind.", **UNSERVED}))
    assert isinstance(event, SessionUpdate)
    merged = SessionSettings(type="realtime").merged(event.session)
    wanted = {"instructions": "Be kind.", "audio": {"output": {"voice": "marin"}}}
    start = SessionSettings(type="realtime").model_dump()
    start["instructions"] = wanted["instructions"]
    start["audio"]["output"]["voice"] = "marin"
    assert merged.model_dump() == start, "the rest is taken, and nothing of this is echoed"
    told = [ignored.param for ignored in event.ignored]
    inputs = ["format", "noise_reduction", "transcription", "turn_detection"]
    assert told == [
        *(f"session.{name}" for name in UNSERVED if name != "audio"),
        *(f"session.audio.input.{name}" for name in inputs),
        "session.audio.output.speed",
    ]
    assert all(len(ignored.message) < 200 for ignored in event.ignored)
    nothing: list[dict[str, Any]] = [
        {"tools": [], "tool_choice": "auto", "tracing": None, "truncation": "auto", "include": []},
        {"audio": {"input": {"turn_detection": None}, "output": {"speed": 1.0}}},
        {"tool_choice": "none", "prompt": None},
    ]
    for empty in nothing:
        event = parse_client_event(setting(empty))
        assert isinstance(event, SessionUpdate)
        assert event.ignored == [], "nothing was asked for"


def test_every_plain_sampling_parameter_can_be_set_over_the_wire() -> None:
    # Their own fields, or no data, or nothing on the wire to carry them.
    code = {"max_tokens", "stop_when", "grammar", "processors", "logprobs", "prompt_logprobs"}
    assert {field.name for field in fields(SamplingParams)} - code == set(Sampling.model_fields)


def test_the_responses_sampling_beats_the_sessions_and_that_the_servers() -> None:
    base = SamplingParams(temperature=1.0, top_p=0.9, seed=1, max_tokens=50)
    session = Sampling(top_p=0.5, seed=2)
    response = Sampling(seed=3, stop=("x",))
    params = sampling_params(base, session, response, "inf", at="response")
    assert params == SamplingParams(temperature=1.0, top_p=0.5, seed=3, stop=("x",), max_tokens=50)
    assert sampling_params(base, session, response, 9, at="response").max_tokens == 9
    for at in ("session", "response"):
        with pytest.raises(Refused, match="top_p") as refusal:
            sampling_params(base, session, Sampling(top_p=1.5), "inf", at=at)
        assert refusal.value.param == f"{at}.specstream.sampling"


async def test_the_log_is_numbered_in_order_and_bounded() -> None:
    now = 10.0
    outbox = Outbox(lambda: now)
    await outbox.put(ev.ItemDeleted(item_id="a"))
    now = 10.5
    for _ in range(MAX_EVENTS - 1):
        await outbox.put(ev.ItemDeleted(item_id="b"))
    async with anyio.create_task_group() as group:
        group.start_soon(outbox.put, ev.ItemDeleted(item_id="late"))
        await anyio.wait_all_tasks_blocked()
        assert outbox.seq == MAX_EVENTS
        frames = [json.loads(await outbox.take() or "")]
    assert outbox.seq == MAX_EVENTS + 1
    frames += [json.loads(await outbox.take() or "") for _ in range(MAX_EVENTS)]
    assert [f["specstream"]["seq"] for f in frames] == list(range(MAX_EVENTS + 1))
    assert [f["event_id"] for f in frames] == [f"event_{n}" for n in range(MAX_EVENTS + 1)]
    assert (frames[0]["specstream"]["t_ms"], frames[1]["specstream"]["t_ms"]) == (0.0, 500.0)
    await outbox.put(ev.ItemDeleted(item_id="x" * MAX_BYTES))
    with anyio.CancelScope() as scope:
        async with anyio.create_task_group() as group:
            group.start_soon(outbox.put, ev.ItemDeleted(item_id="waits for room"))
            await anyio.wait_all_tasks_blocked()
            assert outbox.seq == MAX_EVENTS + 2
            scope.cancel()
    assert len(await outbox.take() or "") > MAX_BYTES


def test_the_document_names_every_event_code_and_field() -> None:
    root = Path(__file__).parents[3]
    text = (root / "docs/reference/realtime.md").read_text(encoding="utf-8")
    types = [*pr.KNOWN, *ev.KNOWN]
    fields = [*Extra.model_fields, *Sampling.model_fields, *SessionSettings.model_fields]
    codes = set[str]()
    package = root / "specstream"
    for source in [*(package / "realtime").rglob("*.py"), *(package / "server").rglob("*.py")]:
        codes.update(re.findall(r'Refused\(\s*"(\w+)"', source.read_text(encoding="utf-8")))
    assert len(codes) > 10
    codes.update(code for code, _ in _MISSING.values())
    codes.update(get_args(Ignored.model_fields["code"].annotation))
    names = [*types, *fields, *codes]
    missing = [name for name in names if not re.search(rf"[`\".]{re.escape(name)}[`\"]", text)]
    assert missing == []


def test_server_events_survive_the_wire() -> None:
    event = ev.TextDeltaEvent(
        type="response.output_text.delta", response_id="r", item_id="i", delta="Hi"
    )
    event.specstream.tokens = Span(1, 2)
    assert ev.parse_server_event(event.model_dump_json()) == event
    about: dict[str, Any] = {"type": "response.done", "event_id": "e"}
    about["response"] = {"id": "r", "status": "completed", "usage": {"total_tokens": 3}}
    assert ev.parse_server_event(json.dumps(about)).type == "response.done", "as others write it"
    assert ev.parse_server_event('{"type": "weather.report", "sun": 1}').type == "weather.report"
    for bad in ("{", "[]", "7", '{"type": 5}', '{"type": "error"}', '{"type": []}', "[" * 100_000):
        with pytest.raises(ProtocolError):
            ev.parse_server_event(bad)


@pytest.mark.parametrize(
    "frame",
    [
        {"type": "response.output_audio.delta", "delta": "x"},
        {"type": "specstream.avatar.delta", "cue": {"samples": None}},
        {"type": "specstream.avatar.delta", "cue": {"samples": [1, 2, 3]}},
        {"type": "specstream.avatar.delta", "cue": {}},
    ],
)
def test_an_event_that_the_client_cannot_read_is_a_protocol_error(frame: dict[str, object]) -> None:
    about = {"response_id": "r", "item_id": "i", "output_index": 0, "content_index": 0}
    with pytest.raises(ProtocolError):
        translate(ev.parse_server_event(json.dumps(about | frame)))
