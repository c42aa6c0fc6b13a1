"""Estimate the position of the audio, for a face that is drawn by another clock than the audio's."""

from __future__ import annotations

__all__ = ["PlayClock"]

_JUMP_MS = 120.0  # an error above this is no jitter: the audio stood still, or was moved
_PULL = 0.08  # share of the error that each report corrects
_DRIFT_PULL = 0.002  # change of the rate for each second of error and second between reports
_MAX_DRIFT = 0.005  # most deviation of the rate from 1: clocks of sound cards differ by less


class PlayClock:
    """Estimates the position of the audio at a time of the drawing clock, from reports with jitter.

    A renderer that can ask its audio device for the position doesn't need this class: it draws
    `Face.at` that position. This is for a renderer that is told positions now and then, a varying few
    milliseconds late, by an audio clock that runs a little faster or slower than the drawing clock. It
    is a phase-locked loop of second order; positions never run backwards except in a jump.
    """

    def __init__(self) -> None:
        self._at = 0.0  # drawing clock at the last report
        self._ms: float | None = None  # estimated position then
        self._rate = 1.0
        self._floor = 0.0  # the last position given

    @property
    def rate(self) -> float:
        """Estimated milliseconds of audio for each millisecond of the drawing clock."""
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
