"""How requests end: clients that go, errors before and after the first part, limits of bodies."""

import asyncio
import json
from collections.abc import AsyncGenerator
from typing import Any

import anyio
import pytest
from pydantic import ValidationError

from specstream.engine.core.prompt import check_messages
from specstream.errors import ConfigError, EngineBusy, EngineFailed, PromptTooLong, SamplingError
from specstream.server.api import answering
from specstream.server.api.body import ChatBody, parsed
from specstream.server.api.completions import CompletionBody
from specstream.server.api.errors import ApiError
from specstream.server.api.replies import ReplyRequest
from specstream.server.api.responses import ResponsesBody
from specstream.testing import ScriptedEngine
from specstream.types import Chunk, SamplingParams, Span
from tests.server.doubles import Gate, Stand, wait_for

CHAT = "/v1/chat/completions"


async def post(
    port: int, path: str, body: bytes | dict[str, Any], *headers: str
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Send a request, and read nothing of the answer."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    lines = [f"POST {path} HTTP/1.1", f"Host: 127.0.0.1:{port}", f"Content-Length: {len(data)}"]
    writer.write("\r\n".join([*lines, *headers, "", ""]).encode() + data)
    return reader, writer


async def answered(port: int, path: str, body: Any, *headers: str) -> tuple[int, str]:
    reader, writer = await post(port, path, body, *headers, "Connection: close")
    head, _, rest = (await reader.read()).decode().partition("\r\n\r\n")
    writer.close()
    await writer.wait_closed()
    return int(head.split()[1]), rest


def hi(**fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": "Hi"}], **fields}


def ended(stand: Stand) -> str | None:
    return stand.engine.generations[0].report.finish_reason


def held(after: int) -> Stand:
    """A server whose engine writes so many words of three."""
    gate = Gate()
    gate.shut(after)
    return Stand(ScriptedEngine(["one two three"], gate=gate))


@pytest.mark.parametrize(("stream", "after"), [(False, 0), (True, 0), (True, 2)])
async def test_a_client_that_goes_stops_its_reply(stream: bool, after: int) -> None:
    stand = held(after)
    async with stand.running():
        reader, writer = await post(stand.port, CHAT, hi(stream=stream))
        await wait_for(lambda: bool(stand.engine.generations))
        if after:
            await reader.readuntil(b"two")
        writer.transport.abort()
        await wait_for(lambda: ended(stand) == "cancelled")
        await wait_for(lambda: bool(stand.server.counters.requests))
        assert stand.server.counters.requests[CHAT, "499"] == 1


@pytest.mark.parametrize("stream", [False, True])
async def test_a_server_that_stops_ends_its_requests(stream: bool) -> None:
    gate = Gate()
    stand = Stand(ScriptedEngine(["one two three"], gate=gate))
    async with stand.running():
        _, writer = await post(stand.port, CHAT, hi(stream=stream))
        await wait_for(lambda: bool(stand.engine.generations))
    assert ended(stand) == "cancelled"
    writer.close()


async def test_a_stream_that_a_drain_cuts_says_so() -> None:
    stand = held(2)
    async with stand.running():
        reader, writer = await post(stand.port, CHAT, hi(stream=True), "Connection: close")
        await reader.readuntil(b"two")
        await stand.server.drain(0.0)
        rest = await reader.read()
        writer.close()
    assert b"the server is stopping" in rest and b"[DONE]" not in rest
    assert stand.server.counters.requests[CHAT, "200"] == 1


async def test_a_drain_lets_requests_end_and_takes_no_new_ones() -> None:
    gate = Gate()
    stand = Stand(ScriptedEngine(["one two three"], gate=gate))
    async with stand.running(), anyio.create_task_group() as group:
        reader, writer = await post(stand.port, CHAT, hi(), "Connection: close")
        await wait_for(lambda: bool(stand.engine.generations))
        group.start_soon(stand.server.drain, 30.0)
        await wait_for(lambda: stand.server.limit.stopping)
        assert (await answered(stand.port, CHAT, hi()))[0] == 503
        gate.open()
        assert b"one two three" in await reader.read()
        writer.close()


class _Failing(ScriptedEngine):
    def __init__(self, error: Exception, after: int) -> None:
        super().__init__(["one two three."])
        self.error, self.after = error, after

    def generate(self, *args: Any, **options: Any) -> Any:
        made, error, after = super().generate(*args, **options), self.error, self.after

        class Broken:
            async def __aenter__(self) -> Any:
                generation = await made.__aenter__()
                real = generation.__anext__

                class Reading:
                    def __getattr__(self, name: str) -> Any:
                        return getattr(generation, name)

                    async def __aiter__(self) -> AsyncGenerator[Any, None]:
                        for _ in range(after):
                            yield await real()
                        raise error

                return Reading()

            async def __aexit__(self, *exc: Any) -> Any:
                return await made.__aexit__(*exc)

        return Broken()


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (PromptTooLong("too long"), 400, "context_length_exceeded"),
        (EngineBusy("full"), 429, "engine_busy"),
        (ConfigError("http://10.0.0.1/v1 answers 401: sk-1; check the key"), 500, "bad_config"),
        (EngineFailed("http://10.0.0.1/v1 ended the reply: gone"), 500, "engine_failed"),
        (EngineFailed("broken"), 500, "engine_failed"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_an_error_before_the_first_chunk_is_a_status(
    error: Exception, status: int, code: str, stream: bool
) -> None:
    stand = Stand(_Failing(error, after=0))
    async with stand.running():
        found, body = await answered(stand.port, CHAT, hi(stream=stream))
    assert (found, json.loads(body)["error"]["code"]) == (status, code)
    assert "10.0.0.1" not in body and "sk-1" not in body, "what is behind the server"


async def test_an_engine_that_says_when_is_asked_again_then() -> None:
    stand = Stand(_Failing(EngineBusy("full", 3599.5), after=0))
    async with stand.running():
        reader, writer = await post(stand.port, CHAT, hi())
        head = await reader.readuntil(b"\r\n\r\n")
        writer.close()
    assert b"retry-after: 3600" in head.lower()


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        (path, {param: value, **more}, param)
        for path, param, value, least in [
            (CHAT, "messages", [{"role": "user", "content": "hi"}], {"n": 2}),
            ("/v1/completions", "prompt", "hi", {"n": 2}),
            ("/v1/responses", "input", "hi", {}),
        ]
        for more in ({"stream": False}, {"stream": True}, least)
    ],
)
async def test_a_prompt_that_is_too_long_is_told_by_its_fields_name(
    path: str, body: dict[str, Any], param: str
) -> None:
    stand = Stand(_Failing(PromptTooLong("too long"), after=0))
    async with stand.running():
        status, told = await answered(stand.port, path, json.dumps(body).encode())
    assert (status, json.loads(told)["error"]["param"]) == (400, param)


async def test_an_error_in_mid_stream_is_an_event_and_no_clean_end() -> None:
    stand = Stand(_Failing(EngineFailed("broken"), after=2))
    async with stand.running():
        status, body = await answered(stand.port, CHAT, hi(stream=True))
    assert status == 200 and '"code":"engine_failed"' in body
    assert "[DONE]" not in body and '"finish_reason":"' not in body


@pytest.mark.parametrize("after", [0, 2])
async def test_a_fault_of_the_servers_own_is_an_error_of_the_same_shape(after: int) -> None:
    stand = Stand(_Failing(ValueError("no such thing"), after=after))
    async with stand.running():
        status, body = await answered(stand.port, CHAT, hi(stream=True))
    assert status == (200 if after else 500)
    assert '"code":"internal_error"' in body.replace(": ", ":")
    assert "[DONE]" not in body and "no such thing" not in body


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"text": {"format": "x"}}, "text.format"),
        ({"text": {"format": {"type": "json_schema"}}}, "text.format.schema"),
        ({"text": {"format": {"type": "json_schema", "schema": True}}}, "text.format.schema"),
        (
            {"input": [{"role": "assistant", "function_call": {"name": "now", "arguments": "{}"}}]},
            "input.0.function_call",
        ),
        ({"input": [{"type": "reasoning"}, {"type": "item_reference"}]}, "input.1"),
        ({"input": [{"type": "reasoning"}, {"role": "user", "content": 3}]}, "input.1.content"),
        ({"truncation": "auto"}, "truncation"),
    ],
)
async def test_a_bad_field_of_a_response_is_named(fields: dict[str, Any], param: str) -> None:
    stand = Stand(ScriptedEngine(["fine."]))
    body = json.dumps({"input": "Hi", **fields}).encode()
    async with stand.running():
        status, told = await answered(stand.port, "/v1/responses", body)
    assert (status, json.loads(told)["error"]["param"]) == (400, param)


