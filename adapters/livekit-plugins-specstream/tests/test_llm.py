"""`LLM`: text, usage, settings, tools, errors and cancelling."""

import asyncio
from typing import Any

import anyio
import pytest
from engines import BreakingEngine
from livekit.agents import APIConnectionError, APIConnectOptions, APIError, APIStatusError, llm
from livekit.agents.llm import ChatContext, ImageContent, function_tool
from livekit.agents.metrics import LLMMetrics
from specstream import Engine, OpenAIEngine, SamplingParams, ToolCall
from specstream.errors import (
    ConfigError,
    ConnectionFailed,
    EngineBusy,
    EngineClosed,
    EngineFailed,
    PromptError,
    PromptTooLong,
    SamplingError,
    SpecstreamError,
)
from specstream.server import RealtimeServer
from specstream.testing import ScriptedEngine, chunks_of

from livekit.plugins.specstream import LLM

AT_ONCE = APIConnectOptions(max_retry=2, retry_interval=0.0)


def asking(*texts: str) -> ChatContext:
    context = ChatContext.empty()
    context.add_message(role="system", content="Be brief.")
    for text in texts:
        context.add_message(role="user", content=text)
    return context


@function_tool
async def weather(city: str) -> str:
    """Tell the weather.

    Args:
        city: Where.
    """
    return f"sunny in {city}"


async def test_text_and_usage_are_the_engines() -> None:
    engine = ScriptedEngine(["The capital is Paris."])
    service = LLM(engine=engine, model="small")
    told: list[Any] = []
    service.on("metrics_collected", told.append)
    reply = await service.chat(chat_ctx=asking("Where?")).collect()
    report = engine.generations[0].report
    assert reply.text == "The capital is Paris."
    assert reply.usage is not None
    assert reply.usage.completion_tokens == report.completion_tokens > 3
    assert reply.usage.prompt_tokens == report.prompt_tokens
    assert reply.usage.total_tokens == report.prompt_tokens + report.completion_tokens
    metrics = told[0]
    assert isinstance(metrics, LLMMetrics) and metrics.completion_tokens == report.completion_tokens
    assert metrics.metadata is not None and metrics.metadata.model_name == "small"


async def test_the_real_engine_reuses_a_chats_cache_and_stops_within_a_round() -> None:
    async with Engine.load() as engine:
        service = LLM(engine=engine, max_tokens=200)
        context = asking("Tell me a story about a brave little fox.")
        stream = service.chat(chat_ctx=context, extra_kwargs={"max_tokens": 12})
        first = await stream.collect()
        assert first.usage is not None and first.usage.prompt_cached_tokens == 0
        context.add_message(role="assistant", content=first.text)
        context.add_message(role="user", content="Go on.")
        stream = service.chat(chat_ctx=context)
        await anext(stream)
        await stream.aclose()
        assert service.dropped.cancelled == 1
        assert 0 < service.dropped.tokens < 100  # of 200
        again = await service.chat(chat_ctx=context, extra_kwargs={"max_tokens": 8}).collect()
        assert again.usage is not None and again.usage.prompt_cached_tokens > 0
        assert service.dropped.referenced == 1


async def test_the_engine_may_be_a_server() -> None:
    scripted = ScriptedEngine(["The capital is Paris."])
    server = RealtimeServer(scripted)
    async with server.start() as port, OpenAIEngine(f"http://127.0.0.1:{port}/v1") as engine:
        service, context = LLM(engine=engine, max_tokens=9), asking("Where?")
        reply = await service.chat(chat_ctx=context).collect()
        again = await service.chat(chat_ctx=context).collect()
    assert reply.text == again.text == "The capital is Paris."
    assert scripted.requests[0][1].max_tokens == 9
    assert service.dropped.referenced == 0  # a server takes no reference
    with pytest.raises(APIConnectionError):
        await service.chat(chat_ctx=context, conn_options=AT_ONCE).collect()


async def test_settings_come_from_the_engine_the_constructor_and_the_request() -> None:
    engine = ScriptedEngine(["Yes."])
    service = LLM(engine=engine, params=SamplingParams(top_p=0.5), temperature=0.7, max_tokens=9)
    await service.chat(
        chat_ctx=asking("?"),
        extra_kwargs={"seed": 4, "max_tokens": 5, "chat_template_kwargs": {"thinking": False}},
    ).collect()
    wanted = SamplingParams(top_p=0.5, temperature=0.7, max_tokens=5, seed=4)
    assert engine.requests[0][1] == wanted
    assert engine.template_kwargs == [{"thinking": False}]


@pytest.mark.parametrize(
    ("options", "error", "named"),
    [
        ({"temprature": 0.5}, SamplingError, "temprature"),
        ({"temperature": -1.0}, SamplingError, "temperature"),
        ({"chat_template_kwargs": 3}, PromptError, "chat_template_kwargs"),
        ({"params": {"top_p": 1}}, ConfigError, "params"),
        ({"engine": "org/model"}, ConfigError, "engine"),
        ({"engine": ScriptedEngine}, ConfigError, "engine"),
    ],
)
def test_wrong_options_are_refused_by_name(
    options: dict[str, Any], error: type[SpecstreamError], named: str
) -> None:
    with pytest.raises(error, match=named):
        LLM(**({"engine": ScriptedEngine(["x"])} | options))


