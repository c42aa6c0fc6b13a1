"""The HTTP API as OpenAI's own client sees it, over a scripted engine."""

import io
import json
import tracemalloc
import wave
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import soundfile

openai = pytest.importorskip("openai")

from specstream.errors import AdapterFailed  # noqa: E402
from specstream.listening.ears import Ears  # noqa: E402
from specstream.listening.resampler import Resampler  # noqa: E402
from specstream.server.api import audio  # noqa: E402
from specstream.testing import ScriptedEngine, ScriptedRecognizer, ScriptedTurnDetector, chunks_of  # noqa: E402
from specstream.tools import ToolCallDelta  # noqa: E402
from specstream.types import Chunk, Span  # noqa: E402
from tests.server.doubles import Stand, settle  # noqa: E402

HI = [{"role": "user", "content": "Hi"}]
PICTURE = {"type": "image_url", "image_url": {"url": "data:"}}


@asynccontextmanager
async def served(
    *replies: str | list[Chunk], **options: Any
) -> AsyncGenerator[tuple[Any, ScriptedEngine, Stand], None]:
    """A client, and the engine behind the server."""
    engine = ScriptedEngine(list(replies), calls_tools=options.pop("calls_tools", False))
    stand = Stand(engine, names={"target": "scripted"}, **options)
    async with stand.running():
        base = f"http://127.0.0.1:{stand.port}/v1"
        key = options.get("keys", ["none"])[0]
        async with openai.AsyncOpenAI(base_url=base, api_key=key, max_retries=0) as client:
            yield client, engine, stand


async def test_a_chat_is_answered_whole_and_in_rounds() -> None:
    rounds = [
        replace(c, drafted=3, accepted=2, proposer="draft") for c in chunks_of("one two three", [2, 3])
    ]
    async with served(rounds) as (client, engine, stand):
        create, stream = client.chat.completions.create, {"include_usage": True}
        whole = await create(model="scripted", messages=HI, max_completion_tokens=9)
        asked = {"model": "scripted", "messages": HI, "stream": True, "stream_options": stream}
        async with await create(**asked) as streamed:
            parts = await collect(streamed)
        await settle()  # the client leaves a generator to the garbage collector
    assert whole.choices[0].message.content == "one two three"
    assert whole.choices[0].finish_reason == "stop"
    assert engine.requests[0][1].max_tokens == 9
    assert parts[0].choices[0].delta.role == "assistant"
    texts = [c.delta.content or "" for part in parts for c in part.choices]
    assert "".join(texts) == "one two three"
    assert [c.finish_reason for part in parts for c in part.choices if c.finish_reason] == ["stop"]
    told = [part.specstream for part in parts if hasattr(part, "specstream")]
    assert {one["proposer"] for one in told} == {"draft"}
    assert [one["chars"] for one in told] == [list(chunk.chars) for chunk in rounds]
    last = parts[-1]
    assert last.choices == [] and last.usage.completion_tokens == whole.usage.completion_tokens
    assert last.metrics["speculative_decoding"]["per_step_accepted"] == [2] * len(rounds)
    assert last.timings["draft_n"] == 3 * len(rounds)
    assert stand.server.counters.requests["/v1/chat/completions", "200"] == 2


async def test_what_is_asked_for_reaches_the_engine() -> None:
    async with served("fine.") as (client, engine, _):
        await client.chat.completions.create(
            model="scripted",
            messages=[
                {"role": "developer", "content": "Be short."},
                {
                    "role": "user",
                    "content": [{"type": "text", "text": "Hi "}, {"type": "text", "text": "you"}],
                },
            ],
            temperature=0.5,
            top_p=0.9,
            seed=3,
            stop="END",
            logit_bias={"7": -5},
            n=2,
            prediction={"type": "content", "content": "as before"},
            user="somebody",
            extra_body={"top_k": 4, "speculative": False, "chat_template_kwargs": {"a": 1}},
        )
    messages, params = engine.requests[0]
    assert [m["role"] for m in messages] == ["system", "user"]
    assert messages[1]["content"] == "Hi you"
    assert (params.temperature, params.top_p, params.top_k) == (0.5, 0.9, 4)
    assert (params.stop, dict(params.logit_bias)) == (("END",), {7: -5})
    assert sorted(p.seed for _, p in engine.requests if p.seed is not None) == [3, 4]
    assert engine.references == ["as before"] * 2 and engine.speculated == [False] * 2
    assert engine.template_kwargs[0] == {"a": 1}