async def test_a_message_that_is_cut_is_incomplete_as_its_response_is() -> None:
    cut = Chunk("one two", (1,), Span(0, 1), Span(0, 7), finish_reason="length")
    stand = Stand(ScriptedEngine([[cut], "one two"]))
    ask = json.dumps({"input": "Hi"}).encode()
    async with stand.running():
        told = [json.loads((await answered(stand.port, "/v1/responses", ask))[1]) for _ in range(2)]
    found = [(each["status"], each["output"][0]["status"]) for each in told]
    assert found == [("incomplete", "incomplete"), ("completed", "completed")]


@pytest.mark.parametrize(
    ("told", "param"),
    [
        ("logit_bias names token 900000; there are 8192", "logit_bias"),
        ("min_tokens can't be more than max_tokens", "min_tokens"),
        ("sampling parameters go together", None),
    ],
)
def test_the_parameter_that_an_engine_refuses_is_named(told: str, param: str | None) -> None:
    assert ApiError.of(SamplingError(told)).param == param


@pytest.mark.parametrize("messages", [[], [{"role": "robot", "content": "Hi"}]])
async def test_messages_that_the_engine_refuses_are_named(messages: list[Any]) -> None:
    class Checking(ScriptedEngine):
        def generate(self, messages: Any, *args: Any, **options: Any) -> Any:
            return super().generate(check_messages(messages), *args, **options)

    stand = Stand(Checking(["fine."]))
    body = json.dumps({"messages": messages}).encode()
    async with stand.running():
        status, told = await answered(stand.port, CHAT, body)
    assert (status, json.loads(told)["error"]["param"]) == (400, "messages")


