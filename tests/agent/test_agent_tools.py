"""Tools of an agent: they run beside speech, their results are answered, and nothing of them is lost."""

import asyncio
import json
import threading
import time
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from specstream import Agent, Tool, ToolCall
from specstream.agent import AgentTool, Preempt, ReplyEnded, ReplyStarted, ToolEnded, ToolStarted
from specstream.errors import ConfigError, PromptError
from specstream.listening import TurnHeard
from specstream.stages.pipeline import Event
from specstream.testing import ScriptedEngine, chunks_of
from specstream.types import Chunk, Speech
from tests.server.doubles import WordVoice
from tests.support.rooms import Room

pytestmark = pytest.mark.virtual_time

LOOK = "Let me look that up for you now."  # 1.6 s of speech


def call(name: str = "weather", id: str = "call_1", **arguments: Any) -> ToolCall:
    return ToolCall(id, name, json.dumps(arguments))


def calling(text: str, *calls: ToolCall) -> list[Chunk]:
    return chunks_of(text, calls=list(calls))


def tool(run: Callable[..., Any], name: str = "weather", **options: Any) -> AgentTool:
    return AgentTool(run, Tool(name), **options)


def agent_of(engine: ScriptedEngine, *tools: AgentTool, **options: Any) -> Agent:
    return Agent(**{"engine": engine, "voice": WordVoice(), "tools": tools, **options})


def scripted(*replies: Any) -> ScriptedEngine:
    return ScriptedEngine(list(replies), calls_tools=True)


async def read(agent: Agent) -> list[Event]:
    return [event async for event in agent]


def made(events: list[Event], kind: type) -> list[Any]:
    return [event.item for event in events if isinstance(event.item, kind)]


def roles(agent: Agent) -> list[tuple[str, str]]:
    return [(message["role"], message["content"]) for message in agent.messages]


async def asked(agent: Agent, *texts: str) -> list[Event]:
    """All events of an agent that is asked these questions, each a minute after the one before."""
    reading = asyncio.create_task(read(agent))
    for text in texts:
        await agent.say(text)
        await anyio.sleep(60)
    agent.finish()
    return await reading


async def test_a_call_runs_while_the_words_before_it_are_spoken_and_its_result_is_answered() -> None:
    times: list[float] = []

    async def weather(city: str) -> dict[str, Any]:
        times.append(asyncio.get_running_loop().time())
        await anyio.sleep(0.5)
        times.append(asyncio.get_running_loop().time())
        return {"city": city, "sun": True}

    engine = scripted(calling(LOOK, call(city="Oslo")), "Sunny.")
    async with agent_of(engine, tool(weather)) as agent:
        began = asyncio.get_running_loop().time()
        events = await asked(agent, "Weather?")
        assert roles(agent) == [
            ("user", "Weather?"),
            ("assistant", LOOK),
            ("tool", '{"city": "Oslo", "sun": true}'),
            ("assistant", "Sunny."),
        ]
    assert times[1] - began < 1.0, "it ended while the agent spoke"
    [started], [ended] = made(events, ToolStarted), made(events, ToolEnded)
    assert (started.call.name, ended.status) == ("weather", "completed")
    assert [item.asked for item in made(events, ReplyStarted)] == ["Weather?", "Weather?"]
    assert [item.outcome.heard for item in made(events, ReplyEnded)] == [LOOK, "Sunny."]
    assert engine.tools[0] is not None and engine.tools[0].choice == "auto"
    assert "messages" not in str(engine.requests[0][0][-1])
    assert engine.requests[1][0][-1]["role"] == "tool"


async def test_a_word_is_said_meanwhile_if_the_model_said_none() -> None:
    async def weather() -> str:
        await anyio.sleep(2)
        return "sun"

    async def quick() -> str:
        await anyio.sleep(0.1)
        return "sun"

    for run, expected in ((weather, "One moment."), (quick, "")):
        engine = scripted(calling("", call()), "Sunny.")
        async with agent_of(engine, tool(run), meanwhile="One moment.") as agent:
            events = await asked(agent, "Weather?")
            assert [content for _, content in roles(agent)] == ["Weather?", "", "sun", "Sunny."]
        said = "".join(chunk.text for chunk in made(events, Chunk))
        assert said == expected + "Sunny.", "it is spoken, but no part of the conversation"
        assert made(events, Speech)


