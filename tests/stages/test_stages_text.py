import math
from collections.abc import AsyncGenerator, Iterable
from typing import Any

import anyio
import pytest

from specstream.stages.contract import Link
from specstream.stages.stages import SegmentStage
from specstream.text.segmenter import Segmenter
from specstream.types import Cancel, Chunk, Control, Flush, Phrase, Preview, Revoke, Span


class Clock:
    """Returns the next of the given times at each call, then always the last one."""

    def __init__(self, *times: float) -> None:
        self._times = list(times)

    def __call__(self) -> float:
        return self._times.pop(0) if len(self._times) > 1 else self._times[0]


def chunk(text: str, start: int) -> Chunk:
    return Chunk(text, (), Span(0, 0), Span(start, start + len(text)))


async def fill(items: Iterable[Chunk | Control], *, close: bool = False) -> Link[Any]:
    link: Link[Any] = Link()
    for item in items:
        await link.send(item)
    if close:
        link.close()
    return link


def told(item: Any) -> Any:
    return (item.text, item.reason) if isinstance(item, Phrase) else item


async def rest(stream: AsyncGenerator[Any, None]) -> list[Any]:
    return [told(item) async for item in stream]


async def test_text_comes_out_in_phrases_to_the_last_character() -> None:
    link = await fill([chunk("One. Tw", 0), chunk("o. Thr", 7), chunk("ee", 13)], close=True)
    assert await rest(SegmentStage(clock=Clock(0)).run(link)) == [
        ("One. ", "sentence"),
        ("Two. ", "sentence"),
        ("Three", "end"),
    ]


async def timeline(
    schedule: Iterable[tuple[float, Chunk | Control]], deadline_s: float = 0.7, end: float = 9.0
) -> list[tuple[float, Any]]:
    """What comes out and when, if the items come at the given seconds of the loop's own clock."""
    link: Link[Any] = Link()
    stage = SegmentStage(deadline_s=deadline_s, clock=anyio.current_time)
    start = anyio.current_time()

    async def feed() -> None:
        for at, item in schedule:
            await anyio.sleep_until(start + at)
            await link.send(item)
        await anyio.sleep_until(start + end)
        link.close()

    heard = []
    async with anyio.create_task_group() as group:
        group.start_soon(feed)
        async for item in stage.run(link):
            heard.append((round(anyio.current_time() - start, 3), told(item)))
    return heard


@pytest.mark.virtual_time
async def test_text_that_waited_too_long_is_spoken_but_not_the_word_under_way() -> None:
    words = [(0.0, chunk("I would like", 0)), (0.4, chunk(" some bre", 12)), (2.0, chunk("ad.", 21))]
    assert await timeline(words) == [
        (0.7, ("I would like some ", "deadline")),
        (2.7, ("bread.", "deadline")),
    ]


@pytest.mark.virtual_time
async def test_text_that_comes_in_time_is_not_torn() -> None:
    words = [(0.0, chunk("It is", 0)), (0.6, chunk(" late. Go", 5)), (1.25, chunk(" on.", 14))]
    assert await timeline(words, end=1.29) == [
        (0.6, ("It is late. ", "sentence")),  # and the wait begins anew for what follows
        (1.29, ("Go on.", "end")),
    ]


@pytest.mark.virtual_time
async def test_what_is_not_speakable_waits_for_more_text_and_then_for_time() -> None:
    words = [(0.0, chunk("Antidis", 0)), (5.0, chunk("establishment is a wor", 7))]
    assert await timeline(words) == [
        (5.7, ("Antidisestablishment is a ", "deadline")),
        (9.0, ("wor", "end")),
    ]


@pytest.mark.virtual_time
async def test_text_without_a_deadline_waits_for_a_boundary() -> None:
    words = [(0.0, chunk("It is ", 0)), (8.0, chunk("late. Go", 6))]
    assert await timeline(words, deadline_s=math.inf, end=20.0) == [
        (8.0, ("It is late. ", "sentence")),
        (20.0, ("Go", "end")),
    ]


@pytest.mark.virtual_time
async def test_no_text_no_deadline() -> None:
    assert await timeline([(0.0, chunk("Done.\n\nA", 0)), (0.1, Revoke(7))], deadline_s=0.5) == [
        (0.0, ("Done.\n\n", "sentence")),
        (0.1, Revoke(7)),
    ]


async def test_text_that_is_already_there_goes_before_the_deadline() -> None:
    link = await fill([chunk("It is late", 0), chunk(". Go", 10)], close=True)
    stream = SegmentStage(clock=Clock(0, 9)).run(link)
    assert await rest(stream) == [("It is late. ", "sentence"), ("Go", "end")]


async def test_a_flush_speaks_what_is_half_way_and_is_passed_on() -> None:
    link = await fill([chunk("Half a sen", 0), Flush(), chunk("tence.", 10)], close=True)
    assert await rest(SegmentStage(clock=Clock(0)).run(link)) == [
        ("Half a ", "deadline"),
        Flush(),
        ("sentence.", "end"),
    ]


async def test_a_revoke_takes_waiting_text_back_and_is_passed_on() -> None:
    link = await fill([chunk("Turn left", 0), Revoke(5), chunk("right.", 5)], close=True)
    assert await rest(SegmentStage(clock=Clock(0)).run(link)) == [Revoke(5), ("Turn right.", "end")]


async def test_a_cancel_drops_what_waits() -> None:
    link = await fill([chunk("Never mind", 0)])
    stream = SegmentStage(clock=Clock(0)).run(link)
    link.cancel(Cancel("barge-in"))
    assert await rest(stream) == [Cancel("barge-in")]


async def test_every_turn_has_its_own_segmenter() -> None:
    stage = SegmentStage(lambda: Segmenter(first_clause_chars=None), clock=Clock(0))
    for _ in range(2):
        link = await fill([chunk("So far, so good, and so on. A", 0)], close=True)
        assert [item[1] for item in await rest(stage.run(link))] == ["sentence", "end"]


async def test_drafted_text_decides_a_boundary_before_the_next_chunk_comes() -> None:
    preview = Preview(" The", (7,), Span(1, 2), Span(9, 13), (13,))
    items: list[Any] = [chunk("It is so.", 0), preview, chunk(" Then Dr.", 9), preview]
    for lookahead in (False, True):
        link = await fill(items)
        stage = SegmentStage(clock=Clock(0), lookahead=lookahead)
        found = stage.run(link)
        first = await anext(found)
        assert told(first) == ("It is so." if lookahead else "It is so. ", "sentence")
        assert (link.taken, stage.previews) == (2 if lookahead else 3, lookahead)
        await found.aclose()
