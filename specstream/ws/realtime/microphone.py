"""Audio input of one connection: the client's frames to a listener, what it hears to events."""

from __future__ import annotations

import base64
import binascii
import logging
from collections.abc import Awaitable, Callable
from typing import Protocol

from anyio.abc import TaskGroup

from specstream.errors import SpecstreamError
from specstream.listening.ears import Ears
from specstream.listening.listener import Listener
from specstream.listening.settings import ListenerSettings
from specstream.ws.realtime import events as ev
from specstream.ws.realtime import protocol as pr
from specstream.ws.realtime.g711 import decoded, sample_rate
from specstream.ws.realtime.hearing import Hearing
from specstream.ws.realtime.input_settings import AudioInput
from specstream.ws.realtime.session import RealtimeSession
from specstream.ws.realtime.settings import ResponseSettings
from specstream.ws.realtime.wire import Refused

__all__ = ["Microphone", "Responder", "listener_settings"]

LEAST_MS = 95.0
"""Milliseconds of audio that a commit needs: 100, less what the rate conversion holds back."""
_EAGERNESS = {"low": 2.0, "medium": 1.0, "auto": 1.0, "high": 0.5}
_EMPTY = (
    "Error committing input audio buffer: buffer too small. Expected at least 100ms of audio,"
    " but buffer only has {:.2f}ms of audio."
)

_log = logging.getLogger("specstream.realtime")


class Responder(Protocol):
    """What a microphone asks of its connection."""

    async def respond(self, asked: ResponseSettings, event_id: str | None = None) -> None:
        """Start a response; what can't be done becomes an ``error`` event."""
        ...

    async def interrupt(self) -> None:
        """Stop the response that is being spoken, if there is one: somebody speaks."""
        ...

    async def report(self, error: SpecstreamError, event_id: str | None = None) -> None:
        """Send an ``error`` event."""
        ...


def listener_settings(heard: AudioInput, *, by_words: bool = False) -> ListenerSettings:
    """The listener's settings for a session's ``audio.input``.

    ``server_vad`` ends a turn by silence alone, as its documentation says. ``semantic_vad`` adds the
    words; its ``eagerness`` is our patience. ``by_words``: see `Hearing`; it needs partial transcripts.
    """
    turns = heard.turn_detection
    language = heard.transcription.language if heard.transcription is not None else None
    partial_ms = 500.0 if by_words or heard.transcription is not None else None
    if turns is None:
        return ListenerSettings(manual=True, partial_ms=partial_ms, language=language)
    if turns.type == "semantic_vad":
        patience = _EAGERNESS[turns.eagerness or "auto"]
        return ListenerSettings(patience=patience, partial_ms=partial_ms, language=language)
    assert turns.threshold is not None
    return ListenerSettings(
        threshold=turns.threshold,
        prefix_ms=float(turns.prefix_padding_ms or 0),
        silence_ms=float(turns.silence_duration_ms or 0),
        by_words=False,
        partial_ms=partial_ms,
        language=language,
    )


