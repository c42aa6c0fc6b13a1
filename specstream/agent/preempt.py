"""Whether an agent begins its answer before the question is over, and what that wasted and brought."""

from __future__ import annotations

import logging
import math
from collections import deque
from dataclasses import dataclass, replace

import anyio

from specstream.agent.questions import Guess, Question
from specstream.errors import ConfigError
from specstream.listening.endings import ending
from specstream.types import Chunk

__all__ = ["Ledger", "Preempt", "PreemptReport"]

_LATELY = 16  # turns in which answers were begun
_ONE_IN = 8
_SPOKEN_S = 1.0  # between two answers that are begun while somebody speaks

_log = logging.getLogger("specstream.agent")


@dataclass(frozen=True, slots=True)
class Preempt:
    """When an answer is begun on what was said so far.

    There is one at a time. Nobody is given any of it before it is known that the model was asked the
    very words of the question, and no draft learns from it (see `LearningConfig`).

    Attributes:
        in_speech: Begin on partial transcripts, too, at most one a second; else only when the speaker
            pauses.
        max_starts: Answers that are begun for one turn of the speaker; of several, the last is kept
            for a pause. 0: none.
        max_tokens: How far the stages read an answer that is held back.
        min_hits: Of the turns in which answers were begun lately, how many must have wanted one; else
            that is done in one turn of eight, to see whether that has changed.

    Raises:
        ConfigError: a number out of range.
    """

    in_speech: bool = False
    max_starts: int = 3
    max_tokens: int = 64
    min_hits: float = 0.25

    def __post_init__(self) -> None:
        for name, least, most in (
            ("max_starts", 0, 100),
            ("max_tokens", 1, 10_000),
            ("min_hits", 0, 1),
        ):
            if not least <= getattr(self, name) <= most:
                raise ConfigError(f"{name} must be from {least} to {most}")


@dataclass(frozen=True, slots=True)
class PreemptReport:
    """What beginning early has brought and cost so far.

    Attributes:
        on: Whether the next one would be begun.
        why: Why, or why not.
        starts: Answers that were begun.
        hits: Those that were wanted.
        nearly: Those whose question differed in marks, spaces or capitals only.
        failed: Those that broke while they were held back; they count as not wanted.
        wasted_tokens: Tokens of answers that were not wanted.
        wasted_audio_s: Seconds of speech made of them, without first phrases that were used later.
        saved_ms: How much earlier the first speech came in answers that were wanted, summed up; without
            a voice, the first text.
        redrafted: Answers that were given an unwanted one as their draft.
        redrafted_tokens: Their tokens.
        accepted_tokens: How many of these suffix lookup had drafted, from that or from other text.
    """

    on: bool
    why: str
    starts: int = 0
    hits: int = 0
    nearly: int = 0
    failed: int = 0
    wasted_tokens: int = 0
    wasted_audio_s: float = 0.0
    saved_ms: float = 0.0
    redrafted: int = 0
    redrafted_tokens: int = 0
    accepted_tokens: int = 0

    @property
    def words(self) -> str:
        """One line for a log."""
        mean = f", {self.saved_ms / self.hits:.0f} ms sooner each" if self.hits else ""
        return (
            f"pre-emptive answers are {'on' if self.on else 'off'} ({self.why}): {self.hits} of "
            f"{self.starts} were wanted{mean}, {self.wasted_tokens} tokens and "
            f"{self.wasted_audio_s:.1f} s of speech were wasted"
        )


