"""Answers begun before a question is over: when they are worth it, and what they saved and wasted."""

from __future__ import annotations

import logging
import math
from collections import Counter, deque
from dataclasses import dataclass

import anyio

from specstream.checks import check_ranges
from specstream.listening.endings import ending
from specstream.listening.taking import Guess, Question
from specstream.types import Chunk

__all__ = ["Ledger", "Preempt", "PreemptReport"]

_LATELY = 16  # turns with a pre-emptive answer over which the share of hits is measured
# Fewest turns to judge by. Also, while the share is too low, answers are begun in one turn of 8.
_ONE_IN = 8
_SPOKEN_S = 1.0  # least seconds between two answers that are begun while the user speaks

_log = logging.getLogger("specstream.agent")


@dataclass(frozen=True, slots=True)
class Preempt:
    """When to begin an answer on what the user has said so far.

    One such answer is under way at a time. It is held back until the final transcript turns out to be
    exactly the text that it answers, and online learning does not use it (see `LearningConfig`).

    Attributes:
        in_speech: Begin on partial transcripts while the user speaks, too, at most one answer a second;
            else only when the user pauses.
        max_starts: Most answers begun for one turn of the user; of several, the last is reserved for a
            pause. 0: none.
        max_tokens: How many tokens of an answer that is held back the stages may read.
        min_hits: Least share of the latest turns with a pre-emptive answer in which one was used. Below
            it, answers are begun in one turn of eight only, to notice when that has changed.

    Raises:
        ConfigError: a number out of range.
    """

    in_speech: bool = False
    max_starts: int = 3
    max_tokens: int = 64
    min_hits: float = 0.25

    def __post_init__(self) -> None:
        check_ranges(self, max_starts=(0, 100), max_tokens=(1, 10_000), min_hits=(0, 1))


@dataclass(frozen=True, slots=True)
class PreemptReport:
    """What pre-emptive answers have saved and wasted so far.

    Attributes:
        on: Whether answers are begun early at present.
        why: The reason.
        starts: Answers that were begun.
        hits: Answers that were used: the user asked exactly what they answer.
        nearly: Answers dropped although the question differed in punctuation, spaces or capitals only.
        failed: Answers that broke while they were held back; they count as not used.
        wasted_tokens: Tokens of answers that were dropped.
        wasted_audio_s: Seconds of their speech, without first phrases that later answers used.
        saved_ms: How much earlier the first speech of the used answers came, summed up; without a voice,
            their first text.
        redrafted: Answers that were given a dropped answer's text as a draft.
        redrafted_tokens: Tokens of those answers.
        accepted_tokens: How many of these tokens suffix lookup had drafted, from that or other text.
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
    """Counts the outcomes of pre-emptive answers, and decides by them whether to begin the next one.

    With ``settings`` None, no answer is begun early.

    Attributes:
        settings: When to begin an answer.
        reused_s: Seconds of dropped answers' speech that later answers used (see `FirstPhrase`).
    """

    def __init__(self, settings: Preempt | None) -> None:
        self.settings = settings or Preempt(max_starts=0)
        self._off = "not asked for" if settings is None else ""
        self._counts: Counter[str] = Counter()  # by field of the report
        self._saved_ms = self._held_ms = self._dropped_s = self.reused_s = 0.0
        self._lately: deque[bool] = deque(maxlen=_LATELY)  # whether one was used, by turn
        self._skipped = 0  # turns since the last one that was tried
        # The user's present turn:
        self._turn, self._starts = -1, 0
        self._allowed = self._hit = False
        self._last = -math.inf  # when an answer was begun in speech
        self._told = self._doubt  # as it was logged last

    @property
    def _doubt(self) -> str:
        """Why answers should not be begun early at present; empty if they should."""
        if not self.settings.max_starts:
            return self._off or "max_starts is 0"
        many = len(self._lately) >= _ONE_IN
        if many and sum(self._lately) < self.settings.min_hits * len(self._lately):
            return "too few are wanted; they are begun in one turn of eight"
        return ""

    @property
    def report(self) -> PreemptReport:
        """The figures so far."""
        doubt = self._doubt
        return PreemptReport(
            on=not doubt,
            why=doubt or "enough are wanted",
            wasted_audio_s=max(0.0, self._dropped_s - self.reused_s),
            saved_ms=self._saved_ms,
            **self._counts,
        )

    def begins(self, guess: Guess) -> bool:
        """Decide whether to begin an answer on ``guess``; if so, count it."""
        most = self.settings.max_starts
        if not most or guess.resumes or not (guess.paused or self.settings.in_speech):
            return False
        if ending(guess.text, guess.language) == "unfinished":
            return False
        if guess.turn != self._turn:
            self._next_turn(guess.turn)
        if not guess.paused:
            most = max(1, most - 1)
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
        """Settle the last turn's outcome, and decide whether answers may be begun in this one."""
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
        """Count an answer that is used, after it was held back for ``held_ms``."""
        self._lately.append(True)
        self._hit = True
        self._counts["hits"] += 1
        self._held_ms = held_ms

    def ready(self, t_ms: float) -> None:
        """Count the time saved: the reply's first speech came ``t_ms`` after the reply was begun."""
        self._saved_ms += min(self._held_ms, t_ms)
        self._held_ms = 0.0

    def unwanted(self, tokens: int, speech_s: float = 0.0) -> None:
        """Count an answer that was dropped, with its tokens and its seconds of speech."""
        self._counts["wasted_tokens"] += tokens
        self._dropped_s += speech_s

    def failed(self) -> None:
        """Count an answer that broke while it was held back."""
        self._counts["failed"] += 1

    def asked(self, guess: Guess, asked: Question) -> None:
        """Count a near miss: ``asked`` differs from ``guess`` in marks, spaces or capitals only."""
        if asked.turn == guess.turn and _plain(asked.text) == _plain(guess.text):
            self._counts["nearly"] += 1

    def redrafted(self, chunk: Chunk) -> None:
        """Count a chunk of an answer that was given a dropped answer's text as a draft."""
        self._counts["redrafted"] += chunk.tokens.start == 0 and chunk.tokens.length > 0
        self._counts["redrafted_tokens"] += chunk.tokens.length
        self._counts["accepted_tokens"] += chunk.accepted if "suffix" in chunk.proposer else 0


def _plain(text: str) -> str:
    return "".join(filter(str.isalnum, text.casefold()))
