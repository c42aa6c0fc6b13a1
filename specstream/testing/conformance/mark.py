"""What a mark of speech promises (`specstream.stages.AudioMark`), one check a promise."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import NamedTuple

import numpy as np

from specstream.errors import SpecstreamError
from specstream.stages.interfaces import AudioMark, MarkCapabilities, MarkTrack
from specstream.stages.marking import MAX_DELAY_MS
from specstream.testing.conformance.checks import (
    UnderTest,
    apply_if,
    at_rate,
    collected,
    in_pieces,
    left_behind,
    loop_stays_free,
    may_refuse,
    require,
)

__all__ = ["MARK_CHECKS"]

_RATES = (16_000, 24_000, 22_050, 48_000, 8_000)  # of voices; the usual ones first
_SIZES = (331, 960, 4096)  # samples of a piece
_TINY = 40  # samples that are given one by one
_BLOCK = 400  # samples; in each the marked sound is still mostly the sound that was given
_QUIET = 1e-4  # of the loudest block's energy: such blocks are too quiet to be recognised
_CHANGED = 0.5  # of a block's energy: a mark changes less


class _MarkedSound(NamedTuple):
    """What came back of a phrase; ``late``: the most samples that were held back after a piece."""

    pcm: bytes
    late: int
    early: int


@asynccontextmanager
async def _opened(subject: UnderTest[AudioMark]) -> AsyncGenerator[AudioMark, None]:
    mark = await subject.new()
    try:
        yield mark
    finally:
        await mark.aclose()


def _rates(mark: AudioMark) -> list[int]:
    """Those of the usual rates that it takes."""
    taken = list[int]()
    for rate in _RATES:
        with suppress(SpecstreamError):
            mark.open(rate)
            taken.append(rate)
    require(bool(taken), f"it takes none of the rates {', '.join(map(str, _RATES))}")
    return taken


async def _mark(track: MarkTrack, pieces: Sequence[bytes]) -> _MarkedSound:
    got, given, late, early = b"", 0, 0, 0
    for piece in pieces:
        given += len(piece) // 2
        got += bytes(await track.add(piece))
        ahead = len(got) // 2 - given
        late, early = max(late, -ahead), max(early, ahead)
    return _MarkedSound(got + bytes(await track.close()), late, early)


async def _marked(mark: AudioMark, pcm: bytes, samples: int, rate: int) -> _MarkedSound:
    return await _mark(mark.open(rate), in_pieces(pcm, samples))


def _energies(pcm: bytes, other: bytes | None = None) -> list[float]:
    sound = np.frombuffer(pcm, "<i2").astype(np.float64)
    sound = sound if other is None else sound - np.frombuffer(other, "<i2")
    return [float(np.sum(sound[at : at + _BLOCK] ** 2)) for at in range(0, len(sound), _BLOCK)]


def _misplaced(given: bytes, got: bytes) -> list[int]:
    """The blocks that don't sound as those that were given."""
    loud = _energies(given)
    least = max(loud, default=0.0) * _QUIET
    changed = enumerate(zip(loud, _energies(got, given), strict=True))
    return [at for at, (own, off) in changed if own > least and off > _CHANGED * own]


async def capabilities(subject: UnderTest[AudioMark]) -> None:
    """The capabilities are `MarkCapabilities` with a name and a delay of at most a second."""
    async with _opened(subject) as mark:
        facts = mark.capabilities
        require(isinstance(facts, MarkCapabilities), f"they are {type(facts).__name__}")
        require(bool(facts.name), "the name is empty")
        delay: object = facts.delay_ms
        fits = isinstance(delay, int | float) and 0 <= delay <= MAX_DELAY_MS
        require(fits, f"the delay is {delay!r} ms")


async def count(subject: UnderTest[AudioMark]) -> None:
    """As many samples come back as were given, at every rate that it takes, in pieces of any size."""
    async with _opened(subject) as mark:
        for rate in _rates(mark):
            sound = at_rate(subject.speech, rate)
            for samples in (*_SIZES, len(sound)):
                got = (await _marked(mark, sound, samples, rate)).pcm
                cut = f"at {rate} Hz, in pieces of {samples} samples"
                require(len(got) % 2 == 0, f"half a sample came back {cut}")
                number = f"{len(got) // 2} of {len(sound) // 2} samples came back {cut}"
                require(len(got) == len(sound), number)


async def order(subject: UnderTest[AudioMark]) -> None:
    """Every sample comes back once and in its place: the sound is still the sound that was given."""
    async with _opened(subject) as mark:
        for rate in _rates(mark):
            sound = at_rate(subject.speech, rate)
            for samples in _SIZES:
                got = (await _marked(mark, sound, samples, rate)).pcm
                apply_if(len(got) == len(sound), "not as many samples came back as were given")
                wrong = _misplaced(sound, got)
                where = f"the samples {', '.join(str(at * _BLOCK) for at in wrong[:5])} at {rate} Hz"
                require(not wrong, f"in pieces of {samples}, other sound at {where}")


