"""Whole sessions without a room: interruptions, errors, tools, usage, turns from audio."""

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from engines import BreakingEngine
from fakes import RoomInput, RoomSpeaker, WaitingSpeaker, running, said
from livekit.agents import Agent, RunContext, function_tool, mock_tools
from livekit.agents.metrics import LLMModelUsage, TTSModelUsage
from livekit.agents.voice.events import ErrorEvent
from livekit.agents.voice.run_result import RunResult
from specstream import Engine, ToolCall
from specstream.errors import ConfigError, ConnectionFailed
from specstream.listening import Ears
from specstream.stages import load_adapter
from specstream.testing import (
    ScriptedEngine,
    ScriptedRecognizer,
    ScriptedTurnDetector,
    ScriptedVoice,
    chunks_of,
)

from livekit.plugins.specstream import LLM, STT, TTS, HeardWords

QUESTION = "Tell me a story about a brave little fox."


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine() -> AsyncIterator[Engine]:
    async with Engine.load() as loaded:
        yield loaded


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("late_s", [0.0, 0.6])
@pytest.mark.parametrize("seconds", [0.5, 1.25, 2.5, 4.0])
async def test_an_interrupted_reply_ends_at_the_last_word_heard(
    engine: Engine, late_s: float, seconds: float
) -> None:
    service = LLM(engine=engine, max_tokens=60, temperature=0.8, seed=3)
    voice = TTS(voice=load_adapter("voice", "hibari"))
    loudspeaker = RoomSpeaker(late_s=late_s)
    async with running(
        Agent(instructions=""), loudspeaker=loudspeaker, llm=service, tts=voice
    ) as session:
        reply = session.generate_reply(user_input=QUESTION)
        await loudspeaker.reached(seconds)
        await session.interrupt()
        await reply
        history = " ".join(said(session)).split()
    heard = loudspeaker.heard()  # at least half of the word
    assert history, "words were heard"
    assert history == heard[: len(history)], "no word that wasn't heard, none in another order"
    assert len(heard) - len(history) <= 1


@pytest.mark.parametrize(
    "text",
    ["Dr. Smith paid $5.50. Was it 3 o'clock?", "It's **really** good 🎉, see [here](https://a.io)."],
)
async def test_a_whole_reply_is_in_the_history_letter_for_letter(text: str) -> None:
    loudspeaker = RoomSpeaker(paced=False)
    async with running(
        Agent(instructions=""),
        loudspeaker=loudspeaker,
        llm=LLM(engine=ScriptedEngine([text])),
        tts=TTS(voice=load_adapter("voice", "hibari")),
        tts_text_transforms=None,
    ) as session:
        await session.generate_reply(user_input="What?")
        assert said(session) == [text]
    assert "".join(loudspeaker.words) == text


async def test_an_error_in_mid_reply_keeps_what_was_said_once() -> None:
    engine = BreakingEngine(["Reply says this here.", "Fine."], (2, ConnectionFailed("gone")))
    loudspeaker, errors = RoomSpeaker(paced=False), []
    async with running(
        Agent(instructions=""),
        loudspeaker=loudspeaker,
        llm=LLM(engine=engine),
        tts=TTS(voice=ScriptedVoice()),
    ) as session:
        session.on("error", lambda event: errors.append(event))
        await session.generate_reply(user_input="What?")
        assert said(session) == ["Reply says"]
        await session.generate_reply(user_input="And now?")
        assert said(session) == ["Reply says", "Fine."]
    assert len(errors) == 1 and isinstance(errors[0], ErrorEvent)
    assert not errors[0].error.recoverable
    assert len(engine.requests) == 2


class Weather(Agent):
    def __init__(self) -> None:
        super().__init__(instructions="Be brief.")

    @function_tool
    async def weather(self, context: RunContext[Any], city: str) -> str:
        """Tell the weather.

        Args:
            city: Where.
        """
        raise AssertionError("the real tool is mocked")


