"""An engine behind OpenAI's chat completions, beside a server that streams as llama.cpp and vLLM do."""

import asyncio
import json
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest

from specstream import OpenAIEngine, SamplingParams
from specstream.engine.openai import generation
from specstream.errors import (
    ConfigError,
    ConnectionFailed,
    EngineBusy,
    EngineClosed,
    EngineError,
    EngineFailed,
    ModelNotFound,
    PromptError,
    PromptTooLong,
    SamplingError,
    SpecstreamError,
)
from specstream.params import Grammar
from specstream.types import Chunk, Message, Span, Tool, Tools, Truncation
from tests.support.openai_server import Answer, ChatServer, delta, llama_events, vllm_events

pytest.importorskip("openai")

WEATHER = Tool("weather", "The weather.", {"type": "object", "properties": {}})


async def read(engine: OpenAIEngine, *asked: Any, **options: Any) -> tuple[list[Chunk], Any]:
    async with engine.generate(*asked, **options) as reply:
        return [chunk async for chunk in reply], reply


async def test_deltas_become_chunks_whose_spans_cover_the_text() -> None:
    answer = Answer(llama_events("The", " capital", "", " is", " Paris", "."))
    async with ChatServer([answer]).running() as server, OpenAIEngine(server.url) as engine:
        chunks, reply = await read(engine, "Where?", SamplingParams(max_tokens=9))
    text = "".join(chunk.text for chunk in chunks)
    assert text == reply.text == reply.text_read == "The capital is Paris."
    at = token = 0
    for chunk in chunks:
        assert chunk.chars == Span(at, at + len(chunk.text))
        assert chunk.tokens.start == token and len(chunk.ends) == chunk.tokens.length
        at, token = chunk.chars.end, chunk.tokens.end
    assert [c.finish_reason for c in chunks] == [None] * (len(chunks) - 1) + ["stop"]
    (body,) = server.requests
    assert body["model"] == "small" and body["stream"] is True and body["max_tokens"] == 9
    assert "return_token_ids" not in body, "an unknown server gets OpenAI's own fields alone"
    report = reply.report
    assert (report.prompt_tokens, report.reused_tokens, report.completion_tokens) == (15, 12, 6)
    assert (report.drafted, report.accepted, report.finish_reason) == (8, 5, "stop")


async def test_of_vllm_a_delta_is_a_round_with_its_token_ids() -> None:
    answer = Answer(vllm_events((" vast", [4]), (" and mysterious", [5, 6, 7])))
    server = ChatServer([answer], owner="vllm")
    async with server.running(), OpenAIEngine(server.url) as engine:
        chunks, reply = await read(engine, "Go on.")
    assert [c.token_ids for c in chunks] == [(4,), (5, 6, 7), ()]
    assert [c.tokens for c in chunks] == [(0, 1), (1, 4), (4, 4)]
    assert chunks[-1].finish_reason == "length", "though the server gave it with the last text"
    report = reply.report
    assert (report.rounds, report.drafted, report.accepted, report.reused_tokens) == (2, 8, 2, 16)
    assert server.requests[0]["return_token_ids"] is True


@pytest.mark.parametrize(
    "events",
    [
        pytest.param([delta("One"), delta(" two"), delta(finish="stop")], id="no [DONE], no usage"),
        pytest.param(
            [{"choices": None}, delta("One"), delta(" two", finish="stop"), "[DONE]"], id="no choices"
        ),
        pytest.param(
            [{"choices": []}, delta(""), delta("One"), delta(""), delta(" two", finish="stop")],
            id="empty deltas",
        ),
    ],
)
async def test_a_stream_in_the_least_form_is_a_reply(events: list[Any]) -> None:
    async with ChatServer([Answer(events)]).running() as server, OpenAIEngine(server.url) as engine:
        chunks, _ = await read(engine, "Count.")
    assert "".join(c.text for c in chunks) == "One two" and chunks[-1].finish_reason == "stop"


