"""The language model's service."""

from __future__ import annotations

import anyio
import pytest
from pipecat.adapters.llm.schemas.function_schema import FunctionSchema
from pipecat.adapters.llm.schemas.tools_schema import ToolsSchema
from pipecat.frames.frames import (
    EagerEndOfTurnCancelFrame,
    ErrorFrame,
    FunctionCallResultFrame,
    InterruptionFrame,
    LLMContextFrame,
    LLMFullResponseEndFrame,
    LLMFullResponseStartFrame,
    LLMTextFrame,
    LLMUpdateSettingsFrame,
    MetricsFrame,
    UserStoppedSpeakingFrame,
)
from pipecat.metrics.metrics import (
    LLMTokenUsage,
    LLMUsageMetricsData,
    ProcessingMetricsData,
    TTFBMetricsData,
)
from pipecat.pipeline.worker import PipelineParams
from pipecat.processors.aggregators.llm_context import LLMContext
from pipecat.processors.aggregators.llm_response_universal import LLMContextAggregatorPair
from pipecat.services.llm_service import FunctionCallParams
from pipecat.services.settings import LLMSettings
from pipecat.tests.utils import run_test
from pipecat.utils.errors import ErrorCategory
from pipecat_specstream import SpecstreamLLMService, SpecstreamLLMSettings
from specstream import SamplingParams, ToolCall
from specstream.errors import ConfigError, EngineBusy, PromptError, SamplingError
from specstream.testing import ScriptedEngine, chunks_of
from specstream.types import Manner
from support import FrameWatch, asked, running

METRICS = PipelineParams(enable_metrics=True, enable_usage_metrics=True)


def texts(frames) -> str:
    return "".join(frame.text for frame in frames if isinstance(frame, LLMTextFrame))


async def test_a_reply_is_framed_and_measured():
    engine = ScriptedEngine(["Paris is the capital."])
    service = SpecstreamLLMService(engine=engine)
    down, up = await run_test(
        service, frames_to_send=[LLMContextFrame(asked("What is the capital?"))], pipeline_params=METRICS
    )
    kinds = [type(frame) for frame in down]
    assert kinds.count(LLMFullResponseStartFrame) == kinds.count(LLMFullResponseEndFrame) == 1
    assert kinds.index(LLMFullResponseStartFrame) < kinds.index(LLMTextFrame)
    assert kinds[-1] is LLMFullResponseEndFrame
    assert texts(down) == "Paris is the capital."
    data = [each for frame in down if isinstance(frame, MetricsFrame) for each in frame.data]
    (usage,) = [each.value for each in data if isinstance(each, LLMUsageMetricsData)]
    assert usage == LLMTokenUsage(
        prompt_tokens=1,
        completion_tokens=len(chunks_of("Paris is the capital.")) - 1,
        total_tokens=len(chunks_of("Paris is the capital.")),
        cache_read_input_tokens=0,
        reasoning_tokens=0,
    )
    assert any(isinstance(each, TTFBMetricsData) and each.value for each in data)
    assert any(isinstance(each, ProcessingMetricsData) and each.value for each in data)
    assert not [frame for frame in up if isinstance(frame, ErrorFrame)]


async def test_an_interruption_stops_the_decoding_within_a_round():
    rounds = [anyio.Event() for _ in range(200)]
    begun = iter(rounds)
    for event in rounds[:3]:
        event.set()
    engine = ScriptedEngine([" ".join(["word"] * 150)], gate=lambda: next(begun))
    watch = FrameWatch()
    service = SpecstreamLLMService(engine=engine)
    async with running([service], watch) as worker:
        await worker.queue_frame(LLMContextFrame(asked("Go on.")))
        await watch.seen(lambda _, frame: len(watch.of(LLMTextFrame)) == 3)
        await worker.queue_frame(InterruptionFrame())
        await watch.seen(lambda who, f: who is service and isinstance(f, InterruptionFrame))
        for event in rounds:
            event.set()
        await anyio.wait_all_tasks_blocked()
        (generation,) = engine.generations
        assert generation.report.finish_reason == "cancelled"
        assert generation.report.rounds == 3
    assert not watch.of(LLMFullResponseEndFrame)
    assert [each.value.completion_tokens for each in metrics(watch, LLMUsageMetricsData)] == [3]


def metrics(watch: FrameWatch, kind):
    return [e for frame in watch.of(MetricsFrame) for e in frame.data if isinstance(e, kind)]


async def guessed(engine, *frames) -> FrameWatch:
    """Send frames, each once the service has dealt with the one before."""
    watch = FrameWatch()
    service = SpecstreamLLMService(engine=engine)
    async with running([service], watch) as worker:
        for frame in frames:
            ends = len(engine.generations) + 1
            await worker.queue_frame(frame)
            if isinstance(frame, LLMContextFrame):
                while len(engine.generations) < ends or not engine.generations[-1].report.finish_reason:
                    await anyio.lowlevel.checkpoint()
                continue
            sent = type(frame)
            await watch.seen(lambda who, f: who is service and type(f) is sent)  # noqa: B023
    return watch


