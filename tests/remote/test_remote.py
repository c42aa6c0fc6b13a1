"""Adapters behind their own sockets: the same items as in one process."""

import asyncio
import gc
import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from anyio.from_thread import start_blocking_portal

from specstream.remote.frames import Kind
from specstream.remote.protocol import WINDOW
from specstream.remote.server import adapter_server
from specstream.remote.stage import RemoteStage
from specstream.stages.contract import Link
from specstream.stages.interfaces import VoiceCapabilities
from specstream.stages.stages import AvatarStage, PromptStage, VoiceStage
from specstream.types import Flush, Phrase, Span
from tests.server.doubles import wait_for
from tests.server.remotes import (
    KINDS,
    LAYOUTS,
    PHRASES,
    a_turn_elsewhere,
    at,
    pipeline,
    remote,
    served,
    spoken,
    with_controls,
)
from tests.support.standins import (
    Board,
    Face,
    Script,
    ToneVoice,
    events_by_source,
    feed,
    phrases_of,
    stream,
)


@pytest.mark.parametrize("remotes", LAYOUTS, ids=lambda kinds: "+".join(kinds) or "local")
@pytest.mark.parametrize("seed", range(3))
async def test_wherever_the_adapters_run_the_items_are_the_same(
    remotes: Sequence[Kind], seed: int
) -> None:
    items = with_controls(seed)
    voiced = await spoken(items)
    board = Board()  # its shots are numbered through, so it lives as long as the served one
    async with pipeline(remotes, capacity=random.Random(seed).choice([1, 3, 64])) as line:
        for _ in range(2):  # the second turn on the same sockets
            async with line.run(stream(items)) as run:
                found = await events_by_source(run)
            assert found.pop("engine") == found.pop("text") == items
            assert found.pop("voice") == voiced
            assert found.pop("avatar") == await feed(AvatarStage(Face()), voiced)
            assert found.pop("prompt") == await feed(PromptStage(board), items)
            assert not found


async def test_a_voice_elsewhere_is_given_words_as_one_here_is() -> None:
    class Speaker(ToneVoice):
        @property
        def capabilities(self) -> VoiceCapabilities:
            return replace(super().capabilities, language="en")

    items = [Phrase("Pay $5.", Span(3, 10), Span(0, 4))]
    local = await feed(VoiceStage(Speaker()), items)
    marks = [mark for speech in local for mark in speech.marks if mark.kind == "word"]
    assert [(mark.text, mark.chars) for mark in marks] in (
        [("Pay", (3, 6)), ("five", (7, 9)), ("dollars.", (7, 10))],
        [("Pay", (3, 6)), ("$5.", (7, 10))],  # without the library
    )
    async with served("voice", Speaker) as stage:
        assert await feed(stage, items) == local


@pytest.mark.parametrize("text", ["Mit freundlichen Grüßen, wie immer. ", "Oui. "])
async def test_a_voice_elsewhere_speaks_what_a_stage_made_of_a_phrase(text: str) -> None:
    phrase, *_ = phrases_of("Yours, as ever. And so on.")
    items = [replace(phrase, text=text)]
    local = await feed(VoiceStage(ToneVoice()), items)
    assert {mark.chars for speech in local for mark in speech.marks} == {phrase.chars}
    async with served("voice", ToneVoice) as stage:
        assert await feed(stage, items) == local


async def test_one_connection_serves_turn_after_turn_and_turns_side_by_side() -> None:
    made: list[ToneVoice] = []

    def make() -> ToneVoice:
        made.append(ToneVoice())
        return made[-1]

    expected = await spoken(PHRASES)
    async with served("voice", make) as stage:
        ready = await stage.connect()
        assert (ready.adapter, ready.voice) == ("tone", ToneVoice().capabilities)
        for _ in range(3):
            assert await feed(stage, PHRASES) == expected
        assert len(made) == 1
        results = await asyncio.gather(*(feed(stage, PHRASES) for _ in range(5)))
        assert results == [expected] * 5
        assert len(made) == 5
        await wait_for(lambda: sum(voice.script.closed for voice in made) == 3)  # two stay warm
    assert [voice.script.closed for voice in made] == [1] * 5


async def test_an_empty_turn() -> None:
    for kind in KINDS:
        async with remote(kind) as stage:
            assert await feed(stage, []) == []
            assert await feed(stage, [Flush()]) == [Flush()]


async def test_a_reader_that_stops_stops_the_remote_voice() -> None:
    """Counted in buffers: what was read, a window on its way, and one in the voice's hands."""
    script = Script()
    made = 0

    def make() -> ToneVoice:
        nonlocal made
        made += 1
        return ToneVoice(script if made == 1 else None)

    window = 4
    async with adapter_server("voice", make) as port, at(port, "voice", window=window) as stage:
        link: Link[Any] = Link(1024)
        many = phrases_of("A word and another word. " * 200)
        for phrase in many:
            await link.send(phrase)
        link.close()
        outputs = stage.run(link)
        read: list[Any] = [await anext(outputs) for _ in range(6)]
        pieces = sum(len(piece.pcm) > 0 for piece in read)  # the last of a phrase is the stage's
        limit = pieces + window + 1
        with anyio.fail_after(20):
            await script.when_made(pieces + window - 1).wait()
        for _ in range(3):
            await a_turn_elsewhere(port)
        assert script.made <= limit
        assert script.made < sum(1 for _ in many)
        assert script.running == 1
        rest = [piece async for piece in outputs]
        assert [*read, *rest] == await spoken(many), "and nothing is lost"


async def test_a_stage_that_does_not_read_stops_its_source() -> None:
    """Upwards the same: phrases for a stalled voice stay with whoever has them."""
    script = Script(stall_at=0)
    async with pipeline(["voice"], {"voice": script}, capacity=2) as line:
        taken: list[Any] = []
        async with line.run(stream(PHRASES[:1] * 500, taken.append)) as run:
            async with anyio.create_task_group() as group:

                async def read() -> None:
                    async for _ in run:
                        pass

                group.start_soon(read)
                await script.stalled.wait()
                previous = -1
                while previous != len(taken):
                    previous = len(taken)
                    await spoken(PHRASES)
                    async with remote("voice") as other:
                        await feed(other, PHRASES)
                assert len(taken) <= WINDOW + 12
                group.cancel_scope.cancel()


@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
def test_a_stage_may_be_used_by_one_event_loop_after_another() -> None:
    """The connection that the one before has left can't be closed without its loop."""
    with (
        start_blocking_portal() as portal,
        portal.wrap_async_context_manager(adapter_server("voice", ToneVoice)) as port,
    ):
        stage = RemoteStage(f"ws://127.0.0.1:{port}", "voice")
        found = [asyncio.run(feed(stage, PHRASES)) for _ in range(3)]
        asyncio.run(stage.aclose())
    gc.collect()  # here, and not in another test
    assert found[0] and found == [found[0]] * 3
