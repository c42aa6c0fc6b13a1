"""How an agent reacts to its listener: pauses, interrupts or resumes the reply, queues questions."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from specstream.agent.events import ReplyPaused, ReplyResumed
from specstream.agent.questions import Guess, Question, Questions
from specstream.listening.ears import Ears
from specstream.listening.events import (
    ListenerEvent,
    ListeningFailed,
    TurnHeard,
    TurnLost,
    TurnPartial,
    TurnPaused,
    TurnStarted,
)
from specstream.listening.listener import Listener
from specstream.listening.settings import ListenerSettings
from specstream.turn import Turn

__all__ = ["Hearing"]

_Tell = Callable[[str, object], Awaitable[None]]


class Hearing:
    """A listener, and the effect of its events on the reply under way.

    Attributes:
        listener: Takes the audio.
        open: Numbers of the user's turns for which it isn't known yet whether they contain words.
    """

    def __init__(self, ears: Ears, sample_rate: int, settings: ListenerSettings | None) -> None:
        self.listener = Listener(ears, sample_rate=sample_rate, settings=settings)
        self.open: set[int] = set()

    async def follow(
        self,
        reply: Callable[[], Turn[Any] | None],
        tell: _Tell,
        questions: Questions,
        *,
        in_speech: bool = False,
    ) -> None:
        """Act on every event of the listener, then report it; return when the listener has finished.

        Args:
            reply: Returns the reply under way, if any.
            tell: Called with the source and the item of each event to report.
            questions: Takes final transcripts as questions, and partial ones as guesses.
            in_speech: Let answers begin on any partial transcript, not only on those in a pause.
        """
        async with self.listener:
            async for event in self.listener:
                done = self._act(event, reply())
                _guess(event, questions, in_speech=in_speech)
                await tell("ears", event)
                if done is not None:
                    await tell("agent", done)
                if isinstance(event, TurnHeard) and event.transcript.has_words:
                    await questions.ask(Question(event.transcript.text, event.turn))
        questions.close()

    def _act(self, event: ListenerEvent, reply: Turn[Any] | None) -> object:
        """Pause the reply at a voice, interrupt it at a word, else resume it; return what to report."""
        match event:
            case TurnStarted():
                self.open.add(event.turn)
                if reply is not None and reply.outcome is None:
                    reply.pause()
                    return ReplyPaused(reply.played_ms)
            case TurnPartial():
                if reply is not None and event.transcript.has_words:
                    reply.interrupt()
            case TurnHeard():
                self.open.discard(event.turn)
                if not event.transcript.has_words:
                    return self._go_on(reply)
                if reply is not None:
                    reply.interrupt()
            case TurnLost():
                self.open.discard(event.turn)
                return self._go_on(reply)
            case ListeningFailed():
                self.open.clear()
                return self._go_on(reply)
        return None

    def _go_on(self, reply: Turn[Any] | None) -> object:
        if self.open or reply is None or reply.outcome is not None:
            return None
        reply.resume()
        return ReplyResumed(reply.played_ms)


def _guess(event: ListenerEvent, questions: Questions, *, in_speech: bool) -> None:
    """Pass on a partial transcript as a guess at the question; withdraw it if no words were said."""
    match event:
        case TurnPartial(turn, transcript) | TurnPaused(turn, transcript) if transcript.has_words:
            paused = isinstance(event, TurnPaused)
            questions.said(Guess(transcript.text, turn, paused), worth=paused or in_speech)
        case TurnHeard(turn, transcript) if not transcript.has_words:
            questions.silent(turn)
        case TurnLost(turn):
            questions.silent(turn)
        case ListeningFailed():
            questions.silent()
