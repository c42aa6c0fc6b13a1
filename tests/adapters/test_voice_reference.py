"""What is particular to the test voice: exact samples, one sound a letter, spectra."""

import asyncio

import numpy as np
import pytest

from specstream.types import PAUSE, Mark, Phrase, Span, SpeechBuffer
from specstream_adapters.voice import ReferenceVoice, reference
from specstream_adapters.voice.reference import sound_of

TEXT = "The voice says: seven fish, $3.50 each! Is that all?"


def phrase(text: str) -> Phrase:
    return Phrase(text, Span(0, len(text)), Span(0, 1))


async def speak(voice: ReferenceVoice, text: str, slowly: bool = False) -> list[SpeechBuffer]:
    buffers = []
    async for buffer in voice.synthesize(phrase(text)):
        buffers.append(buffer)
        for _ in range(7 if slowly else 0):
            await asyncio.sleep(0)
    return buffers


async def test_the_same_phrase_is_always_the_same_bytes() -> None:
    voice = ReferenceVoice()
    first = await speak(voice, TEXT)
    assert await speak(voice, TEXT) == first
    assert await speak(ReferenceVoice(), TEXT, slowly=True) == first
    side = await asyncio.gather(speak(voice, TEXT), speak(voice, "Other words."))
    assert side[0] == first
    assert await speak(ReferenceVoice(seed=1), TEXT) != first
    assert voice.capabilities.deterministic


async def test_an_early_close_does_not_change_the_next_phrase() -> None:
    voice = ReferenceVoice()
    whole = await speak(voice, TEXT)
    stream = voice.synthesize(phrase(TEXT))
    assert await anext(stream) == whole[0]
    await stream.aclose()
    assert await speak(voice, TEXT) == whole


async def test_only_what_was_asked_for_is_rendered(monkeypatch: pytest.MonkeyPatch) -> None:
    rendered = 0

    def counted(*args: object) -> object:
        nonlocal rendered
        rendered += 1
        return sound_of(*args)

    monkeypatch.setattr(reference, "sound_of", counted)
    stream = ReferenceVoice().synthesize(phrase("mmm " * 50_000))
    for _ in range(3):
        await anext(stream)
    await stream.aclose()
    assert rendered == 3


@pytest.mark.parametrize("sample_rate", [8000, 16000, 22050, 48000])
async def test_every_sample_rate_says_the_same_in_the_same_time(sample_rate: int) -> None:
    usual = await speak(ReferenceVoice(), TEXT)
    other = await speak(ReferenceVoice(sample_rate=sample_rate), TEXT)
    ends = [
        [mark.samples.end / rate for buffer in buffers for mark in buffer.marks]
        for buffers, rate in ((usual, 24000), (other, sample_rate))
    ]
    assert ends[0] == pytest.approx(ends[1], abs=0.02)


async def test_speed_and_pitch() -> None:
    low, high = (ReferenceVoice(pitch=pitch) for pitch in (0.5, 2))
    assert await speak(low, TEXT) != await speak(high, TEXT)
    lengths = [
        sum(len(b.pcm) for b in await speak(ReferenceVoice(speed=speed), TEXT))
        for speed in (0.5, 1.0, 2.0)
    ]
    assert lengths[0] == pytest.approx(2 * lengths[1], rel=0.02)
    assert lengths[2] == pytest.approx(lengths[1] / 2, rel=0.02)
    for hertz in (80.0, 200.0):
        wave = held("ɑ", pitch=hertz)
        echo = np.correlate(wave, wave, "full")[len(wave) - 1 :]
        period = 60 + int(np.argmax(echo[60:600]))
        assert 24000 / period == pytest.approx(hertz, rel=0.05)


def held(phone: str, pitch: float = 110.0) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """The middle of a long ``phone`` at 24 kHz."""
    wave: np.ndarray[tuple[int], np.dtype[np.float64]]
    wave = sound_of(phone, 9600, 24_000, pitch, 0).astype(float)[2400:7200]
    return wave


@pytest.mark.parametrize(("phone", "first", "second"), [("i", 270, 2290), ("ɑ", 730, 1090)])
def test_vowels_have_their_formants(phone: str, first: float, second: float) -> None:
    wave = held(phone)
    spectrum = np.abs(np.fft.rfft(wave * np.hanning(len(wave))))
    hz = np.fft.rfftfreq(len(wave), 1 / 24000)
    between = (first + second) / 2
    low, high = (hz > 150) & (hz < between), (hz > between) & (hz < second + 500)
    assert hz[low][np.argmax(spectrum[low])] == pytest.approx(first, abs=90)
    assert hz[high][np.argmax(spectrum[high])] == pytest.approx(second, abs=120)


def centroid(wave: np.ndarray) -> float:
    power = np.abs(np.fft.rfft(wave)) ** 2
    return float((power * np.fft.rfftfreq(len(wave), 1 / 24000)).sum() / power.sum())


def test_hisses_lie_high_and_hums_low() -> None:
    assert centroid(held("s")) > 5500
    assert centroid(held("m")) < 1000
    level = {phone: float(held(phone).std()) for phone in ("ɑ", "s", "f", "m")}
    assert level["ɑ"] > level["m"] > level["s"] > level["f"] > 0.002 * 32768


async def test_marks_agree_with_the_sound() -> None:
    buffers = await speak(ReferenceVoice(), "See a fox. Ask Sam.")
    wave = np.frombuffer(b"".join(b.pcm for b in buffers), dtype="<i2").astype(float)

    def part(mark: Mark) -> np.ndarray:
        return wave[mark.samples.start : mark.samples.end]

    marks = [m for b in buffers for m in b.marks if m.kind == "phoneme"]
    hissing = [m for m in marks if m.text == "s"]
    vowels = [m for m in marks if m.text in "ɑɛɪɔʊi"]
    assert len(hissing) == 4
    assert len(vowels) == 6
    assert min(centroid(part(m)) for m in hissing) > 2 * max(centroid(part(m)) for m in vowels)
    assert max(np.abs(part(m)).max() for m in marks if m.text == PAUSE) == 0


async def test_punctuation_makes_pauses_and_spaces_none() -> None:
    marks = [m for b in await speak(ReferenceVoice(), "Well, yes we do. No") for m in b.marks]
    assert [m.samples.length // 24 for m in marks if m.text == PAUSE] == [160, 340]
