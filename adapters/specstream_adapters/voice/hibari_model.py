"""The acoustic model of hibari-tts, with the duration that it gives each phoneme.

The package's ONNX graph computes a duration for every phoneme but does not return it. Appending 20
bytes to the file declares that inner value as an output: protobuf merges a message that comes twice.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from specstream.errors import AdapterUnavailable
from specstream_adapters.checks import one_of
from specstream_adapters.onnx import without_telemetry
from specstream_adapters.voice.hibari_marks import Wave
from specstream_adapters.voice.hibari_text import Reader
from specstream_adapters.voice.shared import once

__all__ = ["DEFAULT_SPEAKER", "HibariModel", "shared_model"]

DEFAULT_SPEAKER = "heart"

_DURATIONS = "/Clip_output_0"
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
        AdapterUnavailable: hibari-tts or onnxruntime is missing, or is a release that differs, or the
            speaker's model isn't here.
        ConfigError: there is no such speaker.
    """
    try:
        onnxruntime = without_telemetry()
        from hibari import dsp, g2p, tts, voices
    except ImportError as error:
        raise AdapterUnavailable(
            "the hibari voice needs hibari-tts: pip install 'hibari-tts[fast]', or choose the "
            f"voice 'espeak' ({error})"
        ) from error
    one_of("speaker", speaker, voices.VOICES)
    file = _file_of(speaker, voices)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = _THREADS
    options.log_severity_level = 3
    assets = Path(tts.ASSETS)
    try:
        graph = file.read_bytes() + _declared(_DURATIONS)
        session = onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])
        ids = json.loads((assets / "vocab.json").read_text("utf-8"))
        to_phonemes = g2p.G2P(british=voices.VOICES[speaker]["british"])
        letters = frozenset(to_phonemes.oov.cin)
        reader = Reader(
            to_phonemes, g2p.normalize, tts.Hibari.split_sentences, letters, frozenset(ids)
        )
        model = HibariModel(session, dsp.synth, ids, reader)
        model.speak(reader.read("Hello.").symbols, 1.0)  # the first call is the slowest
    except Exception as error:
        reason = " ".join(str(error).split())
        raise AdapterUnavailable(
            f"this hibari-tts can't be used; 0.2.1 is known to work ({reason})"
        ) from error
    return model


def _file_of(speaker: str, voices: Any) -> Path:
    """The file of a speaker's model; the package would download one that is missing without asking."""
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