@pytest.mark.parametrize("cancellable", [True, False])
async def test_an_interruption_cancels_what_may_be_cancelled_and_keeps_the_rest(
    cancellable: bool,
) -> None:
    done: list[str] = []

    async def book() -> str:
        await anyio.sleep(3)
        done.append("booked")
        return "booked"

    engine = scripted(calling(LOOK, call("book")), "Fine, stopped.", "It is booked.")
    tools = [tool(book, "book", cancellable=cancellable)]
    async with agent_of(engine, *tools) as agent:
        await agent.say("Book it.")
        reading = asyncio.create_task(read(agent))
        await anyio.sleep(0.9)
        assert agent.interrupt() is not None
        await agent.say("Wait.")
        agent.finish()
        events = await reading
        history = roles(agent)
    [ended] = made(events, ToolEnded)
    if cancellable:
        assert done == [] and ended.status == "cancelled"
        assert history[2:] == [
            ("tool", "cancelled: the user spoke before there was a result"),
            ("user", "Wait."),
            ("assistant", "Fine, stopped."),
        ]
        return
    assert done == ["booked"] and ended.status == "completed"
    assert history[2:] == [
        ("tool", "still running; the result comes later"),
        ("user", "Wait."),
        ("assistant", "Fine, stopped."),
        ("assistant", ""),  # the call once more, at the end of the history
        ("tool", "booked"),
        ("assistant", "It is booked."),
    ]
    calls = [m["tool_calls"][0] for m in agent.messages if "tool_calls" in m]
    assert calls[0]["id"] != calls[1]["id"]
    assert calls[0]["function"] == calls[1]["function"]


async def test_a_question_while_a_tool_runs_is_answered_first() -> None:
    async def slow() -> str:
        await anyio.sleep(10)
        return "sun"

    engine = scripted(calling("", call()), "Yes, still here.", "Sunny.")
    async with agent_of(engine, tool(slow)) as agent:
        await agent.say("Weather?")
        reading = asyncio.create_task(read(agent))
        await anyio.sleep(2)
        await agent.say("Hello?")
        agent.finish()
        events = await reading
    starts = [event for event in events if isinstance(event.item, ReplyStarted)]
    assert [event.item.asked for event in starts] == ["Weather?", "Hello?", "Weather?"]  # type: ignore[attr-defined]
    assert starts[1].t_ms < 2100
    assert starts[2].t_ms >= 10_000


async def test_by_hand_an_interruption_reaches_calls_that_are_waited_for() -> None:
    async def slow() -> str:
        await anyio.sleep(1000)
        return "sun"

    engine = scripted(calling("", call()), "Sunny.")
    async with agent_of(engine, tool(slow, cancellable=True)) as agent:
        await agent.say("Weather?")
        reading = asyncio.create_task(read(agent))
        await anyio.sleep(1)
        assert agent.interrupt() is None
        agent.finish()
        events = await reading
        assert roles(agent)[-1] == ("tool", "cancelled: the user spoke before there was a result")
    assert len(made(events, ReplyStarted)) == 1
    assert events[-1].t_ms < 1100


async def test_what_raises_hangs_or_is_wrong_is_a_result_that_says_so() -> None:
    async def hangs() -> str:
        await anyio.sleep_forever()
        return ""

    def breaks() -> None:
        raise ValueError("no\nsuch city")

    def long() -> str:
        return "x" * 10_000

    def broken() -> str:
        return "half \ud83d, whole \ud83d\ude00"

    def nothing() -> None:
        pass

    wrong = ToolCall("call_6", "breaks", '{"a"', "bad_json")
    calls = [
        call("hangs"),
        call("breaks", "call_2"),
        call("long", "call_3"),
        call("nothing", "call_4"),
        call("nothing", "call_5", surprise=1),
        wrong,
        call("unheard_of", "call_7"),
        call("broken", "call_8"),
    ]
    engine = scripted(calling("", *calls), "Well.")
    tools = [
        tool(hangs, "hangs", timeout_s=5),
        tool(breaks, "breaks"),
        tool(long, "long"),
        tool(nothing, "nothing"),
        tool(broken, "broken"),
    ]
    async with agent_of(engine, *tools) as agent:
        events = await asked(agent, "Go.")
        results = [content for role, content in roles(agent) if role == "tool"]
    assert results[0] == "error: no result within 5 s"
    assert results[1] == "error: ValueError: no"
    assert results[2].startswith("xxx") and results[2].endswith("(cut)") and len(results[2]) < 8100
    assert results[3] == "done"
    assert results[4].startswith("error: TypeError") and "surprise" in results[4]
    assert results[5] == "error: the arguments are wrong (bad_json)"
    assert "no tool 'unheard_of'; there are: hangs, breaks" in results[6]
    assert results[7] == "half \ufffd, whole \U0001f600"
    assert {item.status for item in made(events, ToolEnded)} == {"timed_out", "failed", "completed"}
    assert roles(agent)[-1] == ("assistant", "Well.")


