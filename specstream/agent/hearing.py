"""How an agent reacts to its listener: pauses, interrupts or resumes the reply, queues questions."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from typing import Any

from specstream.agent.events import ReplyPaused, ReplyResumed
from specstream.agent.questions import Guess, Question
from specstream.agent.talking import Talking
from specstream.listening.ears import Ears
from specstream.listening.endings import claims_turn, is_backchannel
from specstream.listening.events import (
    ListenerEvent,
    ListenerSettings,
    ListeningFailed,
    TurnEnded,
    TurnHeard,
    TurnLost,
    TurnPartial,
    TurnPaused,
    TurnStarted,
)
from specstream.listening.listener import Listener
from specstream.playback.turn import Turn

__all__ = ["Hearing"]

RESUMES_MS = 2000.0
"""Who speaks again so soon after the end of a turn may only have paused."""
UNANSWERED_MS = 500.0
"""As long as no more of the reply was heard: nobody answers a reply sooner."""


class Hearing:
    """A listener, and the effect of its events on the reply under way and on the questions.

    Args:
        ears: Recogniser and turn detector.
        sample_rate: Samples a second of the audio.
        settings: How turns are cut and recognised.
        talking: Gives the replies, and takes final transcripts as questions, partial ones as guesses.
        tell: Called with the source and the item of each event to report.
        clean: Takes the agent's own voice out of the audio.
        in_speech: Let answers begin on any partial transcript, not only on those in a pause.

    Attributes:
        listener: Takes the audio.
    """

    def __init__(
        self,
        ears: Ears,
        sample_rate: int,
        settings: ListenerSettings | None,
        talking: Talking,
        tell: Callable[[str, object], Awaitable[None]],
        *,
        clean: Callable[[bytes], bytes] | None = None,
        in_speech: bool,
    ) -> None:
        self.listener = Listener(ears, sample_rate=sample_rate, settings=settings, clean=clean)
        self._talking = talking
        self._tell = tell
        self._in_speech = in_speech
        self._asked: Question | None = None  # by the event that is followed
        self._ended_ms = -math.inf  # when the last turn of the user did
        self._resumed: set[int] = set()  # turns that go on with the one before

    async def run(self) -> None:
        """Act on every event of the listener, then report it; return when the listener has finished."""
        questions = self._talking.questions
        async with self.listener:
            async for event in self.listener:
                done = self._act(event)
                await self._tell("ears", event)
                if done is not None:
                    await self._tell("agent", done)
                if self._asked is not None:
                    asked, self._asked = self._asked, None
                    await questions.ask(asked)
        questions.close()

    def _act(self, event: ListenerEvent) -> ReplyPaused | ReplyResumed | None:
        """Pause the reply at a voice, interrupt it at words, else resume it; return what to report.

        Words so far are a guess at the next question; it is withdrawn if no words were said, or, while
        the agent speaks, nothing but "mm-hm" and the like.
        """
        reply, questions = self._talking.turn, self._talking.questions
        speaking = reply is not None and reply.outcome is None
        match event:
            case TurnEnded(_, _, end_ms):
                self._ended_ms = end_ms
            case TurnStarted(turn, at_ms):
                self._talking.unclear.add(turn)
                played_ms = reply.played_ms if reply is not None else 0.0
                if at_ms - self._ended_ms <= RESUMES_MS and played_ms <= UNANSWERED_MS:
                    self._resumed.add(turn)
                if reply is not None and speaking:
                    reply.pause()
                    return ReplyPaused(reply.played_ms)
            case TurnPartial(turn, said) | TurnPaused(turn, said) if said.has_words:
                paused = isinstance(event, TurnPaused)
                if reply is not None and isinstance(event, TurnPartial):
                    if claims_turn(said.text, again=event.again):
                        reply.interrupt()
                if not (speaking and is_backchannel(said.text)):
                    worth = (paused or self._in_speech) and turn not in self._resumed
                    questions.said(Guess(said.text, turn, paused, said.language), worth=worth)
            case TurnHeard(turn, said) if said.has_words and not (
                speaking and is_backchannel(said.text)
            ):
                self._talking.unclear.discard(turn)
                if reply is not None:
                    reply.interrupt()
                self._asked = Question(said.text, turn, turn in self._resumed)
                self._resumed.discard(turn)
            case TurnHeard(turn) | TurnLost(turn):
                self._resumed.discard(turn)
                self._talking.unclear.discard(turn)
                questions.silent(turn)
                return self._go_on(reply)
            case ListeningFailed():
                self._talking.unclear.clear()
                questions.silent()
                return self._go_on(reply)
        return None

    def _go_on(self, reply: Turn[Any] | None) -> ReplyResumed | None:
        self._talking.questions.notify()  # results of tools may have waited for silence
        if self._talking.unclear or reply is None or reply.outcome is not None:
            return None
        reply.resume()
        return ReplyResumed(reply.played_ms)
