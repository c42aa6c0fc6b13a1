"""The machinery of all conformance checks: a check, its result, the report, a loop watched, sound."""

from __future__ import annotations

import asyncio
import gc
import inspect
import threading
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Generic, Literal, TypeAlias, TypeVar

import numpy as np

from specstream.checks import meant
from specstream.errors import ConfigError, SpecstreamError
from specstream.listening.resampler import Resampler

__all__ = [
    "RATE",
    "SETTLE_S",
    "CheckResult",
    "ConformanceCheck",
    "ConformanceReport",
    "Make",
    "PromiseBroken",
    "Pulse",
    "UnderTest",
    "apply_if",
    "at_rate",
    "babble",
    "collected",
    "expected_error",
    "in_pieces",
    "left_behind",
    "may_refuse",
    "require",
    "require_members",
]

A = TypeVar("A")
Make: TypeAlias = Callable[[], A | Awaitable[A]]
"""Makes a new object under test; a coroutine function does, too."""

_LIMIT_S = 100.0  # of one check: an adapter that hangs is reported, and a slow machine isn't
SETTLE_S = 3.0
"""What threads and tasks may need to end after ``aclose()``."""
_BLOCKED_S = 0.25  # a pause of the loop that the adapter is to blame for, three times in a row
_ATTEMPTS = 3


class PromiseBroken(Exception):
    """A check found that the object under test breaks its contract; the message says how."""


class _DoesNotApply(Exception):
    """The object under test doesn't claim what the check is about."""


def require(kept: bool, otherwise: str) -> None:
    """Raise `PromiseBroken` with the text unless ``kept``."""
    if not kept:
        raise PromiseBroken(otherwise)


def require_members(made: object, *names: str) -> None:
    """Raise `PromiseBroken` if an object lacks one of these attributes, or has None."""
    missing = [name for name in names if getattr(made, name, None) is None]
    require(not missing, f"{type(made).__name__} has no {' and no '.join(missing)}")


def apply_if(claimed: bool, otherwise: str) -> None:
    """Skip the check, for the reason that is given, unless ``claimed``."""
    if not claimed:
        raise _DoesNotApply(otherwise)


@contextmanager
def may_refuse() -> Iterator[None]:
    """Allow the block to be refused by a `SpecstreamError` that says something."""
    try:
        yield
    except SpecstreamError as error:
        require(bool(str(error)), "the error says nothing")


@dataclass(frozen=True, slots=True)
class UnderTest(Generic[A]):
    """What is tested.

    Attributes:
        make: Makes a new object; each check makes its own.
        speech: Speech at 16 kHz (s16 little-endian mono), for what listens.
        understood: Whether ``speech`` are real words, so that they must be heard.
    """

    make: Make[A]
    speech: bytes
    understood: bool

    async def new(self) -> A:
        """Make an object."""
        made: Any = self.make()
        ready: A = await made if inspect.isawaitable(made) else made
        return ready


@dataclass(frozen=True, slots=True)
class CheckResult:
    """How one check ended.

    ``about`` is what the check demands; ``detail`` says what was wrong, or why the check was skipped.
    """

    name: str
    about: str
    outcome: Literal["passed", "failed", "skipped"]
    detail: str = ""


@dataclass(frozen=True, slots=True)
class ConformanceReport:
    """The results of all checks of one object, in order."""

    kind: str
    results: tuple[CheckResult, ...]

    def _names(self, outcome: str) -> tuple[str, ...]:
        return tuple(one.name for one in self.results if one.outcome == outcome)

    @property
    def passed(self) -> tuple[str, ...]:
        """Names of the checks that passed."""
        return self._names("passed")

    @property
    def failed(self) -> tuple[str, ...]:
        """Names of the checks that failed."""
        return self._names("failed")

    @property
    def skipped(self) -> tuple[str, ...]:
        """Names of the checks that don't apply or were left out."""
        return self._names("skipped")

    def lines(self) -> list[str]:
        """One line for each check: its outcome, its name, and what was wrong or is demanded."""
        return [f"{one.outcome:8}{one.name}: {one.detail or one.about}" for one in self.results]

    def assert_passed(self) -> None:
        """Raise AssertionError with a line for each fault, beginning with the names of its checks."""
        __tracebackhide__ = True
        wrong = dict[str, list[str]]()  # one fault often fails many checks
        for one in self.results:
            if one.outcome == "failed":
                wrong.setdefault(one.detail, []).append(one.name)
        if wrong:
            raise AssertionError(
                "\n".join(f"{', '.join(names)}: {detail}" for detail, names in wrong.items())
            )


