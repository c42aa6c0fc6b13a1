"""A session without a socket: client events in, server events out."""

import json
from typing import Any

import pytest

from specstream.params import SamplingParams
from specstream.realtime import protocol as pr
from specstream.realtime.settings import ResponseSettings, SessionSettings
from specstream.realtime.wire import Refused
from specstream.server.sessions.session import RealtimeSession


def session(*, has_voice: bool = True) -> RealtimeSession:
    settings = SessionSettings(type="realtime", instructions="Be kind.")
    return RealtimeSession(settings, SamplingParams(max_tokens=7), has_voice=has_voice)


def answers(to: RealtimeSession, type: str, **fields: Any) -> list[dict[str, Any]]:
    event = pr.parse_client_event(json.dumps({"type": type, **fields}))
    return [answer.model_dump(mode="json") for answer in to.answer(event)]


def said(text: str, **fields: Any) -> dict[str, Any]:
    content = [{"type": "input_text", "text": text}]
    return {"type": "message", "role": "user", "content": content, **fields}


def test_what_is_refused_changes_nothing() -> None:
    one = session(has_voice=False)
    answers(one, "conversation.item.create", item=said("Hi", id="a"))
    for code, type, fields in (
        ("item_create_duplicate_item_id", "conversation.item.create", {"item": said("x", id="a")}),
        ("item_retrieve_invalid_item_id", "conversation.item.retrieve", {"item_id": "?"}),
        ("item_delete_invalid_item_id", "conversation.item.delete", {"item_id": "?"}),
        (
            "audio_not_available",
            "session.update",
            {"session": {"type": "realtime", "output_modalities": ["audio"], "model": "other"}},
        ),
    ):
        with pytest.raises(Refused) as caught:
            answers(one, type, **fields)
        assert caught.value.code == code
    assert one.created().session["model"] == "specstream"
    assert len(one.conversation.entries) == 1


def test_the_first_event_says_that_the_audio_is_made_by_machine() -> None:
    one = session()
    one.names = {"target": "big-model", "draft": "small", "voice": "ann", "ears": "whisper"}
    told = one.created().model_dump(mode="json")["specstream"]["generated"]
    assert told.pop("source").endswith("/digitalsourcetype/trainedAlgorithmicMedia")
    assert told == {"model": "big-model", "voice": "ann"}
    assert "generated" not in session(has_voice=False).created().model_dump()["specstream"]


def test_updates_merge_groups_and_replace_values() -> None:
    one = session()

    def update(**settings: Any) -> dict[str, Any]:
        (event,) = answers(one, "session.update", session={"type": "realtime", **settings})
        assert event["type"] == "session.updated"
        found: dict[str, Any] = event["session"]
        return found

    update(specstream={"sampling": {"temperature": 0.5, "top_p": 0.9}, "events": ["avatar"]})
    update(specstream={"sampling": {"top_p": 0.8}}, audio={"output": {"voice": "x"}})
    last = update(specstream={"events": ["report"]}, max_output_tokens=9)
    own = last["specstream"]
    assert (own["sampling"]["temperature"], own["sampling"]["top_p"]) == (0.5, 0.8)
    assert own["events"] == ["report"], "a list is replaced"
    assert last["audio"]["output"]["voice"] == "x"
    assert last["instructions"] == "Be kind."
    request = one.request(ResponseSettings.model_validate({"instructions": "Be brief."}))
    assert (request.params.temperature, request.params.max_tokens) == (0.5, 9)
    assert request.messages == [{"role": "system", "content": "Be brief."}]
    assert (request.audio, request.voice) == (True, "x")
