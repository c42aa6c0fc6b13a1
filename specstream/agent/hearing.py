"""What an agent does with what it hears: pause, interrupt, resume, ask."""

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
    """A listener, and what its events mean for the reply under way.

    Attributes:
        listener: What takes the audio.
        open: The turns of the user of which it isn't known yet whether words were said.
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
        """Act on every event, then report it; ends when the listener has finished.

        ``reply()`` is the reply under way. ``questions`` take what was said; what was said so far is
        worth an answer when the speaker pauses, or always (``in_speech``).
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
        """Pause at a voice, stop at a word, go on where there was none; returns what to tell."""
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
    """What will perhaps be asked."""
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
