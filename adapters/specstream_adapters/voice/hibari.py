"""Speech through hibari-tts: a small neural voice in US English, with word and phoneme times."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from specstream.errors import AdapterUnavailable, ConfigError
from specstream.stages.interfaces import VoiceCapabilities
from specstream_adapters.checks import delivery, one_of, without_telemetry
from specstream_adapters.voice.by_sentence import (
    SAMPLE_RATE,
    Made,
    SentenceVoice,
    Wave,
    WaveSound,
    timed,
)
from specstream_adapters.voice.phonemes import Reader
from specstream_adapters.voice.shared import once

__all__ = ["DEFAULT_SPEAKER", "HibariModel", "HibariVoice", "shared_model"]

DEFAULT_SPEAKER = "heart"

DURATIONS = "/Clip_output_0"
"""The network's output that gives each symbol's length."""
_THREADS = 1  # of one call; the language model needs the other cores
_PAD = 0
_SEED = 0


@dataclass(frozen=True, slots=True)
class HibariModel:
    """A loaded model and the reader that makes its input. Use it from one thread at a time."""

    _session: Any
    _synth: Any
    _ids: dict[str, int]
    reader: Reader

    def speak(self, symbols: str, speed: float) -> tuple[Wave, list[int]]:
        """Synthesize phoneme symbols as `Reader.read` gives them.

        The noise in the voice is drawn from a fixed seed, so the same symbols give the same samples.

        Returns:
            The wave (float32 from -1 to 1, 24 kHz), and how many frames of 25 ms each symbol takes,
            with one entry more on either side for the silence around them.
        """
        ids = np.asarray([[_PAD, *(self._ids[symbol] for symbol in symbols), _PAD]], np.int64)
        given = {"ids": ids, "speed": np.asarray([speed], np.float32)}
        *parts, frames = self._session.run(None, given)
        wave: Wave = self._synth(*(part[0] for part in parts), np.random.default_rng(_SEED))
        return wave, [int(count) for count in frames]


@once
def shared_model(speaker: str) -> HibariModel:
    """The process's one model of a speaker, loaded on first use (about a second, packages included).

    Raises:
        AdapterUnavailable: as `_file_of`, or hibari-tts is a release that differs.
        ConfigError: there is no such speaker.
    """
    file = _file_of(speaker)
    onnxruntime = without_telemetry()
    from hibari import dsp, g2p, tts, voices

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = _THREADS
    options.log_severity_level = 3
    assets = Path(tts.ASSETS)
    try:
        graph = file.read_bytes() + _declared(DURATIONS)
        session = onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])
        ids = json.loads((assets / "vocab.json").read_text("utf-8"))
        to_phonemes = g2p.G2P(british=voices.VOICES[speaker]["british"])
        letters = frozenset(to_phonemes.oov.cin)
        reader = Reader(to_phonemes, g2p.normalize, tts.Hibari.split_sentences, letters, frozenset(ids))
        model = HibariModel(session, dsp.synth, ids, reader)
        model.speak(reader.read("Hello.").symbols, 1.0)  # the first call is the slowest
    except Exception as error:
        reason = " ".join(str(error).split())
        raise AdapterUnavailable(
            f"this hibari-tts can't be used; 0.2.1 is known to work ({reason})"
        ) from error
    return model


def _file_of(speaker: str) -> Path:
    """The file of a speaker's model; the package would download one that is missing without asking.

    Raises:
        AdapterUnavailable: hibari-tts or onnxruntime is missing, or the speaker's model isn't here.
        ConfigError: there is no such speaker.
    """
    try:
        without_telemetry()
        from hibari import tts, voices  # noqa: F401 – tts: whether all that speaks is here
    except ImportError as error:
        raise AdapterUnavailable(
            "the hibari voice needs hibari-tts: pip install 'hibari-tts[fast]', or choose the "
            f"voice 'espeak' ({error})"
        ) from error
    one_of("speaker", speaker, voices.VOICES)
    try:
        return Path(voices.voice_path(speaker, download_missing=False))
    except FileNotFoundError as error:
        facts = voices.VOICES[speaker]
        raise AdapterUnavailable(
            f"hibari's speaker {speaker!r} isn't here yet: `hibari Hello --voice {speaker}` downloads "
            f"the model ({facts['bytes'] / 1e6:.1f} MB, once), or copy {voices.BASE_URL}{facts['file']} "
            f"to {error.args[0]}"
        ) from None


def _declared(name: str) -> bytes:
    """Protobuf that makes ``name`` an output: ModelProto.graph (7), .output (12), .name (1)."""
    out = name.encode()
    for field in (1, 12, 7):
        out = bytes([field << 3 | 2, len(out)]) + out
    return out


_MOST_SYMBOLS = 400
"""Most symbols in one call of the model; the package itself calls it with up to as many."""

_SOUND = WaveSound("hibari-tts", SAMPLE_RATE, gain=1.6)
"""The gain makes the voice as loud as espeak-ng, to a decibel; the highest peak of 33 phrases, with
shouts among them, is then 0.89 of full scale."""


class HibariVoice(SentenceVoice):
    """A `SpeechSynthesizer` on hibari-tts (extra ``voice``): understandable, 24 kHz.

    A sentence is synthesized as a whole, so its first buffer comes when all of it is done: on a free
    core after about a hundredth of the audio's length. It is ``deterministic``. Text in another
    language is read as if it were English. All voices of a process share one thread, which serves
    one sentence at a time, and one model for each speaker.

    Args:
        language: English: ``"en"``, ``"en-us"`` or another code that begins with ``en`` (the accent
            stays American).
        speaker: ``"heart"`` is in the package of hibari-tts. Others, such as ``"emma"`` (British), are
            there once that package's command has downloaded them.
        speed: 1 is about 14 letters a second; 0.5 to 2.
        pitch: Only 1: the model has each speaker's own pitch.

    Raises:
        AdapterUnavailable: hibari-tts or onnxruntime is missing or can't be used, or the speaker's model
            isn't here.
        ConfigError: an option is out of range, there is no such speaker, or the language is not English.
    """

    named_by = "speaker"

    @classmethod
    def check(cls) -> None:
        """Look for the packages and the default speaker's file, which the voice loads when it is made.

        Raises:
            AdapterUnavailable: something is missing.
        """
        _file_of(DEFAULT_SPEAKER)

    def __init__(
        self,
        *,
        language: str = "en-us",
        speaker: str = DEFAULT_SPEAKER,
        speed: float = 1.0,
        pitch: float = 1.0,
    ) -> None:
        if not isinstance(language, str) or language.lower().partition("-")[0] != "en":
            raise ConfigError(
                f"language {language!r:.80}: the hibari voice speaks English only; the voice 'espeak' "
                "speaks about 100 languages"
            )
        delivery(speed, pitch)
        if pitch != 1:
            raise ConfigError(
                "pitch: the hibari voice has its speaker's own pitch only; the voice 'espeak' can be "
                "set higher and lower (--voice espeak --pitch 1.1)"
            )
        self._model = shared_model(speaker)
        self._speed = float(speed)
        super().__init__("hibari", _SOUND)
        self.capabilities = VoiceCapabilities(
            "hibari" if speaker == DEFAULT_SPEAKER else f"hibari:{speaker}",
            SAMPLE_RATE,
            deterministic=True,
            words=True,
            phonemes=True,
            language="en",
        )

    def _sentences(self, text: str) -> Iterator[Made]:
        """Synthesize part after part, with where its sentence begins and whether it is the last.

        Runs on the voices' thread.
        """
        reader = self._model.reader
        sentences = list(reader.sentences(text))
        for sentence in sentences:
            written = text[slice(*sentence)]
            parts = list(reader.read(written).parts(_MOST_SYMBOLS))
            for part in parts:
                wave, frames = self._model.speak(part.symbols, self._speed)
                last = (sentence, part) == (sentences[-1], parts[-1])
                yield timed(part, wave, frames, written), sentence.start, last