async def test_a_wrong_setting_of_a_request_is_refused_by_name() -> None:
    service = LLM(engine=ScriptedEngine(["x"]))
    with pytest.raises(SamplingError, match="max_completion_tokens"):
        service.chat(chat_ctx=asking("?"), extra_kwargs={"max_completion_tokens": 3})


async def test_messages_calls_and_results_reach_the_engine() -> None:
    engine = ScriptedEngine(["Sunny."], calls_tools=True)
    context = ChatContext.empty()
    context.add_message(role="developer", content="Be brief.")
    context.add_message(role="user", content="Weather?")
    call = llm.FunctionCall(call_id="c1", name="weather", arguments='{"city": "Rome"}')
    context.insert(call)
    context.insert(llm.FunctionCallOutput(call_id="c1", name="weather", output="sunny", is_error=False))
    await LLM(engine=engine).chat(chat_ctx=context, tools=[weather]).collect()
    system, user, assistant, tool = engine.requests[0][0]
    assert (system["role"], user["content"]) == ("system", "Weather?")
    assert assistant["tool_calls"][0]["function"]["name"] == "weather"
    assert (tool["role"], tool["content"], tool["tool_call_id"]) == ("tool", "sunny", "c1")


async def test_an_image_is_refused_once() -> None:
    engine = ScriptedEngine(["x"])
    context = ChatContext.empty()
    context.add_message(role="user", content=[ImageContent(image="https://example.org/a.png")])
    with pytest.raises(APIStatusError, match="text only") as caught:
        await LLM(engine=engine).chat(chat_ctx=context, conn_options=AT_ONCE).collect()
    assert caught.value.status_code == 400 and not engine.requests


async def test_tool_calls_are_streamed_whole() -> None:
    calls = [ToolCall("a", "weather", '{"city": "Rome"}'), ToolCall("b", "weather", '{"city": "Oslo"}')]
    engine = ScriptedEngine([chunks_of("I look.", calls=calls)], calls_tools=True)
    stream = LLM(engine=engine).chat(
        chat_ctx=asking("Weather?"),
        tools=[weather],
        tool_choice={"type": "function", "function": {"name": "weather"}},
        parallel_tool_calls=False,
    )
    got = [chunk.delta.tool_calls async for chunk in stream if chunk.delta]
    made = [call for each in got for call in each]
    assert [(c.call_id, c.name, c.arguments) for c in made] == [
        ("a", "weather", '{"city": "Rome"}'),
        ("b", "weather", '{"city": "Oslo"}'),
    ]
    assert max(map(len, got)) == 1  # each as soon as it had ended
    offered = engine.tools[0]
    assert offered is not None and (offered.choice, offered.parallel) == ("weather", False)
    assert offered.tools[0].parameters["properties"]["city"]["type"] == "string"


async def test_a_call_that_was_cut_off_is_no_call() -> None:
    cut = ToolCall("a", "weather", '{"city": "Ro', problem="cut_off")
    engine = ScriptedEngine([chunks_of("", calls=[cut])], calls_tools=True)
    stream = LLM(engine=engine).chat(chat_ctx=asking("?"), tools=[weather], conn_options=AT_ONCE)
    with pytest.raises(APIStatusError, match="max_tokens"):
        await stream.collect()
    assert len(engine.requests) == 1


async def test_a_providers_own_tool_is_refused() -> None:
    class Search(llm.ProviderTool):
        pass

    engine = ScriptedEngine(["x"], calls_tools=True)
    stream = LLM(engine=engine).chat(chat_ctx=asking("?"), tools=[Search(id="search")])
    with pytest.raises(APIStatusError, match="search"):
        await stream.collect()


@pytest.mark.parametrize(
    ("error", "kind", "status", "tries"),
    [
        (ConnectionFailed("gone"), APIConnectionError, None, 3),
        (EngineClosed("not running"), APIConnectionError, None, 1),
        (EngineBusy("full"), APIStatusError, 429, 3),
        (EngineFailed("broke"), APIStatusError, 500, 3),
        (PromptError("empty"), APIStatusError, 400, 1),
        (PromptTooLong("long"), APIStatusError, 413, 1),
    ],
)
async def test_errors_before_the_first_word_are_tried_again_if_that_may_help(
    error: SpecstreamError, kind: type[APIError], status: int | None, tries: int
) -> None:
    engine = BreakingEngine(["Hello."], *[(0, error)] * 2)
    stream = LLM(engine=engine).chat(chat_ctx=asking("?"), conn_options=AT_ONCE)
    if tries == 3:
        assert (await stream.collect()).text == "Hello."
    else:
        with pytest.raises(kind) as caught:
            await stream.collect()
        assert caught.value.__cause__ is error
        assert getattr(caught.value, "status_code", None) == status
    assert len(engine.requests) == tries


