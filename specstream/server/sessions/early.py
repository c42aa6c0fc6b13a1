"""A session's answer to what the user has said so far, which nobody is told of until it is wanted."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import anyio
import anyio.lowlevel

from specstream.listening.preempt import Ledger, Preempt
from specstream.listening.taking import Guess
from specstream.server.counters import Counters
from specstream.server.sessions.request import ResponseRequest
from specstream.server.sessions.response import ResponseTurn
from specstream.stages.pipeline import Hold

__all__ = ["EarlyResponses"]


@dataclass(slots=True, eq=False)
class _Begun:
    guess: Guess
    request: ResponseRequest  # as it was made; the response's own may have a seed
    response: ResponseTurn
    hold: Hold
    at: float


class EarlyResponses:
    """Holds at most one response, which answers a guess at the user's next question.

    Args:
        settings: When to begin one; None: never.
        begin: Starts a response that is held back.
        counters: Count what became of it.
    """

    def __init__(
        self,
        settings: Preempt | None,
        begin: Callable[[ResponseRequest, Hold], Awaitable[ResponseTurn]],
        counters: Counters,
    ) -> None:
        self._ledger = Ledger(settings)
        self._begin, self._counters = begin, counters
        self._begun: _Begun | None = None

    async def guess(self, guess: Guess, request: Callable[[str], ResponseRequest | None]) -> None:
        """Begin the response that ``request`` makes of these words, unless it is begun or not worth it.

        Raises:
            Refused, AdapterError: it can't be begun.
        """
        if self._begun is not None and self._begun.guess == guess:
            return
        await self.drop()
        asked = request(guess.text)
        if asked is None or not self._ledger.begins(guess):
            return
        hold = Hold(self._ledger.settings.max_tokens)
        response = await self._begin(asked, hold)
        self._begun = _Begun(guess, asked, response, hold, anyio.current_time())

    async def drop(self, turn: int | None = None) -> None:
        """End the response for this turn of the user (None: for any): nobody asks for it."""
        begun = self._begun
        if begun is None or turn not in (None, begun.guess.turn):
            return
        self._begun = None
        if begun.response.usable:
            self._counters.early["dropped"] += 1
        else:
            self._ledger.failed()
            self._counters.early["failed"] += 1
        self._ledger.unwanted(begun.response.tokens, begun.response.made_s)
        begun.response.drop()
        await begun.response.finished.wait()
        await anyio.lowlevel.checkpoint()  # its adapters are free again

    async def take(self, request: ResponseRequest) -> ResponseTurn | None:
        """Return the response if it answers ``request``, and let its events out; else drop it."""
        begun = self._begun
        if begun is None or begun.request != request or not begun.response.usable:
            await self.drop()
            return None
        self._begun = None
        self._ledger.wanted((anyio.current_time() - begun.at) * 1e3)
        self._counters.early["used"] += 1
        begun.hold.release()
        return begun.response
