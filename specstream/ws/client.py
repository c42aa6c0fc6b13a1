"""The Python client of a Realtime server. Imports no torch.

::

    async with RealtimeClient.connect("ws://127.0.0.1:8765") as client:
        async for event in client.respond("Tell me a story."):
            match event:
                case TextDelta(text=text):
                    print(text, end="")
                case AudioDelta(pcm=pcm):
                    player.write(pcm)
"""

from __future__ import annotations

import json
import ssl
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import fields
from typing import Any, Self

from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosed

import specstream.ws.realtime.events as ev
from specstream.errors import (
    ConnectionFailed,
    ProtocolError,
    RequestError,
    SamplingError,
)
from specstream.types import SamplingParams, template_kwargs
from specstream.ws.dial import dial
from specstream.ws.realtime.client_events import (
    AudioDelta,
    AvatarDelta,
    Done,
    Problem,
    PromptDelta,
    RealtimeEvent,
    ReasoningDelta,
    Report,
    Revoked,
    TextDelta,
    translate,
)
from specstream.ws.realtime.settings import OwnEvent, Sampling
from specstream.ws.realtime.wire import new_id

__all__ = [
    "AudioDelta",
    "AvatarDelta",
    "Done",
    "Problem",
    "PromptDelta",
    "RealtimeClient",
    "RealtimeEvent",
    "ReasoningDelta",
    "Reply",
    "Report",
    "Revoked",
    "TextDelta",
]

ALL_EVENTS: tuple[OwnEvent, ...] = ("avatar", "prompt", "reasoning", "revoke", "report")


