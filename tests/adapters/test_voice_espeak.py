"""What is particular to espeak-ng."""

import asyncio
import inspect
import sys
import threading
from collections.abc import Sequence
from types import SimpleNamespace

import numpy as np
import pytest

from specstream.errors import AdapterFailed, AdapterUnavailable
from specstream.stages.stages import VoiceStage
from specstream.types import PAUSE, Phrase, Span, Speech, SpeechBuffer
from specstream_adapters.voice import EspeakVoice, espeak, espeak_library
from specstream_adapters.voice.espeak_library import EspeakLibrary, LibraryEvent, Sink
from tests.support.standins import feed

LONG = "This sentence goes on for a while, so that there is something left to stop."


def phrase(text: str) -> Phrase:
    return Phrase(text, Span(0, len(text)), Span(0, 1))


async def speak(voice: EspeakVoice, text: str) -> list[SpeechBuffer]:
    return [buffer async for buffer in voice.synthesize(phrase(text))]


def wave_of(buffers: list[SpeechBuffer]) -> np.ndarray[tuple[int], np.dtype[np.int16]]:
    return np.frombuffer(b"".join(buffer.pcm for buffer in buffers), dtype="<i2")


@pytest.fixture
def library() -> EspeakLibrary:
    return espeak.shared_library()


async def test_capabilities(library: EspeakLibrary) -> None:
    facts = EspeakVoice(voice="de").capabilities
    assert (facts.name, facts.sample_rate) == ("espeak:de", library.sample_rate)
    assert facts.language == "de"
    assert EspeakVoice(voice="en-gb+f3").capabilities.language == "en-gb"
    assert facts.streaming
    assert facts.words
    assert facts.phonemes
    assert not facts.deterministic


async def test_words_of_written_forms_are_marked_where_they_are_written(library: EspeakLibrary) -> None:
    pytest.importorskip("normt2s")
    text = "It is $5.50, or call (555) 123-4567 now."
    spoken = await feed(VoiceStage(EspeakVoice()), [phrase(text)])
    marks = [mark for piece in spoken if isinstance(piece, Speech) for mark in piece.marks]
    found = [(m.text, text[slice(*m.chars)]) for m in marks if m.kind == "word"]
    money = [(word, "$5.50") for word in "five dollars and fifty cents".split()]
    digits = zip("five five five one two three four five six seven".split(), "5551234567", strict=True)
    assert found == [
        ("It", "It"),
        ("is", "is"),
        *money,
        ("or", "or"),
        ("call", "call"),
        *digits,
        ("now", "now"),
    ]


def test_unknown_voices_are_refused_with_advice(library: EspeakLibrary) -> None:
    with pytest.raises(AdapterUnavailable, match=r"no voice 'tlh-x'.*voices\(\)"):
        EspeakVoice(voice="tlh-x")


def test_every_listed_voice_can_be_had(library: EspeakLibrary) -> None:
    codes = EspeakVoice.voices()
    assert {"en-us", "en-gb", "de", "cmn"} <= set(codes)
    assert codes == sorted(codes)
    for voice in (*codes, "en-us+f3", "en-gb+f3"):
        EspeakVoice(voice=voice)


async def test_rate_and_voice_take_effect_and_do_not_leak(library: EspeakLibrary) -> None:
    usual, quick, german = EspeakVoice(), EspeakVoice(speed=2), EspeakVoice(voice="de")
    before = len(wave_of(await speak(usual, LONG)))
    assert len(wave_of(await speak(quick, LONG))) < 0.7 * before
    sounds = [m.text for b in await speak(german, "ich") for m in b.marks if m.kind == "phoneme"]
    assert "\u00e7" in sounds
    assert len(wave_of(await speak(usual, LONG))) == pytest.approx(before, rel=0.03)


