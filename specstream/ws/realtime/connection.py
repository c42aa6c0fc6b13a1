"""One client's connection: reads its frames, keeps its session, starts and stops its turns."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import anyio
from anyio.abc import TaskGroup
from websockets.asyncio.server import ServerConnection
from websockets.exceptions import ConnectionClosed

from specstream.errors import SpecstreamError
from specstream.types import SamplingParams
from specstream.ws.counters import Counters
from specstream.ws.listen import CLOSE_TIMEOUT
from specstream.ws.rate import Allowance, cost
from specstream.ws.realtime import events as ev
from specstream.ws.realtime import protocol as pr
from specstream.ws.realtime.adapter_pool import AdapterPool, Factories
from specstream.ws.realtime.audio import Clock
from specstream.ws.realtime.conversation import Conversation
from specstream.ws.realtime.outbox import Outbox
from specstream.ws.realtime.request import Order, Replies, ResponseContext
from specstream.ws.realtime.resources import Extra
from specstream.ws.realtime.settings import ResponseSettings, SessionSettings, sampling_params
from specstream.ws.realtime.turn import CANCEL_GRACE_S, Turn
from specstream.ws.realtime.wire import Ignored, Refused, new_id
from specstream.ws.slow_readers import drop_when_unread

__all__ = ["Connection", "Service"]

_log = logging.getLogger("specstream.realtime")

MAX_TURNS = 4
"""Responses of one session that may run at once: one of the conversation, the rest out of band."""
OUT_OF_BAND_AT_ONCE = 1
"""How many of those out of band the model writes at once: no session may take all of its places."""

_NOT_ACTIVE = "Cancellation failed: no active response found"  # clients know it by these words


def _stopping() -> Refused:
    message = "The server is stopping; connect again in a moment."
    return Refused("server_stopping", message, type="server_error")


@dataclass(frozen=True, slots=True)
class Service:
    """What every connection of a server shares."""

    engine: Any
    makers: Factories
    settings: SessionSettings
    params: SamplingParams
    clock: Clock
    timer: Clock
    counters: Counters
    lead_s: float
    buffer_s: float
    idle_s: float


class Connection:
    """One session, from its handshake to its end."""

    def __init__(self, socket: ServerConnection, service: Service, model: str | None) -> None:
        self.id = new_id("sess")
        self._socket = socket
        self._service = service
        self._settings = service.settings.model_copy(update={"model": model} if model else {})
        self._outbox = Outbox(service.clock.now)
        self._conversation = Conversation()
        self._places = anyio.Semaphore(OUT_OF_BAND_AT_ONCE)
        self._written = 0
        self._allowance = Allowance(service.timer)
        self._replies: Replies = service.engine.session()
        self._kits: list[AdapterPool] = []
        self._turns: dict[str, Turn] = {}
        self._group: TaskGroup | None = None
        self._quiet_since = 0.0  # when the last frame came or the last response ended
        self._stopping = False
        self._ended = anyio.Event()
        self._handlers: dict[type[pr.ClientEvent], Callable[[Any], Any]] = {
            pr.SessionUpdate: self._on_session_update,
            pr.ItemCreate: self._on_item_create,
            pr.ItemDelete: self._on_item_delete,
            pr.ItemRetrieve: self._on_item_retrieve,
            pr.ItemTruncate: self._on_item_truncate,
            pr.ResponseCreate: self._on_response_create,
            pr.ResponseCancel: self._on_response_cancel,
            pr.InputAudio: self._on_input_audio,
        }
        self._told_of_audio = False

    async def serve(self) -> None:
        """Serve until the client goes. Then, or when cancelled, every turn is stopped at once."""
        try:
            async with anyio.create_task_group() as group:
                self._group = group
                group.start_soon(self._write)
                group.start_soon(
                    drop_when_unread, self._socket, lambda: self._written, self._service.timer
                )
                await self._outbox.put(ev.SessionCreated(session=self._session()))
                await self._read()
                group.cancel_scope.cancel()
        finally:
            with anyio.CancelScope(shield=True):
                await self._replies.aclose()
                for kit in self._kits:
                    await kit.aclose()
            self._ended.set()

    async def drain(self, seconds: float) -> None:
        """Start no more responses, end those that run within ``seconds``, then close (1001).

        Whoever doesn't read to the end in time is left to the caller.
        """
        self._stopping = True
        with anyio.move_on_after(seconds):
            await self._turns_end()
        for turn in self._turns.values():
            turn.cancel(_stopping())
        with anyio.move_on_after(CANCEL_GRACE_S + CLOSE_TIMEOUT):
            await self._turns_end()
            self._outbox.finish()
            await self._ended.wait()

    async def _turns_end(self) -> None:
        while self._turns:
            await next(iter(self._turns.values())).finished.wait()
            await anyio.lowlevel.checkpoint()  # `_perform` takes it out

    async def _write(self) -> None:
        """The only task that writes to the socket."""
        try:
            while (frame := await self._outbox.take()) is not None:
                self._written += len(frame.encode())
                await self._socket.send(frame)
            await self._socket.close(1001, "the server is stopping")
        except ConnectionClosed:
            assert self._group is not None
            self._group.cancel_scope.cancel()

    async def _read(self) -> None:
        idle_s = self._service.idle_s
        self._quiet_since = anyio.current_time()
        try:
            while True:
                left = self._quiet_since + idle_s - anyio.current_time()
                if left <= 0 and not self._turns:
                    await self._socket.close(1008, f"idle_timeout: no frame for {idle_s:g} s")
                    return
                frame: str | bytes | None = None
                with anyio.move_on_after(left if left > 0 else idle_s):
                    frame = await self._socket.recv()
                if isinstance(frame, bytes):
                    await self._socket.close(1003, "frames are JSON text")
                    return
                if frame is not None:
                    self._quiet_since = anyio.current_time()
                    await self._take(frame)
        except ConnectionClosed:
            return

    async def _take(self, frame: str) -> None:
        await self._allowance.take(1 + cost(len(frame)))
        event: pr.ClientEvent | None = None
        try:
            event = pr.parse_client_event(frame)
            await self._handlers[type(event)](event)
        except Refused as refusal:
            if event is not None:
                refusal.event_id = event.event_id
            await self._refuse(refusal)
        except SpecstreamError as error:
            about = event.event_id if event is not None else None
            await self._refuse(Refused(error.code, str(error), type="server_error", event_id=about))

    async def _refuse(self, refusal: Refused) -> None:
        detail = ev.ErrorDetail(
            type=refusal.type,
            code=refusal.code,
            message=refusal.message,
            param=refusal.param,
            event_id=refusal.event_id,
        )
        await self._outbox.put(ev.ErrorEvent(error=detail))

    def _session(self) -> dict[str, Any]:
        settings = self._settings.model_dump(mode="json")
        return {"id": self.id, "object": "realtime.session", **settings}

    async def _on_session_update(self, event: pr.SessionUpdate) -> None:
        settings = self._settings.merged(event.session)
        self._check_modality(settings.output_modalities)
        session, nothing = settings.specstream.sampling, ResponseSettings().specstream.sampling
        sampling_params(self._service.params, session, nothing, "inf")
        self._settings = settings
        await self._allowance.take(cost(len(settings.model_dump_json())))
        await self._tell_session(event.ignored)

    async def _on_input_audio(self, event: pr.InputAudio) -> None:
        """Said once: a microphone sends fifty frames a second."""
        if not self._told_of_audio:
            self._told_of_audio = True
            _log.warning("a client sends microphone audio; this server hears none and ignores it")
            message = "Audio is ignored: this server hears none; send text as an item."
            code: Any = "input_audio_not_supported"
            await self._tell_session([Ignored(code=code, param="type", message=message)])

    async def _tell_session(self, ignored: list[Ignored]) -> None:
        """All settings, and what was ignored. An ``error`` is the end of the session to pipecat."""
        extra = Extra(ignored=ignored or None)
        await self._outbox.put(ev.SessionUpdated(session=self._session(), specstream=extra))

    def _check_modality(self, modalities: list[Any]) -> bool:
        audio = modalities == ["audio"]
        if audio and self._service.makers.voice is None:
            message = 'This server has no voice; ask for ["text"].'
            raise Refused("audio_not_available", message, param="output_modalities")
        return audio

    async def _on_item_create(self, event: pr.ItemCreate) -> None:
        entry, previous = self._conversation.create(event.item, event.previous_item_id)
        item = entry.wire()
        await self._outbox.put(ev.ItemAdded(item=item, previous_item_id=previous))
        await self._outbox.put(ev.ItemDone(item=item, previous_item_id=previous))

    async def _on_item_delete(self, event: pr.ItemDelete) -> None:
        self._conversation.delete(event.item_id)
        await self._outbox.put(ev.ItemDeleted(item_id=event.item_id))

    async def _on_item_retrieve(self, event: pr.ItemRetrieve) -> None:
        entry = self._conversation.get(event.item_id, "retrieve")
        await self._allowance.take(cost(len(entry.text)))
        item = entry.wire()
        await self._outbox.put(ev.ItemRetrieved(item=item))

    async def _on_item_truncate(self, event: pr.ItemTruncate) -> None:
        """Cutting the item that is being spoken stops it: what follows would not be heard."""
        for turn in list(self._turns.values()):
            if not turn.out_of_band and turn.item_id == event.item_id:
                turn.cancel()
                await turn.finished.wait()
        self._conversation.truncate(event.item_id, event.content_index, event.audio_end_ms)
        await self._outbox.put(
            ev.ItemTruncated(
                item_id=event.item_id,
                content_index=event.content_index,
                audio_end_ms=event.audio_end_ms,
            )
        )

    async def _on_response_create(self, event: pr.ResponseCreate) -> None:
        if self._stopping:
            raise _stopping()
        order = self._order(event.response or ResponseSettings())
        if order.conversation is not None and (active := self._speaking()) is not None:
            message = f"Conversation already has an active response in progress: {active.id}."
            message += " Cancel it, or wait for it."
            raise Refused("conversation_already_has_active_response", message)
        if len(self._turns) >= MAX_TURNS:
            message = f"{MAX_TURNS} responses are under way already; wait for one to end."
            raise Refused("too_many_responses", message)
        kit = self._kits.pop(0) if self._kits else AdapterPool(self._service.makers)
        try:
            pipeline = await kit.pipeline(
                audio=order.audio, avatar="avatar" in order.wants, prompt="prompt" in order.wants
            )
            if self._stopping:  # meanwhile: a remote adapter may take seconds to answer
                raise _stopping()
        except BaseException:
            self._kits.insert(0, kit)
            raise
        apart = order.conversation is None
        replies = self._service.engine.session() if apart else self._replies
        tools = ResponseContext(
            replies,
            pipeline,
            self._outbox,
            self._service.clock,
            self._service.counters,
            self._service.lead_s,
            self._service.buffer_s,
            self._places,
        )
        turn = Turn(order, tools)
        self._turns[turn.id] = turn
        assert self._group is not None
        self._group.start_soon(self._perform, turn, kit, replies if apart else None)

    async def _perform(self, turn: Turn, kit: AdapterPool, to_close: Replies | None) -> None:
        try:
            await turn.run()
        finally:
            self._quiet_since = anyio.current_time()
            del self._turns[turn.id]
            self._kits.insert(0, kit)
            if to_close is not None:
                with anyio.CancelScope(shield=True):
                    await to_close.aclose()

    def _order(self, asked: ResponseSettings) -> Order:
        """The response's own settings, else the session's."""
        session = self._settings
        instructions = session.instructions if asked.instructions is None else asked.instructions
        limit = asked.max_output_tokens or session.max_output_tokens
        if asked.input is None:
            messages = self._conversation.messages(instructions)
        else:
            messages = self._conversation.messages_of(instructions, pr.parse_input(asked.input))
        voice = asked.audio.output.voice if asked.audio is not None else None
        return Order(
            messages=messages,
            params=sampling_params(
                self._service.params, session.specstream.sampling, asked.specstream.sampling, limit
            ),
            audio=self._check_modality(asked.output_modalities or session.output_modalities),
            wants=frozenset(session.specstream.events),
            conversation=None if asked.conversation == "none" else self._conversation,
            max_output_tokens=limit,
            voice=voice or session.audio.output.voice,
            metadata=asked.metadata,
            template_kwargs=session.specstream.chat_template_kwargs
            | asked.specstream.chat_template_kwargs,
        )

    def _speaking(self) -> Turn | None:
        """The turn that writes to the conversation."""
        return next((turn for turn in self._turns.values() if not turn.out_of_band), None)

    async def _on_response_cancel(self, event: pr.ResponseCancel) -> None:
        turn = self._speaking() if event.response_id is None else self._turns.get(event.response_id)
        if turn is None or not turn.cancel():
            raise Refused("response_cancel_not_active", _NOT_ACTIVE)
        await turn.finished.wait()