class RealtimeClient:
    """One conversation with a server: one reply at a time, read by one task.

    Made by `connect`. Calls from the reading task and `cancel` from any other don't disturb each
    other.
    """

    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket
        self._reply: Reply | None = None
        self._unanswered: list[str] = []  # items that the model refused: the next words go without
        self.session: dict[str, Any] = {}

    @classmethod
    @asynccontextmanager
    async def connect(
        cls,
        url: str,
        *,
        api_key: str | None = None,
        events: Sequence[OwnEvent] = ALL_EVENTS,
        instructions: str | None = None,
        open_timeout: float = 10.0,
        tls: ssl.SSLContext | None = None,
        ready_timeout: float = 30.0,
    ) -> AsyncGenerator[Self, None]:
        """Open a conversation; leaving the block ends it, and with it whatever is under way.

        A server that was just started refuses connections until its models are loaded; so a refused
        connection is tried again.

        Args:
            url: ``ws://host:port``; the protocol's path is added if there is none.
            api_key: Sent as a bearer token.
            events: Which of the server's own event types are wanted besides text and audio.
            instructions: What the model is told before everything else.
            open_timeout: Seconds to wait for the handshake, and for the server's first event.
            ready_timeout: Seconds to try again while the connection is refused; 0 tries once.
            tls: Whom to trust behind ``wss://``; None: the authorities of this machine, or those in
                the file that ``SSL_CERT_FILE`` names.

        Raises:
            ConnectionFailed: nobody answers, or the server refuses the connection.
            ProtocolError: what answers does not speak the protocol.
            ConfigError: the address is not a WebSocket address.
        """
        socket, greeting = await dial(
            url, api_key=api_key, open_timeout=open_timeout, ready_timeout=ready_timeout, tls=tls
        )
        async with socket:
            client = cls(socket)
            client._greet(greeting)
            await client.update(
                **({"instructions": instructions} if instructions is not None else {}),
                specstream={"events": list(events)},
            )
            yield client

    def _greet(self, frame: str | bytes) -> None:
        first = ev.parse_server_event(frame)
        if not isinstance(first, ev.SessionCreated):
            raise ProtocolError(f"a server begins with session.created, not {first.type}")
        self.session = first.session

    async def update(self, **session: Any) -> dict[str, Any]:
        """Change settings of the session, by their wire names; returns all settings.

        Only between replies.

        Raises:
            RequestError: the server refuses a value, or can't serve a setting; the others are set.
        """
        await self._settle()
        event_id = await self._send("session.update", session={"type": "realtime", **session})
        while not isinstance(event := await self._receive(), ev.SessionUpdated):
            _raise_if_about(event, event_id)
        self.session = event.session
        if event.specstream.ignored:
            raise RequestError(
                "; ".join(f"{what.param}: {what.message}" for what in event.specstream.ignored)
            )
        return event.session

    def respond(
        self,
        text: str,
        *,
        audio: bool = True,
        instructions: str | None = None,
        max_tokens: int | None = None,
        sampling: SamplingParams | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> Reply:
        """Say ``text`` as the user; the reply is an async iterator of events, ending after `Done`.

        What was said stays in the conversation if the reply is cancelled, but not if it was refused or
        failed before its first word: then the next request begins by taking it back.

        Asking again ends a reply that was left unfinished. ``sampling`` is for this reply only;
        its ``max_tokens`` counts unless ``max_tokens`` is given. So are ``chat_template_kwargs``,
        variables for the model's chat template.

        Raises:
            SamplingError: ``sampling`` holds code, which can't be sent.
            PromptError: a variable's name or value can't be one.
        """
        asked: dict[str, Any] = {"output_modalities": ["audio" if audio else "text"]}
        if instructions is not None:
            asked["instructions"] = instructions
        own: dict[str, Any] = asked.setdefault("specstream", {})
        if chat_template_kwargs is not None:
            own["chat_template_kwargs"] = template_kwargs(chat_template_kwargs)
        if sampling is not None:
            own["sampling"] = _sampling(sampling)
            asked["max_output_tokens"] = sampling.max_tokens
        if max_tokens is not None:
            asked["max_output_tokens"] = max_tokens
        return Reply(self, text, asked)

    async def cancel(self) -> None:
        """Stop the reply under way. Returns once that is on its way.

        The reply then ends with ``Done(status="cancelled")``; what the server had sent before is
        still delivered, and nothing after. Does nothing if no reply is under way.
        """
        if self._reply is not None:
            await self._reply._cancel()

    async def truncate(self, item_id: str, heard_ms: int) -> None:
        """Let the conversation forget what was not heard of a spoken item (see `Done.item_id`).

        Raises:
            RequestError: no such item, or it is shorter than that.
        """
        await self._settle()
        event_id = await self._send(
            "conversation.item.truncate",
            item_id=item_id,
            content_index=0,
            audio_end_ms=heard_ms,
        )
        while not isinstance(event := await self._receive(), ev.ItemTruncated):
            _raise_if_about(event, event_id)

    async def _settle(self) -> None:
        """End the reply under way, so that what comes next is an answer to what is sent next."""
        if self._reply is not None and self._reply.under_way:
            await self.cancel()
            async for _ in self._reply:
                pass

    async def _send(self, type: str, **fields: Any) -> str:
        event_id = new_id("client")
        try:
            await self._socket.send(json.dumps({"type": type, "event_id": event_id, **fields}))
        except ConnectionClosed as error:
            raise ConnectionFailed(f"the server closed the connection: {error}") from error
        return event_id

    async def _receive(self) -> ev.ServerEvent:
        try:
            return ev.parse_server_event(await self._socket.recv())
        except ConnectionClosed as error:
            raise ConnectionFailed(f"the server closed the connection: {error}") from error


class Reply:
    """One reply: iterate over its events. The last one is `Done`.

    The request is sent when the iteration begins. Leaving the iteration early leaves the reply
    running: call `RealtimeClient.cancel`, ask something else, or leave the client's block.
    Cancelling a step of the iteration loses no event.

    Raises:
        RequestError: the server refused the request.
        ConnectionFailed: the connection broke.
    """

    def __init__(self, client: RealtimeClient, text: str, asked: dict[str, Any]) -> None:
        self._client = client
        self._text = text
        self._asked = asked
        self._item_id = new_id("item")
        self._event_ids: tuple[str, ...] = ()
        self._cancelled = False
        self._ended = False

    @property
    def under_way(self) -> bool:
        """Whether it was asked for and has not ended."""
        return bool(self._event_ids) and not self._ended

    async def _cancel(self) -> None:
        self._cancelled = True
        if self.under_way:
            await self._client._send("response.cancel")

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> RealtimeEvent:
        if self._ended:
            raise StopAsyncIteration
        try:
            if not self._event_ids:
                await self._ask()
            while True:
                event = self._take(await self._client._receive())
                if event is not None:
                    if isinstance(event, Done):
                        self._end(event)
                    return event
        except (ConnectionFailed, ProtocolError):
            self._ended = True
            raise

    def _end(self, done: Done) -> None:
        self._ended = True
        if done.status == "failed" and done.item_id is None:
            self._client._unanswered.append(self._item_id)

    async def _ask(self) -> None:
        client = self._client
        await client._settle()
        while client._unanswered:
            await client._send("conversation.item.delete", item_id=client._unanswered[-1])
            client._unanswered.pop()
        content = [{"type": "input_text", "text": self._text}]
        item = {"type": "message", "role": "user", "id": self._item_id, "content": content}
        client._reply = self
        said = await client._send("conversation.item.create", item=item)
        asked = await client._send("response.create", response=self._asked)
        self._event_ids = (said, asked)
        if self._cancelled:
            await self._cancel()  # called while the request was being sent

    def _take(self, event: ev.ServerEvent) -> RealtimeEvent | None:
        """What is of no use to a reader is None."""
        if isinstance(event, ev.ErrorEvent) and self._event_ids:
            if event.error.event_id == self._event_ids[-1]:
                self._ended = True  # without its message the reply goes on; without itself, not
                self._client._unanswered.append(self._item_id)
            for event_id in self._event_ids:
                _raise_if_about(event, event_id)
        return translate(event)


def _raise_if_about(event: ev.ServerEvent, event_id: str) -> None:
    if isinstance(event, ev.ErrorEvent) and event.error.event_id == event_id:
        raise RequestError(f"the server refused: {event.error.message} ({event.error.code})")


def _sampling(params: SamplingParams) -> dict[str, Any]:
    """What of ``params`` is plain data.

    Raises:
        SamplingError: a field that holds code can't go over the wire.
    """
    names = set(Sampling.model_fields)
    for field in fields(params):
        if field.name not in names | {"max_tokens"} and getattr(params, field.name):
            raise SamplingError(f"{field.name} can't be sent to a server")
    return {name: value for name in names if (value := getattr(params, name)) is not None}