@pytest.fixture
def given(library: EspeakLibrary, monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """What the library hands over, call by call."""
    calls: list[bytes] = []
    real = library.speak

    def recorded(text: str, sink: Sink) -> None:
        def recording(pcm: bytes, events: Sequence[LibraryEvent]) -> bool:
            calls.append(pcm)
            return sink(pcm, events)

        real(text, recording)

    monkeypatch.setattr(library, "speak", recorded)
    return calls


async def test_closing_early_stops_the_library_within_one_buffer(given: list[bytes]) -> None:
    voice = EspeakVoice()
    whole = len(await speak(voice, LONG * 9))
    given.clear()
    stream = voice.synthesize(phrase(LONG * 9))
    await anext(stream)
    await stream.aclose()
    at_close = len(given)
    espeak.on_library(lambda _: None).result()  # until the library is free again
    assert len(given) <= at_close + 1
    assert len(given) < whole / 2


async def test_every_sample_of_the_library_arrives_once(
    library: EspeakLibrary, given: list[bytes]
) -> None:
    buffers = await speak(EspeakVoice(), LONG)
    assert b"".join(buffer.pcm for buffer in buffers) == b"".join(given)
    wave = wave_of(buffers).astype(int)
    audible = np.flatnonzero(np.abs(wave) > 300)
    assert audible[0] < 0.08 * library.sample_rate
    last = [m for b in buffers for m in b.marks if m.text == PAUSE][-1]
    assert audible[-1] < last.samples.start + 0.02 * library.sample_rate


async def test_a_failing_library_is_reported_and_forgotten(
    library: EspeakLibrary, monkeypatch: pytest.MonkeyPatch
) -> None:
    voice = EspeakVoice()
    monkeypatch.setattr(library.lib, "espeak_Synth", lambda *_: -1)
    with pytest.raises(AdapterFailed, match="status -1"):
        await speak(voice, "hello")
    monkeypatch.undo()
    assert await speak(voice, "hello")


async def test_an_exception_in_the_callback_is_not_swallowed(library: EspeakLibrary) -> None:
    def broken(pcm: bytes, events: object) -> bool:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        espeak.on_library(lambda lib: lib.speak("hello", broken)).result()
    assert await speak(EspeakVoice(), "hello")


async def test_the_event_loop_goes_on_while_the_library_speaks(
    library: EspeakLibrary, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop, turned, real = asyncio.get_running_loop(), threading.Event(), library.speak

    def waiting(text: str, sink: Sink) -> None:
        def wait(pcm: bytes, events: Sequence[LibraryEvent]) -> bool:
            loop.call_soon_threadsafe(turned.set)
            assert turned.wait(30), "the loop stands still"
            return sink(pcm, events)

        real(text, wait)

    monkeypatch.setattr(library, "speak", waiting)
    assert await speak(EspeakVoice(), LONG)
    assert turned.is_set()


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.setattr(espeak, "shared_library", inspect.unwrap(espeak.shared_library))
    return monkeypatch


def test_without_loader_and_library_the_way_out_is_named(fresh: pytest.MonkeyPatch) -> None:
    fresh.setitem(sys.modules, "espeakng_loader", None)
    fresh.setattr(espeak_library, "SYSTEM_NAMES", ("libespeak-ng-missing.so",))
    advice = r"pip install espeakng-loader.*reference.*libespeak-ng-missing"
    with pytest.raises(AdapterUnavailable, match=advice):
        EspeakVoice()
    with pytest.raises(AdapterUnavailable, match=advice):
        EspeakVoice.voices()


def test_a_library_that_is_something_else_is_passed_over(fresh: pytest.MonkeyPatch) -> None:
    other = str(np.random.mtrand.__file__)
    loader = SimpleNamespace(get_library_path=lambda: other, get_data_path=lambda: "/nowhere")
    fresh.setitem(sys.modules, "espeakng_loader", loader)
    fresh.setattr(espeak_library, "SYSTEM_NAMES", ())
    with pytest.raises(AdapterUnavailable, match="espeak_Initialize"):
        EspeakVoice()


def test_the_system_library_is_the_second_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    loader = SimpleNamespace(get_library_path=lambda: "/a/lib.so", get_data_path=lambda: "/a/data")
    monkeypatch.setitem(sys.modules, "espeakng_loader", loader)
    first, second, *_ = espeak_library.candidates()
    assert first == ("/a/lib.so", b"/a/data")
    assert second == ("libespeak-ng.so.1", None)
    monkeypatch.setitem(sys.modules, "espeakng_loader", None)
    assert next(espeak_library.candidates()) == second