@pytest.mark.parametrize("confirm", [False, True])
async def test_arguments_that_an_engine_left_out_or_broke_are_no_fault_of_the_agent(
    confirm: bool,
) -> None:
    broken = [ToolCall("a", "clock", "{"), ToolCall("b", "clock", "[]"), ToolCall("c", "clock", "")]
    engine = scripted(calling("", *broken), "Well.")
    async with agent_of(engine, tool(lambda: "noon", "clock", confirm=confirm)) as agent:
        await asked(agent, "What time is it?")
        results = [content for role, content in roles(agent) if role == "tool"]
    assert results[:2] == ["error: the arguments are wrong (bad_json)"] * 2
    assert results[2].startswith("not done yet" if confirm else "noon")


@pytest.mark.parametrize(
    ("returned", "said"),
    [
        ({"day": date(2026, 5, 1)}, '{"day": "2026-05-01"}'),
        ([Path("a/b")], '["a/b"]'),
        (object(), "error: TypeError: a tool returns text or what JSON can hold, not object"),
        ((n for n in range(3)), "error: TypeError: a tool returns text or what JSON can hold, not"),
        ({"a": float("nan")}, "error: ValueError"),
    ],
)
async def test_a_result_is_something_that_a_model_can_read(returned: Any, said: str) -> None:
    def odd() -> Any:
        return returned

    engine = scripted(calling("", call("odd")), "Well.")
    async with agent_of(engine, tool(odd, "odd")) as agent:
        await asked(agent, "Go.")
        (result,) = [content for role, content in roles(agent) if role == "tool"]
    assert result.startswith(said)


async def test_what_a_tool_ends_itself_with_is_its_failure_and_no_cancel() -> None:
    """Nobody spoke, so the call is answered; and a model's call ends no program."""

    async def gives_up() -> str:
        work = asyncio.ensure_future(asyncio.sleep(5))
        work.cancel()
        await work
        return ""

    def leaves() -> None:
        raise SystemExit(3)

    def waits() -> None:
        raise TimeoutError("db did not answer")

    named = {"gives_up": gives_up, "leaves": leaves, "waits": waits}
    calls = [call(name, f"call_{at}") for at, name in enumerate(named)]
    engine = scripted(calling("", *calls), "Well.")
    async with agent_of(engine, *(tool(run, name) for name, run in named.items())) as agent:
        events = await asked(agent, "Go.")
        results = [content for role, content in roles(agent) if role == "tool"]
    assert results[0].startswith("error: CancelledError")
    assert results[1:] == ["error: SystemExit: 3", "error: TimeoutError: db did not answer"]
    assert {item.status for item in made(events, ToolEnded)} == {"failed"}
    assert roles(agent)[-1] == ("assistant", "Well.")


async def test_no_end_of_a_tool_leaves_the_agent_waiting() -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError("it has no text")

    async def mute() -> None:
        raise Mute

    async def fails() -> None:
        raise BaseException("as pytest's outcomes are")

    async def cancels_itself() -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await anyio.lowlevel.checkpoint()

    runs = (mute, fails, cancels_itself)
    calls = [call(run.__name__, f"call_{at}") for at, run in enumerate(runs)]
    async with agent_of(
        scripted(calling("", *calls), "Well."), *(tool(run, run.__name__) for run in runs)
    ) as agent:
        events = await asked(agent, "Go.")
        results = [content for role, content in roles(agent) if role == "tool"]
    assert results[0] == "error: Mute"
    assert results[1] == "error: BaseException: as pytest's outcomes are"
    assert results[2].startswith("error: the tool cancelled the task")
    assert {item.status for item in made(events, ToolEnded)} == {"failed"}