def guess(text: str) -> LLMContextFrame:
    return LLMContextFrame(asked(text, {"role": "assistant", "content": "Hi."}), speculation=True)


def sure(text: str) -> LLMContextFrame:
    return LLMContextFrame(asked(text, {"role": "assistant", "content": "Hi."}))


async def test_a_dropped_guess_is_the_reference_of_the_next_request():
    engine = ScriptedEngine(["A table for two.", "A table for two at eight."])
    watch = await guessed(
        engine,
        guess("A table"),
        EagerEndOfTurnCancelFrame(),
        UserStoppedSpeakingFrame(),
        sure("A table at eight"),
        sure("And then?"),
    )
    assert engine.references == ["", "A table for two.", ""]
    assert texts(watch.of(LLMTextFrame)) == "A table for two at eight." * 2


async def test_a_superseded_guess_is_the_reference_of_the_next_request():
    engine = ScriptedEngine(["One.", "Two.", "Three."])
    await guessed(engine, guess("A table"), guess("A table at"), sure("A table at eight"))
    assert engine.references == ["", "One.", "Two."]


async def test_a_confirmed_guess_is_said_and_no_reference():
    engine = ScriptedEngine(["A table for two.", "Bye."])
    watch = await guessed(engine, guess("A table"), UserStoppedSpeakingFrame(), sure("Another question"))
    assert engine.references == ["", ""]
    assert texts(watch.of(LLMTextFrame)) == "A table for two.Bye."


async def test_a_guess_in_another_conversation_is_no_reference():
    engine = ScriptedEngine(["One.", "Two."])
    other = LLMContextFrame(asked("A table at eight"))
    await guessed(engine, guess("A table"), EagerEndOfTurnCancelFrame(), other)
    assert engine.references == ["", ""]


async def test_a_function_is_called_and_its_result_is_read():
    call = ToolCall("call-1", "weather", '{"city": "Oslo"}')
    engine = ScriptedEngine(
        [chunks_of("Let me see. ", calls=[call]), "It snows in Oslo."], calls_tools=True
    )
    given = []

    async def weather(params):
        given.append(dict(params.arguments))
        await params.result_callback({"weather": "snow"})

    schema = FunctionSchema("weather", "The weather.", {"city": {"type": "string"}}, ["city"], weather)
    context = asked("How is it in Oslo?", tools=ToolsSchema([schema]))
    pair = LLMContextAggregatorPair(context)
    watch = FrameWatch()
    service = SpecstreamLLMService(engine=engine)
    async with running([pair.user(), service, pair.assistant()], watch) as worker:
        await worker.queue_frame(LLMContextFrame(context))
        await watch.seen(lambda _, frame: isinstance(frame, FunctionCallResultFrame))
        await watch.seen(lambda _, frame: isinstance(frame, LLMTextFrame) and "Oslo" in frame.text)
    assert given == [{"city": "Oslo"}]
    assert [tool.name for tool in engine.tools[0].tools] == ["weather"]
    assert engine.tools[0].tools[0].parameters["required"] == ["city"]
    messages, _ = engine.requests[1]
    (calling,) = [message for message in messages if message.get("tool_calls")]
    assert calling["tool_calls"][0]["function"]["name"] == "weather"
    result = messages[-1]
    assert (result["role"], result["tool_call_id"]) == ("tool", "call-1")
    assert result["content"] == '{"weather": "snow"}'


async def test_a_call_that_cannot_be_made_is_told():
    call = ToolCall("call-1", "weather", '{"city": ', "bad_json")
    engine = ScriptedEngine([chunks_of("", calls=[call])], calls_tools=True)
    _, up = await run_test(
        SpecstreamLLMService(engine=engine), frames_to_send=[LLMContextFrame(asked("Oslo?"))]
    )
    (error,) = [frame for frame in up if isinstance(frame, ErrorFrame)]
    assert error.category is ErrorCategory.SERVER
    assert "weather" in error.error and "bad_json" in error.error


async def test_messages_are_flattened():
    engine = ScriptedEngine(["Yes."])
    context = asked(
        "Well?",
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "One"}, {"type": "text", "text": "two"}]},
    )
    service = SpecstreamLLMService(
        engine=engine, settings=SpecstreamLLMSettings(system_instruction="You are a clerk.")
    )
    await run_test(service, frames_to_send=[LLMContextFrame(context)])
    assert engine.requests[0][0] == [
        {"role": "system", "content": "You are a clerk."},
        {"role": "user", "content": "Be brief."},
        {"role": "user", "content": "One\ntwo"},
        {"role": "user", "content": "Well?"},
    ]


