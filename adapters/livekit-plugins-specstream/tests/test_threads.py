"""Turns that are taken back: scenarios of agents-js #2059, #1791 and #1365."""

import asyncio
from collections.abc import Callable
from typing import Any

import anyio
import pytest
from fakes import RoomInput, RoomSpeaker, ToldSTT, running, said
from livekit.agents import Agent, AgentSession, RunContext, function_tool
from livekit.agents.stt import SpeechEventType as Type
from specstream import ToolCall
from specstream.testing import ScriptedEngine, ScriptedVoice, chunks_of

from livekit.plugins.specstream import LLM, TTS

ENDPOINTING = {"min_delay": 0.1, "max_delay": 0.2}


class Gated:
    """Holds an engine's chunks until they are let go."""

    def __init__(self) -> None:
        self.gate = anyio.Event()
        self.asked = asyncio.Event()

    def __call__(self) -> anyio.Event:
        self.asked.set()
        return self.gate

    async def request(self) -> None:
        """Wait until the engine waits for the gate anew."""
        self.asked.clear()
        await self.asked.wait()


class Told:
    """Waits for what happens in a session."""

    def __init__(self, session: AgentSession[Any]) -> None:
        self._session, self._news = session, asyncio.Event()
        session.on("conversation_item_added", lambda _: self._news.set())
        session.on("agent_state_changed", lambda _: self._news.set())

    async def until(self, true: Callable[[], bool]) -> None:
        while not true():
            self._news.clear()
            await self._news.wait()


def history(session: AgentSession[Any]) -> list[tuple[str, str]]:
    return [
        (item.role, item.text_content or "")
        for item in session.history.items
        if item.type == "message" and item.role in ("user", "assistant")
    ]


@pytest.mark.parametrize("preemptive_tts", [False, True])
@pytest.mark.parametrize("guesses", [1, 2])
async def test_the_user_goes_on_while_the_model_thinks(guesses: int, preemptive_tts: bool) -> None:
    """#2059 and #1791: final, end, then start and final again; one reply is spoken, not none."""
    model = Gated()
    engine = ScriptedEngine(["The first.", "The second.", "The third.", "The last."], gate=model)
    service, voice, ears = LLM(engine=engine), ScriptedVoice(), ToldSTT()
    loudspeaker = RoomSpeaker(paced=False)
    async with running(
        Agent(instructions="Be brief."),
        loudspeaker=loudspeaker,
        microphone=RoomInput(),
        llm=service,
        tts=TTS(voice=voice),
        stt=ears,
        turn_handling={
            "turn_detection": "stt",
            "endpointing": ENDPOINTING,
            "preemptive_generation": {"preemptive_tts": preemptive_tts},
        },
    ) as session:
        told = Told(session)
        ears.tell(Type.START_OF_SPEECH)
        for text in ("Book", "Book a table")[-guesses:]:
            ears.tell(Type.PREFLIGHT_TRANSCRIPT, text)
            await model.request()
        ears.tell(Type.FINAL_TRANSCRIPT, "Book a table")
        ears.tell(Type.END_OF_SPEECH)
        await told.until(lambda: session.agent_state == "thinking")
        assert ("user", "Book a table") in history(session)
        ears.tell(Type.START_OF_SPEECH)
        ears.tell(Type.FINAL_TRANSCRIPT, "for two.")
        ears.tell(Type.END_OF_SPEECH)
        await model.request()
        model.gate.set()
        await told.until(lambda: bool(said(session)))
        assert len(said(session)) == 1
        last = said(session)[0]
    finished = [g.report.finish_reason for g in engine.generations]
    assert finished == ["cancelled"] * (len(finished) - 1) + ["stop"]
    assert service.dropped.cancelled == len(finished) - 1 >= guesses
    assert last == engine.generations[-1].text
    assert "".join(loudspeaker.words) == last
    assert engine.requests[-1][0][-1]["content"] == "for two."


class Looking(Agent):
    def __init__(self) -> None:
        super().__init__(instructions="Be brief.")
        self.begun, self.go_on, self.ended = asyncio.Event(), asyncio.Event(), 0

    @function_tool
    async def look(self, context: RunContext[Any]) -> str:
        """Look for free tables."""
        self.begun.set()
        await self.go_on.wait()
        self.ended += 1
        return "two tables"


async def test_a_guess_while_a_tool_runs_leaves_the_tool_alone() -> None:
    """#1365: the tool runs to its end and its result stays; the wasted reply is aborted, and counted."""
    model = Gated()
    model.gate.set()
    call = chunks_of("", calls=[ToolCall("c1", "look", "{}")])
    engine = ScriptedEngine([call, "Wasted.", "Two tables."], gate=model, calls_tools=True)
    service, ears, agent = LLM(engine=engine), ToldSTT(), Looking()
    async with running(
        agent,
        loudspeaker=RoomSpeaker(paced=False),
        microphone=RoomInput(),
        llm=service,
        tts=TTS(voice=ScriptedVoice()),
        stt=ears,
        turn_handling={"turn_detection": "stt", "endpointing": ENDPOINTING},
    ) as session:
        told = Told(session)
        reply = session.generate_reply(user_input="Is there a table?")
        await agent.begun.wait()
        model.gate = anyio.Event()
        ears.tell(Type.START_OF_SPEECH)
        ears.tell(Type.PREFLIGHT_TRANSCRIPT, "Hello")
        await model.request()  # the wasted reply
        ears.tell(Type.FINAL_TRANSCRIPT, "Hello there")
        ears.tell(Type.END_OF_SPEECH)
        agent.go_on.set()
        await model.request()
        model.gate.set()
        await reply
        await told.until(lambda: bool(said(session)))
        results = [item for item in session.history.items if item.type == "function_call_output"]
        assert history(session) == [
            ("user", "Is there a table?"),
            ("user", "Hello there"),
            ("assistant", "Two tables."),
        ]
    assert agent.ended == 1
    assert [result.output for result in results] == ["two tables"]
    finished = [generation.report.finish_reason for generation in engine.generations]
    assert finished == ["tool_calls", "cancelled", "stop"]
    assert service.dropped.cancelled == 1
    assert engine.requests[-1][0][-2]["content"] == "two tables"


async def test_a_guess_that_was_answered_drafts_the_next_answer() -> None:
    engine = ScriptedEngine(["A table for whom?", "A table for two."])
    service, ears = LLM(engine=engine), ToldSTT()
    written = asyncio.Event()
    service.on("metrics_collected", lambda _: written.set())
    async with running(
        Agent(instructions="Be brief."),
        loudspeaker=RoomSpeaker(paced=False),
        microphone=RoomInput(),
        llm=service,
        tts=TTS(voice=ScriptedVoice()),
        stt=ears,
        turn_handling={"turn_detection": "stt", "endpointing": ENDPOINTING},
    ) as session:
        told = Told(session)
        ears.tell(Type.START_OF_SPEECH)
        ears.tell(Type.PREFLIGHT_TRANSCRIPT, "Book a table")
        await written.wait()
        ears.tell(Type.FINAL_TRANSCRIPT, "Book a table for two.")
        ears.tell(Type.END_OF_SPEECH)
        await told.until(lambda: bool(said(session)))
        assert said(session) == ["A table for two."]
    assert engine.references == ["", "A table for whom?"]
    assert (service.dropped.superseded, service.dropped.referenced) == (1, 1)
