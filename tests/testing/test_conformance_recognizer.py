"""Recognisers that ship keep their contract; each broken one is found by the right check."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from specstream.errors import AdapterFailed
from specstream.listening.interfaces import HeardWord, RecognizerCapabilities, Transcript
from specstream.testing import ScriptedRecognizer, check_recognizer
from specstream_adapters.ears.whisper import WhisperRecognizer
from tests.support.spoken import needs_ears, spoken_question


@pytest.fixture(scope="module")
def speech() -> bytes:
    return spoken_question()


@pytest.mark.slow
@needs_ears
@pytest.mark.parametrize("words", [pytest.param(False, marks=pytest.mark.nightly), True])
async def test_whisper_passes(speech: bytes, words: bool) -> None:
    report = await check_recognizer(lambda: WhisperRecognizer(words=words), speech=speech)
    report.assert_passed()
    assert not report.skipped


@pytest.mark.virtual_time
async def test_the_scripted_recogniser_passes_at_its_own_pace(speech: bytes) -> None:
    def make() -> ScriptedRecognizer:
        return ScriptedRecognizer(["yes"], takes_s=0.2, real_time_factor=0.1)

    its_text = ["silence", "silence_around"]  # that is what it hears, whatever it is given
    report = await check_recognizer(make, speech=speech, skip=its_text)
    report.assert_passed()
    (await check_recognizer(lambda: ScriptedRecognizer([""]), only=["silence"])).assert_passed()


class Hearing:
    """Hears a "la" for every quarter of a second that is loud; a subclass breaks one thing."""

    capabilities = RecognizerCapabilities("la", (16_000, 8_000), ("en",), words=True)

    def __init__(self) -> None:
        self.closed = False

    def open(self, sample_rate: int, *, language: str | None = None) -> HearingStream:
        return HearingStream(self, sample_rate)

    async def read(self, pcm: bytes, rate: int) -> Transcript:
        await asyncio.sleep(0.05)  # as a thread would take
        return self.transcript(pcm, rate)

    def transcript(self, pcm: bytes, rate: int) -> Transcript:
        quarters = [pcm[at : at + rate // 2] for at in range(0, len(pcm), rate // 2)]
        starts = [250.0 * n for n, part in enumerate(quarters) if any(part)]
        words = tuple(HeardWord("la", at, at + 250) for at in starts)
        return Transcript(" ".join(word.text for word in words), words, "en")

    async def aclose(self) -> None:
        self.closed = True


class HearingStream:
    def __init__(self, owner: Any, rate: int) -> None:
        self.owner, self.rate = owner, rate
        self.pcm, self.known = bytearray(), (0, Transcript(""))
        self.closed = False

    def add(self, pcm: bytes) -> None:
        self.pcm += pcm

    async def partial(self) -> Transcript:
        if self.closed:
            raise AdapterFailed("the stream is closed")
        if self.known[0] != len(self.pcm):
            given = bytes(self.pcm)
            self.known = (len(given), await self.owner.read(given, self.rate))
        return self.known[1]

    async def finish(self) -> Transcript:
        return await self.partial()

    async def aclose(self) -> None:
        self.closed = True


class Thankful(Hearing):
    """It hears something in silence, as Whisper does."""

    def transcript(self, pcm: bytes, rate: int) -> Transcript:
        heard = super().transcript(pcm, rate)
        return heard if any(pcm) else Transcript("Thank you.", (HeardWord("you", 0, 9),), "en")


class Padded(Hearing):
    """Its text begins with white space."""

    def transcript(self, pcm: bytes, rate: int) -> Transcript:
        heard = super().transcript(pcm, rate)
        return Transcript(" " + heard.text, heard.words, heard.language)


class Timeless(Hearing):
    """It says that it gives times, and gives none."""

    def transcript(self, pcm: bytes, rate: int) -> Transcript:
        return Transcript(super().transcript(pcm, rate).text)


class OtherWords(Hearing):
    """Its words aren't those of its text."""

    def transcript(self, pcm: bytes, rate: int) -> Transcript:
        heard = super().transcript(pcm, rate)
        return replace(heard, words=tuple(replace(word, text="blah") for word in heard.words))


class DeafAtTheEnd(Hearing):
    """It doesn't hear the last second."""

    def transcript(self, pcm: bytes, rate: int) -> Transcript:
        return super().transcript(pcm[: -2 * rate], rate)


class FromTheFirstSound(Hearing):
    """Its times count from the first sound, as those of a recogniser behind a voice detector."""

    def transcript(self, pcm: bytes, rate: int) -> Transcript:
        return super().transcript(pcm.lstrip(b"\0"), rate)


class StaleStream(HearingStream):
    async def finish(self) -> Transcript:
        return self.known[1] if self.known[0] else await self.partial()


class Stale(Hearing):
    """Its last transcript is the last partial, whatever was said after that."""

    def open(self, sample_rate: int, *, language: str | None = None) -> HearingStream:
        return StaleStream(self, sample_rate)