async def test_tools_run_through_mock_tools() -> None:
    call = ToolCall("c1", "weather", '{"city": "Rome"}')
    engine = ScriptedEngine([chunks_of("", calls=[call]), "Sunny in Rome."], calls_tools=True)
    async with running(Weather(), llm=LLM(engine=engine)) as session:
        with mock_tools(Weather, {"weather": lambda context, city: f"sunny in {city}"}):
            result: RunResult[Any] = await session.run(user_input="Weather in Rome?")
    result.expect.next_event().is_function_call(name="weather", arguments={"city": "Rome"})
    result.expect.next_event().is_function_call_output(output="sunny in Rome")
    result.expect.next_event().is_message(role="assistant")
    result.expect.no_more_events()
    asked = engine.requests[1][0]
    assert asked[-1]["role"] == "tool" and asked[-1]["content"] == "sunny in Rome"


async def test_usage_of_a_session() -> None:
    engine = ScriptedEngine(["One two three."])
    loudspeaker = RoomSpeaker(paced=False)
    async with running(
        Agent(instructions=""),
        loudspeaker=loudspeaker,
        llm=LLM(engine=engine, model="small"),
        tts=TTS(voice=ScriptedVoice()),
    ) as session:
        await session.generate_reply(user_input="Count.")
        usage = session.usage.model_usage
    report = engine.generations[0].report
    model = next(each for each in usage if isinstance(each, LLMModelUsage))
    voice = next(each for each in usage if isinstance(each, TTSModelUsage))
    assert (model.model, model.output_tokens) == ("small", report.completion_tokens)
    assert model.input_tokens == report.prompt_tokens
    assert (voice.model, voice.characters_count) == ("scripted", len("One two three."))


async def test_a_spoken_question_is_answered_and_a_guess_at_it_is_used() -> None:
    engine = ScriptedEngine(["A table for two, then."])
    microphone, loudspeaker = RoomInput(), RoomSpeaker(paced=False)
    ears = Ears(ScriptedRecognizer(["Book a table."]), ScriptedTurnDetector())
    async with running(
        Agent(instructions=""),
        loudspeaker=loudspeaker,
        microphone=microphone,
        llm=LLM(engine=engine),
        tts=TTS(voice=ScriptedVoice()),
        stt=STT(ears=ears),
        turn_handling={"turn_detection": "stt"},
    ) as session:
        answered = asyncio.Event()

        def added(event: Any) -> None:
            if event.item.role == "assistant":
                answered.set()

        session.on("conversation_item_added", added)
        microphone.push(1000, 9000)
        microphone.push(1500, 0)
        await answered.wait()
        assert said(session) == ["A table for two, then."]
    assert len(engine.requests) == 1  # asked in the pause, used at the end
    assert engine.requests[0][0][-1] == {"role": "user", "content": "Book a table."}


def test_heard_words_needs_an_output() -> None:
    with pytest.raises(ConfigError, match="start the session first"):
        HeardWords(None)


async def test_a_reply_whose_first_frame_is_lost_holds_up_no_other() -> None:
    loudspeaker = WaitingSpeaker()
    async with running(
        Agent(instructions=""),
        loudspeaker=loudspeaker,
        llm=LLM(engine=ScriptedEngine(["Nobody hears this.", "Fine."])),
        tts=TTS(voice=ScriptedVoice()),
    ) as session:
        reply = session.generate_reply(user_input="What?")
        await loudspeaker.asked.wait()
        await session.interrupt()
        await reply
        loudspeaker.subscribed.set()
        async with asyncio.timeout(20):
            await session.generate_reply(user_input="And now?")
        assert said(session) == ["Fine."]


async def test_heard_words_that_come_too_late_say_so(caplog: pytest.LogCaptureFixture) -> None:
    output = HeardWords(RoomSpeaker())
    output.on_playback_finished(playback_position=1.0, interrupted=False)
    assert "HeardWords" not in caplog.text
    output.on_playback_finished(playback_position=1.0, interrupted=True)
    assert "set it before the agent speaks" in caplog.text


def test_an_import_in_another_thread_says_what_to_do() -> None:
    code = """
import threading
import livekit.agents
def work():
    try:
        import livekit.plugins.specstream
    except RuntimeError as error:
        print(error)
thread = threading.Thread(target=work)
thread.start()
thread.join()
import livekit.plugins.specstream
print([plugin.package for plugin in livekit.agents.Plugin.registered_plugins])
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    told, plugins = ran.stdout.splitlines()
    assert "import it at the top of the agent's module" in told
    assert plugins == "['livekit.plugins.specstream']"
