"""Tells the user's voice from others by its level: who talks in the background is quieter."""

from __future__ import annotations

import math
from collections import deque

import numpy as np

__all__ = ["LevelGate", "level_of"]

_HOLD_MS = 700.0  # words end quietly: a voice counts as near for so long after its last loud sound
_SMOOTH = 6  # blocks of 32 ms over which a level is measured: a syllable
_ABOVE_DB = 3.0  # of voices that were no turn, for a voice that is one
_LEARN = 0.3  # weight of a new turn's level
_YIELD_DB = 1.0  # for every voice that was kept out: the user may have moved away
_SILENT_DB = -100.0


def level_of(pcm: bytes) -> float:
    """The level of s16 mono audio in dBFS (mean power; a full-scale square wave has 0)."""
    samples = np.frombuffer(pcm, dtype="<i2").astype(np.float64)
    power = float(np.mean(samples * samples)) / 32768.0**2 if len(samples) else 0.0
    return 10 * math.log10(max(power, 10 ** (_SILENT_DB / 10)))


class LevelGate:
    """Learns the user's level from turns in which words were understood, and keeps quieter voices out.

    Before the first such turn every voice is near.

    Args:
        range_db: How much quieter than the user's turns a voice may be.
    """

    def __init__(self, range_db: float) -> None:
        self._range_db = range_db
        self._own: float | None = None
        self._others: float | None = None
        self._near_ms = 0.0
        self._kept_out = False
        self._levels: list[float] = []  # of the open turn
        self._powers = deque[float](maxlen=_SMOOTH)

    @property
    def near_ms(self) -> float:
        """When the last near sound was."""
        return self._near_ms

    def near(self, level: float, now_ms: float) -> bool:
        """Take the next block's level; returns whether a voice in it is the user's."""
        self._powers.append(10 ** (level / 10))
        level = self._level
        if self._own is None and self._others is None:
            return True
        own = _SILENT_DB if self._own is None else self._own - self._range_db
        others = _SILENT_DB if self._others is None else self._others + _ABOVE_DB
        if level >= max(own, others):
            self._near_ms = now_ms
        return now_ms - self._near_ms <= _HOLD_MS

    @property
    def _level(self) -> float:
        return 10 * math.log10(sum(self._powers) / len(self._powers))

    def heard(self, *, near: bool, in_turn: bool) -> None:
        """Take note that a voice was heard in the last block."""
        self._kept_out = not near
        if in_turn and near:
            self._levels.append(self._level)

    def silent(self) -> None:
        """The voices have ended."""
        if self._kept_out and self._own is not None:
            self._own -= _YIELD_DB
        self._others, self._kept_out = None, False

    def end(self, *, others: bool = False) -> float | None:
        """A turn is over; returns its level. ``others``: the voices that go on are not the user's."""
        levels, self._levels = self._levels, []
        if not levels:
            return None
        if others:
            self._others = float(np.max(levels[-30:]))  # the last second
            self._near_ms = -math.inf
        return float(np.quantile(levels, 0.9))

    def understood(self, level: float | None) -> None:
        """A turn of this level had words in it: so loud is the user."""
        if level is not None:
            own = self._own
            self._own = level if own is None else own + _LEARN * (level - own)
