"""The engines keep their contract, and each broken one is found by the check for its fault."""

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import Any

import pytest

from specstream import Engine, OpenAIEngine
from specstream.metrics import Report
from specstream.testing import ScriptedEngine, ScriptedModel, check_engine
from specstream.testing.conformance import checks
from specstream.testing.engine import ScriptedGeneration
from specstream.types import Chunk, RawPrompt, Span
from tests.support.openai_server import Answer, ChatServer, llama_events

REPLY = "It is sunny now. Later it will rain, and at night there will be a storm."


def make_scripted() -> ScriptedEngine:
    return ScriptedEngine([REPLY])


async def test_the_scripted_engine_passes() -> None:
    report = await check_engine(make_scripted)
    report.assert_passed()
    assert report.skipped == ("logprobs", "reproducible", "previews")


@pytest.mark.virtual_time
async def test_the_scripted_model_passes_at_its_own_pace() -> None:
    (await check_engine(lambda: ScriptedModel([REPLY]))).assert_passed()


@pytest.mark.slow
async def test_an_engine_behind_an_address_passes() -> None:
    pytest.importorskip("openai")
    words = [word + " " for word in REPLY.split()]

    def events(body: dict[str, Any]) -> list[Any]:
        most = body["max_tokens"]
        return llama_events(*words[:most], finish="length" if most < len(words) else "stop")

    async with ChatServer([Answer(events)]).running() as server:
        report = await check_engine(lambda: OpenAIEngine(server.url))
    report.assert_passed()
    assert set(report.skipped) == {"ends", "rounds", "logprobs", "reproducible", "previews", "tools"}


@pytest.mark.slow
@pytest.mark.parametrize("proposer", ["auto", "off"])
async def test_the_engine_passes(proposer: str) -> None:
    report = await check_engine(lambda: Engine.load(proposer=proposer))
    report.assert_passed()
    assert report.skipped == ("reproducible",)


class AlteredGeneration(ScriptedGeneration):
    """A scripted reply; the engine alters its chunks."""

    alter: Callable[[Chunk], Chunk] = staticmethod(lambda chunk: chunk)

    async def __anext__(self) -> Chunk:
        return self.alter(await super().__anext__())


class Altered(ScriptedEngine):
    """The scripted engine; a subclass breaks one thing."""

    generation: type[ScriptedGeneration] = AlteredGeneration

    def __init__(self) -> None:
        super().__init__([REPLY])

    def alter(self, chunk: Chunk) -> Chunk:
        return chunk

    @asynccontextmanager
    async def generate(self, *args: Any, **options: Any) -> AsyncGenerator[ScriptedGeneration, None]:
        async with super().generate(*args, **options) as made:
            generation = self.generation(made.ahead, lambda: None)
            if isinstance(generation, AlteredGeneration):
                generation.alter = self.alter
            try:
                yield generation
            finally:
                self.left(generation)

    def left(self, generation: ScriptedGeneration) -> None:
        generation.cancel()


class Overlapping(Altered):
    """Its chunks count tokens from 1."""

    def alter(self, chunk: Chunk) -> Chunk:
        return replace(chunk, tokens=Span(chunk.tokens.start + 1, chunk.tokens.end + 1))


class ManyEnds(Altered):
    """Every chunk has a finish reason."""

    def alter(self, chunk: Chunk) -> Chunk:
        return replace(chunk, finish_reason="stop")


class Boastful(Altered):
    """It accepts more than was drafted."""

    def alter(self, chunk: Chunk) -> Chunk:
        return replace(chunk, accepted=chunk.drafted + 1)


class Short(Altered):
    """The ends of its tokens lie before its text."""

    def alter(self, chunk: Chunk) -> Chunk:
        return replace(chunk, ends=tuple(0 for _ in chunk.ends))


class OtherIds(ScriptedGeneration):
    @property
    def report(self) -> Report:
        return replace(super().report, token_ids=(1, 2))


class Mistaken(Altered):
    """Its report has other tokens than its chunks."""

    generation = OtherIds


class Narrow(Altered):
    """It doesn't know all options of the protocol."""

    def generate(self, *args: Any, **options: Any) -> Any:
        if "learn" in options:
            raise TypeError("generate() got an unexpected keyword argument 'learn'")
        return super().generate(*args, **options)


class LateText(ScriptedGeneration):
    @property
    def text_read(self) -> str:
        return self.text if self._finish else self.text[:-1]


class Lagging(Altered):
    """`text_read` lags behind."""

    generation = LateText


class Probable(Altered):
    """It claims log probabilities and has none."""

    def __init__(self) -> None:
        super().__init__()
        self.capabilities = replace(self.capabilities, logprobs=True)


class Modest(Altered):
    """It takes a reference, and says that it can't."""

    def __init__(self) -> None:
        super().__init__()
        self.capabilities = replace(self.capabilities, reference=False)


