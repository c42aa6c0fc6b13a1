"""What is particular to the reference voice: exact samples, spelling rules, numbers, spectra."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import numpy as np
import pytest

from specstream.types import PAUSE, Mark, Phrase, Span, SpeechBuffer
from specstream_adapters.voice import ReferenceVoice, synth
from specstream_adapters.voice.g2p import is_vowel, pronounce, spell
from specstream_adapters.voice.g2p_rules import RULES
from specstream_adapters.voice.prosody import Clause, Sound, clauses
from specstream_adapters.voice.spoken import _SMALL, _TENS, _number, spoken
from specstream_adapters.voice.synth import FormantSynth

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
    real = FormantSynth._add_voice

    def counted(*args: Any) -> None:
        nonlocal rendered
        rendered += 1
        real(*args)

    monkeypatch.setattr(FormantSynth, "_add_voice", counted)
    stream = ReferenceVoice().synthesize(phrase("Many words. " * 5000))
    for _ in range(3):
        await anext(stream)
    await stream.aclose()
    assert rendered == 3


async def test_the_joints_of_buffers_can_not_be_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    waves = []
    for frames in (12, 5, 1):
        monkeypatch.setattr(synth, "_FRAMES_PER_BLOCK", frames)
        pcm = b"".join(buffer.pcm for buffer in await speak(ReferenceVoice(), TEXT))
        waves.append(np.frombuffer(pcm, dtype="<i2").astype(int))
    assert np.abs(waves[0] - waves[1]).max() <= 1
    assert np.abs(waves[0] - waves[2]).max() <= 1


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
    lengths = [
        sum(len(b.pcm) for b in await speak(ReferenceVoice(speed=speed), TEXT))
        for speed in (0.5, 1.0, 2.0)
    ]
    assert lengths[0] == pytest.approx(2 * lengths[1], rel=0.02)
    assert lengths[2] == pytest.approx(lengths[1] / 2, rel=0.02)
    for hertz in (80.0, 200.0):
        wave = held("ɑː", pitch=hertz)
        echo = np.correlate(wave, wave, "full")[len(wave) - 1 :]
        period = 60 + int(np.argmax(echo[60:600]))
        assert 24000 / period == pytest.approx(hertz, rel=0.05)


def held(phone: str, pitch: float = 110.0) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """The middle of a long ``phone`` before a neutral vowel, at 24 kHz."""
    after = Sound("ə", 100.0, Span(0, 1))
    clause = Clause((Sound(phone, 400.0, Span(0, 1)), after), ((0.0, 1.0), (500.0, 1.0)))
    wave = np.concatenate(list(FormantSynth(24000, pitch, 0).render(clause))).astype(float)
    return wave[2400:7200]


def envelope_peak(wave: np.ndarray, low: float, high: float) -> float:
    """Where the smoothed spectrum is highest between two frequencies."""
    spectrum = np.abs(np.fft.rfft(wave * np.hanning(len(wave)))) ** 2
    hz = np.fft.rfftfreq(len(wave), 1 / 24000)
    smooth = np.convolve(spectrum, np.hanning(45), "same")
    inside = (hz > low) & (hz < high)
    return float(hz[inside][np.argmax(smooth[inside])])


@pytest.mark.parametrize(
    ("phone", "first", "second"),
    [("iː", 270, 2290), ("æ", 660, 1720), ("ɑː", 730, 1090), ("uː", 300, 900), ("ɜː", 490, 1350)],
)
def test_vowels_have_their_formants(phone: str, first: float, second: float) -> None:
    wave = held(phone)
    assert envelope_peak(wave, 150, (first + second) / 2) == pytest.approx(first, abs=90)
    lifted = np.diff(wave)  # the second formant stands out once the source's fall is undone
    assert envelope_peak(lifted, (first + second) / 2, second + 500) == pytest.approx(
        second, abs=150
    )


def centroid(wave: np.ndarray) -> float:
    power = np.abs(np.fft.rfft(wave)) ** 2
    return float((power * np.fft.rfftfreq(len(wave), 1 / 24000)).sum() / power.sum())


def test_hissing_sounds_lie_where_they_should() -> None:
    assert 5500 < centroid(held("s")) < 8500
    assert 2500 < centroid(held("ʃ")) < 4500
    assert centroid(held("m")) < 700
    level = {phone: float(held(phone).std()) for phone in ("ɑː", "iː", "s", "f", "m")}
    assert level["ɑː"] > level["s"] > level["f"] > 0.002 * 32768
    assert level["iː"] > level["m"]


async def test_marks_agree_with_the_sound() -> None:
    buffers = await speak(ReferenceVoice(), "See a fish. Ask Sam.")
    wave = np.frombuffer(b"".join(b.pcm for b in buffers), dtype="<i2").astype(float)

    def part(mark: Mark) -> np.ndarray:
        return wave[mark.samples.start : mark.samples.end]

    marks = [m for b in buffers for m in b.marks if m.kind == "phoneme"]
    hissing = [m for m in marks if m.text in ("s", "ʃ")]
    vowels = [m for m in marks if is_vowel(m.text)]
    assert len(hissing) == 4
    assert len(vowels) == 5
    assert min(centroid(part(m)) for m in hissing) > 2 * max(centroid(part(m)) for m in vowels)
    pauses = [part(m) for m in marks if m.text == PAUSE]
    assert max(np.abs(pause[len(pause) // 4 :]).max() for pause in pauses) < 30


@pytest.mark.parametrize(
    ("word", "phones"),
    [
        ("stop", "s t ɑː p"), ("night", "n aɪ t"), ("making", "m eɪ k ɪ ŋ"),
        ("nation", "n eɪ ʃ ə n"), ("boxes", "b ɑː k s ɪ z"), ("walked", "w ɔː k t"),
        ("wanted", "w ɑː n t ɪ d"), ("church", "tʃ ɜː ɹ tʃ"), ("phone", "f oʊ n"),
        ("knife", "n aɪ f"), ("thing", "θ ɪ ŋ"), ("weather", "w ɛ ð ɚ"), ("queen", "k w iː n"),
        ("water", "w ɔː t ɚ"), ("you'll", "j uː ə l"), ("cat's", "k æ t s"),
        ("judge's", "dʒ ʌ dʒ ɪ z"), ("café", "k æ f eɪ"), ("hmm", "eɪ tʃ ɛ m ɛ m"),
    ],
)  # fmt: skip
def test_english_words(word: str, phones: str) -> None:
    assert " ".join(pronounce(word).phones) == phones


@pytest.mark.parametrize(
    ("word", "vowel"),
    [("about", "aʊ"), ("curious", "ʊ"), ("university", "ɜː"), ("example", "æ"), ("paper", "eɪ")],
)
def test_stress(word: str, vowel: str) -> None:
    said = pronounce(word)
    assert said.phones[said.stress] == vowel


def test_every_letter_always_says_something() -> None:
    unconditional = {
        rule.split()[0] for rule in RULES.split("\n") if rule and rule.split()[1:3] == ["-", "-"]
    }
    assert unconditional >= set("abcdefghijklmnopqrstuvwxyz")
    rng = random.Random(5)
    for _ in range(3000):
        letters = "".join(rng.choice("abcdefghijklmnopqrstuvwxyz'éßжक中") for _ in range(1, 12))
        word = letters.strip("'")
        if word:
            said = pronounce(word)
            assert any(map(is_vowel, said.phones)), word
            assert said.stress < len(said.phones)


@pytest.mark.parametrize(
    ("token", "words"),
    [
        ("0", "zero"), ("21", "twenty one"), ("100", "one hundred"),
        ("1,234,567", "one million two hundred thirty four thousand five hundred sixty seven"),
        ("3.14", "three point one four"), ("007", "zero zero seven"),
        ("1999", "nineteen ninety nine"), ("2005", "two thousand five"),
        ("2024", "twenty twenty four"), ("1900", "nineteen hundred"), ("1906", "nineteen oh six"),
        ("$3.50", "three dollars fifty"), ("$1", "one dollar"), ("€2.5", "two point five euros"),
        ("£20", "twenty pounds"), ("20€", "twenty euros"), ("50%", "fifty percent"),
        ("5:30", "five thirty"), ("10:05", "ten oh five"), ("7:00", "seven o'clock"),
        ("21st", "twenty first"), ("30th", "thirtieth"), ("12th", "twelfth"),
        ("12345678901234567", "one two three four five six seven eight nine zero one two three "
                              "four five six seven"),
        ("x.org", "x dot org"), ("a@b", "a at b"), ("R&D", "r and d"), ("½", "one over two"),
        ("٣", "three"), ("Dr", "doctor"), ("and/or", "and slash or"),
    ],
)  # fmt: skip
def test_numbers_and_signs(token: str, words: str) -> None:
    assert list(spoken(token)) == [pronounce(word) for word in words.split()]


def test_initials_are_spelled() -> None:
    assert list(spoken("U.K")) == [spell("uk")]
    assert list(spoken("p.m")) == [spell("pm")]
    assert list(spoken("GPT-4")) == [spell("gpt"), pronounce("four")]
    assert list(spoken("US")) == [pronounce("us")]


def test_number_words_add_up_to_the_number() -> None:
    rng = random.Random(2)
    small = {name: value for value, name in enumerate(_SMALL)}
    small |= {name: 10 * value for value, name in enumerate(_TENS) if value > 1}
    for _ in range(2000):
        number = rng.randrange(10 ** rng.randrange(1, 16))
        total = group = 0
        for name in _number(number):
            scale = {"thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12}
            if name in scale:
                total, group = total + group * scale[name], 0
            else:
                group = group * 100 if name == "hundred" else group + small[name]
        assert total + group == number


def test_marks_of_punctuation_make_pauses() -> None:
    def pauses(text: str) -> list[float]:
        return [s.ms for c in clauses(text, 1.0) for s in c.sounds if s.phone == PAUSE]

    assert pauses("Well, yes. No") == [160.0, 340.0, 40.0]
    assert pauses("Mr. Smith came at 5 p.m. today.") == [340.0]
    assert pauses("one two three") == [40.0]
    last = [clause.melody[-1][1] for clause in clauses("Is it? It is.", 1.0)]
    assert last[0] > 1.2
    assert last[1] < 0.8


def test_long_text_is_taken_clause_by_clause() -> None:
    endless = clauses("word " * 100_000, 1.0)
    first = next(endless)
    assert len(first.sounds) < 400
    assert len(next(clauses("9" * 50_000, 1.0)).sounds) < 400
