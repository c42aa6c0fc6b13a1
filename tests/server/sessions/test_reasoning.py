"""Reasoning and variables of the chat template over the wire."""

import pytest

from specstream.client.client import RealtimeReport, ReasoningDelta, TextDelta
from specstream.errors import PromptError
from specstream.testing import ScriptedEngine
from specstream.types import Chunk, Span
from tests.server.doubles import Stand, end_of, read, text_of

CHUNKS = [
    Chunk("", (1, 2), Span(0, 2), Span(0, 0), (0, 0), reasoning="Hm, ", reasoning_end=2),
    Chunk("Yes", (3, 4), Span(2, 4), Span(0, 3), (0, 3), 1, reasoning="so.", reasoning_end=3),
    Chunk(" it is.", (5,), Span(4, 5), Span(3, 10), (10,), 2, reasoning_end=3),
    Chunk("", (), Span(5, 5), Span(10, 10), finish_reason="stop", reasoning_end=3),
]


@pytest.mark.parametrize("audio", [False, True])
async def test_reasoning_goes_to_those_who_asked_and_is_neither_text_nor_speech(audio: bool) -> None:
    async with Stand(ScriptedEngine([CHUNKS])).python() as client:
        events = await read(client.respond("Is it?", audio=audio))
    thoughts = [event for event in events if isinstance(event, ReasoningDelta)]
    assert [thought.text for thought in thoughts] == ["Hm, ", "so."]
    texts = [event for event in events if isinstance(event, TextDelta)]
    assert text_of(events) == "Yes it is."
    assert texts[0].tokens == (3, 4)  # the reasoning's tokens are not the reply's
    (report,) = [event for event in events if isinstance(event, RealtimeReport)]
    assert report.figures["reasoning"] == "Hm, so."
    assert end_of(events).text == "Yes it is."


async def test_others_hear_nothing_of_it_and_the_conversation_does_not_keep_it() -> None:
    engine = ScriptedEngine([CHUNKS, "Right."])
    async with Stand(engine).alone() as wire:
        for text in ("Is it?", "Sure?"):
            await wire.reply(text, output_modalities=["text"])
        assert not any(kind.startswith("specstream.") for kind in wire.types())
        assert "Hm" not in str(wire.seen)
    assert [message["content"] for message in engine.requests[1][0]] == ["Is it?", "Yes it is.", "Sure?"]


async def test_variables_of_the_template_are_the_sessions_and_the_responses() -> None:
    engine = ScriptedEngine(["Yes."])
    async with Stand(engine).python() as client:
        _ = [event async for event in client.respond("a", audio=False)]
        session = {"chat_template_kwargs": {"enable_thinking": False, "effort": "low"}}
        told = await client.update(specstream=session)
        assert told["specstream"]["chat_template_kwargs"] == session["chat_template_kwargs"]
        _ = [event async for event in client.respond("b", audio=False)]
        own = {"effort": "high"}
        asked = client.respond("c", audio=False, chat_template_kwargs=own)
        _ = [event async for event in asked]
    assert engine.template_kwargs == [
        {},
        {"enable_thinking": False, "effort": "low"},
        {"enable_thinking": False, "effort": "high"},
    ]


@pytest.mark.parametrize(
    ("value", "code", "said"),
    [
        ({"chat_template": "{{ 1 }}"}, "invalid_value", "'chat_template' can't be"),
        ({"not a name": 1}, "invalid_value", "can't be a template's variable"),
        (["enable_thinking"], "invalid_value", "must map names"),
        ({"a": "x" * 70_000}, "invalid_value", "65536 characters"),
    ],
)
async def test_what_can_be_no_variable_is_refused(value: object, code: str, said: str) -> None:
    async with Stand(ScriptedEngine(["Yes."])).alone() as wire:
        session = {"type": "realtime", "specstream": {"chat_template_kwargs": value}}
        error = await wire.refused("session.update", session=session)
        assert (error["code"], error["param"]) == (code, "session.specstream.chat_template_kwargs")
        assert said in error["message"]


async def test_a_client_refuses_them_before_it_sends_them() -> None:
    async with Stand(ScriptedEngine(["Yes."])).python() as client:
        with pytest.raises(PromptError, match="JSON"):
            client.respond("a", chat_template_kwargs={"a": {1, 2}})
