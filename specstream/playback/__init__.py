"""A spoken reply: played at the pace of speech, paused, interrupted at a word."""

from __future__ import annotations

from typing import TYPE_CHECKING

from specstream.lazy import offers

if TYPE_CHECKING:
    from specstream.playback.playout import (
        AudioSink as AudioSink,
        AudioWriter as AudioWriter,
        Playout as Playout,
        WaveSink as WaveSink,
    )
    from specstream.playback.turn import Output as Output, Turn as Turn
    from specstream.types import Interruption as Interruption

__all__, __getattr__, __dir__ = offers(
    __name__,
    {
        "specstream.playback.playout": "AudioSink AudioWriter Playout WaveSink",
        "specstream.playback.turn": "Output Turn",
        "specstream.types": "Interruption",
    },
)
