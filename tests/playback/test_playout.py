"""Play-out in virtual time: which sample left when, what was heard, and what a pause costs."""

import asyncio
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from wave import open as open_wave

import anyio
import numpy as np
import pytest

from specstream.errors import AdapterFailed, ConfigError, OutputError
from specstream.playback.playout import Playback, Playout, WaveSink
from specstream.types import Span, Speech
from tests.support.standins import cancelled

RATE = 8000
pytestmark = pytest.mark.virtual_time


def speech(start: int, count: int, *, rate: int = RATE, value: int | None = None) -> Speech:
    """Samples that count up, so that a lost or repeated one shows."""
    numbers = np.arange(start, start + count) if value is None else np.full(count, value)
    pcm = numbers.astype("<i2").tobytes()
    span = Span(start, start + count)
    return Speech(pcm, rate, span, (), Span(0, 1), Span(0, 1), 0)


class Ear:
    """A sink that notes when which samples were written."""

    def __init__(self) -> None:
        self.pcm = b""
        self.times: list[tuple[float, int]] = []
        self.cleared = 0
        self.closed = False

    @property
    def samples(self) -> list[int]:
        return [int(sample) for sample in np.frombuffer(self.pcm, "<i2")]

    async def write(self, pcm: bytes, sample_rate: int) -> None:
        self.times.append((anyio.current_time(), len(self.pcm) // 2))
        self.pcm += pcm
        await anyio.lowlevel.checkpoint()

    def clear(self) -> None:
        self.cleared += 1

    async def aclose(self) -> None:
        self.closed = True


async def test_audio_leaves_at_its_pace_and_what_was_heard_is_counted_to_the_sample() -> None:
    ear = Ear()
    async with Playout(ear, lead_s=0.08).play() as playback:
        began = anyio.current_time()
        playback.put(speech(0, RATE))
        for ms in (1, 25, 333, 500, 999):
            await anyio.sleep_until(began + ms / 1e3)
            assert playback.played == ms * RATE // 1000
            assert playback.played_ms == pytest.approx(ms)
            assert playback.written <= playback.played + 0.08 * RATE
        playback.finish()
        await playback.drained()
        assert anyio.current_time() == pytest.approx(began + 1.0)
        assert playback.played == RATE and playback.over
    assert ear.samples == list(range(RATE))
    late = [when - began - at / RATE for when, at in ear.times]
    assert max(late) <= 1e-9 and min(late) >= -0.08 - 1e-9


async def test_a_voice_that_is_late_leaves_a_gap_that_does_not_count_as_heard() -> None:
    async with Playout().play() as playback:
        playback.put(speech(0, 800))
        await anyio.sleep(5)
        assert playback.played == 800
        playback.put(speech(800, 800))
        await anyio.sleep(0.05)
        assert playback.played == 1200


async def test_a_pause_stops_within_the_lead_and_loses_no_sample() -> None:
    ear = Ear()
    async with Playout(ear, lead_s=0.08).play() as playback:
        playback.put(speech(0, RATE))
        await anyio.sleep(0.3)
        playback.pause()
        await anyio.sleep(10)
        assert playback.paused
        assert 0.3 * RATE <= playback.played == playback.written <= 0.38 * RATE
        playback.resume()
        playback.finish()
        await playback.drained()
        assert playback.played == RATE
    assert ear.samples == list(range(RATE))
    assert ear.cleared == 0


async def test_a_pause_shorter_than_the_lead_is_not_heard() -> None:
    async with Playout(lead_s=0.2).play() as playback:
        began = anyio.current_time()
        playback.put(speech(0, RATE))
        await anyio.sleep(0.3)
        playback.pause()
        await anyio.sleep(0.05)
        playback.resume()
        playback.finish()
        await playback.drained()
        assert anyio.current_time() == pytest.approx(began + 1.0)


@pytest.mark.parametrize("ms", [0, 1, 40, 500])
async def test_after_a_stop_no_sample_leaves_and_the_sink_is_cleared(ms: int) -> None:
    ear = Ear()
    async with Playout(ear).play() as playback:
        playback.put(speech(0, RATE))
        if ms:
            await anyio.sleep(ms / 1e3)
        heard, written = playback.stop(), len(ear.pcm)
        assert heard == playback.played == ms * RATE // 1000
        playback.put(speech(RATE, RATE))
        await anyio.sleep(3)
        assert len(ear.pcm) == written
        assert playback.stop() == heard
        await playback.drained()
    assert ear.cleared == (1 if ms else 0)


async def test_room_is_bounded_and_a_stop_lets_go_of_who_waits_for_it() -> None:
    async def fill(playback: Playback) -> int:
        for at in range(0, 100 * RATE, 400):
            await playback.room()
            if playback.stopped:
                return at
            playback.put(speech(at, 400, value=1))
        raise AssertionError("never full")

    async with Playout(ahead_s=2.0).play() as playback:
        task = asyncio.create_task(fill(playback))
        await anyio.sleep(1.0)
        playback.pause()
        await anyio.sleep(60)
        assert playback.end - playback.written <= 2 * RATE + 400
        playback.stop()
        assert await task <= 3.2 * RATE


async def test_speech_that_is_taken_back_is_replaced_if_it_has_not_left() -> None:
    ear = Ear()
    async with Playout(ear).play() as playback:
        playback.put(speech(0, 4000))
        await anyio.sleep(0.1)
        playback.put(speech(2000, 10, value=7))
        playback.finish()
        await playback.drained()
        assert playback.end == 2010
    assert ear.samples == [*range(2000), *[7] * 10]


@pytest.mark.parametrize("wrong", [speech(801, 10), speech(0, 10), speech(800, 10, rate=9000)])
async def test_speech_that_can_not_be_played_next_is_refused(wrong: Speech) -> None:
    async with Playout().play() as playback:
        playback.put(speech(0, 800))
        await anyio.sleep(0.05)
        with pytest.raises(AdapterFailed, match="was due"):
            playback.put(wrong)


async def test_a_sink_that_breaks_stops_play_out_with_a_typed_error() -> None:
    def break_down(pcm: bytes, rate: int) -> None:
        raise OSError("no such device")

    async with Playout(break_down).play() as playback:
        playback.put(speech(0, 800))
        await playback.drained()
        assert isinstance(playback.failure, AdapterFailed)
        assert "no such device" in str(playback.failure)
        assert playback.played == 0


async def test_a_sink_that_waits_for_something_cancelled_stops_play_out() -> None:
    async def cancelled(pcm: bytes, rate: int) -> None:
        future = asyncio.get_running_loop().create_future()
        future.cancel()
        await future

    async with Playout(cancelled).play() as playback:
        playback.put(speech(0, 800))
        await playback.drained()
        assert isinstance(playback.failure, AdapterFailed)


class Panic(BaseException):
    """What is no `Exception`: a test's failure, a panic in Rust."""


@pytest.mark.parametrize("where", ["write", "clear"])
async def test_what_is_no_exception_in_a_sink_ends_the_play_out(where: str) -> None:
    def panic(*args: object) -> None:
        raise Panic("planted")

    ear = Ear()
    setattr(ear, where, panic)
    async with Playout(ear).play() as playback:
        playback.put(speech(0, RATE))
        if where == "clear":
            await anyio.sleep(0.5)
            playback.stop()
        await playback.drained()
        assert isinstance(playback.failure, AdapterFailed) and "planted" in str(playback.failure)


@pytest.mark.parametrize(
    ("raised", "says"),
    [(OSError("stuck"), "stuck"), (asyncio.CancelledError(), "was cancelled"), (None, "within 10 s")],
)
async def test_a_sink_that_can_not_be_closed_is_a_typed_error(
    raised: BaseException | None, says: str
) -> None:
    class Stuck(Ear):
        async def aclose(self) -> None:
            if raised is None:
                await anyio.sleep_forever()
            else:
                raise raised

    with pytest.raises(AdapterFailed, match=says):
        await Playout(Stuck()).aclose()


@pytest.mark.parametrize("given", [5, "speaker", object()])
def test_what_is_no_sink_is_refused(given: Any) -> None:
    with pytest.raises(ConfigError, match="no audio sink"):
        Playout(given)


async def test_a_sink_of_plain_functions_is_one() -> None:
    ear = Ear()

    def write(pcm: bytes, rate: int) -> None:
        ear.pcm += pcm

    sink: Any = SimpleNamespace(write=write, clear=ear.clear, aclose=lambda: None)
    playout = Playout(sink)
    async with playout.play() as playback:
        playback.put(speech(0, 800))
        await anyio.sleep(2)
        assert (playback.played, len(ear.samples)) == (800, 800)
    await playout.aclose()


def test_a_sink_whose_clear_nothing_can_wait_for_is_refused() -> None:
    async def clear() -> None:
        pass

    sink: Any = Ear()
    sink.clear = clear
    with pytest.raises(ConfigError, match="must be a plain function"):
        Playout(sink)


async def test_a_file_is_left_as_it_is_until_there_is_speech(tmp_path: Path) -> None:
    """An agent that can't start must not empty the recording of an earlier run."""
    path = tmp_path / "old.wav"
    path.write_bytes(b"OLD")
    await WaveSink(path).aclose()
    assert path.read_bytes() == b"OLD"


async def test_a_sink_that_waits_is_waited_for_and_can_be_stopped() -> None:
    async def never(pcm: bytes, rate: int) -> None:
        await anyio.sleep_forever()

    async with Playout(never).play() as playback:
        playback.put(speech(0, 800))
        await anyio.sleep(1)
        assert playback.played == 0
    assert playback.stopped


@pytest.mark.parametrize("steps", range(8))
async def test_a_cancel_while_a_turn_is_left_frees_the_play_out(steps: int) -> None:
    playout, leaving = Playout(Ear()), asyncio.Event()

    async def turn() -> None:
        async with playout.play() as playback:
            playback.put(speech(0, 800))
            await anyio.sleep(0.05)
            leaving.set()

    await cancelled(turn(), leaving, steps)
    async with playout.play():
        pass


async def test_a_playout_plays_one_turn_at_a_time_each_from_sample_0() -> None:
    playout = Playout()
    for _ in range(2):
        async with playout.play() as playback:
            playback.put(speech(0, 80))
            with pytest.raises(ConfigError, match="another turn"):
                async with playout.play():
                    pass


@pytest.mark.parametrize("value", [-1, math.inf, math.nan])
def test_bad_durations_are_named(value: float) -> None:
    for name in ("lead_s", "ahead_s"):
        with pytest.raises(ConfigError, match=name):
            Playout(**{name: value})  # type: ignore[arg-type]


async def test_a_file_is_written_as_fast_as_speech_is_made_turn_after_turn(tmp_path: Path) -> None:
    path = tmp_path / "out.wav"
    playout = Playout(WaveSink(path), paced=False)
    began = anyio.current_time()
    for _ in range(2):
        async with playout.play() as playback:
            playback.put(speech(0, RATE))
            playback.finish()
            await playback.drained()
            assert playback.played == RATE
    await playout.aclose()
    assert anyio.current_time() == began
    with open_wave(str(path)) as file:
        assert file.getnframes() == 2 * RATE and file.getframerate() == RATE


async def test_a_file_that_can_not_be_written_is_named(tmp_path: Path) -> None:
    async with Playout(WaveSink(tmp_path / "no" / "out.wav"), paced=False).play() as playback:
        playback.put(speech(0, 10))
        await playback.drained()
        assert isinstance(playback.failure, OutputError)


@pytest.mark.parametrize("lead_s", [0.0, 0.08])
async def test_a_stop_clears_a_sink_that_is_taking_a_piece(lead_s: float) -> None:
    class Device(Ear):
        async def write(self, pcm: bytes, sample_rate: int) -> None:
            await super().write(pcm, sample_rate)
            await anyio.sleep(len(pcm) / 2 / sample_rate)  # as long as it plays
            self.pcm = b""

        def clear(self) -> None:
            super().clear()
            self.pcm = b""

    for at in range(1, 40):
        device = Device()
        async with Playout(device, lead_s=lead_s).play() as playback:
            playback.put(speech(0, 4000))
            await anyio.sleep(at * 0.01 + 0.003)
            playback.stop()
            assert device.pcm == b""
