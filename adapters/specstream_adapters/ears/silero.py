"""Voice activity through the Silero network (package ``silero-vad``), run by onnxruntime."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from specstream.errors import AdapterFailed, AdapterUnavailable, ConfigError
from specstream.listening.interfaces import SpeechStarted, SpeechStopped, TurnCapabilities, VoiceActivity
from specstream_adapters.checks import without_telemetry

__all__ = ["SileroDetector"]

_FRAME_MS = 32
_FRAME, _CONTEXT = 512, 64  # samples at 16 kHz, half of that at 8 kHz
_HYSTERESIS = 0.15  # speech goes on until the probability is this far below the threshold


class SileroDetector:
    """Finds speech with Silero VAD 6 (MIT; the network is inside the package). Any language.

    Args:
        start_ms: Speech is reported once it has lasted this long; shorter sounds are ignored.
        stop_ms: A pause is reported once it has lasted this long.

    Raises:
        AdapterUnavailable: ``silero-vad`` or ``onnxruntime`` is not installed.
        ConfigError: a time below one frame of 32 ms.
    """

    capabilities = TurnCapabilities("silero", (16_000, 8_000))

    def __init__(self, *, start_ms: int = 64, stop_ms: int = 192) -> None:
        if min(start_ms, stop_ms) < _FRAME_MS:
            raise ConfigError(f"start_ms and stop_ms must be at least {_FRAME_MS}")
        self._frames = (start_ms // _FRAME_MS, stop_ms // _FRAME_MS)
        self._network = _network()

    def open(self, sample_rate: int, *, threshold: float = 0.5) -> SileroTrack:
        """Begin a stream; see `specstream.listening.interfaces.TurnDetector`.

        Raises:
            AdapterFailed: the network takes 16 and 8 kHz only.
        """
        if sample_rate not in self.capabilities.sample_rates:
            raise AdapterFailed(f"silero takes 16000 or 8000 Hz, not {sample_rate}")
        return SileroTrack(self._network, sample_rate, threshold, *self._frames)


def _network() -> Any:
    # The package's own module imports torch; only its file is needed.
    package = find_spec("silero_vad")
    try:
        onnxruntime = without_telemetry()
    except ImportError:
        package = None
    if package is None or not package.submodule_search_locations:
        message = "silero-vad and onnxruntime are needed: pip install 'specstream-sdk[ears]'"
        raise AdapterUnavailable(message)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    path = Path(package.submodule_search_locations[0]) / "data" / "silero_vad.onnx"
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


class SileroTrack:
    """One stream. The network reads frames of 32 ms, each with the end of the frame before."""

    def __init__(self, network: Any, sample_rate: int, threshold: float, start: int, stop: int) -> None:
        self._network = network
        self._frame = _FRAME * sample_rate // 16_000
        self._before = np.zeros(_CONTEXT * sample_rate // 16_000, dtype=np.float32)
        self._state = np.zeros((2, 1, 128), dtype=np.float32)
        self._rate = np.array(sample_rate, dtype=np.int64)
        self._threshold = threshold
        self._needed = {False: start, True: stop}  # contrary frames in a row that end each state
        self._speaking = False
        self._contrary = 0  # the latest frames in a row that contradict the state
        self._at = 0  # frames read
        self._left = b""

    def add(self, pcm: bytes) -> Sequence[VoiceActivity]:
        """See `specstream.listening.interfaces.TurnTrack`."""
        found: list[VoiceActivity] = []
        data, size = self._left + pcm, 2 * self._frame
        whole = len(data) - len(data) % size
        for at in range(0, whole, size):
            samples = np.frombuffer(data[at : at + size], dtype="<i2").astype(np.float32) / 32768
            found += self._judge(self._probability(samples))
        self._left = data[whole:]
        return found

    def _probability(self, samples: npt.NDArray[Any]) -> float:
        window = np.concatenate([self._before, samples])
        self._before = samples[-len(self._before) :]
        inputs = {"input": window[None], "state": self._state, "sr": self._rate}
        try:
            output, self._state = self._network.run(None, inputs)
        except Exception as error:
            raise AdapterFailed(f"silero broke: {error}") from error
        return float(output[0, 0])

    def _judge(self, probability: float) -> Sequence[VoiceActivity]:
        self._at += 1
        level = self._threshold - (_HYSTERESIS if self._speaking else 0.0)
        self._contrary = self._contrary + 1 if (probability >= level) != self._speaking else 0
        if self._contrary < self._needed[self._speaking]:
            return ()
        since = float((self._at - self._contrary) * _FRAME_MS)
        self._speaking, self._contrary = not self._speaking, 0
        return (SpeechStarted(since) if self._speaking else SpeechStopped(since),)
