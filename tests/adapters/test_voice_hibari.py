"""What is particular to the neural voice: one model, one thread, the same samples every time."""

import asyncio
import inspect
import shutil
import sys
import threading
from collections.abc import Iterator
from contextlib import aclosing, suppress
from pathlib import Path

import numpy as np
import pytest

from specstream.errors import AdapterFailed, AdapterUnavailable, ConfigError
from specstream.types import PAUSE, Phrase, Span, SpeechBuffer
from specstream_adapters.voice import HibariVoice, hibari, hibari as hibari_model
from specstream_adapters.voice.by_sentence import Wave
from specstream_adapters.voice.hibari import HibariModel, shared_model
from specstream_adapters.voice.shared import once

pytest.importorskip("hibari")
from hibari import voices

TEXT = "The quick brown fox jumps over the lazy dog."
Pcm = np.ndarray[tuple[int], np.dtype[np.int16]]


def phrase(text: str) -> Phrase:
    return Phrase(text, Span(0, len(text)), Span(0, 1))


async def speak(voice: HibariVoice, text: str) -> list[SpeechBuffer]:
    return [buffer async for buffer in voice.synthesize(phrase(text))]


def wave_of(buffers: list[SpeechBuffer]) -> Pcm:
    return np.frombuffer(b"".join(buffer.pcm for buffer in buffers), dtype="<i2")


def test_capabilities() -> None:
    facts = HibariVoice(language="en-GB").capabilities
    assert (facts.name, facts.sample_rate) == ("hibari", 24_000)
    assert facts.deterministic and facts.words and facts.phonemes
    assert not facts.streaming


async def test_a_phrase_always_has_the_same_samples() -> None:
    voice = HibariVoice()
    first = await speak(voice, TEXT)
    await speak(voice, "Something else, 42 times; and more of it!")
    assert await speak(voice, TEXT) == first
    both = await asyncio.gather(speak(HibariVoice(), TEXT), speak(HibariVoice(), TEXT))
    assert list(both) == [first, first]


async def test_speed_takes_effect() -> None:
    usual, quick = [len(wave_of(await speak(HibariVoice(speed=s), TEXT))) for s in (1.0, 1.6)]
    assert 0.5 * usual < quick < 0.8 * usual


@pytest.mark.parametrize(("text", "rest_ms"), [("Well then,", 300), ("Yes.", 400), ("and so", 60)])
async def test_it_begins_at_once_and_rests_at_the_end(text: str, rest_ms: int) -> None:
    buffers = await speak(HibariVoice(), text)
    wave = wave_of(buffers).astype(int)
    audible = np.flatnonzero(np.abs(wave) > 300)
    assert audible[0] < 0.05 * 24_000
    last = [mark for buffer in buffers for mark in buffer.marks][-1]
    assert last.text == PAUSE
    assert last.samples == (len(wave) - 24 * rest_ms, len(wave))
    assert audible[-1] < last.samples.start
    assert wave[0] == wave[-1] == 0  # nothing clicks where phrases join
    assert np.abs(wave).max() < 32767


@pytest.mark.parametrize("language", ["de", "cmn", "english", ""])
def test_other_languages_are_espeak_s(language: str) -> None:
    with pytest.raises(ConfigError, match="English only.*'espeak'"):
        HibariVoice(language=language)


def test_a_pitch_is_refused_with_the_voice_that_has_one() -> None:
    with pytest.raises(ConfigError, match="pitch.*hibari.*'espeak'"):
        HibariVoice(pitch=1.1)
    HibariVoice(pitch=1)


def test_a_speaker_that_is_not_here_says_how_to_bring_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is downloaded without being asked for."""
    monkeypatch.setenv("HIBARI_HOME", str(tmp_path))
    monkeypatch.setattr(voices, "download", None)
    with pytest.raises(AdapterUnavailable, match=r"'emma'.*Hello --voice emma.*7\.9 MB.*copy") as e:
        HibariVoice(speaker="emma")
    assert str(tmp_path / "bf_emma.int8.onnx") in str(e.value)
    with pytest.raises(ConfigError, match="no speaker is called 'emm'; there are: heart, emma"):
        HibariVoice(speaker="emm")


async def test_another_speaker_has_a_model_and_words_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file is the bundled speaker's; the British reading is what differs here."""
    monkeypatch.setenv("HIBARI_HOME", str(tmp_path))
    monkeypatch.setattr(hibari, "shared_model", inspect.unwrap(shared_model))
    shutil.copy(Path(voices.ASSETS, "hibari.onnx"), tmp_path / "bf_emma.int8.onnx")
    voice = HibariVoice(speaker="emma")
    assert voice.capabilities.name == "hibari:emma"
    sounds = [[m.text for b in await speak(v, "hello") for m in b.marks] for v in (voice, HibariVoice())]
    assert sounds[0] != sounds[1]


