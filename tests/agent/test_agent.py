"""An agent that is typed to: its events, its parts, and how it closes."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Any

import anyio
import pytest

from specstream import Agent
from specstream.agent import AgentTool, ReplyEnded, ReplyFailed, ReplyStarted
from specstream.errors import ConfigError, PromptError, RequestError
from specstream.playback.playout import Playout
from specstream.stages.pipeline import Event, StageFailed
from specstream.testing import ScriptedEngine
from specstream.types import (
    AvatarCue,
    Chunk,
    Manner,
    Phrase,
    SamplingParams,
    ScenePrompt,
    Speech,
    SpeechBuffer,
)
from tests.server.doubles import OneCueFace, OneShotBoard, WordVoice
from tests.support.standins import cancelled
from tests.support.turns import TEXT, Sound, first

pytestmark = pytest.mark.virtual_time


async def read(agent: Agent) -> list[Event]:
    return [event async for event in agent]


def made(events: list[Event], kind: type) -> list[Any]:
    return [event.item for event in events if isinstance(event.item, kind)]


async def test_it_answers_what_it_is_asked_in_order_with_every_part() -> None:
    sound, engine = Sound(), ScriptedEngine([TEXT, "Fine."])
    parts: dict[str, Any] = {"voice": WordVoice(), "avatar": OneCueFace(), "prompts": OneShotBoard()}
    async with Agent(engine=engine, play=sound, system="Be brief.", **parts) as agent:
        await agent.say("Hi")
        await agent.say("And you?")
        agent.finish()
        events = await read(agent)
        assert [m["content"] for m in agent.messages] == ["Be brief.", "Hi", TEXT, "And you?", "Fine."]
    assert [event.seq for event in events] == list(range(len(events)))
    assert [item.asked for item in made(events, ReplyStarted)] == ["Hi", "And you?"]
    ended = made(events, ReplyEnded)
    assert [(e.reply, e.outcome.heard, e.outcome.complete) for e in ended] == [
        (0, TEXT, True),
        (1, "Fine.", True),
    ]
    assert all(made(events, kind) for kind in (Chunk, Phrase, Speech, AvatarCue, ScenePrompt))
    assert sound.ms == 2200
    assert parts["voice"].closed, "a part that was given is closed with the agent"


async def test_without_a_voice_it_writes() -> None:
    async with Agent(engine=ScriptedEngine(["Yes."]), voice=None) as agent:
        await agent.say("Well?")
        agent.finish()
        events = await read(agent)
    assert "".join(chunk.text for chunk in made(events, Chunk)) == "Yes."
    assert not made(events, Speech)
    assert made(events, ReplyEnded)[0].outcome.heard == "Yes."


async def test_it_can_be_interrupted_by_hand() -> None:
    engine = ScriptedEngine([TEXT, "Fine."])
    async with Agent(engine=engine, voice=WordVoice()) as agent:
        assert agent.interrupt() is None
        await agent.say("Hi")
        reading = asyncio.create_task(read(agent))
        await anyio.sleep(0.5)
        outcome = agent.interrupt()
        assert outcome is not None and outcome.heard == first(2)
        await agent.say("Stop.")
        agent.finish()
        await reading
        assert [m["content"] for m in agent.messages] == ["Hi", first(2), "Stop.", "Fine."]


async def test_leaving_in_the_middle_closes_everything() -> None:
    voice, sound = WordVoice(), Sound()
    async with Agent(engine=ScriptedEngine([TEXT]), voice=voice, play=sound) as agent:
        await agent.say("Hi")
        async for event in agent:
            if isinstance(event.item, Speech):
                break
        session = agent._session
    assert session is not None
    assert session.closed and voice.closed and voice.speaking == 0  # type: ignore[attr-defined]
    with pytest.raises(RequestError):
        await agent.say("more")
    with pytest.raises(ConfigError, match="entered before"):
        await agent.__aenter__()


@pytest.mark.parametrize("steps", range(12))
async def test_a_cancel_while_it_is_left_closes_everything_and_is_not_lost(steps: int) -> None:
    """By asyncio, whose cancels no scope holds off, ``steps`` of the loop after leaving began."""

    class Closed(Sound):
        async def aclose(self) -> None:
            await asyncio.sleep(0)
            done.append("sink")

    done = list[str]()
    leaving = asyncio.Event()
    voice, sound = WordVoice(), Closed()

    async def talk() -> None:
        async with Agent(engine=ScriptedEngine([TEXT]), voice=voice, play=sound) as agent:
            await agent.say("Hi")
            async for event in agent:
                if isinstance(event.item, Speech):
                    break
            leaving.set()
        await asyncio.sleep(0.1)
        done.append("went on")

    task = await cancelled(talk(), leaving, steps)
    assert task.cancelled() and done == ["sink"]
    assert voice.closed and voice.speaking == 0


async def test_questions_and_events_are_bounded() -> None:
    engine = ScriptedEngine([TEXT])
    async with Agent(engine=engine, voice=None) as agent:
        asked = 0
        with anyio.move_on_after(3600):
            while True:
                await agent.say("again")
                asked += 1
        assert asked < 20, "nobody reads the events"
        agent.finish()
        events = await read(agent)
        assert len(made(events, ReplyEnded)) == asked


async def test_a_refused_reply_is_an_event_and_the_agent_goes_on() -> None:
    class Refusing(ScriptedEngine):
        def generate(self, messages: Any, *args: Any, **options: Any) -> Any:
            if messages[-1]["content"] == "too long":
                raise PromptError("shorten it")
            return super().generate(messages, *args, **options)

    async with Agent(engine=Refusing(["Yes."]), voice=None) as agent:
        await agent.say("too long")
        await agent.say("fine")
        agent.finish()
        events = await read(agent)
    [failed] = made(events, ReplyFailed)
    assert isinstance(failed.error, PromptError) and failed.reply == 0
    assert [end.reply for end in made(events, ReplyEnded)] == [1]


class Panic(BaseException):
    """As an extension in Rust raises it."""


@pytest.mark.parametrize("error", [ZeroDivisionError, Panic, GeneratorExit])
async def test_something_that_breaks_ends_the_iteration_with_its_error(
    error: type[BaseException],
) -> None:
    class Broken(ScriptedEngine):
        def generate(self, *args: Any, **options: Any) -> Any:
            raise error

    async with Agent(engine=Broken(["x"]), voice=None) as agent:
        await agent.say("Hi")
        with pytest.raises(error):
            await read(agent)
        with pytest.raises(RequestError):
            await agent.say("Hi")


async def test_a_voice_that_panics_fails_alone() -> None:
    class Panicking(WordVoice):
        async def synthesize(self, phrase: Phrase) -> AsyncGenerator[SpeechBuffer, None]:
            raise Panic("index out of bounds")
            yield

    async with Agent(engine=ScriptedEngine(["Yes.", "No."]), voice=Panicking()) as agent:
        await agent.say("Hi")
        await agent.say("Hi")
        agent.finish()
        events = await read(agent)
    failures = [str(item.error) for item in made(events, StageFailed)]
    assert failures == ["stage 'voice' broke: Panic: index out of bounds"] * 2
    assert len(made(events, ReplyEnded)) == 2


def test_an_engine_and_what_to_load_are_one_too_many() -> None:
    with pytest.raises(ConfigError, match="not both"):
        Agent("some/model", engine=ScriptedEngine(["x"]))
    with pytest.raises(ConfigError, match="no_such_key"):
        Agent(no_such_key=1)


def test_wrong_parts_are_named() -> None:
    with pytest.raises(ConfigError, match="give a loaded one as engine="):
        Agent(ScriptedEngine([]))  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"params=SamplingParams\(temperature"):
        Agent(temperature=0.3)
    with pytest.raises(ConfigError, match="engine must be a running Engine"):
        Agent(engine=ScriptedEngine)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="the description of a tool is a Tool"):
        AgentTool(print, "print")  # type: ignore[arg-type]


async def test_an_agent_that_was_not_entered_says_so() -> None:
    agent = Agent(engine=ScriptedEngine(["x"]), voice=None)
    for use in (lambda: agent.say("Hi"), lambda: anext(agent)):
        with pytest.raises(RequestError, match="in its block"):
            await use()
    with pytest.raises(RequestError, match="in its block"):
        _ = agent.messages
    async with agent:
        with pytest.raises(RequestError, match="say a text, not 5"):
            await agent.say(5)  # type: ignore[arg-type]
        with pytest.raises(RequestError, match="say a text, not ' '"):
            await agent.say(" ")
        with pytest.raises(RequestError, match="what is said is not valid Unicode"):
            await agent.say("\ud800")


async def test_a_question_for_which_there_was_no_room_is_refused_at_the_end() -> None:
    async with Agent(engine=ScriptedEngine([TEXT]), voice=WordVoice(), play=Sound()) as agent:
        reading = asyncio.create_task(read(agent))
        asks = [asyncio.create_task(agent.say(f"q{n}")) for n in range(12)]
        await anyio.sleep(0.5)
        agent.finish()
        await reading
        done = await asyncio.gather(*asks, return_exceptions=True)
        asked = [m["content"] for m in agent.messages if m["role"] == "user"]
    assert asked == [f"q{n}" for n, one in enumerate(done) if one is None] and len(asked) == 9
    assert all(isinstance(one, RequestError) for one in done[9:])


async def test_who_waits_to_say_something_is_told_that_the_block_was_left() -> None:
    async with Agent(engine=ScriptedEngine([TEXT]), voice=WordVoice()) as agent:
        asking = [asyncio.create_task(agent.say(f"q{n}")) for n in range(12)]
        await anyio.sleep(0.1)
    done = await asyncio.gather(*asking, return_exceptions=True)
    assert [str(one) for one in done if one is not None] == 3 * [
        "the agent takes no more: `finish`, or the end of its block, came first"
    ]


async def test_another_thread_is_told_where_the_agent_belongs() -> None:
    async def events() -> None:
        async for _ in agent:
            pass

    async def elsewhere(call: Callable[[], Any]) -> None:
        if (waits := call()) is not None:
            await waits

    agent = Agent(engine=ScriptedEngine(["Yes."]), voice=None)
    agent.finish()  # nothing runs yet
    agent = Agent(engine=ScriptedEngine(["Yes."]), voice=None)
    async with agent:
        for call in (lambda: agent.say("Well?"), agent.interrupt, agent.finish, events):
            with pytest.raises(RequestError, match="run_coroutine_threadsafe"):
                await asyncio.to_thread(asyncio.run, elsewhere(call))
        for call in (agent.interrupt, agent.finish):
            with pytest.raises(RequestError, match="call_soon_threadsafe"):
                await asyncio.to_thread(call)
        await agent.say("Well?")
        agent.finish()
        assert len(made(await read(agent), ReplyEnded)) == 1


async def test_an_agent_without_ears_hears_nothing() -> None:
    async with Agent(engine=ScriptedEngine(["x"]), voice=None) as agent:
        with pytest.raises(RequestError, match="no ears"):
            await agent.hear(b"")


async def test_it_speaks_into_a_file_faster_than_it_would_be_heard(tmp_path: Path) -> None:
    began = anyio.current_time()
    path = tmp_path / "reply.wav"
    async with Agent(engine=ScriptedEngine([TEXT]), voice=WordVoice(), play=path) as agent:
        await agent.say("Hi")
        agent.finish()
        await read(agent)
    assert anyio.current_time() == began
    assert path.stat().st_size == 44 + 2 * 24000 * 2


async def test_a_playout_of_the_callers_is_used_as_it_is() -> None:
    playout = Playout(Sound(), ahead_s=1.0)
    async with Agent(engine=ScriptedEngine([TEXT]), voice=WordVoice(), play=playout) as agent:
        await agent.say("Hi")
        agent.finish()
        began = anyio.current_time()
        await read(agent)
        assert anyio.current_time() == pytest.approx(began + 2.0)


@pytest.mark.parametrize("system", [None, "", "Be slow."])
async def test_it_talks_in_the_manner_of_its_model_where_nothing_else_is_said(
    system: str | None,
) -> None:
    engine = ScriptedEngine(["Yes."])
    engine.manner = Manner(SamplingParams(temperature=0.3), "Be brief.")
    async with Agent(engine=engine, voice=None, system=system) as agent:
        await agent.say("Hello?")
        agent.finish()
        async for _ in agent:
            pass
    ((messages, params),) = engine.requests
    told = [m["content"] for m in messages if m["role"] == "system"]
    assert told == [text for text in ("Be brief." if system is None else system,) if text]
    assert params.temperature == 0.3
