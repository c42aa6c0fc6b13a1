"""Audio on its way out: the sample clock, the rate conversion, the pacing."""

from random import Random

import anyio
import numpy as np
import numpy.typing as npt
import pytest

from specstream.errors import AdapterFailed
from specstream.listening.resampler import Resampler
from specstream.server.sessions.audio import AudioPacer, Piece
from specstream.server.sessions.timings import FirstAudible
from specstream.signals import LoopClock
from specstream.types import Mark, Span, Speech
from tests.server.doubles import FreeClock, HandClock

RATES = [8000, 11000, 11025, 16000, 22050, 24000, 44100, 48000]


def sine(rate: int, hz: float, seconds: float) -> npt.NDArray[np.float64]:
    return 12000 * np.sin(2 * np.pi * hz * np.arange(int(rate * seconds)) / rate)


def pcm(samples: npt.NDArray[np.float64]) -> bytes:
    return np.rint(samples).astype("<i2").tobytes()


@pytest.mark.parametrize("rate", RATES)
def test_a_tone_keeps_its_pitch_phase_and_length_however_it_is_cut(rate: int) -> None:
    source = pcm(sine(rate, 1000, 0.5))
    whole = Resampler(rate, 24_000)
    out = whole.push(source) + whole.flush()
    assert len(out) // 2 == -(-(len(source) // 2) * 24000 // rate)
    made = np.frombuffer(out, "<i2")[200:-200].astype(float)
    wanted = sine(24000, 1000, 0.6)[200 : 200 + len(made)]
    error = made - wanted
    assert 10 * np.log10((wanted**2).mean() / (error**2).mean()) > 80
    random, cut, at, pieces = Random(rate), Resampler(rate, 24_000), 0, b""
    while at < len(source):
        size = 2 * random.choice([0, 1, 2, 7, 100, 1323, 5000])
        pieces += cut.push(source[at : at + size])
        at += size
    assert pieces + cut.flush() == out


@pytest.mark.parametrize("rate", [8000, 22050, 48000])
def test_nothing_is_added_to_the_sound(rate: int) -> None:
    """Images (upsampling) and aliases (downsampling) stay below -80 dB."""
    loud = rate / 2 * 0.8 if rate < 24000 else 20000
    resampler = Resampler(rate, 24_000)
    out = np.frombuffer(resampler.push(pcm(sine(rate, loud, 1.0))) + resampler.flush(), "<i2")
    spectrum = np.abs(np.fft.rfft(out * np.kaiser(len(out), 14)))
    peak = int(loud * len(out) / 24000)
    tone = 12000 * np.kaiser(len(out), 14).sum() / 2
    if rate < 24000:
        spectrum[peak - 30 : peak + 30] = 0
    assert 20 * np.log10(spectrum.max() / tone) < -80


def test_short_and_empty_inputs() -> None:
    for rate in RATES:
        for count in (0, 1, 2, 50):
            resampler = Resampler(rate, 24_000)
            out = resampler.push(b"\x01\x00" * count) + resampler.flush()
            assert len(out) // 2 == -(-count * 24000 // rate)


def speech(start: int, count: int, rate: int, phrase: int = 0, words: bool = False) -> Speech:
    marks = (Mark("word", f"w{phrase}", Span(start, start + count), Span(0, 2)),) if words else ()
    where = (Span(phrase, phrase + 1), Span(phrase, phrase + 1), phrase)
    return Speech(b"\x00\x01" * count, rate, Span(start, start + count), marks, *where)


async def drain(pacer: AudioPacer) -> list[Piece]:
    pieces = []
    while (piece := await pacer.take()) is not None:
        pieces.append(piece)
    return pieces


