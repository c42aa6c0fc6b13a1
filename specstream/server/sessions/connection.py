"""One client's connection: reads and writes its frames, starts and stops its responses."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any

import anyio
import anyio.lowlevel
from anyio.abc import TaskGroup

from specstream.errors import SpecstreamError
from specstream.playback.turn import GRACE_S
from specstream.realtime import events as ev, protocol as pr
from specstream.realtime.resources import ErrorDetail
from specstream.realtime.settings import ResponseSettings
from specstream.realtime.wire import Refused
from specstream.server.limits import Meter, cost, drop_slow_reader
from specstream.server.listen import CLOSE_TIMEOUT
from specstream.server.sessions.boxes import Inbox, Outbox
from specstream.server.sessions.microphone import Microphone
from specstream.server.sessions.request import AdapterPool, Service
from specstream.server.sessions.response import ResponseTurn
from specstream.server.sessions.session import RealtimeSession
from specstream.server.socket import Socket, SocketClosed

__all__ = ["RealtimeConnection"]

MAX_RESPONSES = 4
"""Responses of one session at once: a place for the conversation's, the others for those out of band."""
OUT_OF_BAND_AT_ONCE = 1
"""Out-of-band responses of a session that are generated at once: no session may fill the batch."""

_COSTS: dict[type, float] = {pr.SessionUpdate: 5.0, pr.ItemCreate: 2.0}  # in small frames
_APPEND_COST = 0.125  # of what other frames of that length cost: an append is paid for by its audio
_CLOSING = {"server_stopping": "the server is stopping", "session_expired": "session_expired"}
_NOT_ACTIVE = "Cancellation failed: no active response found"  # clients match on these words


def _stopping() -> Refused:
    message = "The server is stopping; connect again in a moment."
    return Refused("server_stopping", message, type="server_error")


def _expired(seconds: float) -> Refused:
    message = f"Your session hit the maximum duration of {seconds / 60:g} minutes; connect again."
    return Refused("session_expired", message)


