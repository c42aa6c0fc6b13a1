"""Where play-out writes audio: the interface of a sink, a function as a sink, and a WAV file."""

from __future__ import annotations

import inspect
import struct
import wave
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import BinaryIO, Protocol, TypeAlias, cast

from specstream.errors import AdapterFailed, ConfigError, OutputError

__all__ = ["AudioSink", "AudioWriter", "WaveSink", "sink_of"]

AudioWriter: TypeAlias = Callable[[bytes, int], Awaitable[None] | None]
"""``writer(pcm, sample_rate)``: takes signed 16-bit little-endian mono."""


class AudioSink(Protocol):
    """A sound device, a connection, a file. One turn at a time writes to it."""

    async def write(self, pcm: bytes, sample_rate: int) -> None:
        """Take the next audio (signed 16-bit little-endian mono, at most 40 ms).

        It may wait, as long as it likes: play-out waits with it. Cancelled when play-out stops.
        """

    def clear(self) -> None:
        """Discard what was written and can't be heard yet. Returns at once."""

    async def aclose(self) -> None:
        """Release what the sink holds; idempotent."""


class _FunctionSink:
    """See `sink_of`."""

    def __init__(self, function: AudioWriter) -> None:
        self._function = function

    async def write(self, pcm: bytes, sample_rate: int) -> None:
        written = self._function(pcm, sample_rate)
        if inspect.isawaitable(written):
            await written

    def clear(self) -> None:
        return None

    async def aclose(self) -> None:
        return None


def sink_of(given: AudioSink | AudioWriter | None) -> AudioSink:
    """Return the sink itself, a function as a sink, or (None) a sink that discards.

    Raises:
        ConfigError: it is none of these.
    """
    if given is None:
        return _FunctionSink(lambda pcm, sample_rate: None)
    if all(hasattr(given, name) for name in ("write", "clear", "aclose")):
        return cast(AudioSink, given)
    if not callable(given):
        raise ConfigError(
            f"{given!r} is no audio sink: it needs write, clear and aclose, or give a function "
            "(pcm, sample_rate)"
        )
    return _FunctionSink(given)


class WaveSink:
    """Writes a WAV file, turn after turn; valid after every write, even if the process is killed."""

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path)
        self._file: wave.Wave_write | None = None
        self._raw: BinaryIO | None = None

    async def write(self, pcm: bytes, sample_rate: int) -> None:
        """Append audio.

        Raises:
            OutputError: the file can't be written.
            AdapterFailed: the sample rate differs from that of the audio before.
        """
        self._append(pcm, sample_rate)

    def _append(self, pcm: bytes, sample_rate: int) -> None:
        if self._file is not None and self._file.getframerate() != sample_rate:
            raise AdapterFailed(f"{self._path} can't change to {sample_rate} Hz half-way")
        try:
            if self._file is None:
                self._raw = open(self._path, "wb")  # here: `wave.open` warns where this fails
                self._file = wave.open(self._raw, "wb")
                self._file.setparams((1, 2, sample_rate, 0, "NONE", "not compressed"))
            assert self._raw is not None
            if self._raw.seekable():
                self._file.writeframes(pcm)  # updates the header, after the audio
            else:
                self._file.writeframesraw(pcm)
            self._raw.flush()
        except struct.error:  # from the header
            raise OutputError(f"{self._path} is full: a WAV file holds at most 4 GiB") from None
        except OSError as error:
            raise OutputError(f"can't write {self._path}: {error}") from error

    def clear(self) -> None:
        """What was written stays in the file."""

    async def aclose(self) -> None:
        """Complete the file; idempotent.

        Raises:
            OutputError: the file can't be written.
        """
        file, self._file = self._file, None
        raw, self._raw = self._raw, None
        try:
            try:
                if file is not None:
                    file.close()
            finally:
                if raw is not None:
                    raw.close()
        except struct.error:
            pass  # the file is full, as `write` has said
        except OSError as error:
            raise OutputError(f"can't write {self._path}: {error}") from error