@dataclass(frozen=True, slots=True)
class ConformanceCheck(Generic[A]):
    """One promise, and the coroutine function that puts it to the test.

    ``await check(make)`` raises AssertionError if it fails; `result` returns a `CheckResult` instead.
    ``str(check)`` is its name, for ``pytest.mark.parametrize("check", …, ids=str)``.
    """

    kind: str
    name: str
    about: str
    work: Callable[[UnderTest[A]], Awaitable[None]]
    speech: bytes | None = None

    def __str__(self) -> str:
        return self.name

    async def result(self, make: Make[A]) -> CheckResult:
        """Make the check. Cancelling stops it; the object under test is closed."""
        subject = UnderTest(make, self.speech or babble(), self.speech is not None)
        outcome: Literal["passed", "failed", "skipped"] = "failed"
        detail = ""
        try:
            async with asyncio.timeout(_LIMIT_S) as limit:
                await self.work(subject)
            outcome = "passed"
        except _DoesNotApply as reason:
            outcome, detail = "skipped", str(reason)
        except PromiseBroken as broken:
            detail = str(broken)
        except SpecstreamError as error:
            detail = f"it raised {type(error).__name__}: {error}"
        except Exception as error:
            late = isinstance(error, TimeoutError) and limit.expired()
            kind = f"{type(error).__name__}, which is no SpecstreamError: {error}"
            detail = f"it did not end within {_LIMIT_S:.0f} s" if late else f"it raised {kind}"
        return CheckResult(self.name, self.about, outcome, detail)

    async def __call__(self, make: Make[A]) -> None:
        """Make the check; a check that doesn't apply passes. Cancelling stops it.

        Raises:
            AssertionError: the name of the check, and what is wrong.
        """
        __tracebackhide__ = True
        result = await self.result(make)
        if result.outcome == "failed":
            raise AssertionError(f"{self.name}: {result.detail}")


def collected(
    kind: str, works: Iterable[Callable[[UnderTest[Any]], Awaitable[None]]]
) -> tuple[ConformanceCheck[Any], ...]:
    """Return the checks of a kind, named by their functions and described by their docstrings."""
    return tuple(
        ConformanceCheck(kind, work.__name__, inspect.getdoc(work) or "", work) for work in works
    )


def chosen(
    checks: Collection[ConformanceCheck[Any]], only: Collection[str], skip: Collection[str]
) -> set[str]:
    """Return the names of the checks to make.

    Raises:
        ConfigError: there is no check of that name.
    """
    known = [check.name for check in checks]
    for name in (*only, *skip):
        if name not in known:
            near = meant(name, known) or f"; there are: {', '.join(known)}"
            raise ConfigError(f"unknown check {name!r}{near}")
    return {name for name in known if name in (only or known) and name not in skip}


async def expected_error(work: Awaitable[object], what: str) -> None:
    """Await ``work``, which must raise a SpecstreamError; ``what`` it is that must be refused."""
    try:
        await work
    except SpecstreamError:
        return
    raise PromiseBroken(f"{what} was not refused by a SpecstreamError")