class _Naive(llm.LLM[Any]):
    """What LiveKit's base class does with an error after the first words."""

    def chat(self, **options: Any) -> llm.LLMStream:
        kept = {name: options[name] for name in ("chat_ctx", "conn_options")}
        return _NaiveStream(self, tools=[], **kept)


class _NaiveStream(llm.LLMStream):
    tries = 0

    async def _run(self) -> None:
        self.tries += 1
        for word in ("Reply", " says") if self.tries == 1 else ("Reply", " says", " this."):
            delta = llm.ChoiceDelta(role="assistant", content=word)
            self._event_ch.send_nowait(llm.ChatChunk(id="x", delta=delta))
        if self.tries == 1:
            raise APIConnectionError("gone")


async def test_nothing_is_said_twice_after_an_error_in_mid_reply() -> None:
    naive = _Naive().chat(chat_ctx=asking("?"), conn_options=AT_ONCE)
    assert (await naive.collect()).text == "Reply saysReply says this."

    engine = BreakingEngine(["Reply says this."], (2, ConnectionFailed("gone")))
    stream = LLM(engine=engine).chat(chat_ctx=asking("?"), conn_options=AT_ONCE)
    text = ""

    async def read() -> None:
        nonlocal text
        async for chunk in stream:
            text += (chunk.delta and chunk.delta.content) or ""

    with pytest.raises(APIConnectionError) as caught:
        await read()
    assert text == "Reply says" and not caught.value.retryable
    assert len(engine.requests) == 1


async def test_cancelling_the_reader_stops_the_engine() -> None:
    gates = [anyio.Event(), anyio.Event(), anyio.Event()]
    gates[0].set()
    gates[1].set()
    waiting = iter([*gates, *gates])
    engine = ScriptedEngine(["One two three four five."], gate=lambda: next(waiting))
    service = LLM(engine=engine)
    first = asyncio.Event()

    async def read() -> None:
        async with service.chat(chat_ctx=asking("?")) as stream:
            async for _ in stream:
                first.set()

    task = asyncio.create_task(read())
    await first.wait()
    task.cancel()
    await asyncio.wait([task])
    assert engine.generations[0].report.finish_reason == "cancelled"
    assert service.dropped.cancelled == 1


async def test_a_dropped_reply_is_the_next_ones_reference() -> None:
    engine = BreakingEngine(["It rains in Oslo.", "It rains in Rome.", "Bye."])
    service = LLM(engine=engine)
    context, other = asking(), asking()
    guess = context.copy()
    guess.add_message(role="user", content="Weather in Oslo")
    await service.chat(chat_ctx=guess).collect()  # complete, then thrown away
    final = context.copy()
    final.add_message(role="user", content="Weather in Rome?")
    reply = await service.chat(chat_ctx=final).collect()
    assert engine.references == ["", "It rains in Oslo."]
    final.add_message(role="assistant", content=reply.text)
    final.add_message(role="user", content="Thanks.")
    await service.chat(chat_ctx=final).collect()  # another point of the chat
    other.add_message(role="user", content="Weather in Rome?")
    await service.chat(chat_ctx=other).collect()  # another chat
    assert engine.references[2:] == ["", ""]
    assert (service.dropped.superseded, service.dropped.referenced) == (1, 1)
    assert service.dropped.tokens == engine.generations[0].report.completion_tokens
    assert engine.sessions[0] == engine.sessions[1] == engine.sessions[2] != engine.sessions[3]
    await service.aclose()
    assert set(engine.forgotten) == set(engine.sessions)


async def test_an_engine_without_references_is_given_none() -> None:
    engine = ScriptedEngine(["One.", "Two."])
    engine.capabilities = type(engine.capabilities)(reference=False)
    service, context = LLM(engine=engine), asking()
    for text in ("Weather", "Weather?"):
        guess = context.copy()
        guess.add_message(role="user", content=text)
        await service.chat(chat_ctx=guess).collect()
    assert engine.references == ["", ""]
    assert (service.dropped.superseded, service.dropped.referenced) == (1, 0)


async def test_old_chats_are_forgotten() -> None:
    engine = BreakingEngine(["Yes."])
    service = LLM(engine=engine)
    for _ in range(66):
        await service.chat(chat_ctx=asking("?")).collect()
    assert engine.forgotten == engine.sessions[:2]


async def test_an_engine_that_says_nothing_is_given_up_in_time_for_another() -> None:
    never = anyio.Event()
    hung = LLM(engine=ScriptedEngine(["Late."], gate=lambda: never))
    good = LLM(engine=ScriptedEngine(["In time."]))
    both = llm.FallbackAdapter([hung, good], attempt_timeout=0.05, max_retry_per_llm=0)
    reply = await both.chat(chat_ctx=asking("Where?")).collect()
    assert reply.text == "In time."