async def test_of_two_results_after_an_interruption_the_late_one_is_called_again() -> None:
    async def slow() -> str:
        await anyio.sleep(6)
        return "snow"

    calls = [call("fast", "call_1"), call("slow", "call_2")]
    engine = scripted(calling(LOOK, *calls), "One.", "Two.")
    async with agent_of(engine, tool(lambda: "sun", "fast"), tool(slow, "slow")) as agent:
        reading = asyncio.create_task(read(agent))
        await agent.say("Go.")
        await anyio.sleep(1)
        agent.interrupt()
        await anyio.sleep(60)
        agent.finish()
        await reading
        told = roles(agent)
    assert engine.requests[-1][0][-1]["role"] == "tool", "no model answers its own reply"
    at = told.index(("assistant", "One."))
    assert ("tool", "snow") not in told[:at] and ("tool", "snow") in told[at:]
    assert told[-1] == ("assistant", "Two.")


async def test_calls_are_bounded_in_number_and_in_a_row() -> None:
    running, most = 0, 0

    async def slow() -> str:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await anyio.sleep(1)
        running -= 1
        return "x"

    many = [call("slow", f"call_{number}") for number in range(12)]
    engine = scripted(calling("", *many), "Well.")
    async with agent_of(engine, tool(slow, "slow")) as agent:
        await asked(agent, "Go.")
        refused = [content for role, content in roles(agent) if "already" in content]
    assert most == 8 and len(refused) == 4

    again = [calling("", call("slow", f"again_{number}")) for number in range(20)]
    engine = scripted(*again)
    async with agent_of(engine, tool(slow, "slow")) as agent:
        await asked(agent, "Go.")
    choices = [offered.choice for offered in engine.tools if offered is not None]
    assert choices == ["auto"] * 8 + ["none"]


async def test_side_effects_can_wait_for_the_users_consent() -> None:
    booked: list[str] = []

    def book(day: str) -> str:
        booked.append(day)
        return "booked"

    engine = scripted(
        calling("", call("book", "call_1", day="Monday")),
        "Shall I book Monday?",
        calling("", call("book", "call_2", day="Tuesday")),
        "Tuesday, then?",
        calling("", call("book", "call_3", day="Tuesday")),
        "It is booked.",
    )
    async with agent_of(engine, tool(book, "book", confirm=True)) as agent:
        events = await asked(agent, "Book Monday.", "No, Tuesday.", "Yes.")
        results = [content for role, content in roles(agent) if role == "tool"]
    assert booked == ["Tuesday"], "only what was asked for in a turn before"
    assert [item.status for item in made(events, ToolEnded)] == [
        *("unconfirmed", "unconfirmed", "completed")
    ]
    assert results[0].startswith("not done yet") and results[2] == "booked"


async def test_the_rest_of_a_question_is_no_consent() -> None:
    booked: list[str] = []

    def book() -> str:
        booked.append("yes")
        return "booked"

    engine = scripted(
        calling("", call("book", "call_1")),
        "Shall I really book that now?",
        calling("", call("book", "call_2")),
        "Shall I?",
        calling("", call("book", "call_3")),
        "Done.",
    )
    said = ["Book a table.", "For four, please.", "Yes."]
    room = Room(said, engine=engine, tools=[tool(book, "book", confirm=True)])
    async with room.talking():
        for pause_ms in (600, 6000, 8000):
            await room.speak(400)
            await room.speak(pause_ms, silence=True)
            assert not booked or pause_ms == 8000
    assert booked == ["yes"]


async def test_virtual_time_waits_for_a_plain_function() -> None:
    def looks() -> str:
        time.sleep(0.05)
        return "sun"

    engine = scripted(calling("", call("looks")), "It is sunny.")
    async with agent_of(engine, tool(looks, "looks")) as agent:
        events = await asked(agent, "Go.")
    assert [item.status for item in made(events, ToolEnded)] == ["completed"]


