"""The frame of a word."""

from __future__ import annotations

from dataclasses import dataclass

from pipecat.frames.frames import TTSTextFrame

__all__ = ["HeardTextFrame"]


@dataclass
class HeardTextFrame(TTSTextFrame):
    """Text that travels in line with its audio, so it enters the context once it is heard."""
