"""Calls and their results in a conversation's history, and with a real engine from end to end."""

import json
from pathlib import Path

import pytest

from specstream import Engine, SamplingParams, Tool, ToolCall, Tools
from specstream.errors import PromptError, RequestError
from specstream.testing import ScriptedEngine, ScriptedSession, chunks_of
from specstream.types import CallProblem
from tests.engine.tools import formats
from tests.support.tiny import byte_tokenizer, save_pair

NOW = Tool("now")
CALL = ToolCall("call00001", "now", "{}")


async def say(session: ScriptedSession, text: str | None, *, chunks: int = 999) -> str:
    """One turn with tools, left after so many chunks."""
    async with session.generate(text, tools=[NOW]) as reply:
        async for _ in reply:
            chunks -= 1
            if chunks == 0:
                break
    return reply.text


def scripted(*calls: ToolCall, text: str = "Hm. ") -> ScriptedEngine:
    return ScriptedEngine([chunks_of(text, calls=calls), "Noon."], calls_tools=True)


async def test_a_call_and_its_result_are_read_by_the_next_reply() -> None:
    engine = scripted(CALL)
    async with engine.session("Be kind.") as session:
        await say(session, "What time is it?")
        session.add_result(CALL, "12:00")
        assert await say(session, None) == "Noon."
    history = [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": "What time is it?"},
        {"role": "assistant", "content": "Hm. ", "tool_calls": [CALL.message()]},
        {"role": "tool", "content": "12:00", "tool_call_id": CALL.id, "name": "now"},
    ]
    assert engine.requests[1][0] == history
    assert session.messages == [*history, {"role": "assistant", "content": "Noon."}]
    assert engine.tools == [Tools((NOW,))] * 2


@pytest.mark.parametrize(
    ("problem", "name", "kept"),
    [("bad_json", "now", True), ("unknown_tool", "x", True), ("cut_off", "now", False),
     ("no_name", "", False)],
)  # fmt: skip
async def test_a_call_that_cannot_be_answered_is_not_remembered(
    problem: CallProblem, name: str, kept: bool
) -> None:
    async with scripted(ToolCall("a", name, "{", problem)).session() as session:
        await say(session, "What time is it?")
    assert [("tool_calls" in m) for m in session.messages] == [False, kept]


async def test_a_call_that_was_not_read_to_its_end_is_not_remembered() -> None:
    async with scripted(CALL, text="").session() as session:
        await say(session, "What time is it?", chunks=2)
        assert [m["role"] for m in session.messages] == ["user"]
        with pytest.raises(RequestError, match="has no call 'call00001'"):
            session.add_result(CALL, "12:00")


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    target, draft = save_pair(tmp_path_factory.mktemp("pair"), seed=5, scale=4.0, context=2048)
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = formats.HERMES
    for folder in (target, draft):
        tokenizer.save_pretrained(folder)
    return target, draft


def set_day(day: str) -> str:
    """Set the day.

    Args:
        day: Which (choices: ["Mo", "Tu"])
    """
    return f"It is {day}."


async def test_a_model_makes_a_call_that_is_required_and_reads_its_result(
    pair: tuple[Path, Path],
) -> None:
    pytest.importorskip("llguidance")
    tool = Tool.of(set_day)
    tool = Tool(tool.name, tool.description, {**tool.parameters, "additionalProperties": False})
    tools = Tools((tool,), "required", parallel=False)
    async with (
        Engine.load(*pair, proposer="draft", dtype="float32") as engine,
        engine.session() as session,
    ):
        assert engine.no_tools is None
        async with session.generate("Set it.", SamplingParams(max_tokens=120), tools=tools) as reply:
            texts = [chunk.text async for chunk in reply]
        assert "".join(texts) == "" and reply.report.finish_reason == "tool_calls"
        assert reply.report.drafted > 0
        (call,) = reply.tool_calls
        assert call.name == "set_day" and json.loads(call.arguments)["day"] in ("Mo", "Tu")
        session.add_result(call, set_day(**json.loads(call.arguments)))
        async with session.generate(None, SamplingParams(max_tokens=3), tools=[tool]) as answer:
            assert [chunk async for chunk in answer]
        assert answer.report.reused_tokens > reply.report.prompt_tokens


async def test_a_model_without_tools_says_which(pair: tuple[Path, Path], tmp_path: Path) -> None:
    target, _ = save_pair(tmp_path)
    async with Engine.load(target, proposer="off", dtype="float32") as engine:
        assert engine.no_tools is not None and "has no chat template" in engine.no_tools
        async with engine.generate("Hi", tools=[NOW]) as reply:
            with pytest.raises(PromptError, match=f"{target.name} has no chat template"):
                await anext(reply)
        async with engine.generate("Hi", SamplingParams(max_tokens=2)) as reply:
            assert [chunk async for chunk in reply]
