"""The async face, with a real engine thread behind it and tiny models on disk."""

import asyncio
import atexit
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from specstream import Engine, EngineConfig, SamplingParams
from specstream.commands.main import main
from specstream.engine.generation import Generation
from specstream.errors import (
    ConfigError,
    ConsumerStalled,
    EngineClosed,
    EngineError,
    ModelNotFound,
    PromptError,
    RequestError,
)
from tests.support.tiny import save_pair

LONG = SamplingParams(max_tokens=400)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    root = tmp_path_factory.mktemp("pair")
    return save_pair(root, seed=5, scale=4.0, noise=0.1, eos=False)


@pytest.fixture
def engine(pair: tuple[Path, Path]) -> Engine:
    # What an adaptive proposer does depends on how long things take.
    return Engine.load(*pair, proposer="draft", max_unread_chunks=4, dtype="float32")


def engine_threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name == "specstream-engine"}


async def read(generation: Generation) -> str:
    return "".join([chunk.text async for chunk in generation])


async def test_a_reply_and_its_report(engine: Engine) -> None:
    async with engine, engine.generate("hello", SamplingParams(max_tokens=40)) as generation:
        text = await read(generation)
        assert text == generation.text == generation.report.text
        assert generation.report.finish_reason == "length"
        assert generation.report.accepted > 0
        assert await read(generation) == ""  # an ended stream stays ended
        assert await engine.learning() is None


async def test_many_at_once_get_what_each_would_alone(engine: Engine) -> None:
    params = SamplingParams(max_tokens=30)

    async def one(text: str) -> str:
        async with engine.generate(text, params) as generation:
            return await read(generation)

    async with engine:
        texts = [f"prompt {i}" for i in range(9)]
        alone = [await one(text) for text in texts]
        together = await asyncio.gather(*(one(text) for text in texts))
    assert alone == list(together)


async def test_leaving_early_stops_the_decoding_and_frees_the_place(engine: Engine) -> None:
    async with engine:
        async with engine.generate("hello", LONG) as generation:
            async for _ in generation:
                break
        async with engine.generate("hello", SamplingParams(max_tokens=2)) as other:
            await read(other)
        assert generation.report.finish_reason == "cancelled"
        assert len(generation.report.token_ids) < 400


async def test_cancel_ends_the_iteration_with_a_marked_chunk(engine: Engine) -> None:
    async with engine, engine.generate("hello", LONG) as generation:
        chunks = []
        async for chunk in generation:
            chunks.append(chunk)
            generation.cancel()
        assert chunks[-1].finish_reason == "cancelled"
        assert "".join(chunk.text for chunk in chunks) == generation.report.text
        assert len(generation.report.token_ids) < 400


async def test_a_cancelled_consumer_takes_its_request_with_it(engine: Engine) -> None:
    held: list[Generation] = []
    reading = asyncio.Event()

    async def consume() -> None:
        async with engine.generate("hello", LONG) as generation:
            held.append(generation)
            await anext(generation)
            reading.set()
            await asyncio.Event().wait()

    async with engine:
        task = asyncio.create_task(consume())
        await reading.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        async with engine.generate("x", SamplingParams(max_tokens=2)) as other:
            await read(other)
        assert held[0].report.finish_reason == "cancelled"


async def test_an_unread_stream_goes_no_further_than_its_bound(engine: Engine) -> None:
    async with engine:
        async with engine.generate("hello", LONG) as unread:
            async with engine.generate("hello", SamplingParams(max_tokens=100)) as other:
                await read(other)
            assert unread.request.delivery.sent <= 4
            text = await read(unread)  # and nothing was lost
        async with engine.generate("hello", LONG) as again:
            assert await read(again) == text


