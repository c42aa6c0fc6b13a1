"""The half of an agent that answers: one question after another, begun early where that pays."""

from __future__ import annotations

import copy
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from typing import Any

import anyio

from specstream.agent.events import ReplyEnded, ReplyFailed, ReplyStarted
from specstream.agent.first_phrase import FirstPhrase
from specstream.agent.preempt import Ledger
from specstream.agent.questions import Guess, Question, Questions
from specstream.conversation import Conversation
from specstream.errors import EngineClosed, SpecstreamError
from specstream.pipeline.hold import Hold
from specstream.pipeline.playout import Playout
from specstream.pipeline.spans import turn_span
from specstream.pipeline.stage import Pipeline
from specstream.turn import Turn
from specstream.types import Chunk, Message, SamplingParams, Speech

__all__ = ["Talking"]

_log = logging.getLogger("specstream.agent")


class Talking:
    """Answers questions in a conversation.

    Args:
        session: The conversation.
        pipeline: What becomes of the text.
        playout: Where speech goes; None: nothing is spoken.
        params: How to sample.
        voice: Keeps the first phrase of an answer that was begun in vain; None: nothing is kept.
        ledger: Decides which answers are begun early.
        tell: Takes what happens.
        paused: Whether somebody is speaking, so that a reply begins paused.

    Attributes:
        questions: What is to be answered.
        turn: The reply under way, once it is wanted.
    """

    def __init__(
        self,
        session: Conversation[Any],
        pipeline: Pipeline,
        playout: Playout | None,
        params: SamplingParams | None,
        voice: FirstPhrase | None,
        ledger: Ledger,
        tell: Callable[[str, object], Awaitable[None]],
        paused: Callable[[], bool],
    ) -> None:
        self._session = session
        self._parts = (pipeline, playout, params)
        self._voice = voice
        self._ledger = ledger
        self._tell = tell
        self._paused = paused
        self._replies = 0
        self._vain = Guess("", -1)  # what was written last and not wanted, for which turn
        self._draft = ""  # of the answer under way
        self.questions = Questions()
        self.turn: Turn[Any] | None = None

    async def run(self) -> None:
        """Answer until the questions are over."""
        while (asked := await self.questions.next()) is not None:
            if isinstance(asked, Guess):
                late = await self._begin(asked) if self._ledger.begins(asked) else None
            else:
                late = asked
            if late is not None:
                await self._answer(late)
            if self._voice is not None:
                self._ledger.reused_s = self._voice.reused_s

    async def _answer(self, asked: Question) -> None:
        with turn_span(self._replies) as told:
            await self._tell("agent", ReplyStarted(self._replies, asked.text))
            async with self._told():
                async with self._turn(asked) as turn:
                    await self._follow(turn)
                await self._over(turn, told)

    async def _begin(self, guess: Guess) -> Question | None:
        """Answer ``guess``, if that is what is asked; returns a question that needs a new answer."""
        hold, again, turn = Hold(self._ledger.max_tokens), None, None
        prompt = copy.deepcopy(self._session.messages)
        with turn_span(self._replies) as told, self._ahead():
            async with self._told(hold):
                async with self._turn(guess, hold) as turn:
                    again = await self._judge(guess, turn, hold, prompt)
                    if hold.released:
                        await self._follow(turn)
                if hold.released:
                    await self._over(turn, told)
            if not hold.released:
                told["abandoned"] = True
                self._abandoned(guess, turn)
        return again

    def _turn(
        self, asked: Question | Guess, hold: Hold | None = None
    ) -> AbstractAsyncContextManager[Turn[Any]]:
        self._draft = self._vain.text if asked.turn == self._vain.turn else ""
        return self._session.turn(asked.text, *self._parts, hold=hold, reference=self._draft)

    @asynccontextmanager
    async def _told(self, hold: Hold | None = None) -> AsyncGenerator[None, None]:
        """An error of a reply is told; nobody needs to know of one that wasn't wanted yet."""
        try:
            yield
        except Exception as error:
            if hold is not None and not hold.released:
                _log.warning("an answer that was begun early broke", exc_info=error)
                self._ledger.failed()
            elif isinstance(error, SpecstreamError) and not isinstance(error, EngineClosed):
                number, self._replies = self._replies, self._replies + 1
                await self._tell("agent", ReplyFailed(number, error))
            else:
                raise

    @contextmanager
    def _ahead(self) -> Iterator[None]:
        """The voice keeps what it makes of an answer that may not be wanted."""
        if self._voice is None:
            yield
            return
        self._voice.ahead = True
        try:
            yield
        finally:
            self._voice.ahead = False

    async def _judge(
        self, guess: Guess, turn: Turn[Any], hold: Hold, prompt: list[Message]
    ) -> Question | None:
        """Release the answer once it is wanted; returns the question if it needs another one."""
        began = anyio.current_time()
        same, asked = await self.questions.judge(guess)
        if not same:
            if asked is not None:
                self._ledger.asked(guess, asked)
            return None
        if turn.broken or turn.reply.error is not None:
            self._ledger.failed()
            return asked
        if self._session.messages != prompt:  # somebody has edited the history
            return asked
        self._ledger.wanted((anyio.current_time() - began) * 1e3)
        if self._voice is not None:
            self._voice.forget()
        await self._tell("agent", ReplyStarted(self._replies, guess.text))
        hold.release()
        return None

    def _abandoned(self, guess: Guess, turn: Turn[Any] | None) -> None:
        if turn is None:
            self._ledger.unwanted(0)
            return
        self._ledger.unwanted(len(turn.reply.report.token_ids), turn.made_s)
        if text := turn.reply.text:
            self._vain = Guess(text, guess.turn)

    async def _follow(self, turn: Turn[Any]) -> None:
        """Tell a wanted reply as it is read, to its end."""
        speaks = self._parts[1] is not None
        ready = False
        try:
            self.turn = turn
            if self._paused():
                turn.pause()
            async for event in turn:
                item = event.item
                if not ready and (item.pcm if isinstance(item, Speech) else not speaks):
                    self._ledger.ready(event.t_ms)
                    ready = True
                if self._draft and isinstance(item, Chunk):
                    self._ledger.redrafted(item)
                await self._tell(event.source, item)
        finally:
            self.turn = None

    async def _over(self, turn: Turn[Any], told: dict[str, Any]) -> None:
        assert turn.outcome is not None
        told["heard_ms"] = turn.outcome.played_ms
        told["complete"] = turn.outcome.complete
        number, self._replies = self._replies, self._replies + 1
        await self._tell("agent", ReplyEnded(number, turn.outcome, turn.reply.report))
