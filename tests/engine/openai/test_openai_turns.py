"""Spoken turns, a server and commands on a model that somebody else serves."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from specstream import Agent, OpenAIEngine, Phrase, Pipeline, Speech
from specstream.agent import Preempt, ReplyEnded, ReplyFailed
from specstream.client import Done, RealtimeClient, TextDelta
from specstream.commands.main import main
from specstream.errors import EngineFailed, PromptError
from specstream.playback import Playout
from specstream.server import RealtimeServer
from specstream.stages import SegmentStage, VoiceStage
from specstream.testing import ScriptedVoice
from specstream.types import Message, RawPrompt
from tests.commands.doubles import piped
from tests.support.openai_server import Answer, ChatServer, delta, llama_events, vllm_events

pytest.importorskip("openai")

SAID = [*(f"word{number} " for number in range(9)), "and the last. ", "More"]


async def events_of(agent: Agent) -> list[Any]:
    return [event.item async for event in agent]


@asynccontextmanager
async def connected(server: RealtimeServer) -> AsyncGenerator[RealtimeClient, None]:
    async with server.start() as port, RealtimeClient.connect(f"ws://127.0.0.1:{port}") as client:
        yield client


async def test_an_agent_speaks_what_a_server_writes() -> None:
    server = ChatServer([Answer(llama_events("Two at seven.", " Done!"))])
    async with (
        server.running(),
        Agent("small", engine=server.url, voice=ScriptedVoice(), play=Playout(paced=False)) as agent,
    ):
        await agent.say("Book a table.")
        agent.finish()
        items = await events_of(agent)
    assert [item.text for item in items if isinstance(item, Phrase)] == ["Two at seven. ", "Done!"]
    assert any(isinstance(item, Speech) for item in items)
    (ended,) = [item for item in items if isinstance(item, ReplyEnded)]
    assert ended.outcome.heard == "Two at seven. Done!" and ended.report.completion_tokens == 2
    assert [m["role"] for m in server.requests[0]["messages"]] == ["user"]


async def test_a_reply_that_breaks_is_an_event_and_the_agent_goes_on() -> None:
    broken = Answer([delta("One. "), {"error": {"message": "engine gone"}}])
    server = ChatServer([broken, Answer(llama_events("Two."))])
    async with (
        server.running(),
        Agent(
            engine=server.url, voice=ScriptedVoice(), play=Playout(paced=False), preempt=Preempt()
        ) as agent,
    ):
        await agent.say("First?")
        await agent.say("Second?")
        agent.finish()
        items = await events_of(agent)
    (failed,) = [item for item in items if isinstance(item, ReplyFailed)]
    assert isinstance(failed.error, EngineFailed) and "engine gone" in str(failed.error)
    (ended,) = [item for item in items if isinstance(item, ReplyEnded)]
    assert ended.outcome.heard == "Two."


async def test_after_an_interruption_the_next_prompt_ends_at_the_last_word_heard() -> None:
    server = ChatServer([Answer([delta(word) for word in SAID], hang=True)])
    pipeline = Pipeline([[VoiceStage(ScriptedVoice())]], head=SegmentStage())
    async with server.running(), OpenAIEngine(server.url) as engine:
        async with engine.session("Be short.") as talk:
            async with talk.turn("Count.", pipeline) as turn:
                async for event in turn:
                    if isinstance(speech := event.item, Speech) and speech.last:
                        half_ms = speech.samples.end / speech.sample_rate * 500
                        heard = turn.interrupt(played_ms=half_ms).heard
                        break
            await server.left.wait()
            assert heard and turn.text.startswith(heard) and len(heard) < len(turn.text)
            server.answers = [Answer(vllm_events(("Yes.", [1]), finish="stop"))]
            async with talk.turn("Go on.", pipeline, Playout(paced=False)) as turn:
                async for _ in turn:
                    pass
    sent = server.requests[1]["messages"]
    assert [m["content"] for m in sent] == ["Be short.", "Count.", heard, "Go on."]


async def test_the_realtime_server_answers_with_it() -> None:
    upstream = ChatServer([Answer(llama_events("Two at", " seven."))])
    async with upstream.running(), OpenAIEngine(upstream.url) as engine:
        server = RealtimeServer(engine, port=0)
        async with connected(server) as client:
            events = [event async for event in client.respond("Book a table.", audio=False)]
        assert server.counters.tokens == 2
    usage = next(event.usage for event in events if isinstance(event, Done))
    assert usage is not None
    assert (usage.input_tokens, usage.output_tokens) == (15, 2), "as the server counts"
    assert "".join(e.text for e in events if isinstance(e, TextDelta)) == "Two at seven."


@pytest.mark.parametrize("instructions", ["Ask whether the user is still there.", None])
async def test_a_response_to_nothing_new_is_asked_for_with_a_turn_that_says_so(
    instructions: str | None,
) -> None:
    upstream = ChatServer([Answer(llama_events("Still", " there?"))])
    async with upstream.running(), OpenAIEngine(upstream.url) as engine:
        server = RealtimeServer(engine, port=0)
        async with connected(server) as client:
            if instructions is not None:
                await client.update(instructions=instructions)
            for text in (None, "Hello.", None):
                events = [event async for event in client.respond(text, audio=False)]
                done = events[-1]
                assert isinstance(done, Done) and done.status == "completed"
    nothing = "(The user says nothing.)"
    asked = [body["messages"] for body in upstream.requests]
    assert [messages[-1] for messages in asked] == [
        {"role": "user", "content": one} for one in (nothing, "Hello.", nothing)
    ]
    assert instructions is None or {each[0]["content"] for each in asked} == {instructions}


async def test_a_question_with_the_systems_words_behind_it_is_one() -> None:
    upstream = ChatServer([Answer(llama_events("Four."))])
    asked: list[Message] = [
        {"role": "user", "content": "What is 2 + 2?"},
        {"role": "system", "content": "Be brief."},
    ]
    async with upstream.running(), OpenAIEngine(upstream.url) as engine:
        async with engine.generate(asked) as reply:
            _ = [chunk async for chunk in reply]
        for wrong in ([{"content": "x"}], [5], None, RawPrompt("x")):
            with pytest.raises(PromptError):
                async with engine.session().reply(wrong):  # type: ignore[arg-type]
                    pass
    assert upstream.requests[0]["messages"] == asked


async def test_what_a_filter_cut_off_is_incomplete_for_clients() -> None:
    upstream = ChatServer([Answer([delta("Two"), delta(finish="content_filter")])])
    async with upstream.running(), OpenAIEngine(upstream.url) as engine:
        server = RealtimeServer(engine, port=0)
        async with connected(server) as client:
            events = [event async for event in client.respond("Book a table.", audio=False)]
    done = events[-1]
    assert isinstance(done, Done)
    assert (done.status, done.reason) == ("incomplete", "content_filter")


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["chat", "--engine", "http://x/v1", "--draft", "x"], "--draft is for models that are loaded"),
        (["chat", "--model", "x"], "--model names a model of --engine"),
        (["serve", "--port", "0", "--engine", "127.0.0.1"], "begins with http://"),
    ],
)
def test_its_options_are_checked(argv: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(argv) == 2
    assert said in capsys.readouterr().err


def test_chat_without_a_server_is_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    piped(monkeypatch, b"Hello\n")
    assert main(["chat", "--engine", "http://127.0.0.1:9/v1"]) == 1
    assert "the connection failed" in capsys.readouterr().err
