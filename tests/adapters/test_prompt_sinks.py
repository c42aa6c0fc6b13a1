"""Sinks of scene prompts, with generators of several speeds, in virtual time."""

import asyncio
from collections.abc import Sequence

import pytest

from specstream.errors import ConfigError
from specstream.types import Cancel, Flush, Revoke, ScenePrompt, Span
from specstream_adapters.prompt.sinks import LatestPrompt, PromptBlocks, PromptQueue

pytestmark = pytest.mark.virtual_time


def shot(number: int, rev: int = 0, length: int = 10) -> ScenePrompt:
    """Make shot ``number``, of ``length`` characters from 10·number on; it begins at that second."""
    name, span = f"shot-{number}", Span(10 * number, 10 * number + length)
    old = f"{name}@{rev - 1}" if rev else None
    return ScenePrompt(
        name, rev, 1000.0 * number, span, span, "", "", "", "", "", f"{number}.{rev}", "", old
    )


async def play(sink: PromptQueue, items: Sequence[object], every_s: float, takes_s: float) -> list[str]:
    """Add an item every ``every_s`` while a generator runs that takes ``takes_s`` for each prompt."""
    shown: list[str] = []

    async def generate() -> None:
        async for prompt in sink:
            shown.append(prompt.prompt)
            await asyncio.sleep(takes_s)

    generator = asyncio.create_task(generate())
    for item in items:
        await asyncio.sleep(every_s)
        sink.add(item)
    sink.close()
    await generator
    return shown


@pytest.mark.parametrize(
    ("takes_s", "expected"),
    [
        (0.1, ["0.0", "1.0", "2.0", "3.0", "4.0", "5.0"]),
        (1.6, ["0.0", "1.0", "3.0", "4.0", "5.0"]),
        (2.6, ["0.0", "2.0", "5.0"]),
        (60, ["0.0", "5.0"]),
    ],
)
async def test_the_newest_prompt_wins_and_stale_ones_are_never_shown(
    takes_s: float, expected: list[str]
) -> None:
    sink = LatestPrompt()
    assert await play(sink, [shot(n) for n in range(6)], 1, takes_s) == expected
    assert (sink.taken, sink.superseded) == (len(expected), 6 - len(expected))


@pytest.mark.parametrize(
    ("takes_s", "expected", "dropped"),
    [
        (0.1, ["0.0", "1.0", "2.0", "3.0", "4.0", "5.0"], 0),
        (1.5, ["0.0", "1.0", "2.0", "3.0", "4.0", "5.0"], 0),
        (60, ["0.0", "4.0", "5.0"], 3),
    ],
)
async def test_a_queue_gives_all_in_order_until_it_is_full(
    takes_s: float, expected: list[str], dropped: int
) -> None:
    sink = PromptQueue(max_waiting=2)
    assert await play(sink, [shot(n) for n in range(6)], 1, takes_s) == expected
    assert (sink.taken, sink.dropped) == (len(expected), dropped)


async def test_a_revision_takes_the_place_of_what_waits_and_an_old_one_is_ignored() -> None:
    items = [shot(0), shot(1), shot(1, 1), shot(2), shot(1, 2), shot(0, 1), shot(1, 1)]
    sink = PromptQueue()
    assert await play(sink, items, 0.1, 10) == ["0.0", "0.1", "1.2", "2.0"]
    sink = PromptQueue()
    assert await play(sink, items, 10, 0.1) == ["0.0", "1.0", "1.1", "2.0"]
    assert sink.superseded == 2
    for takes in (0.1, 25):
        shown = await play(LatestPrompt(), items, 10, takes)
        assert shown == sorted(shown)


@pytest.mark.parametrize("sink", [LatestPrompt(), PromptQueue()])
async def test_after_a_revoke_the_generator_goes_back_to_what_holds(sink: PromptQueue) -> None:
    items = [shot(0), shot(1), Revoke(12), Flush(), shot(1, 1, 2)]
    assert await play(sink, items, 1, 0.1) == ["0.0", "1.0", "0.0", "1.1"]


