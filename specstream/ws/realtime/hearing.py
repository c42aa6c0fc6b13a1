"""What one listener hears, as events and items of a Realtime session."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from specstream.errors import AdapterFailed
from specstream.listening.events import (
    ListeningFailed,
    TurnEnded,
    TurnHeard,
    TurnLost,
    TurnPartial,
    TurnStarted,
)
from specstream.listening.listener import Listener
from specstream.pipeline.listening_interfaces import Transcript
from specstream.ws.realtime import events as ev
from specstream.ws.realtime.conversation import Entry
from specstream.ws.realtime.resources import Failure
from specstream.ws.realtime.session import RealtimeSession
from specstream.ws.realtime.wire import new_id

__all__ = ["Hearing"]


@dataclass(slots=True)
class _Turn:
    entry: Entry
    over: bool = False
    announced: bool = False
    start_ms: float = 0.0
    end_ms: float = 0.0
    guess: str = ""
    sent: str = ""  # the deltas so far


class Hearing:
    """A listener of a session, and the items that become of its turns.

    Args:
        listener: What hears.
        session: The session that the items belong to.
        put: Sends an event.
        begun: Called when the client was told that somebody speaks.
        since_ms: Audio of the session before the listener's first sample.
        by_words: Tell so at the first word. A turn without words then leaves no event and no item.
    """

    def __init__(
        self,
        listener: Listener,
        session: RealtimeSession,
        put: Callable[[ev.ServerEvent], Awaitable[object]],
        begun: Callable[[], Awaitable[object]],
        since_ms: float,
        *,
        by_words: bool = False,
    ) -> None:
        self.listener = listener
        self.owed = False
        """Something was said that no response was made for."""
        self._session, self._put, self._begun = session, put, begun
        self._since_ms, self._by_words = since_ms, by_words and not listener.settings.manual
        self._turns: dict[int, _Turn] = {}
        self._settled = 0

    @property
    def unsettled(self) -> bool:
        """A turn has ended, and the conversation doesn't have its text yet."""
        return self.listener.ended > self._settled

    @property
    def speaking(self) -> bool:
        """A turn is open."""
        return self.listener.held_ms > 0

    async def take(self, event: object) -> None:
        """Send what an event of the listener means.

        Raises:
            Refused: the conversation is full.
            AdapterFailed: the turn detector broke.
        """
        match event:
            case TurnStarted(turn, _, start_ms):
                # Turns that were cleared get no more events.
                self._turns = {n: old for n, old in self._turns.items() if old.over}
                entry = Entry(new_id("item"), "user", "", heard=True)
                made = self._turns[turn] = _Turn(entry, start_ms=start_ms)
                if not self._by_words:
                    await self._announce(made)
            case TurnPartial(turn, transcript):
                await self._guess(self._turns[turn], transcript)
            case TurnEnded(turn, start_ms, end_ms):
                ended = self._turns[turn]
                ended.over, ended.start_ms, ended.end_ms = True, start_ms, end_ms
                if ended.announced:
                    await self._commit(ended)
            case TurnHeard(turn, transcript):
                await self._heard(self._turns.pop(turn), transcript)
            case TurnLost(turn, error):
                await self._lost(self._turns.pop(turn), error)
            case ListeningFailed(error):
                raise error

    async def _announce(self, turn: _Turn) -> None:
        turn.announced = True
        if not self.listener.settings.manual:
            start = round(self._since_ms + turn.start_ms)
            await self._put(ev.InputSpeechStarted(audio_start_ms=start, item_id=turn.entry.id))
            await self._begun()

    async def _commit(self, turn: _Turn) -> None:
        """The turn becomes an item, or is refused in a full conversation."""
        entry = turn.entry
        if turn.announced and not self.listener.settings.manual:
            end = round(self._since_ms + turn.end_ms)
            await self._put(ev.InputSpeechStopped(audio_end_ms=end, item_id=entry.id))
        previous = self._session.conversation.insert(entry)
        await self._put(ev.InputCommitted(item_id=entry.id, previous_item_id=previous))
        fields: dict[str, Any] = {"item": entry.wire(), "previous_item_id": previous}
        await self._put(ev.ItemEvent(type="conversation.item.added", **fields))
        await self._put(ev.ItemEvent(type="conversation.item.done", **fields))

    async def _guess(self, turn: _Turn, transcript: Transcript) -> None:
        """Words that two guesses in a row agree on are sent (Macháček et al. 2023)."""
        text = transcript.text
        before, turn.guess = turn.guess, text
        if not turn.announced:
            if not transcript.has_words:
                return
            await self._announce(turn)
        if self._session.hearing.transcription is None:
            return
        if "hearing" in self._session.wants:
            await self._put(ev.TranscriptionGuess(item_id=turn.entry.id, transcript=text))
        await self._delta(turn, _agreed(before, text))

    async def _delta(self, turn: _Turn, text: str) -> None:
        if len(text) > len(turn.sent) and text.startswith(turn.sent):
            delta, turn.sent = text[len(turn.sent) :], text
            await self._put(ev.TranscriptionDelta(item_id=turn.entry.id, delta=delta))

    async def _heard(self, turn: _Turn, transcript: Transcript) -> None:
        self._settled += 1
        if not turn.announced:
            if not transcript.has_words:
                return
            await self._announce(turn)
            await self._commit(turn)
        text = turn.entry.text = transcript.text
        self.owed = self.owed or transcript.has_words
        if self._session.hearing.transcription is not None:
            await self._delta(turn, text)
            seconds = (turn.end_ms - turn.start_ms) / 1000
            usage = {"type": "duration", "seconds": round(seconds, 3)}
            await self._put(
                ev.TranscriptionCompleted(item_id=turn.entry.id, transcript=text, usage=usage)
            )

    async def _lost(self, turn: _Turn, error: AdapterFailed) -> None:
        self._settled += 1
        if not turn.announced:
            await self._commit(turn)  # what was lost is told, but nobody is known to have spoken
        failure = Failure(type="server_error", code=error.code, message=str(error))
        await self._put(ev.TranscriptionFailed(item_id=turn.entry.id, error=failure))


def _agreed(one: str, other: str) -> str:
    """The beginning of ``other`` in whole words that ``one`` begins with, too."""
    words, agreed = one.split(), 0
    for at, word in enumerate(other.split()):
        if at >= len(words) or words[at] != word:
            break
        agreed = other.index(word, agreed) + len(word)
    return other[:agreed]
