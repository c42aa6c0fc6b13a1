"""Turn ends by sound: Smart Turn judges, in a pause, whether the speaker is done."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from specstream.errors import AdapterUnavailable
from specstream.listening.interfaces import TurnCapabilities
from specstream.models.catalogue import SMART_TURN
from specstream.models.kept import folder_of
from specstream_adapters.checks import without_telemetry
from specstream_adapters.ears.silero import SileroDetector

__all__ = ["SmartTurnDetector"]

_RATE, _SECONDS = 16_000, 8
_WEIGHTS = Path(SMART_TURN.wheel.content.name).name


class SmartTurnDetector(SileroDetector):
    """Silero VAD, and Smart Turn 3.2 (BSD-2-Clause; Pipecat) for the question whether a pause is an end.

    Smart Turn hears how something is said: a voice that stays up goes on. It was trained on speech of 23
    languages. A judgement takes about 100 ms of one core.

    Args:
        model: Its ONNX file. None: the one that ``specstream pull smart-turn`` has brought.
        start_ms: See `SileroDetector`.
        stop_ms: See `SileroDetector`; Smart Turn expects about 200 ms of silence.

    Attributes:
        network: Judges whether a turn has ended, of its features.

    Raises:
        AdapterUnavailable: a package or the file is missing.
        ConfigError: a time below one frame of 32 ms.
    """

    capabilities = TurnCapabilities("smart-turn", (_RATE,))
    named_by = "model"

    def __init__(
        self, *, model: str | Path | None = None, start_ms: int = 64, stop_ms: int = 192
    ) -> None:
        super().__init__(start_ms=start_ms, stop_ms=stop_ms)
        path = Path(model) if model is not None else folder_of(SMART_TURN) / _WEIGHTS
        if not path.is_file():
            raise AdapterUnavailable(f"{path} isn't there: `specstream pull smart-turn` brings it")
        try:
            features = without_telemetry("faster_whisper.feature_extractor").FeatureExtractor
        except ImportError:
            needed = "faster-whisper is needed: pip install 'specstream-sdk[ears]'"
            raise AdapterUnavailable(needed) from None
        onnxruntime = without_telemetry()
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        try:
            self.network: Any = onnxruntime.InferenceSession(
                str(path), options, providers=["CPUExecutionProvider"]
            )
        except Exception as error:
            raise AdapterUnavailable(f"{path} is no ONNX file of Smart Turn: {error}") from error
        self._features: Any = features(chunk_length=_SECONDS)  # log-mel, as Whisper reads it

    def ended(self, pcm: bytes) -> float:
        """Return the probability that the speaker is done, from 0 to 1.

        Blocks; may be called on any thread.

        Args:
            pcm: A turn's audio up to some 200 ms into a pause: 16 kHz, s16 little-endian mono. The last
                eight seconds count.
        """
        size = _RATE * _SECONDS
        sound = np.frombuffer(pcm[-2 * size :], dtype="<i2").astype(np.float32) / 32768.0
        sound = np.pad(sound, (size - len(sound), 0))
        sound = (sound - sound.mean()) / np.sqrt(sound.var() + 1e-7)
        features = self._features(sound, padding=0).astype(np.float32)[None]
        (probability,) = self.network.run(None, {"input_features": features})
        return float(probability.reshape(-1)[0])
