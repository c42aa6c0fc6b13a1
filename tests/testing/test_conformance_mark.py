"""An honest mark passes; each broken one is found by the check for its fault."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable

import pytest

from specstream.errors import AdapterFailed
from specstream.stages.interfaces import MarkCapabilities
from specstream.testing import check_mark

HELD = 80  # samples: 10 ms at 8 kHz


class Faint:
    """Sets the lowest bit of every sample; a subclass breaks one thing."""

    def __init__(self) -> None:
        self.capabilities = MarkCapabilities("faint", delay_ms=10, deterministic=True)

    def open(self, sample_rate: int) -> FaintTrack:
        if sample_rate < 8000:
            raise AdapterFailed(f"not at {sample_rate} Hz")
        return FaintTrack()

    async def aclose(self) -> None: ...


class FaintTrack:
    held = HELD

    def __init__(self) -> None:
        self.waiting = b""

    async def add(self, pcm: bytes) -> bytes:
        self.waiting += pcm
        ready = max(0, len(self.waiting) - 2 * self.held)
        out, self.waiting = self.waiting[:ready], self.waiting[ready:]
        return self.given(out)

    async def close(self) -> bytes:
        out, self.waiting = self.waiting, b""
        return self.given(out)

    def given(self, pcm: bytes) -> bytes:
        return bytes(byte if at % 2 else byte | 1 for at, byte in enumerate(pcm))


def with_track(track: Callable[[], FaintTrack]) -> Callable[[], Faint]:
    class Made(Faint):
        def open(self, sample_rate: int) -> FaintTrack:
            super().open(sample_rate)
            return track()

    return Made


class Longer(Faint):
    """It claims a delay of a minute."""

    def __init__(self) -> None:
        self.capabilities = MarkCapabilities("faint", delay_ms=60_000, deterministic=True)


class Forgetful(FaintTrack):
    """It keeps what is left at the end."""

    async def close(self) -> bytes:
        return b""


class Backwards(FaintTrack):
    """It turns the first two blocks of a phrase round."""

    held = 0
    begun = False

    def given(self, pcm: bytes) -> bytes:
        if self.begun or len(pcm) < 400:
            return super().given(pcm)
        self.begun = True
        half = len(pcm) // 4 * 2
        return super().given(pcm[half:] + pcm[:half])


class Slow(FaintTrack):
    """It holds back more than it says."""

    held = 9 * HELD


class Impatient(FaintTrack):
    """It can't mark less than two samples."""

    async def add(self, pcm: bytes) -> bytes:
        if len(pcm) == 2:
            raise ValueError("one sample has no sound")
        return await super().add(pcm)


class Trailing(FaintTrack):
    """It ends each phrase that is empty with a sample of its own."""

    given_any = False

    async def add(self, pcm: bytes) -> bytes:
        self.given_any = self.given_any or bool(pcm)
        return await super().add(pcm)

    async def close(self) -> bytes:
        return await super().close() if self.given_any else b"\0\0"


class Scared(FaintTrack):
    """It breaks on the loudest sample."""

    async def add(self, pcm: bytes) -> bytes:
        if pcm[:2] == b"\xff\x7f":
            raise OverflowError(32767)
        return await super().add(pcm)


class AnyRate(Faint):
    """It divides by the sample rate."""

    def open(self, sample_rate: int) -> FaintTrack:
        assert 16_000 / sample_rate
        return super().open(sample_rate)


class Counting(Faint):
    """It marks each phrase by its number."""

    def __init__(self) -> None:
        super().__init__()
        self.opened = 0

    def open(self, sample_rate: int) -> FaintTrack:
        made, self.opened = super().open(sample_rate), self.opened + 1
        number = self.opened % 2

        def given(pcm: bytes) -> bytes:
            return bytes(b if at % 2 else (b & 254) | number for at, b in enumerate(pcm))

        made.given = given  # type: ignore[method-assign]
        return made


class Leaving(Faint):
    """It gives what a phrase left behind to the next one that is begun."""

    def __init__(self) -> None:
        super().__init__()
        self.track: FaintTrack | None = None

    def open(self, sample_rate: int) -> FaintTrack:
        before, self.track = self.track, super().open(sample_rate)
        if before is not None:
            self.track.waiting = before.waiting
        return self.track


class Busy(FaintTrack):
    """It works on the event loop."""

    async def add(self, pcm: bytes) -> bytes:
        if len(pcm) > 50_000:
            until = time.perf_counter() + 0.4
            while time.perf_counter() < until:
                pass
        return await super().add(pcm)


class ClosedOnce(Faint):
    """It can be closed once."""

    thread: object = True

    async def aclose(self) -> None:
        if self.thread is None:
            raise RuntimeError("closed already")
        self.thread = None


class Littering(Faint):
    """It leaves a task behind for each phrase."""

    tasks: list[asyncio.Task[None]] = []

    def open(self, sample_rate: int) -> FaintTrack:
        self.tasks.append(asyncio.create_task(self._stay()))
        return super().open(sample_rate)

    async def _stay(self) -> None:
        await asyncio.Event().wait()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("broken", "found"),
    [
        (Longer, ("capabilities",)),
        (with_track(Forgetful), ("count", "one_by_one", "unusual_sound", "interrupted")),
        (with_track(Backwards), ("order",)),
        (with_track(Slow), ("delay",)),
        (with_track(Impatient), ("one_by_one",)),
        (with_track(Trailing), ("no_speech",)),
        (with_track(Scared), ("unusual_sound",)),
        (AnyRate, ("unknown_rate",)),
        (Counting, ("phrases_apart", "interrupted")),
        (Leaving, ("interrupted",)),
        (with_track(Busy), ("loop_free",)),
        (ClosedOnce, ("closes",)),
        (Littering, ("nothing_left",)),
    ],
)
async def test_a_broken_mark_is_found_by_the_check_for_its_fault(
    broken: Callable[[], Faint], found: tuple[str, ...]
) -> None:
    report = await check_mark(broken)
    for task in Littering.tasks:
        task.cancel()
    Littering.tasks.clear()
    assert report.failed == found, report.lines()


@pytest.mark.slow
async def test_an_honest_mark_of_the_same_make_passes() -> None:
    threads = threading.active_count()
    report = await check_mark(Faint)
    report.assert_passed()
    assert report.skipped == ()
    assert threading.active_count() == threads