@pytest.mark.parametrize("sink", [LatestPrompt(), PromptQueue()])
async def test_what_was_revoked_or_cancelled_before_it_was_taken_is_not_shown(sink: PromptQueue) -> None:
    assert await play(sink, [shot(0), shot(1), Revoke(10)], 1, 60) == ["0.0"]


@pytest.mark.parametrize("sink", [LatestPrompt(), PromptQueue()])
async def test_a_cancel_drops_what_waits_and_the_next_reply_begins(sink: PromptQueue) -> None:
    sink.add(shot(5))
    sink.add(Cancel())
    sink.begin()
    sink.add(shot(0))
    sink.close()
    assert [prompt.prompt async for prompt in sink] == ["0.0"]
    assert await sink.next() is None


async def test_cancelling_the_wait_loses_nothing() -> None:
    sink = LatestPrompt()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(5):
            await sink.next()
    sink.add(shot(0))
    taken = await sink.next()
    assert taken is not None and taken.prompt == "0.0"


async def test_a_sink_that_nobody_takes_from_stays_small() -> None:
    sinks = [LatestPrompt(), PromptQueue(max_waiting=4), PromptBlocks(500)]
    for sink in sinks:
        for number in range(500):
            sink.add(shot(number))
        assert len(sink.shots) == 64
    assert sinks[1].dropped == 496  # type: ignore[attr-defined]


async def test_interactions_have_ids_of_their_own() -> None:
    sink, seen = PromptQueue(), set[str]()
    for item in (shot(0), shot(1), Revoke(15)):
        sink.add(item)
        if isinstance(item, Revoke):
            assert [s.prompt for s in sink.waiting.values()] == ["0.0"]
        taken = await sink.next()
        assert taken is not None
        frame = sink.interaction(taken, transition_chunks=2)
        assert frame["interaction"]["event"] == {"prompt": taken.prompt}
        seen.add(frame["interaction"]["event_id"])
    assert seen == {"1-shot-0@0", "2-shot-1@0", "3-shot-0@0"}


async def test_blocks_follow_the_clock_of_the_speech() -> None:
    sink = PromptBlocks(400)
    assert sink.layout(3) == []
    for number in range(2):
        sink.add(shot(number))
    assert sink.layout(5) == ["0.0", "0.0", "The scene transitions. 1.0", "1.0", "1.0"]
    assert [await sink.next() for _ in range(3)] == sink.layout(3)
    sink.add(shot(1, 1))
    assert await sink.next() == "1.1"  # another wording is no change of scene
    sink.add(Revoke(10))
    assert await sink.next() == "The scene transitions. 0.0"


@pytest.mark.parametrize("takes_s", [0.05, 0.5, 3])
async def test_a_generator_of_blocks_never_waits_after_the_first_shot(takes_s: float) -> None:
    sink, loop = PromptBlocks(500), asyncio.get_running_loop()

    async def write() -> None:
        for number in range(4):
            await asyncio.sleep(1)
            sink.add(shot(number))

    writer = asyncio.create_task(write())
    blocks = [await sink.next()]
    begun = loop.time()
    for _ in range(7):
        await asyncio.sleep(takes_s)
        blocks.append(await sink.next())
    assert loop.time() - begun == pytest.approx(7 * takes_s)
    await writer
    numbers = [int(block.split()[-1][0]) for block in blocks if block]
    assert numbers == sorted(numbers)
    if takes_s > 0.4:  # slower than the text, each shot is shown for as long as it is spoken
        assert blocks == sink.layout(8)
    sink.close()


@pytest.mark.parametrize("make", [lambda: PromptQueue(0), lambda: PromptBlocks(0)])
def test_bounds_out_of_range_are_refused(make: type) -> None:
    with pytest.raises(ConfigError):
        make()
