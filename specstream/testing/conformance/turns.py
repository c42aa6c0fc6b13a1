"""What a turn detector promises (`specstream.listening.TurnDetector`), one check a promise."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Sequence

from specstream.listening.interfaces import (
    EndOfTurnDetector,
    SpeechStarted,
    SpeechStopped,
    TurnCapabilities,
    TurnDetector,
    VoiceActivity,
)
from specstream.testing.conformance.checks import (
    UnderTest,
    apply_if,
    at_rate,
    collected,
    expected_error,
    in_pieces,
    left_behind,
    may_refuse,
    require,
)

__all__ = ["TURN_CHECKS"]

_PAUSE_S = 1.0
_STOP_MS = 600  # of silence after which a stop must have been reported: three times what is promised
_LONG_S = 30
_SHARE = 0.5  # of the audio's duration, in CPU time of the thread, that is no small fraction of it
_WRONG_RATE = 12_345
_PIECE = 1_600

Tested = UnderTest[TurnDetector]


def _rate(detector: TurnDetector) -> int:
    return detector.capabilities.sample_rates[0]


def _talk(subject: Tested, rate: int) -> bytes:
    """Speech, a pause, and speech again, with silence before and after."""
    pause = bytes(2 * int(rate * _PAUSE_S))
    return pause + (at_rate(subject.speech, rate) + pause) * 2


def _found(
    detector: TurnDetector, audio: bytes, samples: int = _PIECE, rate: int | None = None
) -> list[VoiceActivity]:
    track = detector.open(rate or _rate(detector))
    return [one for piece in in_pieces(audio, samples) for one in track.add(piece)]


def _shown(found: Sequence[VoiceActivity]) -> str:
    signs = (f"{'start' if isinstance(o, SpeechStarted) else 'stop'} {o.at_ms:.0f}" for o in found)
    return ", ".join(list(signs)[:8])


async def capabilities(subject: Tested) -> None:
    """The capabilities are `TurnCapabilities` with a name and a sample rate at least."""
    facts = (await subject.new()).capabilities
    require(isinstance(facts, TurnCapabilities), f"they are {type(facts).__name__}")
    require(bool(facts.name), "the name is empty")
    require(bool(facts.sample_rates), "they name no sample rate")


async def rates(subject: Tested) -> None:
    """Every rate that the capabilities name can be opened, and hears no voice in silence."""
    detector = await subject.new()
    for rate in detector.capabilities.sample_rates:
        found = _found(detector, bytes(2 * rate), rate=rate)
        require(not found, f"at {rate} samples a second, silence is {_shown(found)}")


async def unknown_rate(subject: Tested) -> None:
    """A sample rate that the capabilities don't name is taken, or refused by a SpecstreamError."""
    detector = await subject.new()
    with may_refuse():
        detector.open(_WRONG_RATE)


async def thresholds(subject: Tested) -> None:
    """A track may have any threshold from 0 to 1."""
    detector = await subject.new()
    for threshold in (0.0, 0.3, 1.0):
        track = detector.open(_rate(detector), threshold=threshold)
        track.add(_talk(subject, _rate(detector)))


async def hears(subject: Tested) -> None:
    """Speech is found: a start in each of two stretches, and a stop after it."""
    detector = await subject.new()
    found = _found(detector, _talk(subject, _rate(detector)))
    apply_if(subject.understood or bool(found), "no speech was given to the checks")
    starts = sum(isinstance(one, SpeechStarted) for one in found)
    stops = sum(isinstance(one, SpeechStopped) for one in found)
    require(starts >= 2 and stops >= 2, f"two stretches of speech are {_shown(found) or 'nothing'}")


async def alternate(subject: Tested) -> None:
    """Starts and stops alternate, and a start comes first."""
    detector = await subject.new()
    rate = _rate(detector)
    for audio in (_talk(subject, rate), _talk(subject, rate)[3 * rate :]):
        found = _found(detector, audio)
        for number, one in enumerate(found):
            kind = SpeechStopped if number % 2 else SpeechStarted
            require(isinstance(one, kind), f"starts and stops don't alternate: {_shown(found)}")


async def forward(subject: Tested) -> None:
    """Times run forward."""
    detector = await subject.new()
    found = _found(detector, _talk(subject, _rate(detector)))
    times = [one.at_ms for one in found]
    require(times == sorted(times), f"times run backwards: {_shown(found)}")


async def in_audio(subject: Tested) -> None:
    """Nothing is reported before its audio came, and no time is below 0."""
    detector = await subject.new()
    rate = _rate(detector)
    track, given = detector.open(rate), 0
    for piece in in_pieces(_talk(subject, rate), _PIECE):
        given += len(piece) // 2
        for one in track.add(piece):
            end = given / rate * 1e3
            inside = math.isfinite(one.at_ms) and 0 <= one.at_ms <= end + 1
            require(inside, f"{one.at_ms} ms was reported after {end:.0f} ms of audio")