@pytest.mark.virtual_time(charge_threads=True)
async def test_a_plain_function_that_hangs_holds_nobody_up() -> None:
    def stuck() -> str:
        time.sleep(0.5)
        return "late"

    engine = scripted(calling("", call("stuck")), "Never mind.")
    async with agent_of(engine, tool(stuck, "stuck", timeout_s=0.05)) as agent:
        events = await asked(agent, "Go.")
    assert [item.status for item in made(events, ToolEnded)] == ["timed_out"]


@pytest.mark.parametrize("attempts", [1, 40])
async def test_a_tool_is_cancelled_once_when_its_time_is_over(attempts: int) -> None:
    """It cleans up in its own time, and nobody waits for one that goes on."""
    seen: list[str] = []

    async def stubborn() -> str:
        for _ in range(attempts):
            try:
                await anyio.sleep(100)
            except asyncio.CancelledError:
                seen.append("cancelled")
                await asyncio.sleep(0.5)
                seen.append("cleaned up")
        return "late"

    engine = scripted(calling("", call("stubborn")), "Never mind.")
    async with agent_of(engine, tool(stubborn, "stubborn", timeout_s=5)) as agent:
        events = await asked(agent, "Go.")  # a minute; the tool sleeps for longer
        assert [item.status for item in made(events, ToolEnded)] == ["timed_out"]
    assert seen == ["cancelled", "cleaned up"]
    for task in asyncio.all_tasks() - {asyncio.current_task()}:
        while not task.done():
            task.cancel()
            await anyio.sleep(1)


async def working(agent: Agent) -> None:
    """Ask, and let the call that comes of it work for a second."""
    await agent.say("Go.")
    async for event in agent:
        if isinstance(event.item, ToolStarted):
            break
    await anyio.sleep(1)


@pytest.mark.parametrize(("clean_s", "waited_s"), [(0.0, 0.0), (0.5, 0.5), (2.0, 1.0)])
async def test_leaving_cancels_what_runs_and_waits_for_its_end(clean_s: float, waited_s: float) -> None:
    stopped: list[str] = []

    async def slow() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            stopped.append("slow")
            with anyio.CancelScope(shield=True):
                await anyio.sleep(clean_s)

    engine = scripted(calling("", call("slow")))
    async with agent_of(engine, tool(slow, "slow")) as agent:
        await working(agent)
        left = anyio.current_time()
    assert stopped == ["slow"]
    assert anyio.current_time() - left == pytest.approx(waited_s, abs=0.01)
    await anyio.sleep(2)  # this test leaves no task behind, either


async def test_a_result_that_has_come_stays_when_the_agent_is_left() -> None:
    async def slow() -> None:
        await anyio.sleep_forever()

    engine = scripted(calling(LOOK, call("fast"), call("slow", "call_2")))
    async with agent_of(engine, tool(lambda: "sun", "fast"), tool(slow, "slow")) as agent:
        await working(agent)
        async for event in agent:
            if isinstance(event.item, ReplyEnded):
                break
        await anyio.sleep(1)
    assert ("tool", "sun") in roles(agent)


@pytest.mark.virtual_time(charge_threads=True)
async def test_a_thread_that_hangs_keeps_no_process() -> None:
    engine = scripted(calling("", call("stuck")), "Never mind.")
    hang = threading.Event()
    async with agent_of(engine, tool(hang.wait, "stuck", timeout_s=0.05), voice=None) as agent:
        await agent.say("Go.")
        async for event in agent:
            if isinstance(event.item, ToolEnded):
                assert event.item.status == "timed_out"
                break
        threads = [one for one in threading.enumerate() if one.name == "specstream-tool"]
        assert threads and all(one.daemon for one in threads)
        hang.set()


@pytest.mark.virtual_time(charge_threads=True)
async def test_functions_that_hang_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specstream.agent.tools._hanging", set())  # those of other tests don't count
    hang, ended = threading.Event(), list[ToolEnded]()
    engine = scripted(*[calling("", *[call("stuck", f"c{n}") for n in range(8)]), "So."] * 5)
    async with agent_of(engine, tool(hang.wait, "stuck", timeout_s=0.05), voice=None) as agent:
        await agent.say("Go.")
        async for event in agent:
            if isinstance(event.item, ToolEnded):
                ended.append(event.item)
            elif isinstance(event.item, ReplyEnded) and event.item.outcome.heard:
                if len(ended) == 40:
                    break
                await agent.say("Go.")  # the results have been answered
        hang.set()
    found = [item.status for item in ended]
    assert found.count("timed_out") == 32 and found.count("failed") == 8
    assert any("hang" in item.result for item in ended[32:])


