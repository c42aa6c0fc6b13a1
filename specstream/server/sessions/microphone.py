"""Audio input of one connection: passes its audio to a listener, and the listener's events on."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from anyio.abc import TaskGroup

from specstream.errors import SpecstreamError
from specstream.listening.ears import Ears
from specstream.listening.events import ListenerEvent, ListenerSettings, TurnHeard
from specstream.listening.listener import Listener
from specstream.listening.taking import Guess
from specstream.realtime import events as ev, protocol as pr
from specstream.realtime.input_settings import AudioInput
from specstream.realtime.settings import ResponseSettings
from specstream.realtime.wire import Refused
from specstream.server.journal.record import SessionRecord
from specstream.server.limits import Meter
from specstream.server.sessions.audio import Format, decoded, sample_rate
from specstream.server.sessions.hearing import SessionHearing
from specstream.server.sessions.session import RealtimeSession

__all__ = ["Microphone", "Responder", "listener_settings"]

LEAST_MS = 95.0
"""Milliseconds of audio that a commit needs: 100, less what the rate conversion holds back."""
_PATIENCE = {"low": 2.0, "medium": 1.0, "auto": 1.0, "high": 0.5}  # of a listener, by eagerness
_EMPTY = (
    "Error committing input audio buffer: buffer too small. Expected at least 100ms of audio,"
    " but buffer only has {:.2f}ms of audio."
)


class Responder(Protocol):
    """The part of its connection that a microphone uses."""

    @property
    def responding(self) -> bool:
        """Whether a response of the conversation is under way."""
        ...

    @property
    def played_ms(self) -> float | None:
        """Milliseconds that were heard of the conversation's response; None: none is under way."""
        ...

    @property
    def stopping(self) -> bool:
        """Whether the server stops, so that another process may go on with the session."""
        ...

    @property
    def refusal(self) -> Refused | None:
        """Why the client may begin nothing more; None if it may."""
        ...

    async def respond(self, asked: ResponseSettings, event_id: str | None = None) -> None:
        """Start a response; an error or refusal becomes an ``error`` event."""
        ...

    async def interrupt(self) -> None:
        """Cancel the conversation's response, if there is one, because the user speaks."""
        ...

    async def guessed(self, guess: Guess) -> None:
        """Take note of what the user has said so far."""
        ...

    async def silent(self, turn: int | None) -> None:
        """Take note that no question comes of this turn (None: of any)."""
        ...

    async def report(self, error: SpecstreamError, event_id: str | None = None) -> None:
        """Send an ``error`` event."""
        ...


def listener_settings(heard: AudioInput, *, by_words: bool = False) -> ListenerSettings:
    """Translate a session's ``audio.input`` into the settings of a listener.

    ``server_vad`` ends a turn by silence alone, as OpenAI documents it. ``semantic_vad`` also considers
    the words; its ``eagerness`` sets ``patience``. ``by_words``: see `SessionHearing`; it needs partial
    transcripts.
    """
    turns, transcription = heard.turn_detection, heard.transcription
    settings = ListenerSettings(
        manual=turns is None,
        partial_ms=500.0 if by_words or transcription is not None else None,
        language=transcription.language if transcription is not None else None,
    )
    if turns is None:
        return settings
    if turns.type == "semantic_vad":
        return replace(settings, patience=_PATIENCE[turns.eagerness or "auto"])
    assert turns.threshold is not None
    return replace(
        settings,
        threshold=turns.threshold,
        prefix_ms=float(turns.prefix_padding_ms or 0),
        silence_ms=float(turns.silence_duration_ms or 0),
        by_words=False,
    )


