"""Samples out of a stream of bytes that is PCM, or a WAV file though PCM was asked for."""

from __future__ import annotations

import struct

__all__ = ["SampleReader"]

_MOST_HEADER = 1 << 16  # bytes before a WAV file's samples
_PCM, _EXTENSIBLE = 1, 0xFFFE
_OTHERS = (
    "audio/mpeg",
    "audio/ogg",
    "audio/opus",
    "audio/flac",
    "audio/aac",
    "text/",
    "application/json",
)


class SampleReader:
    """Takes pieces of an answer, and gives whole samples (s16 little-endian mono) of one rate.

    Args:
        rate: Samples a second that the answer must have, where it tells.
        content_type: The answer's. That of a format which isn't read here is believed only where the
            bytes are no WAV file.

    Attributes:
        begun: Whether a sample has come.
    """

    def __init__(self, rate: int, content_type: str = "") -> None:
        self._rate, self._type = rate, content_type
        self._held = b""  # a beginning that isn't understood yet, or half of a sample
        self._raw = False  # the beginning was understood: samples come
        self._left: int | None = None  # bytes of samples to come, where a WAV header tells
        self.begun = False

    def add(self, part: bytes) -> bytes:
        """Return the samples that the next piece completes.

        Raises:
            ValueError: this is no PCM, or of another rate or width; its text says what it is.
        """
        self._held += part
        if not self._raw and not self._understood():
            return b""
        taken = len(self._held) // 2 * 2
        if self._left is not None:
            taken = min(taken, self._left)  # other chunks may follow in a WAV file
            self._left -= taken
        pcm, self._held = self._held[:taken], self._held[taken:]
        self._held = b"" if self._left == 0 else self._held
        self.begun = self.begun or bool(pcm)
        return pcm

    def _understood(self) -> bool:
        """Whether the samples' place is known; a WAV header is taken out."""
        if len(self._held) < 12 and self._held[:4] == b"RIFF"[: len(self._held)]:
            return False
        if not (self._held.startswith(b"RIFF") and self._held[8:12] == b"WAVE"):
            if self._type.startswith(_OTHERS):
                raise ValueError(f"{self._type}, not PCM: {self._held[:60]!r}")
            self._raw = True
            return True
        at, known = 12, False
        while len(self._held) >= at + 8:
            kind, size = struct.unpack_from("<4sI", self._held, at)
            if kind == b"data":
                if not known:
                    raise ValueError("a WAV file without a format")
                # Streams of unknown length have 0 or the largest number there.
                self._left = size if 0 < size < 0x7FFFFFFF else None
                self._held, self._raw = self._held[at + 8 :], True
                return True
            if kind == b"fmt " and len(self._held) >= at + 24:
                self._check(*struct.unpack_from("<HHIIHH", self._held, at + 8))
                known = True
            at += 8 + size + size % 2
        if at > _MOST_HEADER:
            raise ValueError("a WAV file with too long a header")
        return False

    def _check(self, form: int, channels: int, rate: int, _: int, __: int, bits: int) -> None:
        if form not in (_PCM, _EXTENSIBLE) or bits != 16 or channels != 1:
            raise ValueError(f"WAV with {channels} channels of {bits} bits; it must be s16 mono")
        if rate != self._rate:
            raise ValueError(f"{rate} samples a second, not {self._rate}; set sample_rate={rate}")