@pytest.mark.parametrize(
    ("fields", "status", "param"),
    [
        ({"model": "other"}, 404, "model"),
        ({"temperature": 300}, 400, "temperature"),
        ({"n": 9}, 400, "n"),
        ({"logprobs": True}, 400, "logprobs"),
        ({"messages": "hi"}, 400, "messages"),
        ({"extra_body": {"top_q": 1}}, 400, "top_q"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
            400,
            "messages.0.content.0",
        ),
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, 400, "tools"),
        ({"tools": [{"type": "web"}]}, 400, "tools.0"),
        ({"response_format": {"type": "json_schema"}}, 400, "response_format"),
        (
            {"messages": [{"role": "user", "content": [{"type": "text", "text": ["a"]}]}]},
            400,
            "messages.0.content.0",
        ),
    ],
)
async def test_what_cannot_be_honoured_is_refused_by_name(
    fields: dict[str, Any], status: int, param: str
) -> None:
    async with served("fine.") as (client, engine, stand):
        with pytest.raises(openai.APIStatusError) as caught:
            await client.chat.completions.create(**{"model": "scripted", "messages": HI, **fields})
    assert (caught.value.status_code, caught.value.param) == (status, param)
    assert engine.requests == []
    assert stand.server.counters.requests["/v1/chat/completions", str(status)] == 1


async def test_tools_are_called_with_streamed_arguments() -> None:
    head = Chunk("", (1,), Span(0, 1), Span(0, 0))
    first = ToolCallDelta(0, "call_1", "weather", '{"city": ')
    second = ToolCallDelta(0, "call_1", "weather", '"Rome"}', done=True)
    calls = [
        replace(head, tool_calls=(first,)),
        replace(head, round=1, finish_reason="tool_calls", tool_calls=(second,)),
    ]
    tool = {"type": "function", "function": {"name": "weather", "description": "d", "strict": True}}
    async with served(calls, calls_tools=True) as (client, engine, _):
        ask = {"model": "scripted", "messages": HI, "tools": [tool], "tool_choice": "required"}
        whole = await client.chat.completions.create(**ask)
        stream = await client.chat.completions.create(**ask, stream=True)
        deltas = [d for part in stream_parts(await collect(stream)) for d in part]
        responses = await client.responses.create(
            model="scripted", input="Hi", tools=[{"type": "function", "name": "weather"}]
        )
    (call,) = whole.choices[0].message.tool_calls
    assert (call.function.name, json.loads(call.function.arguments)) == ("weather", {"city": "Rome"})
    assert whole.choices[0].finish_reason == "tool_calls"
    assert engine.tools[0] is not None and engine.tools[0].choice == "required"
    assert [(d.id, d.function.name, d.function.arguments) for d in deltas] == [
        ("call_1", "weather", '{"city": '),
        (None, None, '"Rome"}'),
    ]
    (item,) = responses.output
    assert (item.type, item.name, item.call_id) == ("function_call", "weather", "call_1")


async def collect(stream: Any) -> list[Any]:
    return [part async for part in stream]


def stream_parts(parts: list[Any]) -> list[list[Any]]:
    return [c.delta.tool_calls for part in parts for c in part.choices if c.delta.tool_calls]


async def test_responses_have_all_events_in_order() -> None:
    async with served("one two three") as (client, engine, _):
        whole = await client.responses.create(model="scripted", input="Hi", instructions="Be short.")
        stream = await client.responses.create(model="scripted", input=HI, stream=True)
        events = await collect(stream)
    assert whole.output_text == "one two three" and whole.status == "completed"
    assert whole.usage.input_tokens_details.cached_tokens == 0
    assert [m["role"] for m in engine.requests[0][0]] == ["system", "user"]
    kinds = [event.type.removeprefix("response.") for event in events]
    assert kinds[:4] == ["created", "in_progress", "output_item.added", "content_part.added"]
    assert kinds[-4:] == ["output_text.done", "content_part.done", "output_item.done", "completed"]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert "".join(e.delta for e in events if e.type.endswith("text.delta")) == "one two three"
    assert events[-1].response.output_text == "one two three"


async def test_what_a_turn_said_and_called_is_one_message() -> None:
    first = {"type": "function_call", "call_id": "a", "name": "weather", "arguments": "{}"}
    other = {**first, "call_id": "b", "arguments": '{"city": "Rome"}'}
    told = {"type": "function_call_output", "output": "Warm."}
    turn = {"role": "assistant", "content": "Let me see."}
    history = [
        *HI,
        {"type": "reasoning", "id": "rs_1", "summary": []},
        turn,
        first,
        other,
        {**told, "call_id": "a"},
        {**told, "call_id": "b"},
        first,
        turn,
    ]
    async with served("fine.") as (client, engine, _):
        await client.responses.create(model="scripted", input=history)
    asked = engine.requests[0][0]
    assert [(m["role"], m["content"], len(m.get("tool_calls", ()))) for m in asked] == [
        ("user", "Hi", 0),
        ("assistant", "Let me see.", 2),
        ("tool", "Warm.", 0),
        ("tool", "Warm.", 0),
        ("assistant", "Let me see.", 1),
    ]
    assert [m.get("name") for m in asked[2:4]] == ["weather", "weather"]