async def test_a_conversation_remembers_and_reuses(engine: Engine) -> None:
    params = SamplingParams(max_tokens=8)
    async with engine, engine.session("be brief") as session:
        async with session.generate("one", params) as generation:
            reply = await read(generation)
        async with session.generate("two", params) as generation:
            await read(generation)
            assert generation.report.reused_tokens > len("be brief")
        assert [m["role"] for m in session.messages] == [
            "system",
            "user",
            "assistant",
            "user",
            "assistant",
        ]
        assert session.messages[2]["content"] == reply
        async with session.generate("three", params):
            pass  # nothing was read: what was said stays
        assert len(session.messages) == 6


async def test_errors_before_and_after_submission(engine: Engine) -> None:
    with pytest.raises(EngineClosed):
        async with engine.generate("hello"):
            pass
    async with engine:
        with pytest.raises(PromptError, match="empty"):
            async with engine.generate(" "):
                pass
        with pytest.raises(PromptError, match="role"):
            async with engine.generate([{"role": "boss", "content": "x"}]):  # type: ignore[typeddict-item]
                pass
        with pytest.raises(PromptError, match="shorten"):
            async with engine.generate("x" * 600) as generation:
                await read(generation)
    with pytest.raises(EngineClosed):
        async with engine.generate("hello"):
            pass
    with pytest.raises(ConfigError, match="make a new one"):
        await engine.__aenter__()


async def test_models_that_do_not_load_raise_at_the_door(pair: tuple[Path, Path]) -> None:
    with pytest.raises(ModelNotFound):
        async with Engine.load("/no/such/model"):
            pass
    with pytest.raises(ModelNotFound):
        async with Engine.load(pair[0], "/no/such/draft"):
            pass
    assert all(thread.name != "specstream-engine" for thread in threading.enumerate())


