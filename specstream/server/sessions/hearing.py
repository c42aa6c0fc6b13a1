"""The events of one listener, translated into events and items of a Realtime session."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from specstream.errors import AdapterFailed
from specstream.listening.endings import is_backchannel
from specstream.listening.events import (
    ListenerEvent,
    ListeningFailed,
    TurnEnded,
    TurnHeard,
    TurnLost,
    TurnPartial,
    TurnStarted,
)
from specstream.listening.interfaces import Transcript
from specstream.listening.listener import Listener
from specstream.listening.taking import Question, Taken, TurnTaking
from specstream.realtime import events as ev
from specstream.realtime.resources import Extra, Failure, told_to_callers
from specstream.realtime.wire import new_id
from specstream.server.sessions.entries import ItemEntry
from specstream.server.sessions.session import RealtimeSession

__all__ = ["SessionHearing"]


@dataclass(slots=True)
class _Turn:
    entry: ItemEntry
    over: bool = False
    announced: bool = False
    start_ms: float = 0.0
    end_ms: float = 0.0
    guess: str = ""
    sent: str = ""  # the deltas so far


@dataclass(slots=True, eq=False)
class SessionHearing:
    """A listener of a session, and the items that its turns become.

    Attributes:
        listener: The source of events.
        session: The session that the items belong to.
        put: Sends an event.
        begun: Called when a turn was announced to the client.
        since_ms: Milliseconds of the session's audio before the listener's first sample.
        played_ms: Milliseconds that were heard of the conversation's response; None: none is under way.
        by_words: Announce a turn once its words claim the floor (see `TurnTaking`). A turn without words
            leaves no event and no item, nor does a "mm-hm" during a response.
        answers: Its turns are answered without being asked for.
    """

    listener: Listener
    session: RealtimeSession
    put: Callable[[ev.ServerEvent], Awaitable[object]]
    begun: Callable[[], Awaitable[object]]
    since_ms: float
    played_ms: Callable[[], float | None] = lambda: None
    by_words: bool = False
    answers: bool = True
    _taking: TurnTaking = field(init=False)
    _turns: dict[int, _Turn] = field(default_factory=dict)
    _settled: int = 0

    def __post_init__(self) -> None:
        self._taking = TurnTaking("words" if self.by_words else "voice")

    @property
    def unsettled(self) -> bool:
        """Whether a turn has ended and the conversation doesn't have its text yet."""
        return self.listener.ended > self._settled

    @property
    def speaking(self) -> bool:
        """Whether a turn is open."""
        return self.listener.held_ms > 0

    async def take(self, event: ListenerEvent) -> Taken:
        """Apply an event of the listener to the conversation, and send the events for the client.

        Returns what the event means.

        Raises:
            Refused: the conversation is full.
            AdapterFailed: the turn detector broke.
        """
        played_ms = self.played_ms()
        taken = self._taking.take(event, speaking=played_ms is not None, played_ms=played_ms or 0.0)
        claimed = taken.floor == "claimed"
        match event:
            case TurnStarted(turn, _, start_ms):
                # Turns that were cleared get no more events.
                self._turns = {n: old for n, old in self._turns.items() if old.over}
                entry = ItemEntry(new_id("item"), "user", "", heard=True)
                by_hand = self.listener.settings.manual
                made = self._turns[turn] = _Turn(entry, announced=by_hand, start_ms=start_ms)
                if claimed:
                    await self._announce(made)
            case TurnPartial(turn, transcript):
                if claimed:
                    await self._announce(self._turns[turn])
                await self._guess(self._turns[turn], transcript)
            case TurnEnded(turn, start_ms, end_ms):
                ended = self._turns[turn]
                ended.over, ended.start_ms, ended.end_ms = True, start_ms, end_ms
                if ended.announced:
                    await self._commit(ended)
            case TurnHeard(turn, transcript):
                await self._heard(self._turns.pop(turn), transcript, taken.question)
            case TurnLost(turn, error):
                await self._lost(self._turns.pop(turn), error)
            case ListeningFailed(error):
                raise error
        return taken

    async def _announce(self, turn: _Turn) -> None:
        """Tell the client that the user speaks; once for a turn, and of none that is ended by hand."""
        if not turn.announced:
            turn.announced = True
            start = round(self.since_ms + turn.start_ms)
            await self.put(ev.InputSpeechStarted(audio_start_ms=start, item_id=turn.entry.id))
            await self.begun()

    async def _commit(self, turn: _Turn) -> None:
        """Make an item of the turn; a full conversation refuses it."""
        entry = turn.entry
        if turn.announced and not self.listener.settings.manual:
            end = round(self.since_ms + turn.end_ms)
            await self.put(ev.InputSpeechStopped(audio_end_ms=end, item_id=entry.id))
        previous = self.session.conversation.insert(entry)
        await self.put(ev.InputCommitted(item_id=entry.id, previous_item_id=previous))
        for event in ev.ItemEvent.both(entry.wire(), previous):
            await self.put(event)

    async def _guess(self, turn: _Turn, transcript: Transcript) -> None:
        """Send the words on which two partial transcripts in a row agree (Macháček et al. 2023)."""
        text = transcript.text
        before, turn.guess = turn.guess, text
        if not turn.announced or self.session.settings.audio.input.transcription is None:
            return
        if "hearing" in self.session.settings.specstream.events:
            await self.put(ev.TranscriptionGuess(item_id=turn.entry.id, transcript=text))
        await self._delta(turn, _agreed(before, text))

    async def _delta(self, turn: _Turn, text: str) -> None:
        if len(text) > len(turn.sent) and text.startswith(turn.sent):
            delta, turn.sent = text[len(turn.sent) :], text
            await self.put(
                ev.TranscriptionDelta(item_id=turn.entry.id, delta=delta, specstream=_extra(text))
            )

    async def _heard(self, turn: _Turn, transcript: Transcript, question: Question | None) -> None:
        self._settled += 1
        if not turn.announced:
            if question is None:
                return
            await self._announce(turn)
            await self._commit(turn)
        text = turn.entry.text = transcript.text
        if question is not None and question.resumes and not self.listener.settings.manual:
            self.session.conversation.join(turn.entry)
        if self.session.settings.audio.input.transcription is not None:
            await self._delta(turn, text)
            seconds = (turn.end_ms - turn.start_ms) / 1000
            usage = {"type": "duration", "seconds": round(seconds, 3)}
            extra = _extra(text)
            extra.resumes = turn.entry.resumes
            await self.put(
                ev.TranscriptionCompleted(
                    item_id=turn.entry.id, transcript=text, usage=usage, specstream=extra
                )
            )

    async def _lost(self, turn: _Turn, error: AdapterFailed) -> None:
        self._settled += 1
        if not turn.announced:
            await self._commit(turn)  # without `_announce`: it may have been no speech
        failure = Failure(type="server_error", code=error.code, message=told_to_callers(error))
        await self.put(ev.TranscriptionFailed(item_id=turn.entry.id, error=failure))


def _extra(text: str) -> Extra:
    return Extra(listening=True if is_backchannel(text) else None)


def _agreed(before: str, now: str) -> str:
    """Return the longest beginning of ``now``, in whole words, that ``before`` also begins with."""
    agreed = 0
    for word, old in zip(now.split(), before.split(), strict=False):
        if word != old:
            break
        agreed = now.index(word, agreed) + len(word)
    return now[:agreed]