class Pulse:
    """Beats while other tasks work: ``beats`` counts, ``pause_s`` is the longest time between two.

    Most beats are a turn of the loop. Every tenth waits half a millisecond, or the clock of a loop of
    virtual time would stand still.
    """

    def __init__(self) -> None:
        self.beats = 0
        self.pause_s = 0.0

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[Pulse, None]:
        """Beat inside of the block. Leaving it stops the task."""
        task = asyncio.create_task(self._beat())
        await asyncio.sleep(0)
        try:
            yield self
        finally:
            task.cancel()
            await asyncio.wait({task})

    async def _beat(self) -> None:
        last = time.perf_counter()
        try:
            while True:
                await asyncio.sleep(0 if self.beats % 10 else 0.0005)
                self.beats += 1
                last, before = time.perf_counter(), last
                self.pause_s = max(self.pause_s, last - before)
        finally:
            self.pause_s = max(self.pause_s, time.perf_counter() - last)


async def loop_stays_free(work: Callable[[], Awaitable[object]]) -> None:
    """Require that the event loop runs while ``work()`` does.

    A machine under load delays the loop, too: only what pauses it in each of several attempts counts.
    """
    pauses = list[float]()
    for _ in range(_ATTEMPTS):
        async with Pulse().running() as pulse:
            await work()
        pauses.append(pulse.pause_s)
        if pauses[-1] < _BLOCKED_S:
            return
    raise PromiseBroken(
        f"the event loop stood still for {min(pauses) * 1e3:.0f} ms in each of {_ATTEMPTS} attempts; "
        "do what takes long on a thread"
    )


async def left_behind(work: Callable[[], Awaitable[object]]) -> None:
    """Require that ``work()``, which closes what it made, leaves no task and no thread running.

    The first call may start what the whole process shares. The event loop's pool of threads grows when
    none of them is idle yet, so only a thread for each call counts as left there.
    """
    await work()
    tasks, threads = asyncio.all_tasks(), set(threading.enumerate())
    for _ in range(_ATTEMPTS):
        await work()
    until = time.monotonic() + SETTLE_S
    while True:
        gc.collect()
        late = [f"task {task.get_name()!r}" for task in asyncio.all_tasks() - tasks]
        new = [one.name for one in set(threading.enumerate()) - threads]
        pool = [name for name in new if name.startswith("asyncio_")]
        new = new if len(pool) >= _ATTEMPTS else [name for name in new if name not in pool]
        late += [f"thread {name!r}" for name in new]
        if not late:
            return
        require(time.monotonic() < until, f"left running after aclose(): {', '.join(late[:5])}")
        await asyncio.sleep(0.01)


RATE = 16_000
_SYLLABLES = 8
_FORMANTS = ((700, 110), (1200, 120), (2500, 160))  # Hz: centre and width


@lru_cache(maxsize=1)
def babble() -> bytes:
    """Two seconds of vowels, four a second, at 16 kHz (s16 little-endian mono)."""
    time = np.arange(RATE * _SYLLABLES // 4) / RATE
    phase = 2 * np.pi * np.cumsum(120 + 12 * np.sin(2 * np.pi * 1.5 * time)) / RATE
    wave = np.zeros_like(time)
    for harmonic in range(1, 30):
        level = sum(np.exp(-(((120 * harmonic - f) / (2 * w)) ** 2)) for f, w in _FORMANTS)
        wave += (level + 0.02) * np.sin(harmonic * phase)
    wave *= 0.2 + 0.8 * np.sin(np.pi * 4 * time) ** 2
    pcm: bytes = (wave / np.abs(wave).max() * 14_000).astype("<i2").tobytes()
    return pcm


@lru_cache(maxsize=16)
def at_rate(pcm: bytes, rate: int) -> bytes:
    """Convert sound of 16 kHz to another sample rate."""
    if rate == RATE:
        return pcm
    resampler = Resampler(RATE, rate)
    return resampler.push(pcm) + resampler.flush()


def in_pieces(pcm: bytes, samples: int) -> list[bytes]:
    """Cut sound into pieces of so many samples."""
    size = 2 * samples
    return [pcm[at : at + size] for at in range(0, len(pcm), size)]