async def test_functions_that_work_are_not_taken_for_hanging_ones() -> None:
    """Forty at once, in agents of their own, as many as wait for each other."""
    together, statuses = threading.Barrier(40), list[str]()

    async def talk() -> None:
        engine = scripted(calling("", call("meet")), "So.")
        async with agent_of(engine, tool(lambda: together.wait(60), "meet"), voice=None) as agent:
            await agent.say("Go.")
            async for event in agent:
                if isinstance(event.item, ToolEnded):
                    statuses.append(event.item.status)
                    return

    async with anyio.create_task_group() as group:
        for _ in range(40):
            group.start_soon(talk)
    assert statuses == ["completed"] * 40


async def test_functions_are_described_and_what_cannot_be_is_refused() -> None:
    def weather(city: str) -> str:
        """Tell the weather.

        Args:
            city: Where.
        """
        return f"sun in {city}"

    engine = scripted(calling("", call(city="Oslo")), "Sunny.")
    async with Agent(engine=engine, voice=None, tools=[weather]) as agent:
        await asked(agent, "Weather?")
        assert ("tool", "sun in Oslo") in roles(agent)
    assert engine.tools[0] is not None
    assert engine.tools[0].tools[0].description == "Tell the weather."
    with pytest.raises(PromptError):
        Agent(engine=engine, tools=[lambda x: x])
    with pytest.raises(ConfigError, match="function"):
        AgentTool(3)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="timeout_s"):
        tool(weather, timeout_s=0)
    with pytest.raises(ConfigError, match="calls no tools"):
        async with Agent(engine=ScriptedEngine(["x"]), voice=None, tools=[weather]):
            pass


@pytest.mark.parametrize("kept", [True, False])
async def test_a_spoken_word_interrupts_and_a_kept_call_is_answered_when_the_user_is_quiet(
    kept: bool,
) -> None:
    async def book() -> str:
        await anyio.sleep(4)
        return "booked"

    engine = scripted(calling(LOOK, call("book")), "Yes?", "It is booked.")
    booking = tool(book, "book", cancellable=not kept)
    room = Room(["Book it please.", "Hello there."], engine=engine, tools=[booking])
    async with room.talking():
        await room.speak(400)
        await room.speak(1200, silence=True)  # the agent begins to speak
        await room.speak(400)
        await room.speak(800, silence=True)
        await anyio.sleep(10)
        told = room.told()
    assert told[0] == "Book it please." and LOOK.startswith(told[1]) and told[1] != LOOK
    if kept:
        assert told[2:] == [
            "still running; the result comes later",
            *("Hello there.", "Yes?", "", "booked", "It is booked."),
        ]
    else:
        assert told[2:] == [
            "cancelled: the user spoke before there was a result",
            *("Hello there.", "Yes?"),
        ]
    [ended] = room.made(ToolEnded)
    assert ended.status == ("completed" if kept else "cancelled")


async def test_nothing_is_called_while_a_question_is_only_guessed() -> None:
    called: list[float] = []

    async def book() -> str:
        called.append(anyio.current_time())
        return "booked"

    engine = scripted(calling("", call("book")), calling("", call("book", "call_2")), "It is booked.")
    room = Room(
        ["Book it for two now please."], engine=engine, tools=[tool(book, "book")], preempt=Preempt()
    )
    async with room.talking():
        await room.speak(400)
        await room.speak(240, silence=True)  # a guess, which is wrong
        await room.speak(200)
        await room.speak(600, silence=True)
        await anyio.sleep(5)
        assert room.told() == ["Book it for two now please.", "", "booked", "It is booked."]
    heard = next(
        at
        for at, event in zip(room.times, room.events, strict=True)
        if isinstance(event.item, TurnHeard)
    )
    assert room.agent.preempted.starts >= 1 and engine.requests[0][0][-1]["content"] != (
        "Book it for two now please."
    )
    assert len(called) == 1 and called[0] >= heard
