"""The engine's thread: what is wrong with one request ends that request alone."""

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch

from specstream import Engine, SamplingParams
from specstream.engine.core import step
from specstream.engine.core.admission import Admission
from specstream.engine.core.lifecycle import Lifecycle
from specstream.engine.core.proposing import Proposing
from specstream.engine.core.step import EngineCore
from specstream.errors import EngineClosed, EngineFailed, PromptError
from tests.support.tiny import save_pair

SHORT = SamplingParams(max_tokens=4)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return save_pair(tmp_path_factory.mktemp("pair"), seed=5, scale=4.0, noise=0.1, eos=False)


async def reply(engine: Engine, **options: Any) -> str:
    async with engine.generate("hello", SHORT, **options) as generation:
        return "".join([chunk.text async for chunk in generation])


@pytest.mark.parametrize(
    "wrong", [{"reference": 3}, {"reference": ["a"]}, {"reference": b"x"}, {"session": 7}]
)
async def test_what_is_no_text_is_refused_by_name(
    wrong: dict[str, Any], pair: tuple[Path, Path]
) -> None:
    async with Engine.load(*pair, proposer="off", dtype="float32") as engine:
        with pytest.raises(PromptError, match=next(iter(wrong))):
            await reply(engine, **wrong)
        assert await reply(engine, reference="hello", session="a")


@pytest.mark.parametrize("kind", [TypeError, BaseException])  # a panic is a BaseException
async def test_a_request_that_breaks_at_the_door_ends_and_the_next_is_served(
    kind: type[BaseException], pair: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(self: Admission, request: object) -> bool:
        raise kind("planted")

    async with Engine.load(*pair, proposer="off", dtype="float32") as engine:
        with monkeypatch.context() as patched:
            patched.setattr(Admission, "is_long", broken)
            with pytest.raises(EngineFailed, match="planted"):
                await reply(engine)
        assert await reply(engine)


async def test_an_engine_on_another_thread_works_on_when_the_main_thread_has_ended(
    pair: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*args: object) -> None:
        raise RuntimeError("cannot schedule new futures after interpreter shutdown")

    async with Engine.load(*pair, proposer="off", dtype="float32") as engine:
        monkeypatch.setattr(ThreadPoolExecutor, "submit", refused)
        monkeypatch.setattr(Admission, "is_long", lambda self, request: True)
        assert await reply(engine)
        monkeypatch.setattr("asyncio.to_thread", refused)


async def test_a_request_in_the_mailbox_behind_a_broken_message_is_ended_too(
    pair: tuple[Path, Path],
) -> None:
    def breaks(core: EngineCore) -> None:
        raise SystemError("planted")

    def holds(core: EngineCore) -> None:
        assert held.wait(60)

    held = threading.Event()
    async with Engine.load(*pair, proposer="off", dtype="float32") as engine:
        for message in (holds, breaks, breaks):
            engine._host.post(message)
        async with engine.generate("hello", SHORT) as generation:
            held.set()
            with pytest.raises(EngineFailed, match="planted"):
                async for _ in generation:
                    pass


async def test_a_thread_that_breaks_ends_running_replies_with_the_error_and_refuses_others(
    pair: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def breaks(self: EngineCore) -> bool:
        raise SystemError("planted")

    async with Engine.load(*pair, proposer="off", dtype="float32") as engine:
        assert engine.failure is None
        async with engine.generate("hello", SamplingParams(max_tokens=200)) as generation:
            chunks = [await anext(generation)]
            monkeypatch.setattr(EngineCore, "step", breaks)
            with pytest.raises(EngineFailed, match="planted") as ended:
                chunks += [chunk async for chunk in generation]
        assert isinstance(ended.value.__cause__, SystemError)
        assert all(chunk.finish_reason is None for chunk in chunks)
        with pytest.raises(EngineClosed, match="planted"):
            await reply(engine)
        assert isinstance(engine.failure, SystemError)
        for _ in range(2):
            with pytest.raises(EngineFailed, match="planted"):
                await engine.wait_closed()


@pytest.mark.parametrize("sticky", [False, True])
async def test_a_gpu_that_fails_for_good_ends_the_engine(
    sticky: bool, pair: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def breaks(*args: object) -> None:
        raise RuntimeError("CUDA error: planted")

    async with Engine.load(*pair, proposer="off", dtype="float32") as engine:
        target = await engine.ask(lambda core: core.target)
        monkeypatch.setattr(torch.cuda, "synchronize", breaks if sticky else lambda device: None)
        with monkeypatch.context() as patch:
            patch.setattr(EngineCore, "_plan", breaks)
            patch.setattr(target, "device", torch.device("cuda", 0))
            patch.setattr(step, "Stopwatch", lambda device: Mock())
            with pytest.raises(EngineFailed, match="CUDA error"):
                await reply(engine)
            if sticky:
                with pytest.raises(EngineFailed, match="CUDA error"):
                    await engine.wait_closed()
        if not sticky:
            assert await reply(engine)


@pytest.mark.parametrize("part", ["step", "close"])
async def test_an_engine_that_cannot_clean_up_ends_all_the_same(
    part: str, pair: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def breaks(self: object, *args: object) -> None:
        raise SystemError("planted")

    def ends(self: object) -> bool:
        raise SystemError("the cause")

    async with Engine.load(*pair, proposer="off", dtype="float32") as engine:
        async with engine.generate("hello", SamplingParams(max_tokens=200)) as generation:
            await anext(generation)
            monkeypatch.setattr(Proposing, "close", breaks)
            monkeypatch.setattr(Lifecycle, "_retire", breaks)
            if part == "step":
                monkeypatch.setattr(EngineCore, "step", ends)
            else:
                engine._host.worker.close()  # type: ignore[union-attr]
            with pytest.raises(EngineFailed, match="the cause" if part == "step" else "planted"):
                async for _ in generation:
                    pass
