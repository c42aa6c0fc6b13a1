"""How much of the waiting prompts a step reads, so that nobody who is being answered waits long."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from specstream.engine.request import Request

__all__ = ["Pace", "Step", "share_out"]

_LEAST = 16  # tokens; fewer would spend the step on the weights alone
_FIRST_GUESS = 64
_WIDE = 32  # tokens from which on a pass tells what reading costs
_WEIGHT = 0.2
_SHARE = 0.7  # of a plain pass, that reading may add to a round


@dataclass(slots=True)
class Step:
    """Who does what in one step: ``ready`` requests take a round, the others read on."""

    ready: list[Request] = field(default_factory=list)
    reading: list[tuple[Request, int]] = field(default_factory=list)


def share_out(batch: Sequence[Request], chunk: int, budget: int) -> Step:
    """Share a step's reading among the requests, oldest first.

    Args:
        batch: Requests with a slot, in order of arrival.
        chunk: The most tokens that one request reads in a pass.
        budget: The most tokens of prompts that the step reads, all together; what the oldest one
            leaves goes to the next. Requests that are being answered don't count.
    """
    step = Step()
    for request in batch:
        if request.stats.rounds > 0:
            step.ready.append(request)
            continue
        share = min(chunk, budget)
        if request.unread <= share:
            step.ready.append(request)
            budget -= request.unread
        elif share > 0:
            step.reading.append((request, share))
            budget -= share
    return step


class Pace:
    """Learns how many prompt tokens can be read in two thirds of the time of a plain decoding pass.

    Reading them along with a round makes it longer by that, which a listener can't hear. More at
    once makes longer gaps and the whole no quicker; less, and places stand waiting for their prompts.
    """

    def __init__(self) -> None:
        self._round_ms: float | None = None
        self._token_ms: float | None = None

    def observe(self, ms: float, tokens: int, rows: int) -> None:
        """A target pass of so many tokens for so many requests is over."""
        if tokens >= _WIDE * max(1, rows) and self._round_ms is not None:
            self._token_ms = _moved(self._token_ms, max(0.0, ms - self._round_ms) / tokens)
        elif tokens < _WIDE:
            self._round_ms = _moved(self._round_ms, ms)

    def budget(self, most: int) -> int:
        """Tokens to read beside a round, at most ``most``."""
        if self._round_ms is None or self._token_ms is None:
            return min(most, _FIRST_GUESS)
        spare_ms = _SHARE * self._round_ms
        if most * self._token_ms <= spare_ms:
            return most
        return min(most, max(_LEAST, int(spare_ms / self._token_ms)))


def _moved(old: float | None, new: float) -> float:
    return new if old is None else old + _WEIGHT * (new - old)
