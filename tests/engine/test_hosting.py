"""An engine's start, questions to its thread, and requests that it refuses."""

import asyncio
import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from specstream import Engine, Grammar, RawPrompt
from specstream.config import EngineConfig
from specstream.engine import hosting
from specstream.engine.core.prompt import PromptEncoder
from specstream.errors import EngineFailed, ModelError, PromptError, PromptTooLong, SamplingError
from tests.server.doubles import wait_for


@pytest.fixture(params=["as usual", "switched off", "frozen"])
def collector(request: pytest.FixtureRequest) -> Iterator[tuple[bool, bool]]:
    if request.param == "switched off":
        gc.disable()
    if request.param == "frozen":
        gc.freeze()
    yield gc.isenabled(), gc.get_freeze_count() > 0
    gc.enable()
    gc.unfreeze()


async def test_after_a_start_it_collects_as_before(collector: tuple[bool, bool]) -> None:
    async with Engine.load():
        assert (gc.isenabled(), gc.get_freeze_count() > 0) == collector


async def test_after_one_that_failed_too(collector: tuple[bool, bool], tmp_path: Path) -> None:
    with pytest.raises(ModelError):
        async with Engine.load(tmp_path):
            pass
    assert (gc.isenabled(), gc.get_freeze_count() > 0) == collector


async def test_a_start_that_a_panic_ends_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    class PanicException(BaseException):  # what PyO3 raises for a panic in Rust
        pass

    def panics(*_: object) -> None:
        raise PanicException("planted")

    monkeypatch.setattr("specstream.engine.build.build_engine", panics)
    with pytest.raises(EngineFailed, match="planted"):
        async with Engine.load():
            pass


async def test_engines_may_be_entered_at_once() -> None:
    async def reply() -> str:
        async with Engine.load() as engine:
            return await engine.complete([{"role": "user", "content": "Hello."}], max_tokens=8)

    assert len(set(await asyncio.gather(*(reply() for _ in range(3))))) == 1


async def test_one_that_waits_to_be_loaded_can_be_cancelled() -> None:
    with hosting._loading:
        host = hosting.EngineHost()
        task = asyncio.create_task(host.start(EngineConfig()))
        await wait_for(lambda: host.worker is not None)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


async def test_one_that_never_began_can_be_left() -> None:
    engine = Engine.load()
    await engine.__aexit__(None, None, None)
    task = asyncio.create_task(engine.__aenter__())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await engine.__aexit__(None, None, None)


async def test_a_question_to_the_thread_that_raises_is_the_askers_fault() -> None:
    async with Engine.load() as engine:
        for error in (AttributeError("nothing"), asyncio.CancelledError(), SystemExit(1)):

            def ask(core: object, error: BaseException = error) -> None:
                raise error

            with pytest.raises(type(error)):
                await engine.ask(ask)
        assert await engine.ask(lambda core: 5) == 5
        assert await engine.complete([{"role": "user", "content": "Hello."}], max_tokens=4)


async def test_a_message_that_can_never_fit_is_refused_without_being_encoded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    encoded: list[int] = []
    count = PromptEncoder.count

    def counted(self: PromptEncoder, text: str) -> int:
        encoded.append(len(text))
        return count(self, text)

    monkeypatch.setattr(PromptEncoder, "count", counted)
    async with Engine.load() as engine, engine.session("Be kind.") as talk:

        async def ask() -> None:
            async with talk.generate("lorem ipsum " * 170_000) as generation:
                async for _ in generation:
                    pass

        with pytest.raises(PromptTooLong, match="the prompt has 2040008"):
            await ask()
    assert sum(encoded) < 100


@pytest.mark.parametrize(
    "wrong",
    [
        {"truncation": True},
        {"truncation": {"retention_ratio": 0.5}},
        {"learn": "no"},
        {"chat_template_kwargs": ""},
        {"chat_template_kwargs": 0},
    ],
)
async def test_options_of_another_kind_are_named(wrong: dict[str, Any]) -> None:
    async with Engine.load() as engine:
        with pytest.raises(PromptError, match=next(iter(wrong))):
            async with engine.generate("Hi", **wrong):
                pass
        with pytest.raises(PromptError, match="tokens of a raw prompt"):
            async with engine.generate(RawPrompt(tokens=b"abc")):  # type: ignore[arg-type]
                pass
    with pytest.raises(SamplingError, match="valid Unicode"):
        Grammar("regex", "\ud800")