async def delay(subject: UnderTest[AudioMark]) -> None:
    """No more is held back than the capabilities say, and nothing comes ahead of what was given."""
    async with _opened(subject) as mark:
        for rate in _rates(mark):
            most = math.ceil(rate * mark.capabilities.delay_ms / 1e3)
            for samples in _SIZES:
                got = await _marked(mark, at_rate(subject.speech, rate), samples, rate)
                held = f"at {rate} Hz {got.late} samples were held back, {most} are declared"
                require(got.late <= most, held)
                require(not got.early, f"at {rate} Hz {got.early} samples came too early")


async def one_by_one(subject: UnderTest[AudioMark]) -> None:
    """Single samples, and pieces of none, are no error and change no count."""
    async with _opened(subject) as mark:
        rate = _rates(mark)[0]
        sound = at_rate(subject.speech, rate)[: 2 * _TINY]
        pieces = [part for one in in_pieces(sound, 1) for part in (one, b"")]
        got = (await _mark(mark.open(rate), pieces)).pcm
        require(len(got) == len(sound), f"{len(got) // 2} of {_TINY} samples came back")


async def no_speech(subject: UnderTest[AudioMark]) -> None:
    """A phrase without audio has none afterwards."""
    async with _opened(subject) as mark:
        for rate in _rates(mark):
            for pieces in ([], [b""]):
                got = (await _mark(mark.open(rate), pieces)).pcm
                require(not got, f"{len(got)} bytes came back of no audio")


async def unusual_sound(subject: UnderTest[AudioMark]) -> None:
    """Silence and the loudest possible audio are no error and keep their number of samples."""
    async with _opened(subject) as mark:
        rate = _rates(mark)[0]
        for sound in (bytes(2 * rate), b"\xff\x7f" * rate, (b"\xff\x7f" + b"\x00\x80") * rate):
            got = (await _marked(mark, sound, _SIZES[0], rate)).pcm
            number = f"{len(got) // 2} of {len(sound) // 2} samples came back"
            require(len(got) == len(sound), number)


async def unknown_rate(subject: UnderTest[AudioMark]) -> None:
    """A sample rate that no voice has is taken, or refused by a SpecstreamError."""
    async with _opened(subject) as mark:
        for rate in (0, 12_345, 192_000):
            with may_refuse():
                mark.open(rate)


async def phrases_apart(subject: UnderTest[AudioMark]) -> None:
    """Nothing is left of a phrase in the next one, nor in the next turn's."""
    async with _opened(subject) as mark:
        apply_if(mark.capabilities.deterministic, "it isn't deterministic")
        rate = _rates(mark)[0]
        sound = at_rate(subject.speech, rate)
        first = await _marked(mark, sound, _SIZES[0], rate)
        second = await _marked(mark, sound, _SIZES[0], rate)
        require(first.pcm == second.pcm, "the same phrase is marked otherwise the second time")


async def interrupted(subject: UnderTest[AudioMark]) -> None:
    """A phrase that is given up half-way, and one whose work is cancelled, leave nothing behind."""
    async with _opened(subject) as mark:
        rate = _rates(mark)[0]
        sound = at_rate(subject.speech, rate)
        alone = await _marked(mark, sound, _SIZES[1], rate)
        await mark.open(rate).add(sound[: 2 * _SIZES[0]])
        task = asyncio.ensure_future(mark.open(rate).add(sound))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait({task})
        got = await _marked(mark, sound, _SIZES[1], rate)
        number = f"{len(got.pcm) // 2} of {len(sound) // 2} samples came back of the next phrase"
        require(len(got.pcm) == len(sound), number)
        same = not mark.capabilities.deterministic or got.pcm == alone.pcm
        require(same, "the next phrase is marked otherwise than it is alone")


async def loop_free(subject: UnderTest[AudioMark]) -> None:
    """The event loop runs while it works."""
    async with _opened(subject) as mark:
        rate = _rates(mark)[0]
        sound = at_rate(subject.speech, rate)
        await loop_stays_free(lambda: _marked(mark, sound, len(sound), rate))


async def closes(subject: UnderTest[AudioMark]) -> None:
    """It can be closed twice, and without having marked anything."""
    async with _opened(subject) as mark:
        await mark.aclose()


async def nothing_left(subject: UnderTest[AudioMark]) -> None:
    """It leaves no task and no thread behind once it is closed."""

    async def work() -> None:
        async with _opened(subject) as mark:
            rate = _rates(mark)[0]
            await _marked(mark, at_rate(subject.speech, rate)[:rate], _SIZES[1], rate)

    await left_behind(work)


MARK_CHECKS = collected("mark", (
    capabilities, count, order, delay, one_by_one, no_speech, unusual_sound, unknown_rate,
    phrases_apart, interrupted, loop_free, closes, nothing_left,
))  # fmt: skip
"""The checks of a mark, in order."""
