"""Clients that die, sleep or leave, and parts that break: what is let go."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import anyio
import pytest
import pytest_asyncio

from specstream.errors import AdapterUnavailable, ConfigError, EngineFailed, PromptError, SpecstreamError
from specstream.realtime.resources import StatusDetails, told_to_callers
from specstream.testing import ScriptedEngine, chunks_of
from specstream.types import Message, Phrase, RawPrompt, SamplingParams, ScenePrompt
from tests.server.doubles import (
    ALL_OWN,
    AUDIO_DONE,
    END,
    WORDS,
    BrokenVoice,
    Gate,
    HandClock,
    OneShotBoard,
    Stand,
    Wire,
    WordVoice,
    shape,
    wait_for,
)
from tests.server.test_limits import standing_still


@pytest_asyncio.fixture
async def stack() -> AsyncGenerator[AsyncExitStack, None]:
    async with AsyncExitStack() as stack:
        yield stack


async def test_a_killed_client_leaves_nothing_and_others_do_not_notice() -> None:
    gate = Gate(shut=False)
    engine = ScriptedEngine(["Well, hello. " + WORDS, "Still here."], gate=gate)
    stand = Stand(engine, clock=HandClock())
    async with stand.running(), stand.client() as victim, stand.client() as other:
        gate.shut(after=20)
        await victim.ask("Hi")
        await victim.until("response.output_audio.delta")
        assert stand.server.counters.sessions == 2
        victim.socket.transport.abort()
        await wait_for(lambda: stand.server.counters.sessions == 1)
        assert engine.generations[0].report.finish_reason == "cancelled"
        gate.open()
        assert stand.voices[1].closed  # voices[0] was made for a trial at the start
        assert stand.voices[1].speaking == 0
        done = await other.reply("Hi")
        assert done["output"][0]["content"][0]["transcript"] == "Still here."


async def test_a_client_that_does_not_read_stops_its_own_reply_only() -> None:
    long = " ".join(["word"] * 20_000)
    engine = ScriptedEngine([chunks_of(long), "Still here."])
    stand = Stand(engine)  # a free clock: nothing but the socket holds the audio back
    async with stand.running(), stand.client(max_queue=1) as lazy, stand.client() as other:
        await lazy.ask("Hi")
        left = await standing_still(engine, 300)
        assert left > 5_000, "the model has stopped writing, far from the end"
        await other.reply("Hi")
        # The kernel's buffers may grow a little meanwhile.
        assert left - len(engine.generations[0].ahead) < 100
        # Then it reads on, and has missed nothing.
        await lazy.until("response.created")
        words = 0
        while words < 200:
            delta = await lazy.until("response.output_audio_transcript.delta")
            words += delta["delta"].count("word")
        seqs = [event["specstream"]["seq"] for event in lazy.seen]
        assert seqs == list(range(len(seqs)))
        lazy.socket.transport.abort()
        await wait_for(lambda: stand.server.counters.sessions == 1)


async def test_closing_the_server_releases_a_reply_under_way(stack: AsyncExitStack) -> None:
    stand = Stand(ScriptedEngine([WORDS]), clock=HandClock())
    async with stand.running():
        wire = await stack.enter_async_context(stand.client())
        await wire.ask("Hi")
        await wire.until("response.output_audio.delta")
        assert stand.server.counters.sessions == 1
    assert stand.server.counters.sessions == 0
    assert len(stand.voices) == 2
    assert all(voice.closed for voice in stand.voices)
    assert (await wire.closed())[0] == 1001
    assert "response.done" not in wire.types()


class _FailingEngine(ScriptedEngine):
    """Fails before (``PromptError``) or in the middle of a reply."""

    def __init__(self, error: Exception, after: int) -> None:
        super().__init__(["one two three."])
        self._error, self._after = error, after

    @asynccontextmanager
    async def generate(
        self,
        messages: Sequence[Message] | RawPrompt | str,
        params: SamplingParams | None = None,
        **options: Any,
    ) -> AsyncGenerator[Any, None]:
        if self._after == 0:
            raise self._error
        async with super().generate(messages, params, **options) as generation:
            step = generation.__anext__
            count = 0

            async def failing() -> Any:
                nonlocal count
                count += 1
                if count > self._after:
                    raise self._error
                return await step()

            class Failing:
                cancel, report = generation.cancel, generation.report
                text_read = generation.text_read

                def __aiter__(self) -> Failing:
                    return self

                async def __anext__(self) -> Any:
                    return await failing()

            yield Failing()


@pytest.mark.parametrize(
    ("error", "after", "code", "text"),
    [
        (PromptError("the prompt is too long"), 0, "bad_prompt", None),
        (EngineFailed("out of memory"), 2, "engine_failed", "one two"),
        (RuntimeError("secret detail"), 2, "server_error", "one"),
    ],
)
async def test_a_broken_reply_fails_and_the_session_goes_on(
    error: Exception, after: int, code: str, text: str | None
) -> None:
    async with Stand(_FailingEngine(error, after)).alone() as wire:
        for _ in range(2):
            done = await wire.reply("Hi", output_modalities=["text"])
            assert done["status"] == "failed"
            failure = done["status_details"]["error"]
            assert failure["code"] == code
            assert "secret" not in failure["message"]
            if text is None:
                assert done["output"] == []
            else:
                assert done["output"][0]["content"][0]["text"].startswith(text)


async def test_a_broken_voice_fails_the_response_but_not_its_text() -> None:
    async with Stand(ScriptedEngine(["one two three."]), voice=BrokenVoice).alone() as wire:
        done = await wire.reply("Hi")
        assert done["status"] == "failed"
        assert done["status_details"]["error"]["code"] == "adapter_failed"
        assert done["output"][0]["content"][0]["transcript"] == "one two three."
        assert shape(wire.types())[-6:] == [*AUDIO_DONE, *END]


async def test_a_broken_rewriter_is_told_and_the_response_completes() -> None:
    class BrokenBoard(OneShotBoard):
        async def add(self, phrase: Phrase) -> Sequence[ScenePrompt]:
            raise ValueError("no paint left")

    async with Stand(ScriptedEngine(["one two three."]), prompts=BrokenBoard).alone() as wire:
        await wire.configure(**ALL_OWN)
        await wire.ask("Hi")
        error = (await wire.until("error"))["error"]
        assert (error["type"], error["code"]) == ("server_error", "adapter_failed")
        assert (await wire.done())["status"] == "completed"


async def run_of(wire: Wire, text: str) -> str:
    done = await wire.reply(text, output_modalities=["text"])
    reply: str = done["output"][0]["content"][0]["text"]
    return reply


async def test_many_sessions_come_and_go_without_a_trace() -> None:
    engine = ScriptedEngine(["one two."])
    stand = Stand(engine)
    async with stand.running():
        for round in range(10):
            async with anyio.create_task_group() as group:
                for number in range(4):

                    async def visit(number: int = number, round: int = round) -> None:
                        async with stand.client() as wire:
                            assert await run_of(wire, f"{round}.{number}") == "one two."

                    group.start_soon(visit)
        await wait_for(lambda: stand.server.counters.sessions == 0)
        assert stand.server.counters.sessions_total == 40
        assert stand.server.counters.responses == {"completed": 40}


async def test_an_adapter_that_cant_be_made_is_told() -> None:
    made = 0

    def once() -> WordVoice:
        nonlocal made
        made += 1
        if made > 1:
            raise AdapterUnavailable("the voice is hoarse")
        return WordVoice()

    stand = Stand(ScriptedEngine(["one."]), voice=once)
    async with stand.running(), stand.client() as wire:
        error = await wire.refused("response.create", event_id="e7")
        assert error == {
            "type": "server_error",
            "code": "adapter_unavailable",
            "message": "the voice is hoarse",
            "param": None,
            "event_id": "e7",
        }
        assert await run_of(wire, "Hi") == "one."
    with pytest.raises(AdapterUnavailable, match="hoarse"):
        async with stand.running():
            raise AssertionError("a server without its voice")


BEHIND = "a server behind this one"
HIDDEN: list[tuple[SpecstreamError, str]] = [
    (EngineFailed("http://10.0.0.1/v1 ended: x"), f"{BEHIND} ended: x"),
    (AdapterUnavailable("voice: wss://10.0.0.1/a is gone"), f"voice: {BEHIND} is gone"),
    (ConfigError("http://10.0.0.1 answers 401: sk-secret"), "the server's settings don't work"),
    (PromptError("the pattern 'https://[^x]' can't be kept"), "the pattern 'https://[^x]' can't"),
]


@pytest.mark.parametrize(("error", "told"), HIDDEN)
def test_callers_are_told_nothing_of_what_is_behind(error: SpecstreamError, told: str) -> None:
    assert told_to_callers(error).startswith(told)
    failed = StatusDetails.of("failed", error).error
    assert failed is not None and failed.message == told_to_callers(error)
