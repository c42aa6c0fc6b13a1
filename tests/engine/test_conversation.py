"""What a conversation keeps of turns that were interrupted, or refused."""

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from specstream import Engine, Generation, SamplingParams, Session, Truncation
from specstream.errors import EngineBusy, PromptError, PromptTooLong
from tests.support.tiny import save_pair

SHORT = SamplingParams(max_tokens=6)
TOO_LONG = "x" * 600


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return save_pair(tmp_path_factory.mktemp("pair"), seed=5, scale=4.0, eos=False)


@pytest.fixture
def engine(pair: tuple[Path, Path]) -> Engine:
    return Engine.load(*pair, proposer="off", dtype="float32", max_running=1, max_waiting=1)


AUTO = Truncation()


async def say(session: Session, text: str, truncation: Truncation | None = AUTO) -> Generation:
    """One turn, read to its end."""
    async with session.generate(text, SHORT, truncation=truncation) as generation:
        async for _ in generation:
            pass
    return generation


def told(session: Session) -> list[str]:
    return [f"{m['role']}: {m['content']}" for m in session.messages if m["role"] != "assistant"]


class Held:
    """Holds the engine's thread inside a reply of somebody else's."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._stuck, self._go_on = threading.Event(), threading.Event()

    async def __aenter__(self) -> None:
        def hold(ids: object, text: object) -> bool:
            self._stuck.set()
            return self._go_on.wait(60)

        params = SamplingParams(max_tokens=4, stop_when=(hold,))
        self._other = self._engine.generate("hello", params)
        await self._other.__aenter__()
        await asyncio.to_thread(self._stuck.wait, 60)

    async def __aexit__(self, *exc: object) -> None:
        self._go_on.set()
        await self._other.__aexit__(None, None, None)


class HungUp(Exception):
    pass


def leave(generation: Generation) -> None:
    pass


def hang_up(generation: Generation) -> None:
    raise HungUp


@pytest.mark.parametrize("end", [leave, hang_up, Generation.cancel])
async def test_words_that_were_interrupted_before_the_first_chunk_are_in_the_next_prompt(
    engine: Engine, end: Callable[[Generation], None]
) -> None:
    async with engine, engine.session("be brief") as session:
        try:
            async with session.generate("My name is Ada.", SHORT) as generation:
                end(generation)
        except HungUp:
            pass
        assert told(session) == ["system: be brief", "user: My name is Ada."]
        generation = await say(session, "What is my name?")

        asked = [m["content"] for m in generation.request.messages]
        assert asked == ["be brief", "My name is Ada.", "What is my name?"]
        assert [m["role"] for m in session.messages] == ["system", "user", "user", "assistant"]


async def test_a_cancelled_task_leaves_the_words_that_it_said(engine: Engine) -> None:
    async with engine, engine.session() as session:
        async with Held(engine):
            task = asyncio.create_task(say(session, "one"))
            await asyncio.sleep(0)
            assert told(session) == ["user: one"]
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        assert told(session) == ["user: one"]
        await say(session, "two")
        assert told(session) == ["user: one", "user: two"]


@pytest.mark.parametrize("text", [TOO_LONG, "half a \ud800 pair"])
async def test_a_turn_that_is_refused_is_forgotten(engine: Engine, text: str) -> None:
    async with engine, engine.session() as session:
        await say(session, "one")
        before = list(session.messages)
        for _ in range(2):
            with pytest.raises(PromptError):
                await say(session, text)
            assert session.messages == before
        await say(session, "two")
        assert told(session) == ["user: one", "user: two"]


async def test_a_turn_that_found_the_engine_busy_is_forgotten_and_nothing_else(engine: Engine) -> None:
    async with engine, engine.session() as session:
        async with Held(engine):
            async with session.generate("one"):
                pass  # left before the engine saw it
            waiting = [engine.generate("takes the place or the line", SHORT) for _ in range(2)]
            for turn_of_another in waiting:
                await turn_of_another.__aenter__()
            turn = asyncio.create_task(say(session, "two"))
            await asyncio.sleep(0)
            assert told(session) == ["user: one", "user: two"]
        with pytest.raises(EngineBusy):
            await turn
        assert told(session) == ["user: one"]
        for turn_of_another in waiting:
            await turn_of_another.__aexit__(None, None, None)


async def test_words_too_long_for_the_model_are_forgotten_however_late_that_shows(
    engine: Engine,
) -> None:
    async with engine, engine.session() as session:
        await say(session, "one")
        async with Held(engine):
            async with session.generate(TOO_LONG):
                pass  # interrupted before the engine has looked at them
        assert told(session) == ["user: one", f"user: {TOO_LONG}"]
        with pytest.raises(PromptTooLong, match="shorten"):
            await say(session, "two", truncation=None)
        assert told(session) == ["user: one"]
        await say(session, "two")
        assert told(session) == ["user: one", "user: two"]
