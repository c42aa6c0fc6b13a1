"""Questions to an agent, and the newest guess at the next."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from specstream.errors import RequestError
from specstream.listening.taking import Guess, Question
from specstream.signals import Signal

if TYPE_CHECKING:
    from specstream.agent.tools import ToolCalls

__all__ = ["Questions", "ToolResults"]

_MAX_ASKED = 8


@dataclass(frozen=True, slots=True)
class ToolResults:
    """Results of tools have come that no reply has answered."""


class Questions:
    """A queue of at most 8 questions, and the newest guess at the next one. For a single reader.

    Spoken questions go before typed ones, and the rest of one that waits is joined to its beginning.

    Args:
        quiet: Whether the user says nothing now: typed questions and results of tools wait for that,
            as the user's next word would end their answers.

    Attributes:
        calls: The calls whose results are to be answered when nobody asks anything.
    """

    def __init__(self, quiet: Callable[[], bool] = lambda: True) -> None:
        self._quiet = quiet
        self._asked: deque[Question] = deque()
        self._guess: Guess | None = None
        self._said: Guess | None = None  # the newest one, read or not
        self._closed = False
        self._changed = Signal()
        self.calls: ToolCalls | None = None

    async def ask(self, question: Question) -> None:
        """Queue a question; wait while the queue is full. If this is cancelled, nothing is queued.

        Raises:
            RequestError: the questions have ended, here or while this waited.
        """
        while self._full and not self._closed:
            await self._changed.wait()
        if self._closed:
            raise RequestError("the agent takes no more: `finish`, or the end of its block, came first")
        self._queue(question)
        if self._guess is not None and self._guess.turn == question.turn:
            self._guess = None
        self._changed.notify()

    def _queue(self, question: Question) -> None:
        asked = self._asked
        spoken = sum(one.turn is not None for one in asked)
        if question.turn is None:
            asked.append(question)
        elif question.resumes and spoken:
            first = asked[spoken - 1]
            text = f"{first.text} {question.text}"
            asked[spoken - 1] = Question(text, question.turn, first.resumes)
        else:
            asked.insert(spoken, question)

    def close(self) -> None:
        """Accept no more questions; those in the queue can still be read. Idempotent."""
        self._closed = True
        self._guess = None
        self._changed.notify()

    def said(self, guess: Guess) -> None:
        """Note what was said so far."""
        self._said = self._guess = guess
        self._changed.notify()

    def silent(self, turn: int | None = None) -> None:
        """Withdraw the guess of this turn (None: of any turn): no question comes of it."""
        if self._said is not None and turn in (None, self._said.turn):
            self._said = self._guess = None
            self._changed.notify()

    @property
    def _full(self) -> bool:
        return len(self._asked) >= _MAX_ASKED

    @property
    def waiting(self) -> bool:
        """Whether there is a question."""
        return bool(self._asked)

    async def changed(self) -> None:
        """Wait for the next change: a question, a guess, the end of a call."""
        await self._changed.wait()

    def notify(self) -> None:
        """Tell of a change outside: a call has ended."""
        self._changed.notify()

    async def next(self) -> Question | Guess | ToolResults | None:
        """Return the next question, else results of tools, else the newest guess; None after the last.

        After `close` calls that still run are waited for. Cancelling the call loses nothing.
        """
        while True:
            quiet = self._quiet()
            if self._asked and (self._asked[0].turn is not None or quiet or self._full):
                question = self._asked.popleft()
                self._changed.notify()
                return question
            if self.calls is not None and self.calls.due and quiet:
                return ToolResults()
            if self._closed and not (self.calls is not None and self.calls.running):
                return None
            if self._guess is not None:
                guess, self._guess = self._guess, None
                return guess
            await self._changed.wait()

    async def judge(self, guess: Guess) -> tuple[bool, Question | None]:
        """Wait until it is known whether ``guess`` was the question; if so, take that off the queue.

        Also returns the question that decided it, if one did. Cancelling the call loses nothing.
        """
        while True:
            if self._asked and (self._asked[0].turn is not None or self._full):
                first = self._asked[0]
                if first != Question(guess.text, guess.turn):
                    return False, first
                self._asked.popleft()
                self._changed.notify()
                return True, first
            if self._closed or self._said != guess:
                return False, None
            self._guess = None  # at most ``guess`` again, which is being answered
            await self._changed.wait()
