"""Prompts of any size: measured before they are encoded, and encoded where nobody's round waits."""

import threading
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest
import pytest_asyncio  # noqa: F401 - the engine belongs to a test's own loop

from specstream import Engine, SamplingParams
from specstream.engine.core import admission as admissions
from specstream.engine.core.prompt import EncodedPrompt, PromptEncoder
from specstream.errors import EngineBusy, EngineClosed, EngineFailed, PromptError
from specstream.types import Message
from tests.support.tiny import save_pair

CONTEXT = 4096
LONG = "x" * (admissions.SHORT_CHARS + 1)  # 4,001 tokens of the tiny tokenizer: they fit


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return save_pair(tmp_path_factory.mktemp("pair"), context=CONTEXT, eos=False)


class Watched:
    """The real encoding, with a note of what it was given and a gate for what is long."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.lengths: list[int] = []
        self.threads: list[str] = []
        self.gate = threading.Event()
        real = PromptEncoder.encode

        def encode(
            own: PromptEncoder, messages: list[Message], context: int, *options: Any
        ) -> EncodedPrompt:
            self._note(messages)
            return real(own, messages, context, *options)

        patch.setattr(PromptEncoder, "encode", encode)

    def _note(self, messages: list[Message]) -> None:
        length = sum(len(message["content"]) for message in messages)
        self.lengths.append(length)
        self.threads.append(threading.current_thread().name)
        if length >= len(LONG):
            assert self.gate.wait(20), "whoever opens the gate waits for this"


def engine_of(pair: tuple[Path, Path], **options: Any) -> Engine:
    return Engine.load(*pair, dtype="float32", proposer="off", **options)


async def reply(engine: Engine, prompt: str, tokens: int = 3) -> int:
    async with engine.generate(prompt, SamplingParams(max_tokens=tokens)) as chunks:
        return sum([len(chunk.token_ids) async for chunk in chunks])


async def test_what_can_never_fit_is_refused_unread(
    pair: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    watched = Watched(monkeypatch)
    async with engine_of(pair) as engine:
        with pytest.raises(PromptError, match="1000000 characters.* 4096 tokens.*shorten"):
            await reply(engine, "x" * 1_000_000)
        assert watched.lengths == []
        watched.gate.set()
        with pytest.raises(PromptError, match="5000 tokens"):  # fits perhaps: so it is counted
            await reply(engine, "x" * 5000)
        assert watched.lengths == [5000]
        assert await reply(engine, "x") == 3


async def test_others_go_on_while_a_long_prompt_is_encoded(
    pair: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    watched = Watched(monkeypatch)
    async with engine_of(pair, max_running=1) as engine, anyio.create_task_group() as group:
        ended: list[str] = []

        async def ask(prompt: str, name: str) -> None:
            assert await reply(engine, prompt) == 3
            ended.append(name)

        group.start_soon(ask, LONG, "long")
        while not watched.lengths:
            await anyio.lowlevel.checkpoint()
        for _ in range(3):
            await ask("short", "short")
        watched.gate.set()
        while len(ended) < 4:
            await anyio.lowlevel.checkpoint()
        assert ended == ["short"] * 3 + ["long"]
    assert watched.threads[0].startswith("specstream-encoder")
    assert set(watched.threads[1:]) == {"specstream-engine"}


async def test_a_long_prompt_can_be_cancelled_before_it_is_encoded(
    pair: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    watched = Watched(monkeypatch)
    async with engine_of(pair) as engine:
        async with engine.generate(LONG) as chunks:
            while not watched.lengths:
                await anyio.lowlevel.checkpoint()
            chunks.cancel()
            assert [c.finish_reason async for c in chunks] == ["cancelled"]
        watched.gate.set()
        assert await reply(engine, "x") == 3


async def test_only_so_many_long_prompts_wait_and_closing_ends_them(
    pair: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    watched = Watched(monkeypatch)
    async with (
        engine_of(pair, max_waiting=0, max_running=2) as engine,
        anyio.create_task_group() as group,
    ):
        found: list[object] = []

        async def ask() -> None:
            try:
                async with engine.generate(LONG) as chunks:
                    found.extend([chunk.finish_reason async for chunk in chunks])
            except EngineBusy as error:
                found.append(type(error))

        for _ in range(4):
            group.start_soon(ask)
        while EngineBusy not in found:
            await anyio.lowlevel.checkpoint()
        group.start_soon(engine.__aexit__)
        while len(found) < 4:
            await anyio.lowlevel.checkpoint()
        watched.gate.set()
        assert sorted(map(str, found)) == sorted(map(str, [EngineBusy] * 2 + ["cancelled"] * 2))
    with pytest.raises(EngineClosed):
        await reply(engine, "x")


async def test_a_long_reference_is_read_as_far_as_it_can_matter(
    pair: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with engine_of(pair) as engine:
        params = SamplingParams(max_tokens=3)
        async with engine.generate("x", params, reference="y" * 1_000_000) as chunks:
            assert sum([len(chunk.token_ids) async for chunk in chunks]) == 3
            assert len(chunks.request.reference_ids) == CONTEXT


class Panic(BaseException):
    """As a tokenizer written in Rust panics: no `Exception`."""


async def test_a_tokenizer_that_panics_costs_its_own_prompt_only(
    pair: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def panic(*args: Any) -> EncodedPrompt:
        raise Panic("index out of bounds")

    async with engine_of(pair) as engine:
        with monkeypatch.context() as patch:
            patch.setattr(PromptEncoder, "encode", panic)
            with pytest.raises(EngineFailed, match="index out of bounds"):
                await reply(engine, LONG)
        assert await reply(engine, LONG) == 3


async def test_turns_of_one_conversation_stay_in_order(
    pair: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    watched = Watched(monkeypatch)
    async with engine_of(pair) as engine, anyio.create_task_group() as group:
        ended: list[str] = []

        async def ask(prompt: str, session: str) -> None:
            few = SamplingParams(max_tokens=3)
            async with engine.generate(prompt, few, session=session) as chunks:
                assert [c async for c in chunks]
            ended.append(f"{session} {len(prompt)}")

        group.start_soon(ask, LONG, "a")
        while not watched.lengths:
            await anyio.lowlevel.checkpoint()
        group.start_soon(ask, "short", "a")
        await anyio.lowlevel.checkpoint()
        await ask("other", "b")
        watched.gate.set()
    assert ended == ["b 5", f"a {len(LONG)}", "a 5"]
