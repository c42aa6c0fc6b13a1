"""The hand-over from the library's thread to asyncio, with a library that only counts."""

from __future__ import annotations

import asyncio
import threading
from typing import cast

import pytest

from specstream.errors import AdapterFailed, AdapterUnavailable
from specstream.types import SpeechBuffer
from specstream_adapters.voice.espeak_library import EspeakLibrary, LibraryEvent, Sink
from specstream_adapters.voice.espeak_worker import PIECE, UNREAD, EspeakWorker, Utterance

BUFFER = b"\1\0" * 100


class CountingLibrary:
    """Speaks one buffer a character, as long as it is wanted."""

    sample_rate = 1000

    def __init__(self) -> None:
        self.chosen: list[tuple[str, int, int]] = []
        self.spoken: list[str] = []
        self.buffers = 0
        self.fail_at = -1

    def choose(self, voice: str, rate_wpm: int, pitch: int) -> None:
        if voice == "nobody":
            raise AdapterUnavailable("no voice 'nobody'")
        self.chosen.append((voice, rate_wpm, pitch))

    def speak(self, text: str, sink: Sink) -> None:
        self.spoken.append(text)
        for number in range(len(text)):
            if number == self.fail_at:
                raise OSError("out of breath")
            self.buffers += 1
            if not sink(BUFFER, [LibraryEvent("phoneme", 100 * number, name="a")]):
                return


class Watched(threading.Condition):
    """Knows whether the library's thread waits, with nothing that would make it go on."""

    def __init__(self) -> None:
        super().__init__()
        self.idle = threading.Event()

    def wait(self, timeout: float | None = None) -> bool:
        self.idle.set()
        return super().wait(timeout)

    def notify_all(self) -> None:
        self.idle.clear()
        super().notify_all()


class Desk:
    """A worker with its library and its condition, all open to the test."""

    def __init__(self) -> None:
        self.library = CountingLibrary()
        self.worker = EspeakWorker(cast(EspeakLibrary, self.library))
        self.changed = self.worker.changed = Watched()

    def utterance(self, text: str, voice: str = "v") -> Utterance:
        return Utterance(self.worker, (voice, 175, 50), text, 0)

    async def settled(self) -> None:
        """Until the library's thread waits: for a job, or for room."""
        await asyncio.to_thread(self.changed.idle.wait)


async def read(
    utterance: Utterance, buffers: list[SpeechBuffer] | None = None
) -> list[SpeechBuffer]:
    buffers = [] if buffers is None else buffers
    while (buffer := await utterance.next()) is not None:
        buffers.append(buffer)
    return buffers


async def test_everything_arrives_in_order() -> None:
    desk = Desk()
    buffers = await read(desk.utterance("abcdefghij" * 5))
    assert b"".join(buffer.pcm for buffer in buffers) == BUFFER * 50
    marks = [mark for buffer in buffers for mark in buffer.marks if mark.kind == "phoneme"]
    assert [mark.samples.start for mark in marks] == list(range(0, 5000, 100))


async def test_a_lagging_consumer_stops_the_library() -> None:
    desk = Desk()
    utterance = desk.utterance("a" * 400)
    for taken in range(1, 20):
        assert await utterance.next() is not None
        await desk.settled()
        # Two more than can wait: one in the library's hand, one held back for its marks.
        assert desk.library.buffers <= taken + UNREAD + 2
    assert len(await read(utterance)) == 400 - 19


async def test_nobody_waits_for_somebody_else_s_consumer() -> None:
    desk = Desk()
    lagging = desk.utterance("a" * 2000, "slow")
    assert await lagging.next() is not None
    await desk.settled()
    assert len(await read(desk.utterance("b" * 30, "quick"))) == 30
    # The lagging one was finished up to the end of its piece, and not beyond.
    assert desk.library.spoken == ["a" * PIECE, "b" * 30]
    await desk.settled()
    assert desk.library.buffers == PIECE + 30
    assert len(await read(lagging)) == 2000 - 1
    assert desk.library.chosen[0][0] == desk.library.chosen[-1][0] == "slow"


async def test_closing_stops_the_library_within_one_buffer() -> None:
    desk = Desk()
    utterance = desk.utterance("a" * 400)
    assert await utterance.next() is not None
    await desk.settled()
    before = desk.library.buffers
    utterance.close()
    await desk.settled()
    assert desk.library.buffers <= before + 1
    assert await utterance.next() is None
    assert len(await read(desk.utterance("b" * 10))) == 10


async def test_closing_what_has_not_begun_costs_nothing() -> None:
    desk = Desk()
    first, second = desk.utterance("a" * 100), desk.utterance("b" * 100)
    assert await first.next() is not None
    await desk.settled()
    waiting = asyncio.create_task(second.next())
    await asyncio.sleep(0)
    second.close()
    assert await waiting is None
    await read(first)
    await desk.settled()
    assert desk.library.spoken == ["a" * 100]


@pytest.mark.parametrize("fail_at", [0, 5])
async def test_a_failure_comes_after_what_was_said(fail_at: int) -> None:
    desk = Desk()
    desk.library.fail_at = fail_at
    heard: list[SpeechBuffer] = []
    with pytest.raises(AdapterFailed, match="out of breath") as caught:
        await read(desk.utterance("a" * 10), heard)
    assert isinstance(caught.value.__cause__, OSError)
    assert len(heard) == max(0, fail_at - 1)  # the last one was held back for its marks
    desk.library.fail_at = -1
    assert len(await read(desk.utterance("b" * 10))) == 10


async def test_own_errors_keep_their_type() -> None:
    with pytest.raises(AdapterUnavailable, match="nobody"):
        await read(Desk().utterance("a", "nobody"))


async def test_pieces_without_words_are_not_spoken() -> None:
    desk = Desk()
    text = "a" * 20 + "." * 3 * PIECE + "b" * 20
    await read(desk.utterance(text))
    assert "".join(desk.library.spoken).count(".") < 2 * PIECE
    assert desk.library.spoken[-1].endswith("b" * 20)


async def test_cancelling_a_wait_loses_nothing() -> None:
    desk = Desk()
    gate = threading.Event()
    desk.worker.submit(lambda: cast(None, gate.wait()))
    utterance = desk.utterance("a" * 10)
    task = asyncio.create_task(utterance.next())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    gate.set()
    assert len(await read(utterance)) == 10


def test_a_loop_that_went_away_frees_the_thread() -> None:
    desk = Desk()

    async def start() -> None:
        assert await desk.utterance("a" * 400).next() is not None

    loop = asyncio.new_event_loop()
    loop.run_until_complete(start())
    loop.close()
    assert asyncio.run(asyncio.wait_for(read_again(desk), 60)) == 10


async def read_again(desk: Desk) -> int:
    return len(await read(desk.utterance("b" * 10)))


def test_call_passes_results_and_errors() -> None:
    desk = Desk()
    assert desk.worker.call(lambda library: library.sample_rate) == 1000

    def broken(_: EspeakLibrary) -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        desk.worker.call(broken)
    threads = {desk.worker.call(lambda _: threading.get_ident()) for _ in range(5)}
    assert len(threads) == 1
    assert threading.get_ident() not in threads