@pytest.mark.parametrize(
    ("choice", "param"), [("never", "tool_choice"), ("auto", "tools"), ("other", "tool_choice")]
)
async def test_a_bad_choice_is_told_from_a_bad_tool(choice: str, param: str) -> None:
    tool = {"type": "function", "function": {"name": "a b" if choice == "auto" else "f"}}
    async with served("fine.", calls_tools=True) as (client, _, _):
        with pytest.raises(openai.BadRequestError) as caught:
            await client.chat.completions.create(
                model="scripted", messages=HI, tools=[tool], tool_choice=choice
            )
    assert caught.value.param == param


async def test_drafts_may_be_limited() -> None:
    async with served("fine.") as (client, engine, _):
        for asked in (True, False, {"num_speculative_tokens": 2}, {"num_speculative_tokens": -1}):
            with suppress(openai.BadRequestError):
                await client.chat.completions.create(
                    model="scripted", messages=HI, extra_body={"speculative": asked}
                )
    assert engine.speculated == [True, False, 2]


@pytest.mark.parametrize(
    ("extra", "param", "says"),
    [
        (
            {"speculative": {"num_speculative_tokens": -1}},
            "speculative.num_speculative_tokens",
            "greater than or equal to 0",
        ),
        ({"speculative": {"num_speculative_tokens": "x"}}, "speculative.num_speculative_tokens", ""),
        ({"logit_bias": {"x": 1}}, "logit_bias.x", ""),
        ({"stop": ["a", 5]}, "stop.1", "valid string"),
    ],
)
async def test_of_a_union_what_was_meant_is_named(extra: Any, param: str, says: str) -> None:
    async with served("fine.") as (client, _, _):
        with pytest.raises(openai.BadRequestError) as caught:
            await client.chat.completions.create(model="scripted", messages=HI, extra_body=extra)
    assert caught.value.param == param and says in str(caught.value)


async def test_what_would_need_stored_responses_is_refused() -> None:
    async with served("fine.") as (client, _, _):
        with pytest.raises(openai.BadRequestError) as caught:
            await client.responses.create(model="scripted", input="Hi", previous_response_id="resp_1")
    assert caught.value.param == "previous_response_id"


async def test_speech_is_streamed_as_pcm_or_wav() -> None:
    async with served("fine.") as (client, _, stand):
        speak = client.audio.speech.create
        pcm = await speak(model="scripted", voice="alloy", input="one two", response_format="pcm")
        mp3 = await speak(model="scripted", voice="alloy", input="one two")
        with pytest.raises(openai.BadRequestError):
            await speak(model="scripted", voice="alloy", input=" ")
        with pytest.raises(openai.BadRequestError):
            await speak(model="scripted", voice="alloy", input="one", speed=2)
        with pytest.raises(openai.BadRequestError, match="instructions"):
            await speak(model="scripted", voice="alloy", input="one", instructions="Whisper.")
    samples = np.frombuffer(pcm.content, "<i2")
    assert len(samples) == 2 * 0.2 * 24_000 and np.abs(samples).max() > 8000
    assert mp3.response.headers["content-type"] == "audio/wav"
    assert mp3.content[:4] == b"RIFF" and mp3.content[44:] == pcm.content
    assert len(stand.voices) == 3 and all(voice.closed for voice in stand.voices[1:])


def sound(seconds: float = 0.5, rate: int = 48_000) -> io.BytesIO:
    file = io.BytesIO()
    with wave.open(file, "wb") as out:
        out.setnchannels(2)
        out.setsampwidth(2)
        out.setframerate(rate)
        out.writeframes(np.full(int(seconds * rate) * 2, 5000, "<i2").tobytes())
    file.seek(0)
    file.name = "sound.wav"
    return file