@pytest.mark.parametrize(
    "options",
    [
        {"proposer": "magic"},
        {"no_such_key": 1},
        {"max_running": 0},
        {"proposer": {"kind": "suffix", "k": 1}},
    ],
)
def test_bad_options_are_named(options: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        Engine.load(**options)  # type: ignore[arg-type]


def test_a_config_of_the_wrong_kind_is_named() -> None:
    with pytest.raises(ConfigError, match="EngineConfig"):
        Engine.load(config={"proposer": "off"})  # type: ignore[arg-type]


@pytest.mark.parametrize("given", ["smollm2", None, {"target": "smollm2"}])
def test_a_model_s_name_is_for_load(given: object) -> None:
    with pytest.raises(ConfigError, match=r"Engine\.load takes models' names"):
        Engine(given)  # type: ignore[arg-type]


@pytest.mark.parametrize("given", ["", 3, b"smollm2", ["smollm2"]])
def test_a_target_is_one_name(given: object) -> None:
    with pytest.raises(ConfigError, match="target: name one model"):
        Engine.load(given)  # type: ignore[arg-type]


def test_a_config_in_a_target_s_place_is_told_where_it_goes() -> None:
    with pytest.raises(ConfigError, match=r"Engine\.load\(config=…\)"):
        Engine.load(EngineConfig())  # type: ignore[arg-type]


def test_one_draft_or_several_are_named() -> None:
    one, two = Path("/models/draft"), "/models/head"
    assert Engine.load(draft=one).config.drafts == ("/models/draft",)
    assert Engine.load(draft=[one, two]).config.drafts == ("/models/draft", "/models/head")


async def test_closing_ends_what_is_under_way(engine: Engine) -> None:
    async with engine:
        context = engine.generate("hello", LONG)
        generation = await context.__aenter__()
        await anext(generation)
    chunks = [chunk async for chunk in generation]
    assert chunks[-1].finish_reason == "cancelled"
    await context.__aexit__(None, None, None)


async def test_the_event_loop_is_not_blocked_while_models_load_and_run(engine: Engine) -> None:
    """Counted, not timed: the loop turns many times during each single wait for the engine."""
    turns = 0

    async def turn() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    ticker = asyncio.create_task(turn())
    async with engine:
        assert turns > 100
        before = turns
        async with engine.generate("hello", SamplingParams(max_tokens=40)) as generation:
            await read(generation)
        assert turns > before + 100
    ticker.cancel()


async def test_a_prompt_lookup_engine_completes_text(pair: tuple[Path, Path]) -> None:
    async with Engine.load(pair[0], proposer="suffix", dtype="float32") as engine:
        plain = await engine.complete([{"role": "user", "content": "abc"}], max_tokens=20)
        helped = await engine.complete(
            [{"role": "user", "content": "abc"}], max_tokens=20, reference=plain
        )
        assert plain == helped


async def test_a_callback_that_raises_cancelled_error_does_not_end_the_engine(engine: Engine) -> None:
    def criterion(ids: list[int], text: str) -> bool:
        raise asyncio.CancelledError

    async with engine:
        params = SamplingParams(max_tokens=5, stop_when=(criterion,))
        with pytest.raises(RequestError, match="criterion broke"):
            async with engine.generate("hello", params) as generation:
                await read(generation)
        async with engine.generate("hello", SamplingParams(max_tokens=5)) as generation:
            assert len([chunk async for chunk in generation]) > 0


async def test_an_adaptive_engine_says_what_it_does_and_a_fixed_one_need_not(
    engine: Engine, pair: tuple[Path, Path]
) -> None:
    async with engine:
        assert await engine.explain() is None
    with pytest.raises(EngineClosed):
        await engine.explain()
    async with Engine.load(*pair, dtype="float32") as adaptive:
        async with adaptive.generate("hello", SamplingParams(max_tokens=60)) as generation:
            text = await read(generation)
        found = await adaptive.explain()
        assert found is not None
        assert found.predicted_speedup >= 1.0 or found.kind != "off"
        report = generation.report
        assert report.explanation
        assert sum(report.proposer_rounds.values()) == report.rounds
    async with engine_of(pair) as plain, plain.generate("hello", LONG) as generation:
        assert text == (await read(generation))[: len(text)]


def engine_of(pair: tuple[Path, Path]) -> Engine:
    return Engine.load(*pair, proposer="off", dtype="float32")


async def test_a_conversation_takes_one_turn_at_a_time(engine: Engine) -> None:
    async with engine, engine.session() as session:
        async with session.generate("one", LONG) as generation:
            while not (await anext(generation)).text:
                pass
            with pytest.raises(RequestError, match="middle of a turn"):
                async with session.generate("two"):
                    pass
        assert [m["role"] for m in session.messages] == ["user", "assistant"]
        async with session.generate("three", SamplingParams(max_tokens=9)) as generation:
            await read(generation)
        assert len(session.messages) == 4


async def test_a_cancelled_entry_or_exit_still_ends_the_thread(pair: tuple[Path, Path]) -> None:
    async def enter() -> None:
        async with Engine.load(*pair):
            pass

    for waits in (0, 1, 5):
        task = asyncio.create_task(enter())
        for _ in range(waits):
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert all(thread.name != "specstream-engine" for thread in threading.enumerate())


@pytest.mark.parametrize("prompt", [None, 5, ["a"], b"x", "half a \ud800 pair"])
async def test_a_prompt_of_the_wrong_kind_is_named(engine: Engine, prompt: object) -> None:
    async with engine:
        with pytest.raises(PromptError):
            async with engine.generate(prompt):  # type: ignore[arg-type]
                pass


@pytest.mark.parametrize("reference", [None, 5, b"x", ["a"], "half a \ud800 pair"])
async def test_a_reference_of_the_wrong_kind_is_named(engine: Engine, reference: object) -> None:
    async with engine:
        with pytest.raises(PromptError, match="reference"):
            async with engine.generate("hello", reference=reference):  # type: ignore[arg-type]
                pass


async def test_a_cache_is_cut_or_dropped_by_session_and_whole_number_only(engine: Engine) -> None:
    short = SamplingParams(max_tokens=4)
    async with engine:
        async with engine.generate("hello", short, session="s") as generation:
            before = await read(generation)
        for tokens in (-1, 1.5, None, "1"):
            with pytest.raises(RequestError, match="tokens"):
                engine.trim("s", tokens)  # type: ignore[arg-type]
        for session in (["s"], None, 5):
            with pytest.raises(PromptError, match="session"):
                engine.trim(session, 1)  # type: ignore[arg-type]
            with pytest.raises(PromptError, match="session"):
                engine.forget(session)  # type: ignore[arg-type]
        engine.trim("s", 1)
        async with engine.generate("hello", short, session="s") as generation:
            assert await read(generation) == before
        assert generation.report.reused_tokens == 1


async def test_another_event_loop_is_told_to_ask_where_the_engine_belongs(engine: Engine) -> None:
    async def ask() -> None:
        async with engine.generate("hello"):
            raise AssertionError("never entered")

    async with engine:
        for question in (ask(), engine.explain()):
            with pytest.raises(EngineError, match="belongs to the event loop"):
                await asyncio.to_thread(asyncio.run, question)
        async with engine.generate("hello") as generation:

            async def read_it() -> None:
                async for _ in generation:
                    pass

            with pytest.raises(EngineError, match="belongs to the event loop"):
                await asyncio.to_thread(asyncio.run, read_it())
            assert await read(generation)


async def test_whoever_gives_up_waiting_for_the_thread_leaves_it_its_bell(engine: Engine) -> None:
    """As a second interrupt does, which cancels every task there is."""
    stuck, go_on, others = threading.Event(), threading.Event(), engine_threads()

    def hold(ids: object, text: object) -> bool:
        stuck.set()
        return go_on.wait(60)

    async def talk() -> None:
        params = SamplingParams(max_tokens=4, stop_when=(hold,))
        async with engine, engine.generate("hello", params) as generation:
            await read(generation)

    talking = asyncio.create_task(talk())
    await asyncio.to_thread(stuck.wait, 60)
    here = asyncio.current_task()
    for _ in range(2):
        for task in asyncio.all_tasks() - {here}:
            task.cancel()
        for _ in range(5):
            await asyncio.sleep(0)
    assert talking.cancelled()
    (worker,) = engine_threads() - others
    go_on.set()
    await asyncio.to_thread(worker.join)


async def test_a_reply_asked_of_a_forked_engine_is_refused_and_leaves_the_parents_alone(
    engine: Engine,
) -> None:
    async def ask() -> None:
        async with engine.generate("hello"):
            raise AssertionError("never entered")

    async with engine:
        child = os.fork()
        if child == 0:  # no loop runs here: the coroutines are driven by hand
            code = 1
            try:
                for question in (ask(), engine.explain()):
                    with pytest.raises(EngineClosed, match="forked"):
                        question.send(None)
                with pytest.raises(StopIteration):
                    engine.__aexit__().send(None)
                code = 0
            finally:
                os._exit(code)
        _, status = await asyncio.to_thread(os.waitpid, child, 0)
        assert os.waitstatus_to_exitcode(status) == 0
        async with engine.generate("hello", SamplingParams(max_tokens=9)) as generation:
            assert await read(generation) == generation.report.text


def test_an_engine_whose_event_loop_was_closed_says_so_and_its_thread_ends(engine: Engine) -> None:
    async def begin() -> Generation:
        await engine.__aenter__()
        context = engine.generate("hello", LONG)
        generation = await context.__aenter__()
        contexts.append(context)  # else it would be left
        await anext(generation)
        return generation

    async def ask() -> None:
        async with engine.generate("hello"):
            raise AssertionError("never entered")

    contexts: list[object] = []
    others, loop = engine_threads(), asyncio.new_event_loop()
    generation = loop.run_until_complete(begin())
    loop.close()
    (worker,) = engine_threads() - others
    for _ in range(2):
        with pytest.raises(EngineClosed, match="event loop that entered this engine is closed"):
            asyncio.run(ask())
    worker.join()
    assert generation.report.finish_reason == "cancelled"


@pytest.mark.parametrize("closed", [True, False])
def test_an_engine_can_be_left_on_another_event_loop(engine: Engine, closed: bool) -> None:
    """As in a test suite whose fixtures have loops of their own."""
    others, loop = engine_threads(), asyncio.new_event_loop()
    loop.run_until_complete(engine.__aenter__())
    assert engine_threads() > others
    if closed:
        loop.close()
    leaving = threading.Thread(target=asyncio.run, args=[engine.__aexit__()], daemon=True)
    leaving.start()
    leaving.join(30)
    loop.close()
    assert not leaving.is_alive()
    assert engine_threads() <= others


@pytest.mark.parametrize("reading", [True, False])
async def test_a_program_that_ends_without_closing_takes_the_thread_along(
    engine: Engine, reading: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    leaving: list[Callable[[], None]] = []
    monkeypatch.setattr(atexit, "register", leaving.append)
    async with engine:
        context = engine.generate("hello", LONG)
        generation = await context.__aenter__()
        if reading:
            await anext(generation)
        await asyncio.to_thread(leaving[-1])  # as the interpreter does
        assert all(thread.name != "specstream-engine" for thread in threading.enumerate())
        await context.__aexit__(None, None, None)


async def test_replies_that_nobody_reads_give_way_without_any_news(pair: tuple[Path, Path]) -> None:
    """The engine thread looks again by itself when the time has come."""
    engine = Engine.load(
        *pair,
        proposer="off",
        dtype="float32",
        max_unread_chunks=2,
        max_running=1,
        max_parked=1,
        max_parked_s=0.01,
    )
    async with engine, engine.generate("a", LONG) as first, engine.generate("b", LONG) as second:
        async with engine.generate("c", SamplingParams(max_tokens=3)) as third:
            assert len([chunk async for chunk in third]) == 3
        assert (await anext(first)).token_ids  # what came before can be read
        with pytest.raises(ConsumerStalled, match="leave its block"):
            await read(first)
        assert len((await anext(second)).token_ids) == 1


async def test_a_closed_engine_is_closed_wherever_it_is_asked(engine: Engine) -> None:
    async with engine:
        pass
    with pytest.raises(EngineClosed):
        await asyncio.to_thread(asyncio.run, engine.explain())


async def test_reasoning_is_reported_and_not_remembered(tmp_path: Path) -> None:
    """The template opens a span and the model never closes it: nothing of it is reply."""
    pair = save_pair(tmp_path, eos=False)
    template = "{{ messages[-1].content }}{% if thinking %}<think>\n{% endif %}"
    for folder in pair:
        (folder / "chat_template.jinja").write_text(template)
    engine = Engine.load(*pair, proposer="draft", dtype="float32")
    few, on = SamplingParams(max_tokens=20), {"thinking": True}
    async with engine, engine.session() as talk:
        async with talk.generate("hello", few, chat_template_kwargs=on) as generation:
            assert await read(generation) == generation.text == ""
        report = generation.report
        assert report.reasoning and report.reasoning_tokens == 20 == len(report.token_ids)
        assert talk.messages == [{"role": "user", "content": "hello"}]
        async with talk.generate("hello", few, chat_template_kwargs={"thinking": False}) as plain:
            assert await read(plain)
        assert not plain.report.reasoning and len(talk.messages) == 3
        with pytest.raises(PromptError, match="no variable 'thinkin'"):
            async with engine.generate("a", chat_template_kwargs={"thinkin": 1}) as refused:
                await read(refused)
        with pytest.raises(PromptError, match="can't be a template's variable"):
            async with engine.generate("a", chat_template_kwargs={"tokenize": True}):
                pass


def test_a_base_models_warning_reaches_the_command_line(
    pair: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["generate", "a", "--target", str(pair[0]), "--proposer", "off", "--max-tokens", "1"]
    assert main(argv) == 0
    assert capsys.readouterr().err.count("the target has no chat template") == 1