class RealtimeConnection:
    """One session, from its handshake to its end.

    Args:
        socket: Its connection.
        service: What sessions share, and who the caller is.
        model: The model that the client named.
        meter: What the client pays with.
        resume: See `RealtimeSession.resume`.
    """

    def __init__(
        self,
        socket: Socket,
        service: Service,
        model: str | None,
        meter: Meter,
        resume: Mapping[str, Any] | None = None,
    ) -> None:
        self._socket = socket
        self._service = service
        self._session = RealtimeSession(
            (service.caller.session or service.settings).model_copy(
                update={"model": model} if model else {}
            ),
            service.params,
            has_voice=service.factories.voice is not None,
            names=service.names,
            resume=resume,
            languages=service.ears.recognizer.capabilities.languages if service.ears else (),
        )
        self._outbox = Outbox(service.clock.now)
        self._inbox = Inbox()
        self._out_of_band = anyio.Semaphore(OUT_OF_BAND_AT_ONCE)
        self._written = 0
        self._meter = meter
        self._replies = service.engine.session()
        self._adapters = AdapterPool(service.factories)
        self._responses: dict[str, ResponseTurn] = {}
        self._starting = anyio.Lock()
        self._microphone: Microphone | None = None
        self._group: TaskGroup | None = None
        self._quiet_since = 0.0  # when the last frame came or the last response ended
        self._ending: Refused | None = None  # why no more responses begin
        self._ended = anyio.Event()

    @property
    def id(self) -> str:
        """The session's id."""
        return self._session.id

    async def serve(self) -> None:
        """Serve until the client goes. Then, or when cancelled, every response is stopped at once."""
        ears, timer = self._service.ears, self._service.timer
        try:
            async with anyio.create_task_group() as group:
                self._group = group
                if ears is not None:
                    put = self._outbox.put
                    meter = self._meter
                    self._microphone = Microphone(ears, self._session, put, self, group, meter)
                group.start_soon(self._write)
                group.start_soon(self._apply)
                group.start_soon(self._expire)
                group.start_soon(drop_slow_reader, self._socket, lambda: self._written, timer)
                await self._outbox.put(self._session.created())
                await self._read()
                group.cancel_scope.cancel()
        finally:
            with anyio.CancelScope(shield=True):
                await self._replies.aclose()
                await self._adapters.aclose()
            self._ended.set()

    async def drain(self, seconds: float) -> None:
        """Start no more responses, end those that run within ``seconds``, then close (1001).

        The caller must drop a client that does not read to the end in time.
        """
        self._ending = _stopping()
        with anyio.move_on_after(seconds):
            await self._responses_end()
        for response in self._responses.values():
            response.cancel(self._ending)
        with anyio.move_on_after(GRACE_S + CLOSE_TIMEOUT):
            await self._responses_end()
            self._outbox.finish()
            await self._ended.wait()

    async def _expire(self) -> None:
        """Close the session once it is old enough and no response runs."""
        await anyio.sleep(self._service.limits.longest_s)
        if self._ending is None:
            self._ending = _expired(self._service.limits.longest_s)
            await self._responses_end()
            await self.report(self._ending)
            self._outbox.finish()

    async def _responses_end(self) -> None:
        while self._responses:
            await next(iter(self._responses.values())).finished.wait()
            await anyio.lowlevel.checkpoint()  # lets `_run` remove the response

    async def _write(self) -> None:
        """The only task that writes to the socket."""
        try:
            while (frame := await self._outbox.take()) is not None:
                self._written += len(frame.encode())
                await self._socket.send(frame)
            assert self._ending is not None
            await self._socket.close(1001, _CLOSING.get(self._ending.code, ""))
        except SocketClosed:
            assert self._group is not None
            self._group.cancel_scope.cancel()

    async def _read(self) -> None:
        idle_s = self._service.limits.idle_s
        self._quiet_since = anyio.current_time()
        try:
            while True:
                left = self._quiet_since + idle_s - anyio.current_time()
                if left <= 0 and not self._responses:
                    await self._socket.close(1008, f"idle_timeout: no frame for {idle_s:g} s")
                    return
                frame: str | bytes | None = None
                with anyio.move_on_after(left if left > 0 else idle_s):
                    frame = await self._socket.receive()
                if isinstance(frame, bytes):
                    await self._socket.close(1003, "frames are JSON text")
                    return
                if frame is not None:
                    self._quiet_since = anyio.current_time()
                    await self._take(frame)
        except SocketClosed:
            return

    async def _take(self, frame: str) -> None:
        event: pr.ClientEvent | Refused
        try:
            event = pr.parse_client_event(
                frame,
                tools=self._service.engine.no_tools is None,
                hears=self._microphone is not None,
            )
        except Refused as refusal:
            event = refusal
        share = _APPEND_COST if isinstance(event, pr.AudioAppend) else 1.0
        await self._meter.take(_COSTS.get(type(event), 1.0) + cost(len(frame)) * share)
        if not isinstance(event, Refused) and self._inbox.overtakes(event):
            await self._answer(event)
        else:
            await self._inbox.put(event, len(frame))

    async def _apply(self) -> None:
        """Apply what the client sent, in order. A client that goes leaves the rest unapplied."""
        while True:
            await self._answer(await self._inbox.take())
            self._inbox.applied()

    async def _answer(self, event: pr.ClientEvent | Refused) -> None:
        try:
            if isinstance(event, Refused):
                raise event
            await self._handle(event)
        except SpecstreamError as error:
            await self.report(error, event.event_id)

    async def report(self, error: SpecstreamError, event_id: str | None = None) -> None:
        """Send an ``error`` event; ``event_id`` is that of the client's frame that caused it."""
        await self._outbox.put(ev.ErrorEvent(error=ErrorDetail.of(error, event_id)))

    async def _handle(self, event: pr.ClientEvent) -> None:
        microphone = self._microphone
        match event:
            case pr.AudioAppend() | pr.AudioCommit() | pr.AudioClear():
                assert microphone is not None
                await microphone.take(event)
                return
            case pr.ResponseCreate():
                asked = event.response or ResponseSettings()
                if microphone is None or not microphone.defer(asked, event.event_id):
                    await self._start(asked)
                return
            case pr.ResponseCancel(response_id=None):
                if microphone is not None and (waiting := microphone.take_deferred()):
                    await self.respond(*waiting)  # so that its end is reported
                await self._cancel(self._speaking())
                return
            case pr.ResponseCancel(response_id=str(response_id)):
                await self._cancel(self._responses.get(response_id))
                return
            case pr.ItemTruncate(item_id=item_id, content_index=index, audio_end_ms=end_ms):
                self._session.conversation.check_truncation(item_id, index, end_ms)
                # Truncating the item that is being spoken cancels its response: nobody hears the rest.
                speaking = self._speaking()
                if speaking is not None and speaking.item_id == item_id:
                    speaking.cancel(heard_ms=end_ms)
                    await speaking.finished.wait()
        for answer in self._session.answer(event):
            size = await self._outbox.put(answer)
            if isinstance(answer, (ev.SessionEvent, ev.ItemRetrieved)):
                await self._meter.take(cost(size))  # a small frame may ask for a large answer
        if isinstance(event, pr.SessionUpdate) and microphone is not None:
            await microphone.reconfigure()

    async def respond(self, asked: ResponseSettings, event_id: str | None = None) -> None:
        """Start a response; an error or refusal becomes an ``error`` event."""
        try:
            await self._start(asked)
        except SpecstreamError as error:
            await self.report(error, event_id)

    async def interrupt(self) -> None:
        """Cancel the conversation's response, if there is one, because the user speaks."""
        async with self._starting:
            speaking = self._speaking()
        if speaking is not None:
            speaking.cancel("turn_detected")
            await speaking.finished.wait()
            await anyio.lowlevel.checkpoint()  # lets `_run` remove the response

    @property
    def responding(self) -> bool:
        """Whether a response of the conversation is under way."""
        return self._speaking() is not None

    def _speaking(self) -> ResponseTurn | None:
        """Return the response that writes to the conversation, if there is one."""
        return next((turn for turn in self._responses.values() if not turn.out_of_band), None)

    async def _cancel(self, response: ResponseTurn | None) -> None:
        if response is None or not response.cancel():
            raise Refused("response_cancel_not_active", _NOT_ACTIVE)
        await response.finished.wait()

    async def _start(self, asked: ResponseSettings) -> None:
        async with self._starting:  # both the client and the end of a turn start responses
            why = self._service.caller.account.refusal()
            if self._ending is not None or why is not None:
                raise self._ending or Refused("insufficient_quota", f"{why}.")
            await self._meter.answer()
            request = self._session.request(asked)
            apart = request.conversation is None
            if not apart and (active := self._speaking()) is not None:
                message = f"Conversation already has an active response in progress: {active.id}."
                message += " Cancel it, or wait for it."
                raise Refused("conversation_already_has_active_response", message)
            out_of_band = sum(turn.out_of_band for turn in self._responses.values())
            if apart and out_of_band >= MAX_RESPONSES - 1:
                message = (
                    f"{out_of_band} out-of-band responses are under way already; wait for one."
                )
                raise Refused("too_many_responses", message)
            pipeline = await self._adapters.pipeline(
                audio=request.audio,
                avatar="avatar" in request.wants,
                prompt="prompt" in request.wants,
            )
            if self._ending is not None:  # meanwhile: a remote adapter may take seconds to answer
                self._adapters.release(pipeline)
                raise self._ending
            replies = self._service.engine.session() if apart else self._replies
            place = self._out_of_band if apart else nullcontext()
            response = ResponseTurn(request, self._service, replies, pipeline, self._outbox, place)
            self._responses[response.id] = response
            if not apart and self._microphone is not None:
                self._microphone.answered()
            assert self._group is not None
            self._group.start_soon(self._run, response)

    async def _run(self, response: ResponseTurn) -> None:
        try:
            await response.run()
        finally:
            self._quiet_since = anyio.current_time()
            del self._responses[response.id]
            self._adapters.release(response.pipeline)
            if response.out_of_band:
                with anyio.CancelScope(shield=True):
                    await response.replies.aclose()
        if self._microphone is not None:
            await self._microphone.settle()
