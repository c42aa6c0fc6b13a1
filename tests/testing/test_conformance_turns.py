"""Turn detectors that ship keep their contract; each broken one is found by the right check."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from specstream.errors import AdapterFailed
from specstream.listening.interfaces import SpeechStarted, SpeechStopped, TurnCapabilities, VoiceActivity
from specstream.testing import ScriptedTurnDetector, check_turns
from specstream_adapters.ears.silero import SileroDetector
from tests.support.spoken import needs_ears, spoken_question


@pytest.fixture(scope="module")
def speech() -> bytes:
    return spoken_question()


@pytest.mark.slow
@needs_ears
async def test_silero_passes(speech: bytes) -> None:
    report = await check_turns(SileroDetector, speech=speech)
    report.assert_passed()
    assert report.skipped == ("ended",)


@pytest.mark.slow
@needs_ears
async def test_silero_passes_without_speech() -> None:
    (await check_turns(SileroDetector)).assert_passed()


async def test_the_scripted_detector_passes() -> None:
    report = await check_turns(ScriptedTurnDetector)
    report.assert_passed()
    assert report.skipped == ("pieces", "ended", "no_rate")


class Detecting:
    """Finds what is loud, in frames of 32 ms; a subclass breaks one thing."""

    capabilities = TurnCapabilities("loud", (16_000, 8_000))
    stop_frames = 6

    def open(self, sample_rate: int, *, threshold: float = 0.5) -> DetectingTrack:
        if sample_rate not in self.capabilities.sample_rates:
            raise AdapterFailed(f"not at {sample_rate} Hz")
        return DetectingTrack(self, sample_rate)

    def given(self, found: list[VoiceActivity]) -> Sequence[VoiceActivity]:
        return found


class DetectingTrack:
    def __init__(self, owner: Detecting, rate: int) -> None:
        self.owner, self.size = owner, 2 * rate * 32 // 1000
        self.left, self.frames, self.loud_to, self.speaking = b"", 0, 0, False

    def add(self, pcm: bytes) -> Sequence[VoiceActivity]:
        data, found = self.left + pcm, list[VoiceActivity]()
        while len(data) >= self.size:
            frame, data = data[: self.size], data[self.size :]
            self.frames += 1
            if any(frame):
                self.loud_to = self.frames
            if any(frame) and not self.speaking:
                self.speaking = True
                found.append(SpeechStarted(32.0 * (self.frames - 1)))
            elif self.speaking and self.frames - self.loud_to >= self.owner.stop_frames:
                self.speaking = False
                found.append(SpeechStopped(32.0 * self.loud_to))
        self.left = data
        return self.owner.given(found)


class StartsTwice(Detecting):
    """It reports each start as often as it likes."""

    def given(self, found: list[VoiceActivity]) -> Sequence[VoiceActivity]:
        return [one for one in found for _ in range(2 if isinstance(one, SpeechStarted) else 1)]


class Ahead(Detecting):
    """Its times are half a minute late."""

    def given(self, found: list[VoiceActivity]) -> Sequence[VoiceActivity]:
        return [type(one)(one.at_ms + 30_000) for one in found]


class Patient(Detecting):
    """It waits for most of a second before it reports a stop."""

    stop_frames = 25


class DroppingTrack(DetectingTrack):
    def add(self, pcm: bytes) -> Sequence[VoiceActivity]:
        found = super().add(pcm)
        self.left = b""
        return found


class Dropping(Detecting):
    """It drops what doesn't fill a frame."""

    def open(self, sample_rate: int, *, threshold: float = 0.5) -> DetectingTrack:
        return DroppingTrack(self, super().open(sample_rate).size * 1000 // 64)


class Untracked(Detecting):
    """It has one track for everybody at once; a new one begins when the last has heard nothing."""

    def __init__(self) -> None:
        self.track: DetectingTrack | None = None

    def open(self, sample_rate: int, *, threshold: float = 0.5) -> DetectingTrack:
        if self.track is None or self.track.frames:
            self.track = super().open(sample_rate)
        return self.track


class AnyRate(Detecting):
    """It divides by the sample rate."""

    def open(self, sample_rate: int, *, threshold: float = 0.5) -> DetectingTrack:
        assert 16_000 / sample_rate
        return super().open(sample_rate)


class Scared(DetectingTrack):
    def add(self, pcm: bytes) -> Sequence[VoiceActivity]:
        if pcm[:2] == b"\xff\x7f":
            raise OverflowError(32767)
        return super().add(pcm)


class Overflowing(Detecting):
    """It breaks on the loudest sample."""

    def open(self, sample_rate: int, *, threshold: float = 0.5) -> DetectingTrack:
        super().open(sample_rate)
        return Scared(self, sample_rate)


class Guessing(Detecting):
    """Its probability that the speaker is done is a percentage."""

    def ended(self, pcm: bytes) -> float:
        return 80.0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("broken", "found"),
    [
        (StartsTwice, "alternate"),
        (Ahead, "in_audio"),
        (Patient, "stops_soon"),
        (Dropping, "pieces"),
        (Untracked, "tracks_apart"),
        (AnyRate, "no_rate"),
        (Overflowing, "loud"),
        (Guessing, "ended"),
    ],
)
async def test_a_broken_turn_detector_is_found_by_the_check_for_its_fault(
    broken: Callable[[], Detecting], found: str
) -> None:
    report = await check_turns(broken)
    assert report.failed == (found,), report.lines()


async def test_an_honest_turn_detector_of_the_same_make_passes(speech: bytes) -> None:
    report = await check_turns(Detecting, speech=speech)
    assert report.failed == (), report.lines()
