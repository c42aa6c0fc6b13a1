"""How much of the waiting prompts a step reads, so that nobody who is being answered waits long."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from specstream.engine.request import Request

__all__ = ["Pace", "Step", "share_out"]

_LEAST = 16  # tokens; fewer would spend the step on the weights alone
_FIRST_GUESS = 64
_WEIGHT = 0.2
_SHARE = 1.25  # of a usual pass's time: what may be read and proposed beside it


@dataclass(slots=True)
class Step:
    """Who reads what in one step.

    Attributes:
        fresh: Those who read the last of their prompt, and take their first round.
        reading: Those who read on, and how many tokens.
    """

    fresh: list[Request] = field(default_factory=list)
    reading: list[tuple[Request, int]] = field(default_factory=list)


def share_out(batch: Sequence[Request], chunk: int, budget: int) -> Step:
    """Share a step's reading among the requests, oldest first.

    Args:
        batch: Requests with a slot, in order of arrival; those who are being answered are passed over.
        chunk: The most tokens that one request reads in a pass.
        budget: The most tokens of prompts that the step reads, all together; what the oldest one
            leaves goes to the next.
    """
    step = Step()
    for request in batch:
        if request.stats.rounds > 0:
            continue
        share = min(chunk, budget)
        if request.unread <= share:
            step.fresh.append(request)
            budget -= request.unread
        elif share > 0:
            step.reading.append((request, share))
            budget -= share
    return step


class Pace:
    """Learns how many prompt tokens can be read in a quarter more than the time of a decoding pass.

    Reading them along with a round makes it a little more than twice as long, which a listener can't
    hear. More at once makes longer gaps and the whole hardly quicker; less, and places stand waiting
    for their prompts, which are read in smaller and dearer parts. What is proposed takes as long, so a
    round of long proposals leaves less for reading: all steps come out about equally long.
    """

    def __init__(self) -> None:
        self._round_ms: float | None = None
        self._token_ms: float | None = None
        self._told = False  # by a pass that read beside a round

    def observe(self, ms: float, read: int, *, beside: bool) -> None:
        """A target pass is over, in which so many tokens of prompts were read.

        ``beside``: along with a round of others.
        """
        if beside and read == 0:
            self._round_ms = _moved(self._round_ms, ms)
        elif self._round_ms is None or read < _LEAST:
            return
        elif beside and self._token_ms is not None:
            # What is off may be either's; where somebody always reads, rounds are never seen alone.
            error = _WEIGHT * (ms - self._round_ms - self._token_ms * read)
            self._round_ms = max(self._round_ms + error, 1e-3)
            self._token_ms = max(self._token_ms + error / read, 0.0)
            self._told = True
        elif not self._told:  # alone they take a pass of their own, of which this tells little
            self._token_ms = _moved(self._token_ms, max(0.0, ms - self._round_ms) / read)

    def budget(self, most: int, proposed: int) -> int:
        """Tokens to read beside a round in which so many are ``proposed``; at most ``most``."""
        if self._round_ms is None or self._token_ms is None:
            return min(most, _FIRST_GUESS)
        ms = _SHARE * self._round_ms
        if (most + proposed) * self._token_ms <= ms:
            return most
        return min(most, max(_LEAST, int(ms / self._token_ms) - proposed))


def _moved(old: float | None, new: float) -> float:
    return new if old is None else old + _WEIGHT * (new - old)
