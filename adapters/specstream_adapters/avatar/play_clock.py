"""Where the audio is, for a face that is drawn by another clock than the audio plays by."""

from __future__ import annotations

__all__ = ["PlayClock"]

_JUMP_MS = 120.0  # further off than jitter: the audio stood still, or was moved
_PULL = 0.08  # of an error, at each report
_DRIFT_PULL = 0.002  # of an error, a second of distance between reports, on the rate
_MAX_DRIFT = 0.005  # clocks of sound cards differ by less


class PlayClock:
    """The position of the audio at a time of the drawing clock, from reports that jitter.

    A renderer that can ask its audio device for the position needs none of this: it draws `Face.at`
    that position and has no skew. This is for one that is told positions now and then, late by some
    milliseconds more or less, by an audio clock that runs a little faster or slower than its own. It is
    a phase-locked loop of second order; positions never run backwards except in a jump.
    """

    def __init__(self) -> None:
        self._at = 0.0  # of the last report
        self._ms: float | None = None
        self._rate = 1.0
        self._floor = 0.0

    @property
    def rate(self) -> float:
        """Milliseconds of audio a millisecond of the drawing clock, as far as it is known."""
        return self._rate

    def report(self, now_ms: float, audio_ms: float) -> None:
        """The audio was at ``audio_ms`` when the drawing clock showed ``now_ms``."""
        if self._ms is None or abs(error := audio_ms - self._predict(now_ms)) > _JUMP_MS:
            self._at, self._ms = now_ms, audio_ms
            self._floor = max(0.0, audio_ms)
            return
        seconds = max(0.0, now_ms - self._at) / 1000
        self._ms = self._predict(now_ms) + _PULL * error
        self._at = now_ms
        drift = self._rate - 1.0 + _DRIFT_PULL * min(seconds, 1.0) * error / 1000
        self._rate = 1.0 + min(_MAX_DRIFT, max(-_MAX_DRIFT, drift))

    def position(self, now_ms: float) -> float:
        """Milliseconds of the turn's audio that have been heard; 0 before the first report."""
        if self._ms is None:
            return 0.0
        self._floor = max(self._floor, self._predict(now_ms))
        return self._floor

    def _predict(self, now_ms: float) -> float:
        assert self._ms is not None
        return self._ms + (now_ms - self._at) * self._rate