@pytest.mark.parametrize(
    ("answer", "error", "said"),
    [
        pytest.param(Answer([delta("One")]), EngineFailed, "without a finish_reason", id="end"),
        pytest.param(Answer([delta("One"), "[DONE]"]), EngineFailed, "finish_reason", id="done"),
        pytest.param(
            Answer([delta("One"), {"error": {"message": "engine gone", "code": 500}}]),
            EngineFailed,
            "engine gone",
            id="error event",
        ),
        pytest.param(
            Answer([delta("One"), {"detail": "out of memory"}]),
            EngineFailed,
            "out of memory",
            id="a detail",
        ),
        pytest.param(Answer([delta("One"), ""]), EngineFailed, "no JSON", id="empty data"),
        pytest.param(Answer([delta("One"), []]), EngineFailed, "no part of a chat", id="a list"),
        pytest.param(
            Answer([delta("One"), delta(cast(Any, {"a": 1})), delta(finish="stop")]),
            EngineFailed,
            "no part of a chat",
            id="no text",
        ),
        pytest.param(Answer([delta("One"), "x" * (5 << 20)]), EngineFailed, "4 MiB", id="a long event"),
        pytest.param(Answer([delta("One")], cut=True), ConnectionFailed, "connection", id="cut"),
        pytest.param(Answer([delta("One")], hang=True), EngineError, "silent for 0.3 s", id="hang"),
    ],
)
async def test_a_stream_that_breaks_raises_after_what_came(
    answer: Answer, error: type[SpecstreamError], said: str
) -> None:
    async with (
        ChatServer([answer]).running() as server,
        OpenAIEngine(server.url, between_s=0.3) as engine,
        engine.generate("Count.") as reply,
    ):
        assert (await anext(reply)).text == "One"
        with pytest.raises(error, match=said):
            await anext(reply)
        assert isinstance(reply.error, error) and reply.report.finish_reason is None
        with pytest.raises(StopAsyncIteration):
            await anext(reply)


@pytest.mark.parametrize(
    ("status", "body", "error", "said"),
    [
        (400, {"error": {"message": "no such role", "code": 400}}, PromptError, "no such role"),
        (
            400,
            {"error": {"code": 400, "type": "exceed_context_size_error", "message": "18005 tokens"}},
            PromptTooLong,
            "18005 tokens",
        ),
        (400, {"error": {"message": "maximum context length is 2048"}}, PromptTooLong, "2048"),
        (422, {"detail": [{"loc": ["top_k"], "msg": "extra"}]}, PromptError, "top_k"),
        (401, {"error": "Unauthorized"}, ConfigError, "Unauthorized"),
        (401, {"error": {"message": "wrong key: sk-secret12"}}, ConfigError, "wrong key: …; check"),
        (404, {"error": {"message": "The model x does not exist"}}, ModelNotFound, "does not exist"),
        (500, "boom", EngineFailed, "boom"),
    ],
)
async def test_refusals_are_typed_and_keep_the_servers_words(
    status: int, body: Any, error: type[SpecstreamError], said: str
) -> None:
    async with (
        ChatServer([Answer(status=status, body=body)]).running() as server,
        OpenAIEngine(server.url) as engine,
    ):
        with pytest.raises(error, match=said):
            await read(engine, "Hi")


async def test_a_busy_server_is_asked_again_before_the_first_word() -> None:
    loading = Answer(status=503, body={"error": {"message": "Loading model", "code": 503}})
    answers = [loading, Answer(llama_events("Yes."))]
    async with ChatServer(answers).running() as server, OpenAIEngine(server.url) as engine:
        chunks, _ = await read(engine, "Hi")
    assert "".join(c.text for c in chunks) == "Yes." and len(server.requests) == 2


