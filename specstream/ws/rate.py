"""How fast a client may send: a token bucket that makes it wait."""

from __future__ import annotations

from specstream.ws.realtime.audio import Clock

__all__ = ["BURST", "FRAMES_PER_S", "Allowance", "cost"]

FRAMES_PER_S = 200
"""Small frames of one session that are read in a second; a microphone sends 50 to 100."""
BURST = 800
"""How many are read at once from a client that was quiet before."""
_FRAME_CHARS = 4096


def cost(chars: int) -> float:
    """What reading or writing so many characters of JSON costs, in small frames."""
    return chars / _FRAME_CHARS


class Allowance:
    """What one client may still have done for it; more comes with time.

    Whoever has used it up is not refused, he waits, and the network tells him.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._left = float(BURST)
        self._at = clock.now()

    async def take(self, frames: float) -> None:
        """Use up so much, and wait until it has come in. Cancelling the wait gives nothing back."""
        now = self._clock.now()
        self._left = min(BURST, self._left + (now - self._at) * FRAMES_PER_S) - frames
        self._at = now
        if self._left < 0:
            await self._clock.sleep_until(now - self._left / FRAMES_PER_S)
