"""A scripted network: computes when a message arrives."""

from __future__ import annotations

import random

__all__ = ["ScriptedNetwork"]

_MAX_LOSSES = 8  # most losses of one message


class ScriptedNetwork:
    """One direction of a connection that keeps the order of messages, as a WebSocket does.

    A message takes ``delay_ms`` and up to ``jitter_ms`` more (evenly distributed). It is lost with the
    probability ``loss``; then it is sent again after ``retransmit_ms``, and may be lost again. A message
    never overtakes the one before it. The same ``seed`` gives the same times.

    Raises:
        ValueError: a time is negative, or ``loss`` is not from 0 to below 1.
    """

    def __init__(
        self,
        *,
        delay_ms: float = 0.0,
        jitter_ms: float = 0.0,
        loss: float = 0.0,
        retransmit_ms: float = 200.0,
        seed: int | str = 0,
    ) -> None:
        if min(delay_ms, jitter_ms, retransmit_ms) < 0 or not 0 <= loss < 1:
            raise ValueError("times must be at least 0, and loss from 0 to below 1")
        self._delay_s, self._jitter_s = delay_ms / 1e3, jitter_ms / 1e3
        self._loss, self._again_s = loss, retransmit_ms / 1e3
        self._random = random.Random(seed)
        self._last = float("-inf")

    def arrival(self, sent: float) -> float:
        """Return when the next message arrives if it is sent at ``sent`` (seconds of one clock)."""
        chance = self._random.random
        took = self._delay_s + self._jitter_s * chance()
        for _ in range(_MAX_LOSSES):
            if chance() >= self._loss:
                break
            took += self._again_s
        self._last = max(self._last, sent + took)
        return self._last
