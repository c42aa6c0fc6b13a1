"""One client's connection: reads and writes its frames, starts and stops its responses."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import anyio
import anyio.lowlevel
from anyio.abc import TaskGroup

from specstream.client.socket import CLOSE_TIMEOUT, SocketClosed
from specstream.errors import SpecstreamError
from specstream.playback.turn import GRACE_S
from specstream.realtime import protocol as pr
from specstream.realtime.settings import ResponseSettings
from specstream.realtime.wire import Refused
from specstream.server.journal.record import SessionRecord
from specstream.server.journal.restored import RestoredSession
from specstream.server.limits import Meter, cost, drop_slow_reader
from specstream.server.sessions.boxes import Inbox, Outbox
from specstream.server.sessions.microphone import Microphone
from specstream.server.sessions.request import Service
from specstream.server.sessions.responses import SessionResponses
from specstream.server.sessions.session import RealtimeSession
from specstream.server.socket import ServedSocket
from specstream.signals import finished

__all__ = ["RealtimeConnection"]

_COSTS: dict[type, float] = {pr.SessionUpdate: 5.0, pr.ItemCreate: 2.0}  # in small frames
_APPEND_COST = 0.125  # of what other frames of that length cost: an append is paid for by its audio
_CLOSING = {
    "server_stopping": (1001, "the server is stopping"),
    "session_expired": (1001, "session_expired"),
    "output_limit": (1008, "output_limit"),
}


def _stopping() -> Refused:
    message = "The server is stopping; connect again in a moment."
    return Refused("server_stopping", message, type="server_error")


def _expired(seconds: float) -> Refused:
    message = f"Your session hit the maximum duration of {seconds / 60:g} minutes; connect again."
    return Refused("session_expired", message)


def _too_much(most: int) -> Refused:
    message = f"This session was sent {most} bytes without an acknowledgement, the most that the "
    return Refused("output_limit", message + "server allows; connect again, best with ?resumable=1.")


class RealtimeConnection:
    """One session, from its handshake to its end.

    Args:
        socket: Its connection.
        service: What sessions share, and who the caller is.
        model: The model that the client named.
        meter: What the client pays with.
        resume: See `RealtimeSession.resume`.
        record: Where the session is written down.
        restored: The session as an earlier process has left it.

    Attributes:
        socket: As given.
        session: Its settings and its conversation.
        responses: Those that run and wait.
    """

    def __init__(
        self,
        socket: ServedSocket,
        service: Service,
        model: str | None,
        meter: Meter,
        resume: Mapping[str, Any] | None = None,
        record: SessionRecord | None = None,
        restored: RestoredSession | None = None,
    ) -> None:
        self.socket = socket
        self._service = service
        settings = (service.caller.session or service.settings).model_copy(
            update={"model": model} if model else {}
        )
        before: dict[str, Any] = {}
        if restored is not None:
            settings = restored.settings
            before = {"id": restored.id, "conversation": restored.conversation}
        self.session = RealtimeSession(
            settings,
            service.params,
            has_voice=service.factories.voice is not None,
            names=service.names,
            resume=resume,
            languages=service.ears.recognizer.capabilities.languages if service.ears else (),
            **before,
        )
        self._record, self._restored = record, restored
        self._outbox = Outbox(service.clock.now, record)
        self._inbox = Inbox(restored.applied if restored is not None else 0)
        self._age_s = 0.0
        if record is not None:
            began = time.time() if restored is None else restored.began
            record.begin(self.session, began)
            if restored is not None:
                self._age_s = max(0.0, time.time() - began)
                self._outbox.go_on(restored.next, self._age_s)
        self.responses = SessionResponses(service, self.session, self._outbox, meter)
        self._written = 0
        self._most = float("inf") if resume is not None else service.limits.max_output
        self._meter = meter
        self._microphone: Microphone | None = None
        self._group: TaskGroup | None = None
        self._ended = anyio.Event()

    @property
    def id(self) -> str:
        """The session's id."""
        return self.session.id

    @property
    def stopping(self) -> bool:
        """Whether it ends because the server does."""
        return self.responses.stopping

    async def serve(self) -> None:
        """Serve until the client goes. Then, or when cancelled, every response is stopped at once."""
        ears, timer = self._service.ears, self._service.timer
        try:
            async with anyio.create_task_group() as group:
                self._group = group
                self.responses.open(group)
                if ears is not None:
                    shared = self.session, self._outbox.put, self.responses, group, self._meter
                    microphone = Microphone(ears, *shared, self._record)
                    self._microphone = self.responses.microphone = microphone
                group.start_soon(self._write)
                group.start_soon(self._apply)
                group.start_soon(self._expire)
                group.start_soon(drop_slow_reader, self.socket, lambda: self._written, timer)
                if self._restored is None:
                    await self._outbox.put(self.session.created())
                else:
                    await self.responses.restore(self._restored)
                await self._read()
                group.cancel_scope.cancel()
        finally:
            try:
                await finished(self.responses.aclose())
            finally:
                self._ended.set()

    async def drain(self, seconds: float) -> None:
        """Start no more responses, end those that run within ``seconds``, then close (1001).

        The caller must drop a client that does not read to the end in time.
        """
        ending = self.responses.ending = _stopping()
        with anyio.move_on_after(seconds):
            await self.responses.over()
        self.responses.cancel_all(ending)
        with anyio.move_on_after(GRACE_S + CLOSE_TIMEOUT):
            await self.responses.over()
            self._outbox.finish()
            await self._ended.wait()

    async def _expire(self) -> None:
        """Close the session once it is old enough and no response runs."""
        await anyio.sleep(max(0.0, self._service.limits.longest_s - self._age_s))
        await self._end(_expired(self._service.limits.longest_s))

    async def _end(self, why: Refused) -> None:
        """Start no more responses; once none runs, tell the client why and close."""
        if self.responses.ending is None:
            self.responses.ending = why
            await self.responses.over()
            await self.responses.report(why)
            self._outbox.finish()

    async def _stop(self) -> None:
        """End the session at once: its client may have read none of what it was sent."""
        why = _too_much(self._service.limits.max_output)
        self.responses.cancel_all(why)
        await self._end(why)

    async def _write(self) -> None:
        """The only task that writes to the socket."""
        assert self._group is not None
        try:
            while (frame := await self._outbox.take()) is not None:
                before, self._written = self._written, self._written + len(frame.encode())
                await self.socket.send(frame)
                if before < self._most <= self._written:
                    self._group.start_soon(self._stop)
            ending = self.responses.ending
            assert ending is not None
            await self.socket.close(*_CLOSING[ending.code])
        except SocketClosed:
            self._group.cancel_scope.cancel()

    async def _read(self) -> None:
        idle_s = self._service.limits.idle_s
        quiet_since = self.responses.quiet_since = anyio.current_time()
        try:
            while True:
                quiet_since = max(quiet_since, self.responses.quiet_since)
                left = quiet_since + idle_s - anyio.current_time()
                if left <= 0 and self.responses.none:
                    await self.socket.close(1008, f"idle_timeout: no frame for {idle_s:g} s")
                    return
                frame: str | bytes | None = None
                with anyio.move_on_after(left if left > 0 else idle_s):
                    frame = await self.socket.receive()
                if isinstance(frame, bytes):
                    await self.socket.close(1003, "frames are JSON text")
                    return
                if frame is not None:
                    quiet_since = anyio.current_time()
                    await self._take(frame)
        except SocketClosed:
            return

    async def _take(self, frame: str) -> None:
        event: pr.ClientEvent | Refused
        try:
            event = pr.parse_client_event(
                frame, tools=self._service.engine.no_tools is None, hears=self._microphone is not None
            )
        except Refused as refusal:
            event = refusal
        share = _APPEND_COST if isinstance(event, pr.AudioAppend) else 1.0
        await self._meter.take(_COSTS.get(type(event), 1.0) + cost(len(frame)) * share)
        if not isinstance(event, Refused) and self._inbox.overtakes(event):
            await self._answer(event)
            self._inbox.overtaken()
            self._note_applied()
        else:
            await self._inbox.put(event, len(frame))

    async def _apply(self) -> None:
        """Apply what the client sent, in order. A client that goes leaves the rest unapplied."""
        while True:
            price = await self._answer(await self._inbox.take())
            self._inbox.applied()
            self._note_applied()
            if price:
                await self._meter.take(price)

    def _note_applied(self) -> None:
        if self._record is not None:
            self._record.applied(self._inbox.leading)

    async def _answer(self, event: pr.ClientEvent | Refused) -> float:
        """Apply an event; returns what is still to be paid for the answer."""
        try:
            if isinstance(event, Refused):
                raise event
            return await self._handle(event)
        except SpecstreamError as error:
            await self.responses.report(error, event.event_id)
            return 0.0

    async def _handle(self, event: pr.ClientEvent) -> float:
        microphone = self._microphone
        match event:
            case pr.AudioAppend() | pr.AudioCommit() | pr.AudioClear():
                assert microphone is not None
                await microphone.take(event)
                return 0.0
            case pr.ResponseCreate():
                asked = event.response or ResponseSettings()
                if microphone is None or not microphone.defer(asked, event.event_id):
                    await self.responses.start(asked)
                elif self._record is not None:
                    self._record.deferred(asked)
                return 0.0
            case pr.ResponseCancel(response_id=None):
                if microphone is not None and (waiting := microphone.take_deferred()):
                    await self.responses.respond(*waiting)  # so that its end is reported
                await self.responses.cancel(self.responses.speaking())
                return 0.0
            case pr.ResponseCancel(response_id=str(response_id)):
                await self.responses.cancel(self.responses.get(response_id))
                return 0.0
            case pr.ItemTruncate(item_id=item_id, content_index=index, audio_end_ms=end_ms):
                self.session.conversation.check_truncation(item_id, index, end_ms)
                # Truncating the item that is being spoken cancels its response: nobody hears the rest.
                speaking = self.responses.speaking()
                if speaking is not None and speaking.item_id == item_id:
                    speaking.cancel(heard_ms=end_ms)
                    await speaking.finished.wait()
        answers = self.session.answer(event)
        size = await self._outbox.put(*answers) if answers else 0
        if isinstance(event, pr.SessionUpdate) and microphone is not None:
            await microphone.reconfigure()
        # A small frame may ask for a large answer.
        return cost(size) if isinstance(event, pr.SessionUpdate | pr.ItemRetrieve) else 0.0
