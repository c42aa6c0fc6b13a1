"""A quantity that is measured again and again, and followed slowly."""

from __future__ import annotations

__all__ = ["CLIP", "GAIN", "GUESSED", "MEASURED", "Tracked"]

CLIP = 0.2  # an observation counts as at most this much above or below what was expected
GAIN = 0.05
MEASURED, GUESSED = 8, 1  # observations that a start is worth


class Tracked:
    """A positive quantity, followed by its relative error; outliers count as mild ones.

    Errors are cut off at a fifth and the gain is a twentieth, so a stall of any length moves it by
    1 %, and a lasting change is followed at 1 % an observation. With few observations behind it
    (``seen``) it is quicker, and bolder where it was a guess. ``gain`` is the least it gets to.
    """

    __slots__ = ("_gain", "_guessed", "_seen", "value")

    def __init__(self, value: float, seen: int = MEASURED, gain: float = GAIN) -> None:
        self.value = value
        self._seen = seen
        self._gain = gain
        self._guessed = seen <= GUESSED

    def learn(self, value: float, weight: float = 1.0) -> None:
        """Count one observation."""
        self._seen += 1
        error = value / self.value - 1.0
        clip = max(CLIP, 4.0 / self._seen) if self._guessed else CLIP
        gain = weight * max(self._gain, 1.0 / self._seen)
        self.value = max(self.value * (1.0 + gain * min(max(error, -clip), clip)), 1e-6)
