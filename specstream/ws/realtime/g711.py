"""Audio formats of the wire: plain PCM, and G.711 (ITU-T, 8 kHz, one byte a sample)."""

from __future__ import annotations

import io
from functools import lru_cache
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from specstream.listening.resampler import Resampler
from specstream.ws.realtime.wire import SAMPLE_RATE

__all__ = ["Encoder", "Format", "coded", "decoded", "sample_rate"]

Format = Literal["audio/pcm", "audio/pcmu", "audio/pcma"]
_SUBTYPES = {"audio/pcmu": "ULAW", "audio/pcma": "ALAW"}  # libsndfile's names
_G711_RATE = 8000


def sample_rate(format: Format) -> int:
    """Return the samples per second of audio in this format."""
    return SAMPLE_RATE if format == "audio/pcm" else _G711_RATE


@lru_cache(maxsize=2)
def _tables(format: Format) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Libsndfile's code for every 16-bit sample (indexed by its bits), and its sample for every code."""
    import soundfile

    raw: dict[str, Any] = {"format": "RAW", "subtype": _SUBTYPES[format]}
    codes = io.BytesIO()
    soundfile.write(codes, np.arange(65536).astype(np.uint16).view(np.int16), _G711_RATE, **raw)
    every = io.BytesIO(bytes(range(256)))
    samples, _ = soundfile.read(every, dtype="int16", channels=1, samplerate=_G711_RATE, **raw)
    return np.frombuffer(codes.getvalue(), np.uint8), samples.astype("<i2")


def decoded(data: bytes, format: Format) -> bytes:
    """Decode ``data`` to s16 little-endian PCM of the same rate."""
    if format == "audio/pcm":
        return data
    pcm: bytes = _tables(format)[1][np.frombuffer(data, np.uint8)].tobytes()
    return pcm


def coded(pcm: bytes, format: Format) -> bytes:
    """Encode s16 little-endian PCM as ``format``, at the same rate."""
    if format == "audio/pcm":
        return pcm
    codes: bytes = _tables(format)[0][np.frombuffer(pcm, "<u2")].tobytes()
    return codes


class Encoder:
    """Converts s16 PCM at 24 kHz to a format of the wire, piece by piece."""

    def __init__(self, format: Format) -> None:
        self._format = format
        self._resampler = Resampler(SAMPLE_RATE, sample_rate(format))

    def push(self, pcm: bytes) -> bytes:
        """Take the next PCM; return the encoded audio that it completes."""
        return coded(self._resampler.push(pcm), self._format)

    def flush(self) -> bytes:
        """The audio has ended: return the rest (a few milliseconds, nothing for PCM)."""
        return coded(self._resampler.flush(), self._format)
