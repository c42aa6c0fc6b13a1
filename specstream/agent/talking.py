"""The half of an agent that answers: one question after another, some of them pre-emptively."""

from __future__ import annotations

import copy
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import anyio

from specstream.agent.events import ReplyEnded, ReplyFailed, ReplyStarted
from specstream.agent.parts import AgentParts
from specstream.agent.preempt import Ledger
from specstream.agent.questions import Guess, Question, Questions
from specstream.engine.session import BaseSession
from specstream.errors import EngineClosed, SpecstreamError
from specstream.playback.playout import Playout
from specstream.playback.turn import Turn
from specstream.stages.hold import Hold
from specstream.stages.spans import turn_span
from specstream.types import Chunk, Message, SamplingParams, Speech

__all__ = ["Talking"]

_log = logging.getLogger("specstream.agent")


class Talking:
    """Answers questions in a conversation.

    Args:
        session: The conversation.
        parts: Make speech, avatar cues and prompts of a reply's text.
        playout: Plays the speech, if there is a voice.
        params: Sampling parameters of the replies.
        ledger: Decides which answers are begun early.
        tell: Called with the source and the item of each event.
        redrafts: Whether the engine drafts from a text: that of a dropped answer.

    Attributes:
        questions: The questions to answer.
        turn: The reply under way; None while an answer is held back.
        unclear: Numbers of the user's turns for which it isn't known yet whether they contain words;
            a reply that begins meanwhile begins paused.
    """

    def __init__(
        self,
        session: BaseSession[Any],
        parts: AgentParts,
        playout: Playout,
        params: SamplingParams | None,
        ledger: Ledger,
        tell: Callable[[str, object], Awaitable[None]],
        redrafts: bool = True,
    ) -> None:
        self._session = session
        self._speaks, self._voice = parts.speaks, parts.first
        self._made_with = (parts.pipeline, playout if parts.speaks else None, params)
        self._ledger = ledger
        self._tell = tell
        self._replies = 0
        self._dropped = Guess("", -1)  # the text of the last answer that was dropped, and its turn
        self._redrafts = redrafts
        self._draft = ""  # the dropped answer's text that serves the answer under way as a draft
        self.questions = Questions()
        self.turn: Turn[Any] | None = None
        self.unclear: set[int] = set()

    async def run(self) -> None:
        """Answer questions until the queue has ended."""
        while (asked := await self.questions.next()) is not None:
            if isinstance(asked, Guess):
                question = await self._begin(asked) if self._ledger.begins(asked) else None
            else:
                question = asked
            if question is not None:
                await self._answer(question)
            if self._voice is not None:
                self._ledger.reused_s = self._voice.reused_s

    async def _answer(self, asked: Question) -> None:
        with turn_span(self._replies) as attributes:
            await self._tell("agent", ReplyStarted(self._replies, asked.text))
            async with self._errors_told():
                async with self._turn(asked) as turn:
                    await self._follow(turn)
                await self._over(turn, attributes)

    async def _begin(self, guess: Guess) -> Question | None:
        """Prepare an answer to ``guess``, and give it if that is what the user asks.

        Returns a question that was taken off the queue and needs another answer, else None.
        """
        hold, again, turn = Hold(self._ledger.settings.max_tokens), None, None
        prompt = copy.deepcopy(self._session.messages)
        with turn_span(self._replies) as attributes:
            async with self._errors_told(hold):
                async with self._turn(guess, hold) as turn:
                    again = await self._judge(guess, turn, hold, prompt)
                    if hold.released:
                        await self._follow(turn)
                if hold.released:
                    await self._over(turn, attributes)
            if not hold.released:
                attributes["abandoned"] = True
                self._abandoned(guess, turn)
        return again

    def _turn(
        self, asked: Question | Guess, hold: Hold | None = None
    ) -> AbstractAsyncContextManager[Turn[Any]]:
        if self._voice is not None:
            self._voice.hold = hold
        again = self._redrafts and asked.turn == self._dropped.turn
        self._draft = self._dropped.text if again else ""
        return self._session.turn(asked.text, *self._made_with, hold=hold, reference=self._draft)

    @asynccontextmanager
    async def _errors_told(self, hold: Hold | None = None) -> AsyncGenerator[None, None]:
        """Report an error of a reply as an event; of an answer that is held back, only log it."""
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

    async def _judge(
        self, guess: Guess, turn: Turn[Any], hold: Hold, prompt: list[Message]
    ) -> Question | None:
        """Release the answer if ``guess`` was the question and the answer can be used.

        Returns the question if it needs another answer, else None.
        """
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
        await self._tell("agent", ReplyStarted(self._replies, guess.text))
        hold.release()
        if self._voice is not None:
            self._voice.forget()
        return None

    def _abandoned(self, guess: Guess, turn: Turn[Any] | None) -> None:
        """Count a dropped answer, and keep its text as a draft for the same turn's next answer."""
        if turn is None:
            self._ledger.unwanted(0)
            return
        self._ledger.unwanted(len(turn.reply.report.token_ids), turn.made_s)
        if text := turn.reply.text:
            self._dropped = Guess(text, guess.turn)

    async def _follow(self, turn: Turn[Any]) -> None:
        """Report the events of a reply that is wanted, until its end."""
        ready = False
        try:
            self.turn = turn
            if self.unclear:
                turn.pause()
            async for event in turn:
                item = event.item
                if not ready and (item.pcm if isinstance(item, Speech) else not self._speaks):
                    self._ledger.ready(event.t_ms)
                    ready = True
                if self._draft and isinstance(item, Chunk):
                    self._ledger.redrafted(item)
                await self._tell(event.source, item)
        finally:
            self.turn = None

    async def _over(self, turn: Turn[Any], attributes: dict[str, Any]) -> None:
        assert turn.outcome is not None
        attributes["heard_ms"] = turn.outcome.played_ms
        attributes["complete"] = turn.outcome.complete
        number, self._replies = self._replies, self._replies + 1
        await self._tell("agent", ReplyEnded(number, turn.outcome, turn.reply.report))
