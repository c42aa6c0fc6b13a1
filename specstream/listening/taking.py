"""Turn-taking: what a listener's events mean for the reply under way and for the next question."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

from specstream.listening.endings import claims_turn, is_backchannel
from specstream.listening.events import (
    ListenerEvent,
    ListeningFailed,
    TurnEnded,
    TurnHeard,
    TurnLost,
    TurnPartial,
    TurnPaused,
    TurnStarted,
)
from specstream.listening.interfaces import Transcript

__all__ = ["Floor", "Guess", "Question", "Taken", "TurnTaking"]

RESUMES_MS = 2000.0
"""Who speaks again so soon after the end of a turn may only have paused."""
UNANSWERED_MS = 500.0
"""As long as no more of the reply was heard: nobody answers a reply sooner."""

Floor = Literal["voice", "claimed", "free"]


@dataclass(frozen=True, slots=True)
class Question:
    """A question to the agent.

    Attributes:
        text: The words.
        turn: The number of the user's turn; None if it was typed.
        resumes: The turn before was ended in a pause of the user's, and this is its rest.
    """

    text: str
    turn: int | None = None
    resumes: bool = False


@dataclass(frozen=True, slots=True)
class Guess:
    """What was said so far in a turn that is not over; ``paused``: the user pauses after it.

    ``language`` is the code that the recogniser told; None: none. For ``resumes`` see `Question`.
    """

    text: str
    turn: int
    paused: bool = field(default=True, compare=False)
    language: str | None = field(default=None, compare=False)
    resumes: bool = field(default=False, compare=False)


@dataclass(frozen=True, slots=True)
class Taken:
    """What an event of a listener means.

    Attributes:
        turn: The number of the user's turn; None: of any turn.
        floor: ``"voice"``: a voice is heard that may say nothing; a reply is best paused.
            ``"claimed"``: the user says something; a reply is to be interrupted. ``"free"``: the turn
            was no question; a paused reply goes on. None: nothing has changed.
        guess: The words so far.
        question: The words of the turn, which is over.
    """

    turn: int | None = None
    floor: Floor | None = None
    guess: Guess | None = None
    question: Question | None = None


class TurnTaking:
    """Follows the events of one listener. It does nothing by itself: agent and server act on `Taken`.

    Args:
        claims: What claims the floor: ``"words"`` (see `claims_turn`), or ``"voice"``, any voice that
            the turn detector hears.

    Attributes:
        unclear: Numbers of the turns of which it isn't known yet whether they are questions. At most
            one is open, and a listener bounds how many wait for their transcripts.
    """

    def __init__(self, claims: Literal["words", "voice"] = "words") -> None:
        self.unclear: set[int] = set()
        self._claims = claims
        self._claimed: set[int] = set()
        self._resumed: set[int] = set()  # turns that go on with the one before
        self._open: int | None = None
        self._ended_ms = -math.inf  # when the last turn did

    def take(self, event: ListenerEvent, *, speaking: bool = False, played_ms: float = 0.0) -> Taken:
        """Follow an event.

        While the agent speaks, "mm-hm" and the like (see `is_backchannel`) claim nothing and are no
        question.

        Args:
            event: The listener's next event.
            speaking: Whether a reply is under way that was not interrupted.
            played_ms: How much of the last reply was heard; 0 if that reply is over.
        """
        if played_ms > UNANSWERED_MS:
            self._resumed.clear()  # a reply that was heard is answered
        match event:
            case TurnStarted(turn, at_ms):
                return self._started(turn, at_ms, played_ms)
            case TurnPartial(turn, said, again):
                return self._said(turn, said, speaking, claims_turn(said.text, again=again))
            case TurnPaused(turn, said):
                return self._said(turn, said, speaking, paused=True)
            case TurnEnded(_, _, end_ms):
                self._ended_ms, self._open = end_ms, None
                return Taken()
            case TurnHeard(turn, said):
                return self._heard(turn, said, speaking)
            case TurnLost(turn):
                self._forget(turn)
                return Taken(turn, "free")
            case ListeningFailed():
                for turn in tuple(self.unclear):
                    self._forget(turn)
                return Taken(floor="free")

    def _started(self, turn: int, at_ms: float, played_ms: float) -> Taken:
        if self._open is not None:
            self._forget(self._open)  # was cleared: it gets no more events
        self._open = turn
        self.unclear.add(turn)
        if at_ms - self._ended_ms <= RESUMES_MS and played_ms <= UNANSWERED_MS:
            self._resumed.add(turn)
        if self._claims == "words":
            return Taken(turn, "voice")
        self._claimed.add(turn)
        return Taken(turn, "claimed")

    def _said(
        self, turn: int, said: Transcript, speaking: bool, claims: bool = False, paused: bool = False
    ) -> Taken:
        if not said.has_words:
            return Taken()
        if claims:
            self._claimed.add(turn)
        floor: Floor | None = "claimed" if claims else None
        if self._only_listens(turn, said, speaking):
            return Taken(turn, floor)
        resumes = turn in self._resumed
        return Taken(turn, floor, Guess(said.text, turn, paused, said.language, resumes))

    def _heard(self, turn: int, said: Transcript, speaking: bool) -> Taken:
        nothing = not said.has_words or self._only_listens(turn, said, speaking)
        resumes = turn in self._resumed
        self._forget(turn)
        if nothing:
            return Taken(turn, "free")
        return Taken(turn, "claimed", question=Question(said.text, turn, resumes))

    def _only_listens(self, turn: int, said: Transcript, speaking: bool) -> bool:
        return speaking and turn not in self._claimed and is_backchannel(said.text)

    def _forget(self, turn: int) -> None:
        for turns in (self.unclear, self._claimed, self._resumed):
            turns.discard(turn)