class Unprompted(Altered):
    """It refuses raw prompts by an error that isn't ours, and says that it takes them."""

    def generate(self, messages: Any, *args: Any, **options: Any) -> Any:
        if isinstance(messages, RawPrompt):
            raise TypeError("a list is needed")
        return super().generate(messages, *args, **options)


class DeafGeneration(ScriptedGeneration):
    def cancel(self) -> None:
        return None


class Unstoppable(Altered):
    """Nothing stops it."""

    generation = DeafGeneration


class Loose(Altered):
    """It takes any option."""

    def generate(self, *args: Any, **options: Any) -> Any:
        options.pop("no_such_option", None)
        return super().generate(*args, **options)


class Toolish(Altered):
    """It says that it calls no tools, and takes them."""

    def generate(self, *args: Any, **options: Any) -> Any:
        options.pop("tools", None)
        return super().generate(*args, **options)


class Endless(Altered):
    """It writes the whole reply, whatever is allowed."""

    def generate(self, *args: Any, **options: Any) -> Any:
        asked = [replace(params, max_tokens=256) for params in args[1:]]
        return super().generate(*args[:1], *asked, **options)


class Unhalted(Altered):
    """It doesn't look for stop strings."""

    def generate(self, *args: Any, **options: Any) -> Any:
        asked = [replace(params, stop=()) for params in args[1:]]
        return super().generate(*args[:1], *asked, **options)


class Silent(Altered):
    """A reply that was cut says that the model ended it."""

    def alter(self, chunk: Chunk) -> Chunk:
        return replace(chunk, finish_reason="stop") if chunk.finish_reason else chunk


class Ahead(Altered):
    """The last token ends behind the text."""

    def alter(self, chunk: Chunk) -> Chunk:
        return replace(chunk, ends=tuple(end + 3 for end in chunk.ends))


class Swallowing(Altered):
    """What its reader raises doesn't leave the block."""

    @asynccontextmanager
    async def generate(self, *args: Any, **options: Any) -> AsyncGenerator[ScriptedGeneration, None]:
        with suppress(Exception):
            async with super().generate(*args, **options) as generation:
                yield generation


class Dropped(Altered):
    """It forgets a conversation with an error."""

    def forget(self, session: str) -> None:
        raise KeyError(session)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("broken", "found"),
    [
        (Overlapping, {"tokens_tile"}),
        (ManyEnds, {"finish_reason", "max_tokens"}),
        (Boastful, {"rounds"}),
        (Short, {"ends"}),
        (Ahead, {"ends"}),
        (Swallowing, {"leave_early", "raw_prompts", "unknown_option", "tools", "bad_messages"}),
        (Mistaken, {"report"}),
        (Narrow, {"options"}),
        (Lagging, {"texts"}),
        (Probable, {"logprobs"}),
        (Modest, {"reference"}),
        (Unprompted, {"raw_prompts"}),
        (Unstoppable, {"cancel_before", "cancel_between", "leave_early"}),
        (Loose, {"unknown_option"}),
        (Toolish, {"tools"}),
        (Endless, {"max_tokens"}),
        (Unhalted, {"stops"}),
        (Silent, {"max_tokens"}),
        (Dropped, {"unknown_session"}),
    ],
)
async def test_a_broken_engine_is_found_by_the_check_for_its_fault(
    broken: Callable[[], Altered], found: set[str]
) -> None:
    report = await check_engine(broken)
    assert set(report.failed) == found, report.lines()


@pytest.mark.slow
async def test_an_honest_one_of_the_same_make_passes() -> None:
    (await check_engine(Altered)).assert_passed()


async def test_a_short_reply_that_ended_by_itself_was_not_cut() -> None:
    texts = ["No, I do not know that. Ask me again.", "No", "No", "Well, I do not know that."]
    (await check_engine(lambda: ScriptedEngine(texts), only=["max_tokens"])).assert_passed()


async def test_a_pool_of_threads_that_grows_once_is_not_left_behind() -> None:
    calls = 0

    async def grows() -> None:
        nonlocal calls
        calls += 1
        at_once = 2 if calls == 2 else 1
        together = threading.Barrier(at_once)
        await asyncio.gather(*(asyncio.to_thread(together.wait, 60) for _ in range(at_once)))

    await checks.left_behind(grows)


async def test_threads_that_hang_in_the_pool_are_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "SETTLE_S", 0.05)
    hang, left = threading.Event(), list[asyncio.Future[bool]]()

    async def hangs() -> None:
        left.append(asyncio.get_running_loop().run_in_executor(None, hang.wait, 60))

    try:
        with pytest.raises(checks.PromiseBroken, match="left running after aclose.*asyncio_"):
            await checks.left_behind(hangs)
    finally:
        hang.set()
    await asyncio.gather(*left)
