"""Chunked prefill: learns how many prompt tokens a step reads along with other requests' rounds."""

from __future__ import annotations

__all__ = ["PrefillBudget"]

_LEAST = 16  # prompt tokens of a pass; fewer would hardly amortise reading the weights
_FIRST_GUESS = 64  # prompt tokens of a pass, before its times are known
_WEIGHT = 0.2  # of a new sample in a moving average
_PATIENT_MS = 120.0  # what they may add where nobody notices; others' tokens stay within 190 ms
_SHARE = 1.25  # what prompt tokens and proposals may add to a step, in usual rounds' times


class PrefillBudget:
    """Learns how many prompt tokens take 1.25 times as long as a usual decoding round.

    A step that prefills so many tokens along with a round makes the gap between two chunks a little more
    than twice as long, which a listener can't hear. A larger budget makes longer gaps and hardly saves
    time; a smaller one keeps new requests waiting. Proposed tokens take as long as prompt tokens and
    are deducted, so that all steps take about equally long.
    """

    def __init__(self) -> None:
        self._round_ms: float | None = None
        self._token_ms: float | None = None
        self._mixed = False  # whether a pass was seen that decoded and prefilled

    def observe(self, ms: float, read: int, *, beside: bool) -> None:
        """Add a target pass of ``ms`` milliseconds.

        Args:
            ms: Its time.
            read: Prompt tokens that it read.
            beside: Whether it also decoded requests whose prompts had been read before.
        """
        if beside and read == 0:
            self._round_ms = _moved(self._round_ms, ms)
        elif self._round_ms is None or read < _LEAST:
            return
        elif beside and self._token_ms is not None:
            # Correct both estimates: while some prompt is always being read, no round is seen alone.
            error = _WEIGHT * (ms - self._round_ms - self._token_ms * read)
            self._round_ms = max(self._round_ms + error, 1e-3)
            self._token_ms = max(self._token_ms + error / read, 0.0)
            self._mixed = True
        elif not self._mixed:  # pure prefill: a poor estimate of what it adds to a round
            self._token_ms = _moved(self._token_ms, max(0.0, ms - self._round_ms) / read)

    def tokens(self, most: int, proposed: int, *, patient: bool = False) -> int:
        """Return the prompt tokens for a pass that verifies ``proposed`` tokens, at most ``most``.

        ``patient``: nobody notices a longer pass, since the listeners of all requests that are decoded
        have something to hear, or are waiting for their first sound like those whose prompts are read.
        """
        if self._round_ms is None or self._token_ms is None:
            return min(most, _FIRST_GUESS)
        ms = max(_SHARE * self._round_ms, _PATIENT_MS if patient else 0.0)
        if (most + proposed) * self._token_ms <= ms:
            return most
        return min(most, max(_LEAST, int(ms / self._token_ms) - proposed))


def _moved(old: float | None, new: float) -> float:
    return new if old is None else old + _WEIGHT * (new - old)