async def test_a_file_is_transcribed() -> None:
    recognizer = ScriptedRecognizer(["hello there"])
    ears = Ears(recognizer, ScriptedTurnDetector())
    async with served("fine.", ears=lambda: ears) as (client, _, _):
        create = client.audio.transcriptions.create
        plain = await create(model="scripted", file=sound())
        full = await create(
            model="scripted",
            file=sound(),
            language="en",
            response_format="verbose_json",
            timestamp_granularities=["word"],
        )
        text = await create(model="scripted", file=sound(), response_format="text")
        events = await collect(await create(model="scripted", file=sound(), stream=True))
        with pytest.raises(openai.BadRequestError, match=r"read as audio \(Format not recognised"):
            await create(model="scripted", file=("x.wav", b"nonsense"))
        for name, value in (("prompt", "Names"), ("temperature", 0.5)):
            with pytest.raises(openai.BadRequestError, match=name):
                await create(model="scripted", file=sound(), **{name: value})
        with pytest.raises(openai.BadRequestError, match="timestamp_granularities"):
            await create(model="scripted", file=sound(), timestamp_granularities=["line"])
        quiet = await create(model="scripted", file=sound(), temperature=0, prompt="")
    assert plain.text == full.text == quiet.text == "hello there" and text.strip() == "hello there"
    assert full.duration == 0.5 and [word.word for word in full.words] == ["hello", "there"]
    assert len(recognizer.audio[0]) == 2 * 0.5 * 16_000
    assert recognizer.languages[:2] == [None, "en"] and recognizer.open_streams == 0
    assert [event.type for event in events] == ["transcript.text.delta", "transcript.text.done"]


async def test_a_language_that_the_recogniser_does_not_know_is_the_clients_fault() -> None:
    class English(ScriptedRecognizer):
        def open(self, sample_rate: int, *, language: str | None = None) -> Any:
            if language not in (None, "en"):
                raise AdapterFailed(f"this model doesn't know the language {language!r}")
            return super().open(sample_rate, language=language)

    ears = Ears(English(["hello there"]), ScriptedTurnDetector())
    async with served("fine.", ears=lambda: ears) as (client, _, _):
        with pytest.raises(openai.BadRequestError, match="language 'de'") as told:
            await client.audio.transcriptions.create(model="s", file=sound(), language="de")
    assert told.value.param == "language"


def test_a_long_file_is_converted_in_pieces() -> None:
    """Five minutes at 44.1 kHz took 11 GB at once."""
    file = io.BytesIO()
    tone = np.sin(np.arange(44_100 * 30) * 0.1) * 0.5
    soundfile.write(file, np.stack([tone, tone], axis=1), 44_100, format="FLAC")
    tracemalloc.start()
    pcm = audio._decoded(file.getvalue(), 16_000)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(pcm) == 2 * 16_000 * 30
    assert most < 60_000_000
    whole = Resampler(44_100, 16_000)
    rest = whole.push(np.rint(tone * 32767).astype("<i2").tobytes()) + whole.flush()
    difference = np.frombuffer(pcm, "<i2").astype(int) - np.frombuffer(rest, "<i2")
    assert np.abs(difference).max() <= 2  # 16 bits of FLAC


async def test_an_unusual_rate_is_the_files_fault_and_what_is_no_number_is_silence() -> None:
    recognizer = ScriptedRecognizer(["hello there"])
    ears = Ears(recognizer, ScriptedTurnDetector())
    file = io.BytesIO()
    soundfile.write(file, np.zeros(11_127), 11_127, format="WAV")
    async with served("fine.", ears=lambda: ears) as (client, _, _):
        with pytest.raises(openai.BadRequestError, match="11127 Hz") as caught:
            await client.audio.transcriptions.create(model="x", file=("x.wav", file.getvalue()))
    assert caught.value.param == "file" and caught.value.code == "invalid_audio"
    file = io.BytesIO()
    soundfile.write(file, np.full(16_000, np.nan), 16_000, format="WAV", subtype="FLOAT")
    assert audio._decoded(file.getvalue(), 16_000) == bytes(32_000)


async def test_without_a_voice_or_ears_that_is_said() -> None:
    async with served("fine.", voice=None) as (client, _, _):
        with pytest.raises(openai.APIStatusError, match="has no voice"):
            await client.audio.speech.create(model="scripted", voice="alloy", input="one")
        with pytest.raises(openai.APIStatusError, match="has no recogniser"):
            await client.audio.transcriptions.create(model="scripted", file=sound())


async def test_keys_models_and_places() -> None:
    async with served("fine.", keys=["s3cret"], max_sessions=1) as (client, _, stand):
        listed = await client.models.list()
        assert [model.id for model in listed.data] == ["scripted"]
        assert (await client.models.retrieve("scripted")).id == "scripted"
        wrong = client.with_options(api_key="wrong")
        with pytest.raises(openai.AuthenticationError):
            await wrong.models.list()
        async with stand.client("?token=s3cret"):
            with pytest.raises(openai.InternalServerError) as caught:
                await client.chat.completions.create(model="scripted", messages=HI)
        assert caught.value.status_code == 503
        assert caught.value.response.headers["retry-after"] == "5"