def test_a_seed_is_counted_on_within_its_range() -> None:
    ask = ReplyRequest([], SamplingParams(temperature=1.0, seed=2**63 - 1))
    assert ask.again(1).params.seed == 0


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (b"{", 400, "invalid_json"),
        (b"[]", 400, "invalid_json"),
        (b"{}", 400, "invalid_value"),
        (b"[" * 100_000, 400, "invalid_json"),
        (b'{"messages": [{"role": "user", "content": "a \\ud83d"}]}', 400, "invalid_json"),
        (b'{"messages": "' + b"x" * (5 << 20) + b'"}', 413, "body_too_large"),
    ],
)
async def test_a_bad_body_is_told(body: bytes, status: int, code: str) -> None:
    stand = Stand(ScriptedEngine(["fine."]))
    async with stand.running():
        found, told = await answered(stand.port, CHAT, body)
    assert (found, json.loads(told)["error"]["code"]) == (status, code)


@pytest.mark.parametrize(
    ("kind", "field", "value", "most"),
    [
        (ChatBody, "messages", [1] * 20_000, "16384 items"),
        (ChatBody, "tools", [1] * 20_000, "128 items"),
        (ChatBody, "stop", [1] * 20_000, "64 items"),
        (ChatBody, "bad_words", ["zz"] * 65, "64 items"),
        (ChatBody, "bad_words", ["z" * 257], "256 characters"),
        (ChatBody, "stop", "z" * 257, "256 characters"),
        (ChatBody, "stop_token_ids", [0] * 65, "64 items"),
        (ChatBody, "logit_bias", {f"x{i}": 1 for i in range(20_000)}, "1024 items"),
        (ChatBody, "prediction", {"content": [1] * 20_000}, "16384 items"),
        (ResponsesBody, "input", [1] * 20_000, "16384 items"),
        (ResponsesBody, "include", [1] * 20_000, "64 items"),
    ],
)
def test_lists_that_are_too_long_are_refused_before_they_are_read(
    kind: Any, field: str, value: Any, most: str
) -> None:
    """Reading a million wrong items would hold up all sessions for seconds."""
    body = {"messages": [], "input": "hi"} | {field: value}
    data = json.dumps({name: part for name, part in body.items() if name in kind.model_fields})
    with pytest.raises(ApiError, match=most) as caught:
        parsed(kind, data.encode())
    assert caught.value.param is not None and caught.value.param.startswith(field)
    with pytest.raises(ValidationError) as found:
        kind.model_validate(json.loads(data))
    assert found.value.error_count() <= 3


def test_a_body_of_nothing_but_structure_is_not_read() -> None:
    data = json.dumps({"messages": [], "metadata": [0] * 100_000}).encode()
    with pytest.raises(ApiError, match="262144 characters outside of its strings") as caught:
        parsed(ChatBody, data)
    assert (caught.value.status, caught.value.code) == (413, "body_too_large")
    parsed(ChatBody, json.dumps({"messages": [{"role": "user", "content": '{",' * 300_000}]}).encode())
    parsed(CompletionBody, json.dumps({"prompt": [12_345] * 100_000}).encode())