@pytest.mark.parametrize("end", ["hang", "cut"])
async def test_a_reply_with_its_finish_reason_is_complete_whatever_comes_then(
    end: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(generation, "FOR_COUNTS_S", 0.05)
    answer = Answer([delta("One"), delta(finish="length")], hang=end == "hang", cut=end == "cut")
    async with ChatServer([answer]).running() as server, OpenAIEngine(server.url) as engine:
        chunks, reply = await read(engine, "Count.")
    assert reply.text == "One" and chunks[-1].finish_reason == "length" and reply.error is None


async def test_text_that_was_held_back_is_given_before_an_error() -> None:
    answer = Answer([delta("One th")])
    async with ChatServer([answer]).running() as server, OpenAIEngine(server.url) as engine:
        async with engine.generate("Count.", SamplingParams(stop=(" three",))) as reply:
            with pytest.raises(EngineFailed, match="finish_reason"):
                async for _ in reply:
                    pass
        assert reply.text_read == "One th"


async def test_leaving_the_block_closes_the_stream() -> None:
    answer = Answer([delta("One"), delta(" two")], hang=True)
    async with ChatServer([answer]).running() as server, OpenAIEngine(server.url) as engine:
        async with engine.generate("Count.") as reply:
            assert (await anext(reply)).text == "One"
        await server.left.wait()
        assert reply.report.finish_reason == "cancelled"
        assert [c.finish_reason async for c in reply][-1] == "cancelled"


async def test_cancelling_a_wait_loses_no_chunk() -> None:
    server = ChatServer([Answer(llama_events("One", " two"))], gate=asyncio.Event())
    async with server.running(), OpenAIEngine(server.url) as engine, engine.generate("Count.") as reply:
        waiting = asyncio.create_task(anext(reply))
        await asyncio.sleep(0)
        waiting.cancel()
        assert server.gate is not None
        server.gate.set()
        assert "".join([chunk.text async for chunk in reply]) == "One two"


async def test_a_slow_reader_holds_the_server_back() -> None:
    parts = [delta("word ") for _ in range(5_000)]
    async with (
        ChatServer([Answer([*parts, delta(finish="stop")])]).running() as server,
        OpenAIEngine(server.url) as engine,
        engine.generate("Count.", SamplingParams(max_tokens=6_000)) as reply,
    ):
        await anext(reply)
        for _ in range(2_000):
            await asyncio.sleep(0)
        assert (reply.report.counted_tokens or 0) <= 1 + 65
        assert len("".join([c.text async for c in reply])) == 5 * 4_999


async def test_stop_strings_are_looked_for_here_too() -> None:
    """Some servers leave them in the text, and take four of them."""
    answer = Answer([delta("One tw"), delta("o thr"), delta("ee"), delta(" four")], hang=True)
    async with ChatServer([answer]).running() as server, OpenAIEngine(server.url) as engine:
        params = SamplingParams(stop=("a", "b", "c", "d", " three"))
        chunks, reply = await read(engine, "Count.", params)
        await server.left.wait()
    assert reply.text == "One two" and chunks[-1].finish_reason == "stop"
    assert server.requests[0]["stop"] == ["a", "b", "c", "d"]


async def test_a_loop_ends_the_reply() -> None:
    answer = Answer([delta("I am a fox. ") for _ in range(9)], hang=True)
    async with ChatServer([answer]).running() as server, OpenAIEngine(server.url) as engine:
        _, reply = await read(engine, "Who?", SamplingParams(max_repeats=3))
    assert reply.report.looping == "I am a fox." and reply.report.finish_reason == "length"


def call(index: int, id: str | None, name: str | None, arguments: str) -> dict[str, Any]:
    made = {"index": index, "function": {"name": name, "arguments": arguments}}
    return delta(tool_calls=[made | ({"id": id, "type": "function"} if id else {})])


@pytest.mark.parametrize(
    ("events", "arguments", "problem", "finish"),
    [
        (
            [
                call(0, "c1", "weather", ""),
                call(0, None, None, '{"at": "R'),
                call(0, None, None, 'ome"}'),
            ],
            '{"at": "Rome"}',
            "",
            "tool_calls",
        ),
        ([call(0, "c1", "weather", '"Paris"')], '"Paris"', "bad_json", "stop"),
        ([call(0, "c1", "weather", "")], "{}", "", "tool_calls"),
        ([call(0, "c1", "weather", "")], "", "cut_off", "length"),
        ([call(0, "c1", "weather", '{"at": "R')], '{"at": "R', "cut_off", "length"),
    ],
    ids=["pieces", "no object", "no arguments", "cut before them", "cut"],
)
async def test_calls_are_checked_whatever_the_server_says(
    events: list[Any], arguments: str, problem: str, finish: str
) -> None:
    answer = Answer([*events, delta(finish=finish), "[DONE]"])
    async with ChatServer([answer]).running() as server, OpenAIEngine(server.url) as engine:
        chunks, reply = await read(engine, "Weather?", tools=Tools((WEATHER,), choice="weather"))
    (made,) = reply.tool_calls
    assert (made.id, made.name, made.arguments) == ("c1", "weather", arguments)
    assert made.problem == problem and reply.text == ""
    assert chunks[-1].finish_reason == ("length" if finish == "length" else "tool_calls")
    body = server.requests[0]
    assert body["tools"][0]["function"]["name"] == "weather"
    assert body["tool_choice"] == {"type": "function", "function": {"name": "weather"}}


WHOLE, ODD = '{"at": "Rome"}', "1.5"
PIECE: dict[str, Any] = {"name": "weather", "arguments": WHOLE}


def pieces(*given: dict[str, Any]) -> list[Any]:
    return [*(delta(tool_calls=[one]) for one in given), delta(finish="tool_calls")]


@pytest.mark.parametrize(
    ("given", "arguments"),
    [
        (
            [{"index": 0, "id": "a", "function": PIECE}, {"index": 0, "id": "b", "function": PIECE}],
            [WHOLE, WHOLE],
        ),
        ([{"index": 0, "function": PIECE}, {"index": 0, "function": PIECE}], [WHOLE, WHOLE]),
        (
            [
                {"index": None, "id": "a", "function": {**PIECE, "arguments": '{"at": '}},
                {"index": None, "function": {"arguments": '"Rome"}'}},
            ],
            [WHOLE],
        ),
        (
            [
                {"index": 0, "id": "a", "function": {**PIECE, "arguments": '{"at": '}},
                {"index": 0, "id": "a", "function": {**PIECE, "arguments": '"Rome"}'}},
            ],
            [WHOLE],
        ),
        (
            [{"index": 0, "id": "a", "function": PIECE}, {"index": 1, "id": "a", "function": PIECE}],
            [WHOLE, WHOLE],
        ),
        ([{"index": 0, "id": "a", "function": {**PIECE, "arguments": {"at": "Rome"}}}], [WHOLE]),
        ([{"index": 0, "function": None}, {"index": 0, "function": PIECE}], [WHOLE]),
        (
            [
                {"index": 0, "id": "a", "function": PIECE},
                {"index": 0, "function": {**PIECE, "arguments": ""}},
            ],
            [WHOLE],
        ),
        (
            [
                {"index": 0, "function": PIECE},
                {"index": 0, "function": {**PIECE, "arguments": ""}},
                {"index": 0, "function": {"arguments": WHOLE}},
            ],
            [WHOLE, WHOLE],
        ),
    ],
    ids=[
        "one index",
        "no ids",
        "no index",
        "a name twice",
        "an id twice",
        "an object",
        "no head",
        "a name at the end",
        "a head alone",
    ],
)
async def test_calls_are_told_apart_however_they_are_numbered(
    given: list[dict[str, Any]], arguments: list[str]
) -> None:
    answer = Answer(pieces(*given))
    async with ChatServer([answer]).running() as server, OpenAIEngine(server.url) as engine:
        _, reply = await read(engine, "Weather?", tools=[WEATHER])
    assert [(c.name, c.arguments, c.problem) for c in reply.tool_calls] == [
        ("weather", one, "") for one in arguments
    ]
    assert len({call.id for call in reply.tool_calls}) == len(arguments)


async def test_of_several_calls_the_first_is_taken_where_one_is_wanted() -> None:
    answer = Answer(pieces({"index": 0, "function": PIECE}, {"index": 1, "function": PIECE}))
    async with ChatServer([answer]).running() as server, OpenAIEngine(server.url) as engine:
        chunks, reply = await read(engine, "Weather?", tools=Tools((WEATHER,), parallel=False))
    assert len(reply.tool_calls) == 1 and chunks[-1].finish_reason == "tool_calls"


async def test_a_call_has_an_id_that_the_conversation_does_not_know_yet() -> None:
    answer = Answer(pieces({"index": 0, "id": "call_0", "function": PIECE}))
    async with ChatServer([answer]).running() as server, OpenAIEngine(server.url) as engine:
        ids, told = list[str](), list[Message]([{"role": "user", "content": "Weather?"}])
        for _ in range(2):
            _, reply = await read(engine, told, tools=[WEATHER])
            (made,) = reply.tool_calls
            ids.append(made.id)
            told.append({"role": "assistant", "content": "", "tool_calls": [made.message()]})
            told.append({"role": "tool", "content": "Warm.", "tool_call_id": made.id})
    assert ids[0] == "call_0" and ids[1] not in ("", "call_0")


@pytest.mark.parametrize(
    "odd",
    [
        {"usage": {"prompt_tokens": ODD, "prompt_tokens_details": [1]}},
        {"usage": "no"},
        {"timings": {"cache_n": None, "draft_n": None}},
        {"metrics": {"speculative_decoding": [1]}, "usage": {"prompt_tokens": True}},
        {"usage": {"prompt_tokens": -3, "completion_tokens": 1e400}},
    ],
)
async def test_odd_counts_cost_no_reply(odd: dict[str, Any]) -> None:
    events = [delta("One"), delta(finish="stop"), {"choices": [], **odd}]
    async with ChatServer([Answer(events)]).running() as server, OpenAIEngine(server.url) as engine:
        _, reply = await read(engine, "Count.")
    assert (reply.text, reply.report.prompt_tokens, reply.report.drafted) == ("One", 0, 0)


@pytest.mark.parametrize(
    ("parts", "text", "reasoning"),
    [
        ([{"content": [{"type": "text", "text": "ab"}, {"type": "text", "text": "c"}]}], "abc", ""),
        ([{"refusal": "I can"}, {"refusal": "'t."}], "I can't.", ""),
        ([{"reasoning": {"content": "Hm."}}, {"content": "Yes."}], "Yes.", "Hm."),
        ([{"content": "<thi"}, {"content": "nk>Hm.</think>\n\nY"}, {"content": "es."}], "Yes.", "Hm."),
        ([{"content": "<b>"}, {"content": "5"}], "<b>5", ""),
        ([{"content": "<th"}], "<th", ""),
    ],
)
async def test_texts_of_all_forms_are_read(
    parts: list[dict[str, Any]], text: str, reasoning: str
) -> None:
    answer = Answer([*(delta(**part) for part in parts), "null", delta(finish="stop")])
    async with ChatServer([answer]).running() as server, OpenAIEngine(server.url) as engine:
        chunks, reply = await read(engine, "Is it?")
    assert (reply.text, reply.report.reasoning) == (text, reasoning)
    assert "".join(chunk.text for chunk in chunks) == text
    assert "".join(chunk.reasoning for chunk in chunks) == reasoning


async def test_a_filter_is_told_and_an_abort_is_a_failure() -> None:
    answers = [Answer([delta("One"), delta(finish=why)]) for why in ("content_filter", "abort")]
    async with ChatServer(answers).running() as server, OpenAIEngine(server.url) as engine:
        chunks, _ = await read(engine, "Count.")
        assert chunks[-1].finish_reason == "content_filter"
        with pytest.raises(EngineFailed, match="ended the reply: abort"):
            await read(engine, "Count.")


async def test_a_server_that_knows_no_limit_is_stopped() -> None:
    answer = Answer([delta("abcdefghij") for _ in range(500)], hang=True)
    async with ChatServer([answer]).running() as server, OpenAIEngine(server.url) as engine:
        chunks, reply = await read(engine, "Count.", SamplingParams(max_tokens=10))
        await server.left.wait()
    assert chunks[-1].finish_reason == "length" and 80 < len(reply.text) <= 120


@pytest.mark.parametrize(
    "given",
    [{"reasoning_content": "and so "}, {"tool_calls": [{"index": 0, "function": {"arguments": " "}}]}],
    ids=["reasoning", "arguments"],
)
async def test_what_is_no_text_counts_as_well(given: dict[str, Any]) -> None:
    answer = Answer([delta(**given)] * 400 + [delta(finish="stop")])
    async with ChatServer([answer]).running() as server, OpenAIEngine(server.url) as engine:
        chunks, _ = await read(engine, "Think.", SamplingParams(max_tokens=4))
    assert chunks[-1].finish_reason == "length" and len(chunks) < 80


@asynccontextmanager
async def slowly(gate: asyncio.Event) -> AsyncGenerator[None, None]:
    """Open a server's gate for an event every ten milliseconds."""

    async def opens() -> None:
        while True:
            gate.set()
            await asyncio.sleep(0)
            gate.clear()
            await asyncio.sleep(0.01)

    opening = asyncio.create_task(opens())
    try:
        yield
    finally:
        opening.cancel()


async def test_pieces_of_a_call_that_is_passed_over_go_nowhere_but_are_no_silence() -> None:
    later = [call(0, None, None, "{"), *[call(0, None, None, " ")] * 60, call(0, None, None, "}")]
    events = [call(0, "a", "now", ""), call(0, "b", "pay", ""), *later, delta(finish="tool_calls")]
    gate = asyncio.Event()
    server = ChatServer([Answer(events)], gate=gate)

    async with (  # .6 seconds in all
        slowly(gate),
        server.running(),
        OpenAIEngine(server.url, between_s=0.3) as engine,
    ):
        _, reply = await read(engine, "Go.", tools=Tools((WEATHER,), parallel=False))
    (called,) = reply.tool_calls
    assert (called.name, called.arguments, called.problem) == ("now", "{}", "")


@pytest.mark.parametrize("first", [[], [delta("One")]])
async def test_empty_deltas_are_no_words(first: list[Any]) -> None:
    gate = asyncio.Event()
    answer = Answer([*first, *[delta("")] * 10_000])
    server = ChatServer([answer], gate=gate)
    async with (  # 100 seconds in all
        slowly(gate),
        server.running(),
        OpenAIEngine(server.url, first_token_s=0.2, between_s=0.2) as engine,
        engine.generate("Count.") as reply,
    ):
        with pytest.raises(EngineError, match="silent for 0.2 s"):
            _ = [chunk async for chunk in reply]


@pytest.mark.parametrize(
    ("deltas", "text"),
    [
        (["Hi \ud83d", "\ude00 there"], "Hi \U0001f600 there"),
        (["Hi \ud83d", " there", "\ude00"], "Hi \ufffd there\ufffd"),
        (["Hi", "\ud83d"], "Hi\ufffd"),
    ],
)
async def test_halves_of_characters_are_joined_or_replaced(deltas: list[str], text: str) -> None:
    events = [delta(one) for one in deltas]
    events += [call(0, "c", "weather", '{"at": "' + deltas[0]), call(0, "c", None, '\ude00"}')]
    answer = Answer([*events, delta(finish="stop")])
    async with ChatServer([answer]).running() as server, OpenAIEngine(server.url) as engine:
        chunks, reply = await read(engine, "Smile.", tools=[WEATHER])
    assert "".join(chunk.text for chunk in chunks) == reply.text == text
    (reply.tool_calls[0].arguments + reply.report.text).encode()


async def test_a_whole_message_in_one_event_is_its_text() -> None:
    events = [{"choices": [{"index": 0, "message": {"content": "One."}, "finish_reason": "stop"}]}]
    async with ChatServer([Answer(events)]).running() as server, OpenAIEngine(server.url) as engine:
        assert (await read(engine, "Count."))[1].text == "One."


@pytest.mark.parametrize("status", [404, 405, None])
async def test_a_server_without_a_list_of_models_answers_by_name(status: int | None) -> None:
    body: Any = {"error": "no such path"} if status else [{"id": "small"}]
    server = ChatServer([Answer(llama_events("One."))], listing=(status or 200, body))
    async with server.running(), OpenAIEngine(server.url, "small") as engine:
        assert (await read(engine, "Count."))[1].text == "One."
    error = ModelNotFound if status == 404 else EngineError if status else ConfigError
    async with server.running():
        with pytest.raises(error):
            await OpenAIEngine(server.url).__aenter__()


async def test_an_event_that_says_busy_is_asked_again_as_a_status_is() -> None:
    busy = {"error": {"message": "overloaded", "code": 429}}
    server = ChatServer([Answer([busy]), Answer(llama_events("One."))])
    async with server.running(), OpenAIEngine(server.url) as engine:
        assert (await read(engine, "Count."))[1].text == "One."
    server = ChatServer([Answer([delta("One"), busy])])
    async with server.running(), OpenAIEngine(server.url) as engine:
        with pytest.raises(EngineBusy, match="overloaded"):
            await read(engine, "Count.")


async def test_a_server_that_wants_to_be_left_alone_is_busy_at_once() -> None:
    busy = Answer(status=429, body={"error": "wait"}, retry="Retry-After: 50")
    async with (
        ChatServer([busy]).running() as server,
        OpenAIEngine(server.url, first_token_s=20) as engine,
    ):
        with pytest.raises(EngineBusy, match="wait") as caught:
            await read(engine, "Hi")
        assert len(server.requests) == 1 and caught.value.retry_s == 50


async def test_a_limit_has_another_name_at_some() -> None:
    said = "Unsupported parameter: 'max_tokens'. Use 'max_completion_tokens' instead."
    refused = Answer(status=400, body={"error": {"message": said}})
    answers = [refused, Answer(llama_events("Yes."))]
    async with ChatServer(answers).running() as server, OpenAIEngine(server.url) as engine:
        for _ in range(2):
            _, reply = await read(engine, "Hi", SamplingParams(max_tokens=9))
            assert reply.text == "Yes."
    limits = [
        {key: body[key] for key in ("max_tokens", "max_completion_tokens") if key in body}
        for body in server.requests
    ]
    assert limits == [{"max_tokens": 9}, {"max_completion_tokens": 9}, {"max_completion_tokens": 9}]


@pytest.mark.parametrize(
    ("answer", "error", "said"),
    [
        (
            Answer(kind="application/json", body={"error": {"message": "no streams"}}),
            EngineFailed,
            "no streams",
        ),
        (Answer(kind="text/html", body="<h1>Welcome</h1>"), EngineFailed, "Welcome"),
        (Answer([{"object": "error", "message": "engine dead"}]), EngineFailed, "engine dead"),
        (
            Answer([{"error": {"message": "the context length is exceeded"}}]),
            PromptTooLong,
            "context length",
        ),
        (Answer(status=400, body=[{"error": {"message": "no role"}}]), PromptError, ": no role"),
    ],
    ids=["json", "html", "vllm's event", "too long in the stream", "a list"],
)
async def test_an_answer_that_is_no_stream_is_told_with_its_words(
    answer: Answer, error: type[SpecstreamError], said: str
) -> None:
    async with ChatServer([answer]).running() as server, OpenAIEngine(server.url) as engine:
        with pytest.raises(error, match=said):
            await read(engine, "Hi")


async def test_reasoning_is_no_text() -> None:
    events = [delta(reasoning_content="Hm."), delta("Yes."), delta(finish="stop")]
    async with ChatServer([Answer(events)]).running() as server, OpenAIEngine(server.url) as engine:
        chunks, reply = await read(engine, "Is it?")
    assert reply.text == "Yes." and reply.report.reasoning == "Hm."
    assert [c.reasoning for c in chunks][0] == "Hm." and chunks[0].reasoning_end == 1


async def test_turns_that_do_not_fit_leave_a_conversation() -> None:
    full = Answer(status=400, body={"error": {"message": "the context size is exceeded"}})
    told: list[Message] = [
        {"role": "system", "content": "Be short."},
        {"role": "user", "content": "One?"},
        {"role": "assistant", "content": "1."},
        {"role": "user", "content": "Two?"},
        {"role": "assistant", "content": "2."},
        {"role": "user", "content": "Three?"},
    ]
    answers = [full, full, Answer(llama_events("3."))]
    async with ChatServer(answers).running() as server, OpenAIEngine(server.url) as engine:
        _, reply = await read(engine, told, truncation=Truncation())
        assert reply.report.truncated_messages == 4
        assert [m["content"] for m in server.requests[-1]["messages"]] == ["Be short.", "Three?"]
        server.answers = [full]
        with pytest.raises(PromptTooLong):
            await read(engine, told)


REFUSED: list[tuple[Callable[[], SamplingParams], str]] = [
    (lambda: SamplingParams(top_k=5), "top_k can't be honoured by this server"),
    (lambda: SamplingParams(stop_when=(lambda ids, text: False,)), "stop_when"),
    (lambda: SamplingParams(grammar=Grammar("regex", "a+")), "regex grammar can't be sent"),
]


@pytest.mark.parametrize(("params", "said"), REFUSED)
async def test_what_the_server_can_not_honour_is_refused_by_name(
    params: Callable[[], SamplingParams], said: str
) -> None:
    async with ChatServer([Answer()]).running() as server, OpenAIEngine(server.url) as engine:
        with pytest.raises(SamplingError, match=said):
            await read(engine, "Hi", params())
        assert server.requests == []


async def test_other_refusals() -> None:
    async with ChatServer([Answer()]).running() as server, OpenAIEngine(server.url) as engine:
        with pytest.raises(PromptError, match="engine of our own"):
            await read(engine, "Hi", reference="What was written before.")
        with pytest.raises(PromptError, match="chat template"):
            await read(engine, "Hi", chat_template_kwargs={"enable_thinking": False})
    with pytest.raises(EngineClosed, match="not running"):
        await read(engine, "Hi")
    with pytest.raises(ConfigError, match="http://"):
        OpenAIEngine("localhost:8000")


async def test_a_recognised_server_gets_its_own_fields() -> None:
    params = SamplingParams(temperature=0.7, top_k=5, repetition_penalty=1.1)
    for owner, name in (("vllm", "repetition_penalty"), ("llamacpp", "repeat_penalty")):
        server = ChatServer([Answer(llama_events("Yes."))], owner=owner)
        async with server.running(), OpenAIEngine(server.url) as engine:
            await read(engine, "Hi", params, chat_template_kwargs={"enable_thinking": False})
        (body,) = server.requests
        assert body["top_k"] == 5 and body[name] == 1.1 and body["temperature"] == 0.7
        assert body["chat_template_kwargs"] == {"enable_thinking": False}


async def test_a_schema_goes_as_a_response_format() -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}}
    params = SamplingParams(grammar=Grammar("json_schema", json.dumps(schema)))
    async with (
        ChatServer([Answer(llama_events('{"n": 1}'))]).running() as server,
        OpenAIEngine(server.url) as engine,
    ):
        await read(engine, "Hi", params)
    asked = server.requests[0]["response_format"]
    assert asked["json_schema"] == {"name": "reply", "schema": schema, "strict": True}


async def test_the_model_and_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-theirs")
    monkeypatch.setenv("SPECSTREAM_ENGINE_KEY", "sk-ours")
    server = ChatServer([Answer(llama_events("Yes."))], models=("one", "two"))
    async with server.running():
        with pytest.raises(ConfigError, match="one, two"):
            await OpenAIEngine(server.url).__aenter__()
        async with OpenAIEngine(server.url, "two") as engine:
            await read(engine, "Hi")
    assert server.requests[0]["model"] == "two" and set(server.keys) == {"Bearer sk-ours"}
    with pytest.raises(ConnectionFailed, match="connection failed"):
        await OpenAIEngine("http://127.0.0.1:9/v1").__aenter__()
    busy = ChatServer([Answer(status=429, body={"error": {"message": "slow down"}})])
    async with busy.running(), OpenAIEngine(busy.url) as engine:
        with pytest.raises(EngineBusy, match="slow down"):
            await read(engine, "Hi")