@pytest.mark.parametrize("given", ["", "context", "settings"])
async def test_pipecats_additions_stand_behind_the_system_message(given: str):
    """Those of a tool that goes on beside speech; the model's own is taken where none is given."""

    async def look(params: FunctionCallParams):
        await params.result_callback("sun")

    engine = ScriptedEngine(["Yes."], calls_tools=True)
    engine.manner = Manner(system="You are Ada.")
    before = [{"role": "system", "content": "Be Bo."}] if given == "context" else []
    settings = SpecstreamLLMSettings(system_instruction="Be Cy.") if given == "settings" else None
    service = SpecstreamLLMService(engine=engine, settings=settings)
    service.register_function("look", look, cancel_on_interruption=False)
    tools = ToolsSchema([FunctionSchema("look", "Looks.", {}, [])])
    await run_test(
        service,
        frames_to_send=[LLMContextFrame(LLMContext([*before, *asked("Well?").get_messages()], tools))],
    )
    system = [m["content"] for m in engine.requests[0][0] if m["role"] == "system"]
    told = {"": "You are Ada.", "context": "", "settings": "Be Cy."}[given]
    assert system and system[0].startswith(told) and ("Ada" in str(system)) == (not given)


async def test_an_image_is_refused_and_the_service_goes_on():
    engine = ScriptedEngine(["Yes."])
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}
    service = SpecstreamLLMService(engine=engine)
    down, up = await run_test(
        service,
        frames_to_send=[
            LLMContextFrame(asked("What?", {"role": "user", "content": [image]})),
            LLMContextFrame(asked("Well?")),
        ],
    )
    (error,) = [frame for frame in up if isinstance(frame, ErrorFrame)]
    assert isinstance(error.exception, PromptError) and "image_url" in error.error
    assert error.category is ErrorCategory.APPLICATION
    assert service.is_usable and texts(down) == "Yes."
    assert sum(isinstance(frame, LLMFullResponseEndFrame) for frame in down) == 2


class BusyEngine(ScriptedEngine):
    def generate(self, *args, **options):
        raise EngineBusy("the waiting line is full")


async def test_a_busy_engine_is_told_by_category():
    service = SpecstreamLLMService(engine=BusyEngine(["x"]))
    down, up = await run_test(service, frames_to_send=[LLMContextFrame(asked("Well?"))])
    (error,) = [frame for frame in up if isinstance(frame, ErrorFrame)]
    assert (error.category, service.is_usable) == (ErrorCategory.RATE_LIMIT, True)
    assert isinstance(down[-1], LLMFullResponseEndFrame)


async def test_settings_become_sampling_params():
    engine = ScriptedEngine(["Yes."])
    given = SpecstreamLLMSettings(temperature=0.5, max_tokens=40, top_k=3, seed=7, stop=("\n",))
    service = SpecstreamLLMService(engine=engine, settings=given)
    change = LLMUpdateSettingsFrame(delta=LLMSettings(top_k=5, presence_penalty=0.5))
    wrong = LLMUpdateSettingsFrame(delta=LLMSettings(temperature=-1.0, max_tokens=9))
    _, up = await run_test(service, frames_to_send=[change, wrong, LLMContextFrame(asked("Well?"))])
    assert engine.requests[0][1] == SamplingParams(
        temperature=0.5, max_tokens=40, top_k=5, seed=7, stop=("\n",), presence_penalty=0.5
    )
    (error,) = [frame for frame in up if isinstance(frame, ErrorFrame)]
    assert "temperature" in error.error


async def test_what_the_engine_cannot_honour_is_refused_by_name():
    engine = ScriptedEngine(["Yes."])
    with pytest.raises(ConfigError, match="gpt-9"):
        SpecstreamLLMService(engine=engine, settings=LLMSettings(model="gpt-9"))
    with pytest.raises(ConfigError, match="service_tier"):
        SpecstreamLLMService(engine=engine, settings=LLMSettings(extra={"service_tier": "x"}))
    with pytest.raises(SamplingError, match="top_p"):
        SpecstreamLLMService(engine=engine, settings=LLMSettings(top_p=2.0))


async def test_inference_out_of_the_pipeline():
    engine = ScriptedEngine(['{"name": "Ada"}'])
    service = SpecstreamLLMService(engine=engine)
    schema = {"type": "object", "properties": {"name": {"type": "string"}}}
    said = await service.run_inference(
        asked("Who?"), max_tokens=12, system_instruction="Be exact.", response_schema=schema
    )
    assert said == '{"name": "Ada"}'
    messages, params = engine.requests[0]
    assert messages[0] == {"role": "system", "content": "Be exact."}
    assert params.max_tokens == 12 and params.grammar.kind == "json_schema"