@pytest.mark.parametrize(
    ("told", "status"),
    [("99", b"408"), ("100000000000", b"413"), ("50000000\r\nExpect: 100-continue", b"413")],
)
async def test_a_body_that_never_ends_is_given_up(
    told: str, status: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that says how much too long it is isn't waited for."""
    monkeypatch.setattr(answering, "BODY_S", 0.05)
    stand = Stand(ScriptedEngine(["fine."]))
    async with stand.running():
        reader, writer = await asyncio.open_connection("127.0.0.1", stand.port)
        head = f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {told}\r\n\r\n{{"
        writer.write(head.encode())
        assert status in await reader.readline()
        writer.close()


async def test_the_long_events_at_a_response_s_end_are_sent_one_by_one() -> None:
    """Each may repeat the whole text, and patience counts for what is sent at once."""
    stand = Stand(ScriptedEngine(["fine."]))
    async with stand.running():
        asked = json.dumps({"input": "hi", "stream": True}).encode()
        _, body = await answered(stand.port, "/v1/responses", asked)
    sent = [part for part in body.split("\r\n") if part.startswith("event: ")]
    assert sent[-1].startswith("event: response.completed")
    assert [part.count("event: ") for part in sent[-4:]] == [1, 1, 1, 1]
    assert sent[0].count("event: ") > 1, "those of a chunk are sent together"


async def test_values_that_openai_takes_are_taken() -> None:
    stand = Stand(ScriptedEngine(["fine."]))
    async with stand.running():
        status, _ = await answered(stand.port, CHAT, hi(top_p=0, temperature=0.7, seed=-3))
        assert status == 200
        ((_, params),) = stand.engine.requests
        assert (params.top_p, params.temperature) == (1.0, 0.0), "the likeliest token"
        assert params.seed == 2**63 - 3
        status, told = await answered(stand.port, CHAT, hi(tool_choice="required"))
    assert (status, json.loads(told)["error"]["param"]) == (400, "tool_choice")


async def test_refusals_of_the_api_are_errors_of_its_own_shape() -> None:
    stand = Stand(ScriptedEngine(["fine."]))
    async with stand.running():
        status, told = await answered(stand.port, CHAT, hi(), "Origin: http://evil.example")
        assert (status, json.loads(told)["error"]["code"]) == (403, "origin_not_allowed")
        reader, writer = await asyncio.open_connection("127.0.0.1", stand.port)
        asked = f"PUT {CHAT} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
        writer.write(asked.encode())
        head, _, body = (await reader.read()).decode().partition("\r\n\r\n")
        writer.close()
    assert "405" in head.splitlines()[0] and "allow: POST" in head
    assert "doesn't take PUT" in json.loads(body)["error"]["message"]


@pytest.mark.parametrize("path", [CHAT, "/v1/audio/transcriptions"])
async def test_a_client_that_goes_in_the_middle_of_its_body_is_no_error(
    path: str, caplog: pytest.LogCaptureFixture
) -> None:
    stand = Stand(ScriptedEngine(["fine."]))
    async with stand.running():
        reader, writer = await asyncio.open_connection("127.0.0.1", stand.port)
        form = "Content-Type: multipart/form-data; boundary=x\r\nContent-Length: 99"
        head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\n{form}\r\n\r\n"
        writer.write(head.encode())
        assert b"100" in await reader.readline(), "the body is being read"
        writer.write(b"--x\r\n")
        writer.transport.abort()
        await wait_for(lambda: bool(stand.server.counters.requests))
        assert stand.server.counters.requests[path, "499"] == 1
    assert not [one for one in caplog.records if one.levelname == "ERROR"]


async def test_a_foreign_page_may_not_ask() -> None:
    stand = Stand(ScriptedEngine(["fine."]))
    async with stand.running():
        for header in ("Origin: http://evil.example", "Host: evil.example"):
            status, _ = await answered(stand.port, CHAT, hi(), header)
            assert status in (400, 403, 421)
    assert stand.engine.requests == []


async def test_a_page_elsewhere_may_ask_if_it_is_named() -> None:
    stand = Stand(ScriptedEngine(["fine."]), origins=["https://app.example"])
    async with stand.running():
        for origin, status in (("https://app.example", 200), ("https://evil.example", 400)):
            asked = f"Origin: {origin}\r\nAccess-Control-Request-Method: POST"
            head = f"OPTIONS {CHAT} HTTP/1.1\r\nHost: localhost\r\n{asked}\r\n\r\n"
            reader, writer = await asyncio.open_connection("127.0.0.1", stand.port)
            writer.write(head.encode())
            answer = await reader.readuntil(b"\r\n\r\n")
            writer.close()
            assert int(answer.split()[1]) == status
            named = b"access-control-allow-origin: https://app.example" in answer.lower()
            assert named == (status == 200)
        assert (await answered(stand.port, CHAT, hi(), "Origin: https://app.example"))[0] == 200
