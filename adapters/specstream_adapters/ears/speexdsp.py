"""Echo cancellation through SpeexDSP (system library ``libspeexdsp``, found by ctypes)."""

from __future__ import annotations

import ctypes
import ctypes.util
from functools import cache
from typing import Any

from specstream.errors import AdapterUnavailable
from specstream_adapters.checks import in_range

__all__ = ["SpeexCanceller"]

_NAMES = ("libspeexdsp.so.1", "libspeexdsp.1.dylib", "libspeexdsp.dll", "libspeexdsp-1.dll")
_ECHO_SET_RATE, _SET_NOISE, _SET_ECHO, _SET_ECHO_ACTIVE, _SET_ECHO_STATE = 24, 18, 20, 22, 24
_NOISE_DB, _ECHO_DB, _ECHO_ACTIVE_DB = -6, -45, -20


class SpeexCanceller:
    """SpeexDSP's adaptive filter (Valin 2007, doi:10.1109/TASL.2006.885935) and residual suppression.

    Args:
        tail_s: The longest time from a sample's play-out to its last echo in the microphone: the
            latencies of loudspeaker and microphone, and the room. Longer tails adapt more slowly.

    Raises:
        AdapterUnavailable: the library is not installed.
        ConfigError: ``tail_s`` out of range.
    """

    def __init__(self, *, tail_s: float = 0.3) -> None:
        in_range("tail_s", tail_s, 0.05, 1.0)
        self._tail_s = tail_s
        self._library = _library()

    def open(self, sample_rate: int) -> SpeexTrack:
        """Begin a microphone's stream."""
        return SpeexTrack(self._library, sample_rate, round(self._tail_s * sample_rate))


class SpeexTrack:
    """One stream; see `specstream.listening.interfaces.EchoTrack`."""

    def __init__(self, library: Any, sample_rate: int, tail: int) -> None:
        self.frame = sample_rate // 100
        self._library = library
        self._echo = library.speex_echo_state_init(self.frame, tail)
        self._rest = library.speex_preprocess_state_init(self.frame, sample_rate)
        rate = ctypes.byref(ctypes.c_int(sample_rate))
        library.speex_echo_ctl(self._echo, _ECHO_SET_RATE, rate)
        for what, value in (
            (_SET_NOISE, _NOISE_DB),
            (_SET_ECHO, _ECHO_DB),
            (_SET_ECHO_ACTIVE, _ECHO_ACTIVE_DB),
        ):
            library.speex_preprocess_ctl(self._rest, what, ctypes.byref(ctypes.c_int(value)))
        library.speex_preprocess_ctl(self._rest, _SET_ECHO_STATE, self._echo)
        self._out = ctypes.create_string_buffer(2 * self.frame)

    def cancel(self, heard: bytes, played: bytes) -> bytes:
        """See `specstream.listening.interfaces.EchoTrack`."""
        self._library.speex_echo_cancellation(self._echo, heard, played, self._out)
        self._library.speex_preprocess_run(self._rest, self._out)
        return self._out.raw

    def __del__(self) -> None:
        if hasattr(self, "_out"):
            self._library.speex_preprocess_state_destroy(self._rest)
            self._library.speex_echo_state_destroy(self._echo)


@cache
def _library() -> Any:
    found = ctypes.util.find_library("speexdsp")
    for name in (*([found] if found else []), *_NAMES):
        try:
            library = ctypes.CDLL(name)
        except OSError:
            continue
        pointer, number = ctypes.c_void_p, ctypes.c_int
        for function, result, takes in (
            ("speex_echo_state_init", pointer, [number, number]),
            ("speex_echo_state_destroy", None, [pointer]),
            ("speex_echo_ctl", number, [pointer, number, pointer]),
            ("speex_echo_cancellation", None, [pointer] * 4),
            ("speex_preprocess_state_init", pointer, [number, number]),
            ("speex_preprocess_state_destroy", None, [pointer]),
            ("speex_preprocess_ctl", number, [pointer, number, pointer]),
            ("speex_preprocess_run", number, [pointer, pointer]),
        ):
            getattr(library, function).restype = result
            getattr(library, function).argtypes = takes
        return library
    raise AdapterUnavailable(
        "SpeexDSP is not installed: apt install libspeexdsp1 (Debian, Ubuntu), dnf install speexdsp"
        " (Fedora), brew install speexdsp (macOS)"
    )
