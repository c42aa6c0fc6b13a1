"""The hand-over from the library's thread to asyncio, with a library that only counts."""

import asyncio
import contextvars
import threading
import time
from collections.abc import AsyncGenerator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from specstream.errors import AdapterFailed, AdapterUnavailable
from specstream.stages.interfaces import listened_until
from specstream.types import Phrase, Span, SpeechBuffer
from specstream_adapters.voice import EspeakVoice, espeak, shared
from specstream_adapters.voice.espeak import PIECE, on_library
from specstream_adapters.voice.espeak_library import EspeakLibrary, LibraryEvent, Sink

BUFFER = b"\1\0" * 100


class CountingLibrary:
    """Speaks one buffer a character, as long as it is wanted; a "|" waits for ``go_on``."""

    sample_rate = 1000

    def __init__(self) -> None:
        self.chosen: list[tuple[str, int, int]] = []
        self.spoken: list[str] = []
        self.buffers = 0
        self.fail_at = -1
        self.stuck, self.go_on = threading.Event(), threading.Event()

    def choose(self, voice: str, rate_wpm: int, pitch: int) -> None:
        if voice == "nobody" and self.chosen:
            raise AdapterUnavailable("no voice 'nobody'")
        self.chosen.append((voice, rate_wpm, pitch))

    def speak(self, text: str, sink: Sink) -> None:
        self.spoken.append(text)
        for number, char in enumerate(text):
            if number == self.fail_at:
                raise OSError("out of breath")
            if char == "|":
                self.stuck.set()
                assert self.go_on.wait(60)
            self.buffers += 1
            at = 100 * number
            # Each character ends a word, or else its buffer would wait for the rest of the word.
            events = [LibraryEvent("end", at, number), LibraryEvent("phoneme", at, name="a")]
            if not sink(BUFFER, events):
                return


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> CountingLibrary:
    made = CountingLibrary()
    monkeypatch.setattr(espeak, "shared_library", lambda: made)
    return made


def speak(text: str, voice: EspeakVoice | None = None) -> AsyncGenerator[SpeechBuffer, None]:
    phrase = Phrase(text, Span(0, len(text)), Span(0, 1))
    return (voice or EspeakVoice()).synthesize(phrase)


async def read(
    stream: AsyncGenerator[SpeechBuffer, None], heard: list[SpeechBuffer] | None = None
) -> list[SpeechBuffer]:
    heard = [] if heard is None else heard
    async for buffer in stream:
        heard.append(buffer)
    return heard


async def settled() -> None:
    """Until the library's thread has done what was asked of it."""
    await asyncio.wrap_future(on_library(lambda _: None))


@pytest.mark.parametrize(
    ("speed", "pitch", "given"),
    [(1, 1, (175, 50)), (0.5, 0.5, (88, 0)), (2, 2, (350, 99)), (1.2, 1.1, (210, 57))],
)
def test_speed_and_pitch_are_shares_of_the_usual(
    library: CountingLibrary, speed: float, pitch: float, given: tuple[int, int]
) -> None:
    EspeakVoice(speed=speed, pitch=pitch)
    assert library.chosen == [("en-us", *given)]


async def test_everything_arrives_in_order(library: CountingLibrary) -> None:
    buffers = await read(speak("abcdefghij" * 5))
    assert b"".join(buffer.pcm for buffer in buffers) == BUFFER * 50
    marks = [mark for buffer in buffers for mark in buffer.marks if mark.kind == "phoneme"]
    assert [mark.samples.start for mark in marks] == list(range(0, 5000, 100))


async def test_the_library_is_never_more_than_a_piece_ahead(library: CountingLibrary) -> None:
    stream = speak("a" * 4 * PIECE)
    for taken in range(1, 2 * PIECE):
        await anext(stream)
        await settled()
        assert library.buffers - taken < PIECE
    assert len(await read(stream)) == 4 * PIECE - taken


async def test_nobody_waits_for_somebody_else_s_consumer(library: CountingLibrary) -> None:
    lagging = speak("a" * 4 * PIECE, EspeakVoice(voice="slow"))
    await anext(lagging)
    assert len(await read(speak("b" * 30, EspeakVoice(voice="quick")))) == 30
    assert library.spoken == ["a" * PIECE, "b" * 30]
    assert len(await read(lagging)) == 4 * PIECE - 1
    assert library.chosen[-1][0] == "slow"