async def stops_soon(subject: Tested) -> None:
    """A stop is reported soon after the voice has ended, not seconds later."""
    detector = await subject.new()
    rate = _rate(detector)
    track, given = detector.open(rate), 0
    for piece in in_pieces(_talk(subject, rate), rate // 100):
        given += len(piece) // 2
        for one in track.add(piece):
            late = given / rate * 1e3 - one.at_ms
            soon = not isinstance(one, SpeechStopped) or late <= _STOP_MS
            require(soon, f"a stop at {one.at_ms:.0f} ms was reported {late:.0f} ms later")


async def pieces(subject: Tested) -> None:
    """The same audio in pieces of another size gives the same starts and stops."""
    detector = await subject.new()
    apply_if(not detector.capabilities.scripted, "a scripted detector hears piece by piece")
    audio = _talk(subject, _rate(detector))
    whole = _found(detector, audio, len(audio))
    for samples in (331, 4096):
        found = _found(detector, audio, samples)
        cut = f"{_shown(found)} in pieces of {samples} samples, {_shown(whole)} at once"
        require(found == whole, cut)


async def silence(subject: Tested) -> None:
    """Half a minute of silence, and no audio, give nothing."""
    detector = await subject.new()
    track = detector.open(_rate(detector))
    require(not track.add(b""), "something was heard in no audio")
    found = _found(detector, bytes(2 * _LONG_S * _rate(detector)))
    require(not found, f"silence is {_shown(found)}")


async def loud(subject: Tested) -> None:
    """The loudest possible audio is no error."""
    detector = await subject.new()
    rate = _rate(detector)
    _found(detector, (b"\xff\x7f" * 40 + b"\x00\x80" * 40) * (rate // 80))
    _found(detector, b"\xff\x7f" * rate)


async def repeats(subject: Tested) -> None:
    """The same audio gives the same in a second track: nothing is left of the first."""
    detector = await subject.new()
    audio = _talk(subject, _rate(detector))
    first, second = _found(detector, audio), _found(detector, audio)
    require(first == second, f"first {_shown(first)}, then {_shown(second)}")


async def tracks_apart(subject: Tested) -> None:
    """Two tracks at once hear what each hears alone."""
    detector = await subject.new()
    rate = _rate(detector)
    sounds = [_talk(subject, rate), bytes(len(_talk(subject, rate)))]
    alone = [_found(detector, sound) for sound in sounds]
    tracks = [detector.open(rate) for _ in sounds]
    found: list[list[VoiceActivity]] = [[] for _ in sounds]
    for parts in zip(*(in_pieces(sound, _PIECE) for sound in sounds), strict=True):
        for which, part in enumerate(parts):
            found[which] += tracks[which].add(part)
    for mine, wanted in zip(found, alone, strict=True):
        require(mine == wanted, f"beside another {_shown(mine)}, alone {_shown(wanted)}")


async def fast(subject: Tested) -> None:
    """It takes a small fraction of the audio's duration: it runs on the event loop.

    Counted in CPU time of the thread, so that a machine under load changes nothing.
    """
    detector = await subject.new()
    audio = _talk(subject, _rate(detector))
    duration, taken = len(audio) / 2 / _rate(detector), list[float]()
    for _ in range(3):
        began = time.thread_time()
        _found(detector, audio, _rate(detector) // 50)
        taken.append(time.thread_time() - began)
        if taken[-1] < _SHARE * duration:
            return
    require(False, f"{min(taken):.1f} s of CPU time for {duration:.1f} s of audio")


async def ended(subject: Tested) -> None:
    """If it hears whether the speaker is done, it says so by a probability, for any audio."""
    detector = await subject.new()
    apply_if(isinstance(detector, EndOfTurnDetector), "it doesn't hear whether the speaker is done")
    assert isinstance(detector, EndOfTurnDetector)
    speech = at_rate(subject.speech, _rate(detector))
    for audio in (speech, speech + bytes(_rate(detector)), bytes(2 * _rate(detector))):
        likely = await asyncio.to_thread(detector.ended, audio)
        require(0 <= likely <= 1, f"the probability is {likely!r}")


async def no_rate(subject: Tested) -> None:
    """A sample rate of 0 is refused by a SpecstreamError."""
    detector = await subject.new()
    apply_if(not detector.capabilities.scripted, "a scripted detector refuses nothing")

    async def ask() -> None:
        detector.open(0)

    await expected_error(ask(), "a sample rate of 0")


async def nothing_left(subject: Tested) -> None:
    """It leaves no task and no thread behind."""

    async def work() -> None:
        detector = await subject.new()
        _found(detector, bytes(2 * _rate(detector)))

    await left_behind(work)


TURN_CHECKS = collected("turns", (
    capabilities, rates, unknown_rate, thresholds, hears, alternate, forward, in_audio, stops_soon,
    pieces, silence, loud, repeats, tracks_apart, fast, ended, no_rate, nothing_left,
))  # fmt: skip
"""The checks of a turn detector, in order."""
