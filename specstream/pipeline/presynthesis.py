"""Pre-synthesis: decides whether a voice may speak drafted text, by what that has wasted so far."""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from specstream.checks import check_numbers
from specstream.types import Speech

__all__ = ["Account", "Presynthesis", "PresynthesisReport", "TurnAccount"]

_ALLOWANCE_S = 1.0  # audio that may be wasted before anything was spoken
_MEMORY_S = 120.0  # spoken audio after which spoken and wasted audio so far count half
_LATELY = 16  # latest drafted phrases over which the share that stood is measured
# Fewest phrases to judge by. Also, while the share is too low, one drafted phrase of 8 is spoken.
_ONE_IN = 8

_log = logging.getLogger("specstream.pipeline")


@dataclass(frozen=True, slots=True)
class Presynthesis:
    """How much audio a voice may make for drafted text that is then revoked.

    Attributes:
        max_waste: Seconds of audio made for text that was then revoked, per spoken second. 0: drafted
            text is never spoken.
        min_stood: Least share of the latest drafted phrases given to the voice that stood (were
            confirmed). Below it, the voice is given one in eight, to notice when that has changed.
        ahead_s: With more seconds of released audio unheard, drafted text is not spoken: nobody waits
            for it.

    Raises:
        ConfigError: a number is negative or not a number.
    """

    max_waste: float = 0.5
    min_stood: float = 0.25
    ahead_s: float = 1.0

    def __post_init__(self) -> None:
        check_numbers(0, max_waste=self.max_waste, min_stood=self.min_stood, ahead_s=self.ahead_s)


@dataclass(frozen=True, slots=True)
class PresynthesisReport:
    """What pre-synthesis has saved and wasted over the turns of a pipeline.

    ``saved_ms`` is how much earlier the confirmed phrases were given to the voice, summed up.
    """

    on: bool
    why: str
    confirmed: int
    withdrawn: int
    spoken_s: float
    wasted_s: float
    saved_ms: float

    @property
    def acceptance(self) -> float:
        """Confirmed phrases per drafted phrase that the voice was given; nan if none was."""
        given = self.confirmed + self.withdrawn
        return self.confirmed / given if given else math.nan

    @property
    def words(self) -> str:
        """One line for a log."""
        given = self.confirmed + self.withdrawn
        return (
            f"pre-synthesis is {'on' if self.on else 'off'} ({self.why}): {self.confirmed} of {given} "
            f"drafted phrases stood, {self.wasted_s:.2f} s of audio were wasted for "
            f"{self.spoken_s:.2f} s spoken"
        )


class Account:
    """Counts what pre-synthesis has wasted and saved; lives as long as its pipeline."""

    def __init__(self, settings: Presynthesis) -> None:
        self.settings = settings
        self._confirmed = self._withdrawn = 0
        self._spoken_s = self._wasted_s = self._saved_ms = 0.0
        self._recent_spoken_s = self._recent_wasted_s = 0.0
        self._lately: deque[bool] = deque(maxlen=_LATELY)
        self._skipped = 0
        self._told = self._doubt  # as it was logged last

    @property
    def _doubt(self) -> str:
        """Why drafted text should not be spoken at present; empty if it should."""
        if not self.settings.max_waste:
            return "max_waste is 0"
        budget = self.settings.max_waste * self._recent_spoken_s + _ALLOWANCE_S
        if self._recent_wasted_s > budget:
            return "over its budget"
        stood = sum(self._lately)
        if len(self._lately) >= _ONE_IN and stood < self.settings.min_stood * len(self._lately):
            return "too few drafts stand"
        return ""

    def turn(self, clock: Callable[[], float]) -> TurnAccount:
        """Open the account of a new turn."""
        return TurnAccount(self, clock)

    @property
    def report(self) -> PresynthesisReport:
        """The figures so far."""
        doubt = self._doubt
        figures = (self._spoken_s, self._wasted_s, self._saved_ms)
        why = doubt or "within its budget"
        return PresynthesisReport(not doubt, why, self._confirmed, self._withdrawn, *figures)

    def allows(self) -> bool:
        """Whether the next drafted phrase may be spoken."""
        doubt = self._doubt
        if doubt != self._told:
            self._told = doubt
            _log.info(self.report.words)
        if doubt == "too few drafts stand":
            self._skipped = (self._skipped + 1) % _ONE_IN
            return self._skipped == 0
        return not doubt

    def spoke(self, seconds: float, *, wasted: bool) -> None:
        """Count audio that was released, or made for text that was then revoked (``wasted``)."""
        if wasted:
            self._wasted_s += seconds
            self._recent_wasted_s += seconds
            return
        self._spoken_s += seconds
        self._recent_spoken_s += seconds
        if self._recent_spoken_s > _MEMORY_S:
            self._recent_spoken_s /= 2
            self._recent_wasted_s /= 2

    def judged(self, confirmed: int, withdrawn: int, saved_ms: float = 0.0) -> None:
        """Count phrases that the voice was given as drafts, and that were confirmed or withdrawn."""
        self._lately.extend([True] * confirmed + [False] * withdrawn)
        self._confirmed += confirmed
        self._withdrawn += withdrawn
        self._saved_ms += saved_ms


class TurnAccount:
    """One turn's part of an `Account`."""

    def __init__(self, account: Account, clock: Callable[[], float]) -> None:
        self._account = account
        self._clock = clock
        self._heard_from: float | None = None  # when the first audio was released
        self._released_s = 0.0
        self._given: list[float] = []  # when each outstanding draft was given to the voice

    def allows(self) -> bool:
        """Whether the voice may be given another drafted phrase; if so, it counts as given."""
        ahead = 0.0
        if self._heard_from is not None:
            ahead = self._released_s - (self._clock() - self._heard_from)
        allowed = ahead <= self._account.settings.ahead_s and self._account.allows()
        if allowed:
            self._given.append(self._clock())
        return allowed

    def confirmed(self) -> None:
        """Count the oldest phrase that was given: it was confirmed."""
        saved_s = self._clock() - self._given.pop(0)
        self._account.judged(1, 0, saved_s * 1e3)

    def withdrawn(self, count: int) -> None:
        """Count the newest ``count`` phrases that were given: they were withdrawn."""
        del self._given[len(self._given) - count :]
        self._account.judged(0, count)

    def spoke(self, speech: Speech, *, wasted: bool) -> None:
        """Count a piece that was released, or made for text that was then revoked (``wasted``)."""
        seconds = speech.samples.length / speech.sample_rate
        self._account.spoke(seconds, wasted=wasted)
        if not wasted:
            self._heard_from = self._clock() if self._heard_from is None else self._heard_from
            self._released_s += seconds