@pytest.mark.parametrize("by", ["generator", "voice", "task"])
async def test_stopping_stops_the_library_within_one_buffer(library: CountingLibrary, by: str) -> None:
    voice = EspeakVoice()
    stream = speak("abc|" + "a" * 100, voice)
    await anext(stream)
    await asyncio.to_thread(library.stuck.wait, 60)
    if by == "generator":
        await stream.aclose()
    elif by == "voice":
        await voice.aclose()
        assert await read(stream) == []
    else:
        waiting = asyncio.create_task(read(stream))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
    library.go_on.set()
    await settled()
    assert library.buffers == 4
    assert len(await read(speak("b" * 10))) == 10


async def test_what_was_stopped_before_its_turn_is_not_spoken(library: CountingLibrary) -> None:
    first, second = speak("aaa|a"), EspeakVoice()
    await anext(first)
    waiting = asyncio.create_task(read(speak("b" * 100, second)))
    await asyncio.sleep(0)
    await second.aclose()
    assert await waiting == []
    library.go_on.set()
    assert len(await read(first)) == 4
    await settled()
    assert library.spoken == ["aaa|a"]


@pytest.mark.parametrize("fail_at", [0, 5])
async def test_a_failure_comes_after_what_was_said(library: CountingLibrary, fail_at: int) -> None:
    library.fail_at = fail_at
    heard: list[SpeechBuffer] = []
    with pytest.raises(AdapterFailed, match="out of breath") as caught:
        await read(speak("a" * 10), heard)
    assert isinstance(caught.value.__cause__, OSError)
    assert len(heard) == max(0, fail_at - 2)  # the last two were held back for their marks
    library.fail_at = -1
    assert len(await read(speak("b" * 10))) == 10


async def test_own_errors_keep_their_type(library: CountingLibrary) -> None:
    with pytest.raises(AdapterUnavailable, match="nobody"):
        await read(speak("a", EspeakVoice(voice="nobody")))


async def test_pieces_without_words_are_not_spoken(library: CountingLibrary) -> None:
    await read(speak("a" * 20 + "." * 3 * PIECE + "b" * 20))
    assert "".join(library.spoken).count(".") < 2 * PIECE
    assert library.spoken[-1].endswith("b" * 20)


def test_a_loop_that_went_away_frees_the_thread(library: CountingLibrary) -> None:
    async def start() -> None:
        kept.append(speak("aaa|" + "a" * 100))
        await anext(kept[0])
        await asyncio.to_thread(library.stuck.wait, 60)

    kept: list[AsyncGenerator[SpeechBuffer, None]] = []
    loop = asyncio.new_event_loop()
    loop.run_until_complete(start())
    loop.close()
    library.go_on.set()
    assert len(asyncio.run(read(speak("b" * 10)))) == 10
    assert library.buffers <= 5 + 10


def test_voices_that_are_made_at_once_share_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    def slowly(*args: int | str) -> object:
        time.sleep(0.05)
        return object()

    monkeypatch.setattr(shared, "ThreadPoolExecutor", slowly)
    with ThreadPoolExecutor(4) as makers:
        threads = list(makers.map(shared.thread_of, ["a library of this test"] * 4))
    assert len(set(map(id, threads))) == 1


async def test_of_the_jobs_that_wait_the_one_goes_first_whose_listener_hears_silence_first() -> None:
    thread, go, done = (shared.thread_of("another library of this test"), threading.Event(), list[str]())
    thread.submit(go.wait)

    def submit(name: str, silent_at: float | None) -> Future[None]:
        if silent_at is not None:
            listened_until.set(lambda: silent_at)
        return thread.submit(done.append, name)

    now, jobs = time.monotonic(), list[Future[None]]()
    for name, ahead_s in (("much", 9.0), ("soon", 0.2), ("nobody", None), ("late", -1.0)):
        context = contextvars.copy_context()
        jobs.append(context.run(submit, name, None if ahead_s is None else now + ahead_s))
    dropped = thread.submit(done.append, "dropped")
    dropped.cancel()
    last = contextvars.copy_context().run(thread.submit, done.append, "later")
    go.set()
    for job in (last, *jobs):
        await asyncio.wrap_future(job)
    assert done == ["late", "nobody", "later", "soon", "much"]


def test_a_job_passes_results_and_errors(library: CountingLibrary) -> None:
    assert on_library(lambda library: library.sample_rate).result() == 1000

    def broken(_: EspeakLibrary) -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        on_library(broken).result()
    threads = {on_library(lambda _: threading.get_ident()).result() for _ in range(5)}
    assert len(threads) == 1
    assert threading.get_ident() not in threads
