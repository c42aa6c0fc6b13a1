"""What an agent does with what it hears: pause, interrupt, resume, ask."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from specstream.agent.events import ReplyPaused, ReplyResumed
from specstream.listening.ears import Ears
from specstream.listening.events import (
    ListenerEvent,
    ListeningFailed,
    TurnHeard,
    TurnLost,
    TurnPartial,
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
        ask: Callable[[str | None], Awaitable[None]],
    ) -> None:
        """Act on every event, then report it; ends when the listener has finished.

        ``reply()`` is the reply under way, ``ask`` takes what was said, and None behind the last.
        """
        async with self.listener:
            async for event in self.listener:
                done = self._act(event, reply())
                await tell("ears", event)
                if done is not None:
                    await tell("agent", done)
                if isinstance(event, TurnHeard) and event.transcript.has_words:
                    await ask(event.transcript.text)
        await ask(None)

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