@dataclass(slots=True, eq=False)
class Microphone:
    """The input audio buffer. After a change of settings the next turn gets a new listener.

    A frame that can't be used is refused once for each reason; later ones are dropped silently, since
    a microphone sends fifty frames a second and some clients end the session at the first ``error``.

    Attributes:
        ears: The recogniser and turn detector.
        session: The session's settings and conversation.
        put: Sends an event.
        responder: Starts and stops responses.
        group: Where the listeners' tasks run.
        meter: What the client pays with: recognising costs the server more than sending costs a client.
        record: Where what is heard and owed is written down.
    """

    ears: Ears
    session: RealtimeSession
    put: Callable[[ev.ServerEvent], Awaitable[object]]
    responder: Responder
    group: TaskGroup
    meter: Meter
    record: SessionRecord | None
    _settings: tuple[AudioInput, bool] = field(init=False)
    _hearing: SessionHearing | None = None
    _all: list[SessionHearing] = field(default_factory=list)
    _since_ms: float = 0.0  # audio of the session before the current listener's
    _refused: set[str] = field(default_factory=set)  # messages since the last commit or clear
    _deferred: tuple[ResponseSettings, str | None] | None = None
    _owed: bool = False  # words were heard since the last response began

    def __post_init__(self) -> None:
        self._settings = self._wanted

    async def take(self, event: pr.AudioAppend | pr.AudioCommit | pr.AudioClear) -> None:
        """Take audio, end the turn by hand, or discard the audio in the buffer.

        Waits while too many turns wait for their transcripts.

        Raises:
            Refused: the data is no audio, the buffer is full, or the client's key is no longer good or
                used up (the first time only); at a commit
                there is too little audio, or with turn detection, nobody spoke.
        """
        match event:
            case pr.AudioAppend(audio=audio):
                await self._append(audio)
            case pr.AudioCommit():
                self._commit()
            case pr.AudioClear():
                if self._hearing is not None:
                    self._hearing.listener.clear()
                self._refused.clear()
                await self.put(ev.InputCleared())

    async def _append(self, audio: str) -> None:
        await self.reconfigure()
        try:
            if (why := self.responder.refusal) is not None:
                raise why
            pcm = self._decoded(audio)
            listener = self._listener().listener
            most = listener.settings.max_turn_s
            seconds = len(pcm) / 2 / sample_rate(self._format)
            if listener.settings.manual and listener.held_ms / 1e3 + seconds > most:
                message = f"The buffer holds {most:g} s of audio; commit or clear it first."
                raise Refused("input_audio_buffer_full", message, param="audio")
        except Refused as refusal:
            if refusal.message in self._refused:
                return
            self._refused.add(refusal.message)
            raise
        await self.meter.hear(seconds)
        if pcm and self.record is not None and listener.settings.manual and not listener.held_ms:
            self.record.hears()
        await listener.add(pcm)

    def _commit(self) -> None:
        listener = self._hearing.listener if self._hearing is not None else None
        held = listener.held_ms if listener is not None else 0.0
        if listener is None or held < LEAST_MS or not listener.commit():
            raise Refused("input_audio_buffer_commit_empty", _EMPTY.format(held))
        self._refused.clear()

    async def reconfigure(self) -> None:
        """Apply changed settings of audio input, but not to the turn in progress.

        That turn ends by the settings it began with; only a change of the audio's format discards it.
        """
        settings = self._wanted
        if settings == self._settings:
            return
        hearing, old = self._hearing, self._settings[0]
        in_turn = hearing is not None and hearing.listener.held_ms > 0.0
        if in_turn and settings[0].format == old.format:
            return  # `append` asks again
        self._settings, self._hearing = settings, None
        if hearing is not None:
            self._since_ms += hearing.listener.now_ms
            hearing.listener.clear()
            hearing.listener.finish()
        if in_turn:
            await self.put(ev.InputCleared())

    def defer(self, asked: ResponseSettings, event_id: str | None) -> bool:
        """Hold a response back until ended turns have transcripts; False if there is no need to.

        One out of band that brings its whole input reads no transcript.

        Raises:
            Refused: another response is held back already.
        """
        aside = asked.conversation == "none" and asked.input is not None
        if not self._waits or (aside and not _refers(asked.input)):
            return False
        if self._deferred is not None:
            message = "A response waits for the transcript of what was said; wait for it."
            raise Refused("conversation_already_has_active_response", message)
        self._deferred = (asked, event_id)
        return True

    def take_deferred(self) -> tuple[ResponseSettings, str | None] | None:
        """Return the conversation's response that waits for a transcript, and hold it back no longer."""
        if self._deferred is None or self._deferred[0].conversation == "none":
            return None
        waiting, self._deferred = self._deferred, None
        return waiting

    @property
    def _wanted(self) -> tuple[AudioInput, bool]:
        """The settings now, and whether a turn is announced by its words (see `SessionHearing`)."""
        settings = self.session.settings
        return settings.audio.input, settings.specstream.interrupt == "words"

    @property
    def _format(self) -> Format:
        form = self._settings[0].format
        return form.type if form is not None else "audio/pcm"

    def _decoded(self, audio: str) -> bytes:
        try:
            data = base64.b64decode(audio, validate=True)
        except (binascii.Error, ValueError):
            message = "Invalid 'audio': expected base64-encoded audio."
            raise Refused("invalid_value", message, param="audio") from None
        if self._format == "audio/pcm" and len(data) % 2:
            message = "Invalid 'audio': 16-bit PCM has an even number of bytes."
            raise Refused("invalid_value", message, param="audio")
        return decoded(data, self._format)

    def _listener(self) -> SessionHearing:
        if self._hearing is None:
            heard, by_words = self._settings
            settings = listener_settings(heard, by_words=by_words)
            rate = sample_rate(self._format)
            listener = Listener(self.ears, sample_rate=rate, settings=settings)
            self._hearing = SessionHearing(
                listener,
                self.session,
                self.put,
                self._begun,
                self._since_ms,
                lambda: self.responder.played_ms,
                by_words,
                _answers(heard),
            )
            self._all.append(self._hearing)
            self.group.start_soon(self._hear, self._hearing)
        return self._hearing

    async def _hear(self, hearing: SessionHearing) -> None:
        try:
            async with hearing.listener:
                async for event in hearing.listener:
                    try:
                        await self._follow(hearing, event)
                    except SpecstreamError as error:  # such as a full conversation
                        await self.responder.report(error)
        finally:
            self._all.remove(hearing)
            await self.settle()

    async def _begun(self) -> None:
        turns = self.session.settings.audio.input.turn_detection
        if turns is not None and turns.interrupt_response:
            await self.responder.interrupt()

    async def _follow(self, hearing: SessionHearing, event: ListenerEvent) -> None:
        heard = isinstance(event, TurnHeard)
        if heard and hearing.answers and self._answers:
            self._note_owed(None)
        try:
            taken = await hearing.take(event)
            if taken.question is not None:
                # The settings that the turn began with are its listener's, which may be an older one.
                self._owed = self._owed or (hearing.answers and self._answers)
            elif taken.floor == "free":
                await self.responder.silent(taken.turn)
        finally:
            if heard:
                self._note_owed(self._owed)
        if taken.guess is not None and self._answers and not self._waits:
            await self.responder.guessed(taken.guess)
        await self.settle()

    @property
    def _answers(self) -> bool:
        """Whether the user's turns are answered without being asked for."""
        return _answers(self.session.settings.audio.input)

    @property
    def _waits(self) -> bool:
        """Whether turns have ended whose transcripts aren't there yet."""
        return any(hearing.unsettled for hearing in self._all)

    async def settle(self) -> None:
        """Start the response that waits, if nothing is in its way any more.

        To be called after every event of a listener and after every response of the conversation.
        Several turns without a response get one, after the last one's transcript.
        """
        if self._waits:
            return
        if self._deferred is not None:
            (asked, event_id), self._deferred = self._deferred, None
            await self.responder.respond(asked, event_id)
            if asked.conversation != "none" or self._waits:  # a turn may have ended meanwhile
                return
        if not self._answers or self.responder.responding:
            return
        turns = self.session.settings.audio.input.turn_detection
        assert turns is not None
        if turns.interrupt_response and any(hearing.speaking for hearing in self._all):
            return
        if self._owed and not self.responder.stopping:
            self._owed = False
            await self.responder.respond(ResponseSettings())
            self._note_owed(self._owed)  # also if the response was refused

    def _note_owed(self, owed: bool | None) -> None:
        if self.record is not None:
            self.record.owes(owed)

    def owe(self) -> None:
        """An earlier process has heard what isn't answered yet; `settle` does."""
        self._owed = True

    def answered(self) -> None:
        """Note that a response to all that was said so far has been started."""
        self._owed = False


def _answers(heard: AudioInput) -> bool:
    return heard.turn_detection is not None and heard.turn_detection.create_response


def _refers(items: Sequence[dict[str, Any]] | None) -> bool:
    """Whether any of a response's own items stands for one of the conversation."""
    return any(item.get("type") == "item_reference" for item in items or ())
