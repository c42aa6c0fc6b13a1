"""The half of an agent that answers: one question after another, some of them pre-emptively."""

from __future__ import annotations

import copy
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from typing import Any

import anyio

from specstream.agent.events import ReplyEnded, ReplyFailed, ReplyPaused, ReplyStarted
from specstream.agent.parts import AgentParts
from specstream.agent.questions import Questions, ToolResults
from specstream.agent.tools import AgentTool, ToolCalls
from specstream.engine.session import BaseSession, ReplyOptions
from specstream.errors import EngineClosed, SpecstreamError
from specstream.listening.preempt import Ledger
from specstream.listening.taking import UNANSWERED_MS, Guess, Question, TurnTaking
from specstream.playback.playout import Playout
from specstream.playback.turn import FixedReply, Interruption, Turn, speaking
from specstream.stages.pipeline import Hold
from specstream.stages.spans import turn_span
from specstream.tools import ToolCall, ToolCallDelta
from specstream.types import Chunk, Message, SamplingParams, Speech

__all__ = ["Talking"]

_MOST_ANSWERS = 8  # to results of tools, one after another, before the model may call no more
_SOON_S = 0.3  # a call that takes no longer needs no word meanwhile
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
        tools: What the model may call.
        meanwhile: Said while tools run that the model called without a word; "": nothing.

    Attributes:
        calls: The calls of tools.
        questions: The questions to answer.
        taking: The turns of the user; a reply that begins while one of them is unclear begins paused.
        turn: The reply under way; None while an answer is held back.
        paused: Whether that reply is paused.
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
        tools: Sequence[AgentTool] = (),
        meanwhile: str = "",
    ) -> None:
        self._session = session
        self._speaks, self._voice = parts.speaks, parts.first
        self._made_with = (parts.pipeline, playout if parts.speaks else None, params)
        self._ledger = ledger
        self._tell = tell
        self._replies = 0
        self._asked = ""  # what the reply under way answers
        self._last: tuple[int, Question | None] = (0, None)  # and where it is in the history
        self._interrupted = self._wordless = False  # of the last reply
        self._answered = False  # whether the last question's was heard to its end
        self._heard_ms = 0.0  # of the replies to it
        self._dropped = Guess("", -1)  # the text of the last answer that was dropped, and its turn
        self._redrafts = redrafts
        self._draft = ""  # the dropped answer's text that serves the answer under way as a draft
        self._meanwhile = meanwhile
        self.taking = TurnTaking()
        self.questions = Questions(lambda: not self.taking.unclear)
        self.calls = self.questions.calls = ToolCalls(tools, tell, self.questions.notify)
        self.turn: Turn[Any] | None = None
        self.paused = False

    async def run(self) -> None:
        """Answer questions, and results of tools, until the queue has ended."""
        try:
            while (asked := await self.questions.next()) is not None:
                await self._take(asked)
                if self._voice is not None:
                    self._ledger.reused_s = self._voice.reused_s
        finally:
            await self.calls.aclose()

    async def _take(self, asked: Question | Guess | ToolResults) -> None:
        question: Question | None = None
        self._interrupted = self._wordless = False
        if isinstance(asked, ToolResults):
            await self._reply(self.calls.deliver(self._session), self._turn(None))
            await self._answer_results()
        elif isinstance(asked, Question):
            question = asked
        elif not self.calls.pending and self._ledger.begins(asked):
            question = await self._begin(asked)
        if question is not None:
            goes_on = self._goes_on(question)
            question = self._whole(question) if goes_on else question
            self.calls.asked(self._session, goes_on=goes_on)
            self._asks(question)
            await self._reply(question.text, self._turn(question))
            await self._answer_results()

    def _whole(self, question: Question) -> Question:
        """The rest of a question with its first part, which had been taken for a whole.

        The first part and what was written in reply leave the history.
        """
        begin, first = self._last
        if self._answered or self.calls.pending:
            return question
        if first is None or first.turn is None:
            return question
        after = self._session.messages[begin:]
        asked: Message = {"role": "user", "content": first.text}
        if after[:1] != [asked] or any("tool_calls" in message for message in after):
            return question
        del self._session.messages[begin:]
        return replace(question, text=f"{first.text} {question.text}")

    def _goes_on(self, asked: Question | Guess) -> bool:
        """Whether it is the rest of the last question, of whose replies next to nothing was heard."""
        return asked.resumes and self._heard_ms <= UNANSWERED_MS

    def _asks(self, question: Question) -> None:
        """Note that ``question`` is answered next."""
        self._last = (len(self._session.messages), question)
        self._answered, self._heard_ms = False, 0.0

    async def _reply(self, asked: str, made: AbstractAsyncContextManager[Turn[Any]]) -> None:
        """Give one reply; the calls in it run from when they are written."""
        with turn_span(self._replies) as attributes:
            await self._started(asked)
            async with self._errors_told():
                async with made as turn:
                    await self._follow(turn)
                await self._over(turn, attributes)
        self._record()

    async def _started(self, asked: str) -> None:
        self._asked = asked
        await self._tell("agent", ReplyStarted(self._replies, asked))

    def _record(self) -> None:
        self.calls.record(self._session)
        if self._interrupted:
            self.calls.interrupted()

    async def _answer_results(self) -> None:
        """Answer results of tools, and those of the answer's calls, until the user says something."""
        for left in range(_MOST_ANSWERS, 0, -1):
            if self._wordless and self._meanwhile:
                with anyio.move_on_after(_SOON_S):
                    await self._calls_end()
                if self.calls.awaited and not self.questions.waiting:
                    await self._say(self._meanwhile)
            self._wordless = False
            await self._calls_end()
            if self.questions.waiting or self._interrupted or not self.calls.fresh:
                return
            asked = self.calls.deliver(self._session)
            await self._reply(asked, self._turn(None, last=left == 1))
        self.calls.give_up()  # a model that goes on although it was told of no tools

    async def _calls_end(self) -> None:
        while self.calls.awaited and not (self.questions.waiting or self._interrupted):
            await self.questions.changed()

    def interrupt(self, played_ms: float | None = None) -> Interruption | None:
        """Stop the reply under way and the calls that an interruption cancels; None without a reply."""
        if self.turn is not None:
            return self.turn.interrupt(played_ms)  # the calls follow once the turn is over
        self.calls.interrupted()
        self.questions.notify()
        return None

    async def _say(self, text: str) -> None:
        """Speak a text that is no part of the conversation."""
        pipeline, playout, _ = self._made_with
        if self._voice is not None:
            self._voice.hold = None
        async with self._errors_told():
            async with speaking(FixedReply(text), pipeline, playout) as turn:
                await self._follow(turn)
            assert turn.outcome is not None
            if not turn.outcome.complete:
                self._interrupted = True
                self.calls.interrupted()

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
            if hold.released:
                self._record()
                await self._answer_results()
            else:
                attributes["abandoned"] = True
                self._abandoned(guess, turn)
        return again

    def _turn(
        self, asked: Question | Guess | None, hold: Hold | None = None, *, last: bool = False
    ) -> AbstractAsyncContextManager[Turn[Any]]:
        """A reply to the user, or (None) to the history as it is; ``last``: it may call no tools."""
        if self._voice is not None:
            self._voice.hold = hold
        again = self._redrafts and asked is not None and asked.turn == self._dropped.turn
        self._draft = self._dropped.text if again else ""
        options: ReplyOptions = {"reference": self._draft}
        if (offered := self.calls.offered) is not None:
            options["tools"] = replace(offered, choice="none") if last else offered
        text = None if asked is None else asked.text
        return self._session.turn(text, *self._made_with, hold=hold, **options)

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
        await self._started(guess.text)
        goes_on = self._goes_on(guess)
        self._asks(Question(guess.text, guess.turn))
        hold.release()
        self.calls.next_turn(goes_on=goes_on)
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
        ready, deltas = False, list[ToolCallDelta]()
        try:
            self.turn = turn
            self.paused = bool(self.taking.unclear)
            if self.paused:
                turn.pause()
                await self._tell("agent", ReplyPaused(0.0))
            async for event in turn:
                item = event.item
                if not ready and (item.pcm if isinstance(item, Speech) else not self._speaks):
                    self._ledger.ready(event.t_ms)
                    ready = True
                if self._draft and isinstance(item, Chunk):
                    self._ledger.redrafted(item)
                await self._tell(event.source, item)
                if isinstance(item, Chunk) and item.tool_calls:
                    ended = len(ToolCall.collect(deltas))
                    deltas += item.tool_calls
                    for call in ToolCall.collect(deltas)[ended:]:
                        await self.calls.begin(call, self._asked)
        finally:
            self.turn = None

    async def _over(self, turn: Turn[Any], attributes: dict[str, Any]) -> None:
        assert turn.outcome is not None
        attributes["heard_ms"] = turn.outcome.played_ms
        attributes["complete"] = turn.outcome.complete
        self._heard_ms += turn.outcome.played_ms
        self._interrupted = not turn.outcome.complete
        self._wordless = not turn.reply.text_read.strip()
        self._answered = not (self._interrupted or self._wordless)
        number, self._replies = self._replies, self._replies + 1
        await self._tell("agent", ReplyEnded(number, turn.outcome, turn.reply.report))