@pytest.mark.parametrize("rate", RATES)
async def test_every_sample_is_counted_once_and_knows_its_phrase(rate: int) -> None:
    pacer = AudioPacer(FreeClock(), lead_s=2.0, buffer_s=60.0)
    random, at, edges = Random(rate), 0, []
    for phrase in range(5):
        for last in (False, False, True):
            count = random.randrange(1, rate // 5)
            pacer.put(speech(at, count, rate, phrase, words=last))
            at += count
        edges.append(-(-at * 24000 // rate))
    pacer.finish()
    pieces = await drain(pacer)
    clock = 0
    for piece in pieces:
        assert piece.samples == (clock, clock + len(piece.pcm) // 2)
        assert piece.samples.length <= 2400
        clock = piece.samples.end
        phrase = piece.tokens.start
        assert piece.samples.end <= edges[phrase]
        assert phrase == 0 or piece.samples.start >= edges[phrase - 1]
    assert clock == edges[-1]
    words = [word for piece in pieces for word in piece.words] + list(pacer.unsent())
    assert [word.text for word in words] == [f"w{phrase}" for phrase in range(5)]
    assert [word.samples.end for word in words] == edges


async def test_audio_leaves_no_further_ahead_than_the_lead() -> None:
    clock = HandClock()
    pacer = AudioPacer(clock, lead_s=0.5 + 1e-6, buffer_s=60.0)  # against rounding
    left: list[tuple[float, int]] = []

    async def play() -> None:
        while (piece := await pacer.take()) is not None:
            left.append((clock.now(), piece.samples.end))

    async with anyio.create_task_group() as group:
        group.start_soon(play)
        for index in range(20):
            pacer.put(speech(index * 2400, 2400, 24000))
        await anyio.wait_all_tasks_blocked()
        assert left[-1] == (0.0, 12000), "the first half second goes at once"
        for _ in range(15):
            clock.advance(0.1)
            await anyio.wait_all_tasks_blocked()
        assert left[-1][1] == 48000
        pacer.finish()
        clock.advance(1.0)  # everything was heard long ago: play-out stands still
        await anyio.wait_all_tasks_blocked()
    assert all(end / 24000 - now <= 0.5 + 1e-5 for now, end in left)
    assert [end for _, end in left] == [2400 * n for n in range(1, 21)]


async def test_after_a_gap_in_the_speech_the_lead_starts_anew() -> None:
    clock = HandClock()
    pacer = AudioPacer(clock, lead_s=0.5, buffer_s=60.0)
    pacer.put(speech(0, 2400, 24000))
    assert await pacer.take() is not None
    assert pacer.heard_s == 0.0
    clock.advance(0.06)
    assert pacer.heard_s == pytest.approx(0.06)
    clock.advance(99.94)
    assert pacer.heard_s == pytest.approx(0.1), "no more than what has left"
    for index in range(1, 21):
        pacer.put(speech(index * 2400, 2400, 24000))
    taken = []
    with anyio.CancelScope() as scope:
        async with anyio.create_task_group() as group:

            async def play() -> None:
                while (piece := await pacer.take()) is not None:
                    taken.append(piece)

            group.start_soon(play)
            await anyio.wait_all_tasks_blocked()
            scope.cancel()
    assert len(taken) == 5, "half a second, although ten seconds were missed"


async def test_a_full_buffer_holds_the_voice_back_and_a_drop_lets_it_go() -> None:
    clock = HandClock()
    pacer = AudioPacer(clock, lead_s=0.2, buffer_s=1.0)
    put = 0

    async def fill() -> None:
        nonlocal put
        for index in range(100):
            await pacer.room()
            pacer.put(speech(index * 2400, 2400, 24000))
            put += 1

    async with anyio.create_task_group() as group:
        group.start_soon(fill)
        await anyio.wait_all_tasks_blocked()
        assert put == 11
        await pacer.take()
        await anyio.wait_all_tasks_blocked()
        assert put == 12
        pacer.stop()
    assert put == 100
    assert await pacer.take() is None


async def test_a_voice_that_skips_samples_is_caught() -> None:
    pacer = AudioPacer(FreeClock(), lead_s=2.0, buffer_s=60.0)
    pacer.put(speech(0, 100, 24000))
    for wrong in (speech(101, 100, 24000), speech(0, 100, 24000), speech(100, 100, 16000)):
        with pytest.raises(AdapterFailed, match="where 100 at 24000 Hz was due"):
            pacer.put(wrong)


def test_the_first_audible_sample_is_heard_when_what_lies_before_it_was_played() -> None:
    audible = FirstAudible()
    assert not audible.add(0, 1000, b"", 1.0)
    assert not audible.add(0, 1000, pcm(np.full(100, 327.0)), 20.0), "silence"
    assert audible.add(100, 1000, pcm(np.array([0.0, 5.0, -400.0, 0.0])), 50.0)
    assert audible.first_ms == 20.0
    assert audible.ttfa_ms == 20.0 + 102.0
    assert not audible.add(104, 1000, pcm(np.full(100, 900.0)), 500.0)
    late = FirstAudible()
    assert late.add(0, 1000, pcm(np.array([900.0])), 5.0)
    assert late.ttfa_ms == 5.0


def test_audio_that_comes_late_is_heard_when_it_comes() -> None:
    audible = FirstAudible()
    audible.add(0, 1000, pcm(np.zeros(10)), 0.0)
    assert audible.add(10, 1000, pcm(np.array([900.0])), 300.0)
    assert audible.ttfa_ms == 300.0


async def test_the_systems_clock_returns_at_once_for_the_past() -> None:
    clock = LoopClock()
    now = clock.now()
    await clock.sleep_until(now - 5)
    assert clock.now() >= now
