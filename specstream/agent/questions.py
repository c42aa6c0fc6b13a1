"""What an agent is asked, in order, and what it will perhaps be asked next."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import anyio

__all__ = ["Guess", "Question", "Questions"]

_MAX_ASKED = 8


@dataclass(frozen=True, slots=True)
class Question:
    """It was asked; ``turn`` is the speaker's turn, None if it was typed."""

    text: str
    turn: int | None = None


@dataclass(frozen=True, slots=True)
class Guess:
    """What was said so far in a turn that is not over; ``paused``: the speaker pauses there."""

    text: str
    turn: int
    paused: bool = field(default=True, compare=False)


class Questions:
    """A queue of at most 8 questions, and beside it the newest guess. One reader."""

    def __init__(self) -> None:
        self._asked: deque[Question] = deque()
        self._guess: Guess | None = None
        self._said: Guess | None = None  # whatever was said last, worth an answer or not
        self._closed = False
        self._changed = anyio.Event()

    def _notify(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()

    async def ask(self, question: Question) -> None:
        """Put it into the line; waits while that is full. Cancelling asks nothing."""
        while len(self._asked) >= _MAX_ASKED and not self._closed:
            await self._changed.wait()
        if not self._closed:
            self._asked.append(question)
            if self._guess is not None and self._guess.turn == question.turn:
                self._guess = None
            self._notify()

    def close(self) -> None:
        """Nothing more is asked. Idempotent."""
        self._closed = True
        self._guess = None
        self._notify()

    def said(self, guess: Guess, *, worth: bool) -> None:
        """What was said so far; ``worth``: it may be all."""
        self._said = guess
        self._guess = guess if worth else None
        self._notify()

    def silent(self, turn: int | None = None) -> None:
        """The turn (None: any) was no question after all."""
        if self._said is not None and turn in (None, self._said.turn):
            self._said = self._guess = None
            self._notify()

    async def next(self) -> Question | Guess | None:
        """The next question; a guess if none is asked now; None behind the last question.

        Cancelling it loses nothing.
        """
        while True:
            if self._asked:
                question = self._asked.popleft()
                self._notify()
                return question
            if self._closed:
                return None
            if self._guess is not None:
                guess, self._guess = self._guess, None
                return guess
            await self._changed.wait()

    async def judge(self, guess: Guess) -> tuple[bool, Question | None]:
        """Wait until it is known whether ``guess`` was the question; if so, it is taken off the line.

        Also returns what was asked, if the decision was made by that. Cancelling it loses nothing.
        """
        while True:
            if self._asked:
                first = self._asked[0]
                if first != Question(guess.text, guess.turn):
                    return False, first
                self._asked.popleft()
                self._notify()
                return True, first
            if self._closed or self._said != guess:
                return False, None
            self._guess = None  # it is the same
            await self._changed.wait()