class Microphone:
    """The input audio buffer. A listener is opened by the first audio after each change of settings.

    A frame that can't be used is refused once for each reason; others like it are dropped, since a
    microphone sends fifty frames a second and some clients end the session at the first ``error``.

    Args:
        ears: What hears.
        session: The session's settings and conversation.
        put: Sends an event.
        responder: Starts and stops responses.
        group: Where the listeners' tasks run.
    """

    def __init__(
        self,
        ears: Ears,
        session: RealtimeSession,
        put: Callable[[ev.ServerEvent], Awaitable[object]],
        responder: Responder,
        group: TaskGroup,
    ) -> None:
        self._ears, self._session, self._put = ears, session, put
        self._responder, self._group = responder, group
        self._settings = (session.hearing, session.by_words)
        self._hearing: Hearing | None = None
        self._all: list[Hearing] = []
        self._since_ms = 0.0  # audio before the present listener's
        self._told: set[str] = set()
        self._deferred: tuple[ResponseSettings, str | None] | None = None

    async def append(self, event: pr.AudioAppend) -> None:
        """Take audio. Waits while too many turns wait for their transcripts.

        Raises:
            Refused: it is no audio, or too much; the first time only.
        """
        try:
            pcm = self._decoded(event.audio)
            listener = self._listener().listener
            most = listener.settings.max_turn_s
            if listener.settings.manual and listener.held_ms >= most * 1e3:
                message = f"The buffer holds {most:g} s of audio; commit or clear it first."
                raise Refused("input_audio_buffer_full", message, param="audio")
        except Refused as refusal:
            if refusal.message in self._told:
                return
            self._told.add(refusal.message)
            raise
        await listener.add(pcm)

    async def commit(self) -> None:
        """End the turn by hand.

        Raises:
            Refused: there is too little audio, or with turn detection, nobody spoke.
        """
        listener = self._hearing.listener if self._hearing is not None else None
        held = listener.held_ms if listener is not None else 0.0
        if listener is None or held < LEAST_MS or not listener.commit():
            raise Refused("input_audio_buffer_commit_empty", _EMPTY.format(held))
        self._told.clear()

    async def clear(self) -> None:
        """Forget what is in the buffer."""
        if self._hearing is not None:
            self._hearing.listener.clear()
        self._told.clear()
        await self._put(ev.InputCleared())

    def reconfigure(self) -> None:
        """The session's settings changed: if those of audio input did, listen anew."""
        settings = (self._session.hearing, self._session.by_words)
        if settings == self._settings:
            return
        self._settings = settings
        hearing, self._hearing = self._hearing, None
        if hearing is not None:
            self._since_ms += hearing.listener.now_ms
            hearing.listener.clear()
            hearing.listener.finish()

    def defer(self, asked: ResponseSettings, event_id: str | None) -> bool:
        """Keep a response until what was said is known; False if nothing is to be waited for.

        Raises:
            Refused: one is kept already.
        """
        if not any(hearing.unsettled for hearing in self._all):
            return False
        if self._deferred is not None:
            message = "A response waits for the transcript of what was said; wait for it."
            raise Refused("conversation_already_has_active_response", message)
        self._deferred = (asked, event_id)
        return True

    def forget_deferred(self) -> None:
        """The response that waits for a transcript is not wanted any more."""
        self._deferred = None

    def _decoded(self, audio: str) -> bytes:
        try:
            data = base64.b64decode(audio, validate=True)
        except (binascii.Error, ValueError):
            message = "Invalid 'audio': expected base64-encoded audio."
            raise Refused("invalid_value", message, param="audio") from None
        form = self._settings[0].format
        kind = form.type if form is not None else "audio/pcm"
        if kind == "audio/pcm" and len(data) % 2:
            message = "Invalid 'audio': 16-bit PCM has an even number of bytes."
            raise Refused("invalid_value", message, param="audio")
        return decoded(data, kind)

    def _listener(self) -> Hearing:
        if self._hearing is None:
            heard, by_words = self._settings
            kind = heard.format.type if heard.format is not None else "audio/pcm"
            settings = listener_settings(heard, by_words=by_words)
            listener = Listener(self._ears, sample_rate=sample_rate(kind), settings=settings)
            self._hearing = Hearing(
                listener,
                self._session,
                self._put,
                self._begun,
                self._since_ms,
                by_words=by_words,
            )
            self._all.append(self._hearing)
            self._group.start_soon(self._hear, self._hearing)
        return self._hearing

    async def _hear(self, hearing: Hearing) -> None:
        try:
            async with hearing.listener:
                async for event in hearing.listener:
                    try:
                        await self._follow(hearing, event)
                    except SpecstreamError as error:  # such as a full conversation
                        await self._responder.report(error)
        finally:
            self._all.remove(hearing)
            await self._settle()

    async def _begun(self) -> None:
        turns = self._session.hearing.turn_detection
        if turns is not None and turns.interrupt_response:
            await self._responder.interrupt()

    async def _follow(self, hearing: Hearing, event: object) -> None:
        await hearing.take(event)
        turns = self._session.hearing.turn_detection
        if hearing.owed and turns is not None and turns.create_response:
            if not (hearing.speaking and turns.interrupt_response):
                hearing.owed = False
                await self._responder.respond(ResponseSettings())
        await self._settle()

    async def _settle(self) -> None:
        if self._deferred is None or any(hearing.unsettled for hearing in self._all):
            return
        (asked, event_id), self._deferred = self._deferred, None
        await self._responder.respond(asked, event_id)
