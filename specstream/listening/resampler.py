"""Streaming sample-rate conversion."""

from __future__ import annotations

from functools import lru_cache
from math import ceil, gcd

import numpy as np
import numpy.typing as npt

from specstream.errors import AdapterFailed, ConfigError

__all__ = ["Resampler", "check_microphone_rate"]

# Kaiser window over 32 zero crossings a side: the stop band (-80 dB) begins at Nyquist.
_ZEROS, _BETA, _ROLLOFF = 32, 8.0, 0.92
_MAX_TAPS = 1 << 17  # designing such a kernel takes milliseconds; usual rates need far fewer taps
_RATES = range(4_000, 384_001)  # samples a second that a microphone may give


def check_microphone_rate(sample_rate: object) -> None:
    """Refuse what is no sample rate of a microphone.

    Raises:
        ConfigError: it is no whole number, or out of range.
    """
    if not isinstance(sample_rate, int) or sample_rate not in _RATES:
        raise ConfigError(
            f"sample_rate must be a whole number from {_RATES[0]} to {_RATES[-1]}, not {sample_rate!r}"
        )


@lru_cache(maxsize=4)
def _kernel(up: int, down: int) -> npt.NDArray[np.float32]:
    """Polyphase taps (up, 2 * half): one row for each of the ``up`` positions between two inputs."""
    cutoff = _ROLLOFF * min(1.0, up / down)
    half = ceil(_ZEROS / cutoff)
    at = np.arange(-half + 1, half + 1)[None, :] - (np.arange(up) / up)[:, None]
    grid = np.linspace(-1.0, 1.0, 4097)
    window = np.interp(at / half, grid, np.kaiser(4097, _BETA), left=0.0, right=0.0)
    taps = np.sinc(at * cutoff) * window
    rows: npt.NDArray[np.float32] = (taps / taps.sum(axis=1, keepdims=True)).astype(np.float32)
    return rows


_BLOCK = 1 << 14  # input samples that are converted at once


class Resampler:
    """Windowed-sinc rate conversion of s16 mono, polyphase (Crochiere & Rabiner 1983).

    Linear phase without net delay: output sample ``n`` is at time ``n / target`` of the input. The
    output does not depend on how the input is cut, and has ``ceil(inputs * target / source)``
    samples once it is flushed.

    Raises:
        AdapterFailed: ``source / target`` is no simple ratio, so that too many taps were needed.
    """

    def __init__(self, source: int, target: int) -> None:
        common = gcd(source, target)
        self._up, self._down = target // common, source // common
        self._same = source == target
        if 2 * ceil(_ZEROS / (_ROLLOFF * min(1.0, target / source))) * self._up > _MAX_TAPS:
            raise AdapterFailed(
                f"speech at {source} Hz can't be converted to {target} Hz;"
                " use a usual rate such as 16000, 22050, 24000, 44100 or 48000"
            )
        self._kernel = _kernel(self._up, self._down)
        self._half = self._kernel.shape[1] // 2
        self._held = np.zeros(self._half - 1, dtype=np.float32)
        self._held_from = -(self._half - 1)  # number of the first input sample that is held
        self._taken = 0  # input samples so far
        self._made = 0  # output samples so far

    def push(self, pcm: bytes) -> bytes:
        """Take the next input; return the output that it completes."""
        if self._same:
            return pcm
        samples = np.frombuffer(pcm, dtype="<i2").astype(np.float32)
        made = bytearray()
        for at in range(0, len(samples), _BLOCK):  # each output sample takes all its taps in memory
            block = samples[at : at + _BLOCK]
            self._taken += len(block)
            made += self._make(block, self._taken - 1 - self._half)
        return bytes(made)

    def flush(self) -> bytes:
        """Return the rest of the output: the input has ended. The resampler can't be used any more."""
        if self._same:
            return b""
        return self._make(np.zeros(self._half, dtype=np.float32), self._taken - 1)

    def _make(self, samples: npt.NDArray[np.float32], last: int) -> bytes:
        """Return the next output samples, as far as they lie at or before input sample ``last``."""
        held = np.concatenate([self._held, samples])
        until = max(self._made, -(-(last + 1) * self._up // self._down))
        places = np.arange(self._made, until, dtype=np.int64) * self._down
        base, phase = places // self._up, places % self._up
        first = base - self._half + 1 - self._held_from
        windows = held[first[:, None] + np.arange(2 * self._half)[None, :]]
        out = np.einsum("nk,nk->n", windows, self._kernel[phase])
        self._made = until
        keep = max(0, until * self._down // self._up - self._half + 1 - self._held_from)
        self._held, self._held_from = held[keep:], self._held_from + keep
        pcm: bytes = np.clip(np.rint(out), -32768, 32767).astype("<i2").tobytes()
        return pcm