def test_all_voices_share_one_model(monkeypatch: pytest.MonkeyPatch) -> None:
    loads = list[HibariModel]()
    model = shared_model("heart")

    def load(speaker: str) -> HibariModel:
        loads.append(model)
        return model

    monkeypatch.setattr(hibari, "shared_model", once(load))
    threads = [threading.Thread(target=HibariVoice) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(loads) == 1


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.setattr(hibari, "shared_model", inspect.unwrap(shared_model))
    return monkeypatch


@pytest.mark.parametrize("missing", ["hibari", "onnxruntime"])
def test_without_the_package_the_way_out_is_named(fresh: pytest.MonkeyPatch, missing: str) -> None:
    fresh.setitem(sys.modules, missing, None)
    for make in (HibariVoice, HibariVoice.check):
        with pytest.raises(AdapterUnavailable, match=r"pip install 'hibari-tts.*'espeak'"):
            make()


def test_a_model_without_durations_is_refused(fresh: pytest.MonkeyPatch) -> None:
    fresh.setattr(hibari_model, "DURATIONS", "/Nowhere_output_0")
    with pytest.raises(AdapterUnavailable, match=r"can't be used; 0\.2\.1.*/Nowhere_output_0.*\)$"):
        HibariVoice()


class Gate:
    """Holds the model back; counts its calls."""

    def __init__(self) -> None:
        self.calls = list[str]()
        self.began, self.go_on = threading.Event(), threading.Event()
        self.error: Exception | None = None


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    shared_model("heart")
    made, real = Gate(), HibariModel.speak

    def held(model: HibariModel, symbols: str, speed: float) -> tuple[Wave, list[int]]:
        made.calls.append(symbols)
        made.began.set()
        assert made.go_on.wait(60)
        if made.error is not None:
            raise made.error
        return real(model, symbols, speed)

    monkeypatch.setattr(HibariModel, "speak", held)
    yield made
    made.go_on.set()


async def test_the_event_loop_goes_on_and_a_given_up_phrase_is_waited_for_once(gate: Gate) -> None:
    voice = HibariVoice()
    running = asyncio.create_task(speak(voice, "One. Two. Three."))
    await asyncio.to_thread(gate.began.wait, 60)
    waiting = asyncio.create_task(speak(voice, "Never said."))
    await asyncio.sleep(0)
    for task in (running, waiting):
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
    following = asyncio.create_task(speak(HibariVoice(), "Next."))
    await asyncio.sleep(0)
    gate.go_on.set()
    assert await following
    assert len(gate.calls) == 2  # the sentence that was running, and the one that was wanted


async def test_closing_after_a_sentence_leaves_the_others_unsaid(gate: Gate) -> None:
    gate.go_on.set()
    voice = HibariVoice()
    async with aclosing(voice.synthesize(phrase("One. Two. Three."))) as buffers:
        await anext(buffers)
    assert await speak(voice, "Next.")
    assert len(gate.calls) == 2


async def test_closing_the_voice_ends_a_phrase_that_is_being_made(gate: Gate) -> None:
    voice = HibariVoice()
    running = asyncio.create_task(speak(voice, "One. Two."))
    await asyncio.to_thread(gate.began.wait, 60)
    await voice.aclose()
    gate.go_on.set()
    assert await running == []
    assert len(gate.calls) == 1


async def test_a_model_that_breaks_is_reported_and_forgotten(gate: Gate) -> None:
    gate.go_on.set()
    gate.error = RuntimeError("out of memory")
    voice = HibariVoice()
    with pytest.raises(AdapterFailed, match="out of memory") as caught:
        await speak(voice, TEXT)
    assert caught.value.__cause__ is gate.error
    gate.error = None
    assert await speak(voice, TEXT)


async def test_voices_take_turns_sentence_by_sentence(gate: Gate) -> None:
    first = asyncio.create_task(speak(HibariVoice(), "One. Two."))
    await asyncio.to_thread(gate.began.wait, 60)
    second = asyncio.create_task(speak(HibariVoice(), "Another."))
    await asyncio.sleep(0)
    gate.go_on.set()
    await asyncio.gather(first, second)
    assert gate.calls[1].startswith("\u0259n")  # "another" before "two"