class TwiceStream(HearingStream):
    async def finish(self) -> Transcript:
        return await self.owner.read(bytes(self.pcm), self.rate)  # type: ignore[no-any-return]


class Twice(Hearing):
    """At the end it reads all of the audio again."""

    def open(self, sample_rate: int, *, language: str | None = None) -> HearingStream:
        return TwiceStream(self, sample_rate)


class FragileStream(HearingStream):
    async def partial(self) -> Transcript:
        try:
            return await super().partial()
        except asyncio.CancelledError:
            self.pcm.clear()
            raise


class Fragile(Hearing):
    """A partial that is cancelled loses the audio; at the end it is kept."""

    def open(self, sample_rate: int, *, language: str | None = None) -> HearingStream:
        return FragileStream(self, sample_rate)


class Mixing(Hearing):
    """The streams that are read at once share one buffer."""

    latest = b""

    async def read(self, pcm: bytes, rate: int) -> Transcript:
        self.latest = pcm
        await asyncio.sleep(0.05)
        return self.transcript(self.latest, rate)


class PieceStream(HearingStream):
    def add(self, pcm: bytes) -> None:
        self.pcm += pcm[: len(pcm) // 800 * 800]


class Framed(Hearing):
    """It drops what doesn't fill a frame of 25 ms."""

    def open(self, sample_rate: int, *, language: str | None = None) -> HearingStream:
        return PieceStream(self, sample_rate)


class UntypedStream(HearingStream):
    async def partial(self) -> Transcript:
        if self.closed:
            raise ValueError("closed")
        return await super().partial()


class Untyped(Hearing):
    """A closed stream raises an error that isn't ours."""

    def open(self, sample_rate: int, *, language: str | None = None) -> HearingStream:
        return UntypedStream(self, sample_rate)


class Seconds(Hearing):
    """Its words' times are seconds."""

    def transcript(self, pcm: bytes, rate: int) -> Transcript:
        heard = super().transcript(pcm, rate)
        words = [replace(w, start_ms=w.start_ms / 1e3, end_ms=w.end_ms / 1e3) for w in heard.words]
        return replace(heard, words=tuple(words))


class English(Hearing):
    """It gives the name of a language, not its code."""

    def transcript(self, pcm: bytes, rate: int) -> Transcript:
        return replace(super().transcript(pcm, rate), language="english")


class OneRate(Hearing):
    """Its only sample rate isn't in a tuple."""

    capabilities = RecognizerCapabilities("la", 16_000, ("en",), words=True)  # type: ignore[arg-type]


async def test_a_recogniser_of_another_shape_is_told_so_once() -> None:
    report = await check_recognizer(OneRate, only=["capabilities", "silence", "pieces"])
    with pytest.raises(AssertionError, match="^capabilities, silence, pieces: sample_rates is 16000"):
        report.assert_passed()


@pytest.mark.slow
@pytest.mark.virtual_time
@pytest.mark.parametrize(
    ("broken", "found"),
    [
        (Seconds, "words_claimed"),
        (English, "transcript"),
        (Thankful, "silence"),
        (Padded, "transcript"),
        (Timeless, "words_claimed"),
        (OtherWords, "words_claimed"),
        (Stale, "finish_hears_the_rest"),
        (Twice, "finish_costs_nothing"),
        (Mixing, "streams_apart"),
        (Framed, "pieces"),
        (Untyped, "after_close"),
    ],
)
async def test_a_broken_recogniser_is_found_by_the_check_for_its_fault(
    broken: Callable[[], Hearing], found: str
) -> None:
    report = await check_recognizer(broken)
    assert report.failed == (found,), report.lines()


@pytest.mark.virtual_time
@pytest.mark.parametrize("broken", [DeafAtTheEnd, FromTheFirstSound])
async def test_a_recogniser_that_silence_changes_is_found(
    speech: bytes, broken: Callable[[], Hearing]
) -> None:
    report = await check_recognizer(broken, speech=speech, only=["silence_around"])
    assert report.failed == ("silence_around",), report.lines()


@pytest.mark.virtual_time
async def test_a_recogniser_whose_partials_can_t_be_cancelled_is_found() -> None:
    report = await check_recognizer(Fragile)
    # Its finish is a partial, so both checks are about it.
    assert report.failed == ("cancel_partial", "cancel_finish"), report.lines()


class Blocking(Hearing):
    """It works on the event loop."""

    async def read(self, pcm: bytes, rate: int) -> Transcript:
        time.sleep(0.3)  # noqa: ASYNC251 - the fault
        return self.transcript(pcm, rate)


async def test_a_recogniser_that_blocks_the_loop_is_found() -> None:
    report = await check_recognizer(Blocking, only=["transcript", "loop_free"])
    assert report.failed == ("loop_free",), report.lines()


@pytest.mark.virtual_time
async def test_an_honest_recogniser_of_the_same_make_passes(speech: bytes) -> None:
    report = await check_recognizer(Hearing, speech=speech)
    report.assert_passed()
    assert not report.skipped