class Ledger:
    """Counts, and decides by what was counted. ``settings`` None: no answer is begun early.

    Attributes:
        reused_s: Seconds of speech of unwanted answers that were used later.
    """

    def __init__(self, settings: Preempt | None) -> None:
        self._settings = settings
        self._counts: dict[str, int] = dict.fromkeys(
            ("starts", "hits", "nearly", "failed", "wasted_tokens", "redrafted"), 0
        )
        self._counts |= {"redrafted_tokens": 0, "accepted_tokens": 0}
        self._saved_ms = self._held_ms = self._vain_s = self.reused_s = 0.0
        self._lately: deque[bool] = deque(maxlen=_LATELY)
        self._skipped = 0
        # Of the turn that is heard now:
        self._turn, self._starts = -1, 0
        self._allowed = self._hit = False
        self._last = -math.inf  # when an answer was begun in speech
        self._told = self._doubt

    @property
    def max_tokens(self) -> int:
        """See `Preempt`."""
        return self._settings.max_tokens if self._settings is not None else 1

    @property
    def in_speech(self) -> bool:
        """See `Preempt`."""
        return self._settings is not None and self._settings.in_speech

    @property
    def _doubt(self) -> str:
        if self._settings is None:
            return "not asked for"
        if not self._settings.max_starts:
            return "max_starts is 0"
        many = len(self._lately) >= _ONE_IN
        if many and sum(self._lately) < self._settings.min_hits * len(self._lately):
            return "too few are wanted; they are begun in one turn of eight"
        return ""

    @property
    def report(self) -> PreemptReport:
        """The figures so far."""
        doubt = self._doubt
        why = doubt or "enough are wanted"
        figures = PreemptReport(not doubt, why, **self._counts, saved_ms=self._saved_ms)
        return replace(figures, wasted_audio_s=max(0.0, self._vain_s - self.reused_s))

    def begins(self, guess: Guess) -> bool:
        """Whether an answer is begun on ``guess``; if so, it counts."""
        settings = self._settings
        if settings is None or not settings.max_starts or ending(guess.text) == "unfinished":
            return False
        if guess.turn != self._turn:
            self._next_turn(guess.turn)
        most = settings.max_starts if guess.paused else max(1, settings.max_starts - 1)
        if not self._allowed or self._starts >= most:
            return False
        if not guess.paused:
            if anyio.current_time() < self._last + _SPOKEN_S:
                return False
            self._last = anyio.current_time()
        self._starts += 1
        self._counts["starts"] += 1
        return True

    def _next_turn(self, turn: int) -> None:
        if self._starts and not self._hit:
            self._lately.append(False)
        self._turn, self._starts, self._hit = turn, 0, False
        self._allowed, doubt = True, self._doubt
        if doubt != self._told:
            self._told = doubt
            _log.info(self.report.words)
        if doubt:
            self._skipped = (self._skipped + 1) % _ONE_IN
            self._allowed = not self._skipped

    def wanted(self, held_ms: float) -> None:
        """The answer is the one that is given; it was held back so long."""
        self._lately.append(True)
        self._hit = True
        self._counts["hits"] += 1
        self._held_ms = held_ms

    def ready(self, t_ms: float) -> None:
        """The first speech of the reply under way was there so long after it was begun."""
        self._saved_ms += min(self._held_ms, t_ms)
        self._held_ms = 0.0

    def unwanted(self, tokens: int, speech_s: float = 0.0) -> None:
        """The answer is dropped, with so many tokens and seconds of speech."""
        self._counts["wasted_tokens"] += tokens
        self._vain_s += speech_s

    def failed(self) -> None:
        """An answer that was held back broke."""
        self._counts["failed"] += 1

    def asked(self, guess: Guess, asked: Question) -> None:
        """``asked`` was asked instead of ``guess``."""
        if asked.turn == guess.turn and _plain(asked.text) == _plain(guess.text):
            self._counts["nearly"] += 1

    def redrafted(self, chunk: Chunk) -> None:
        """A chunk of an answer that was given an unwanted one as its draft."""
        self._counts["redrafted"] += chunk.tokens.start == 0 and chunk.tokens.length > 0
        self._counts["redrafted_tokens"] += chunk.tokens.length
        self._counts["accepted_tokens"] += chunk.accepted if "suffix" in chunk.proposer else 0


def _plain(text: str) -> str:
    return "".join(filter(str.isalnum, text.casefold()))
