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
from typing import Any, Self, get_args

from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosed

import specstream.ws.realtime.events as ev
from specstream.errors import ConnectionFailed, ProtocolError, RequestError
from specstream.types import SamplingParams, ToolCall, template_kwargs
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
    ToolCalled,
    ToolDelta,
    translate,
)
from specstream.ws.realtime.function_tools import setting_of
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
    "ToolCalled",
    "ToolDelta",
]

ALL_EVENTS: tuple[OwnEvent, ...] = get_args(OwnEvent)


class RealtimeClient:
    """One conversation with a server: one reply at a time, read by one task.

    Made by `connect`. Another task may call `cancel` while one reads.
    """

    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket
        self._reply: Reply | None = None
        self._unanswered: list[str] = []  # items that the model refused, to be deleted
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
        """Open a conversation; leaving the block ends it and the reply that is under way.

        A server refuses connections until its models are loaded; so a refused one is retried.

        Args:
            url: ``ws://host:port``; the protocol's path is added if there is none.
            api_key: Sent as a bearer token.
            events: The server's own event types to receive, in addition to text and audio.
            instructions: The system prompt.
            open_timeout: Seconds to wait for the handshake, and for the server's first event.
            ready_timeout: Seconds to retry while the connection is refused; 0 tries once.
            tls: Whom to trust behind ``wss://``; None: the authorities of this machine, or those in
                the file that ``SSL_CERT_FILE`` names.

        Raises:
            ConnectionFailed: nobody answers, or the server refuses the connection.
            ProtocolError: the peer does not speak the protocol.
            ConfigError: the address is not a WebSocket address.
        """
        socket, greeting = await dial(
            url, api_key=api_key, open_timeout=open_timeout, ready_timeout=ready_timeout, tls=tls
        )
        async with socket:
            client = cls(socket)
            first = ev.parse_server_event(greeting)
            if not isinstance(first, ev.SessionEvent) or first.type != "session.created":
                raise ProtocolError(f"a server begins with session.created, not {first.type}")
            wanted: dict[str, Any] = {"specstream": {"events": list(events)}}
            if instructions is not None:
                wanted["instructions"] = instructions
            client.session = first.session
            await client.update(**wanted)
            yield client

    async def update(self, **session: Any) -> dict[str, Any]:
        """Change settings of the session, by their wire names; returns all settings.

        Only between replies. ``tools`` may be `specstream.Tool` objects.

        Raises:
            RequestError: the server refuses a value, or can't serve a setting; the others are set.
        """
        if isinstance(session.get("tools"), list | tuple):
            session["tools"] = [setting_of(tool) for tool in session["tools"]]
        event = await self._ask(
            "session.update", "session.updated", session={"type": "realtime", **session}
        )
        assert isinstance(event, ev.SessionEvent)
        self.session = event.session
        if ignored := event.specstream.ignored:
            raise RequestError("; ".join(f"{what.param}: {what.message}" for what in ignored))
        return event.session

    def respond(
        self,
        text: str | None,
        *,
        audio: bool = True,
        instructions: str | None = None,
        max_tokens: int | None = None,
        sampling: SamplingParams | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> Reply:
        """Say ``text`` as the user; the reply is an async iterator of events, ending after `Done`.

        None says nothing: the reply is to the conversation as it is, such as to the results of calls.

        ``text`` stays in the conversation if the reply is cancelled. If the reply was refused or
        failed before its first word, the next request begins by deleting it.

        Asking again ends an unfinished reply. ``sampling`` and ``chat_template_kwargs`` (variables
        of the chat template) are for this reply only; ``max_tokens`` overrides ``sampling``'s.

        Raises:
            SamplingError: ``sampling`` holds code, which can't be sent.
            PromptError: a variable's name or value is not allowed.
        """
        own: dict[str, Any] = {}
        asked: dict[str, Any] = {"output_modalities": ["audio" if audio else "text"]}
        asked["specstream"] = own
        if instructions is not None:
            asked["instructions"] = instructions
        if chat_template_kwargs is not None:
            own["chat_template_kwargs"] = template_kwargs(chat_template_kwargs)
        if sampling is not None:
            own["sampling"] = Sampling.dump(sampling)
            asked["max_output_tokens"] = sampling.max_tokens
        if max_tokens is not None:
            asked["max_output_tokens"] = max_tokens
        return Reply(self, text, asked)

    async def cancel(self) -> None:
        """Stop the reply under way, if there is one. Returns once the request is sent.

        What the server had sent before is still delivered, then ``Done(status="cancelled")``.
        """
        if self._reply is not None:
            await self._reply._cancel()

    async def add_result(self, call: ToolCall, result: str) -> None:
        """Tell the server what a tool call came to; the next reply reads it.

        May be called while the reply with the call is read. Returns once it is sent: a refusal, such
        as of a call that the conversation doesn't have, is a `Problem` of the reply read then or next.
        """
        item = {"type": "function_call_output", "call_id": call.id, "output": result}
        await self._send("conversation.item.create", item=item)

    async def truncate(self, item_id: str, heard_ms: int) -> None:
        """Remove what was not heard of a spoken item from the conversation (see `Done.item_id`).

        Raises:
            RequestError: no such item, or it is shorter than that.
        """
        where = {"item_id": item_id, "content_index": 0, "audio_end_ms": heard_ms}
        await self._ask("conversation.item.truncate", "conversation.item.truncated", **where)

    async def _settle(self) -> None:
        """End the reply under way, so that the next answer is for the next request."""
        if self._reply is not None and self._reply.under_way:
            await self.cancel()
            async for _ in self._reply:
                pass

    async def _ask(self, type: str, answer: str, /, **fields: Any) -> ev.ServerEvent:
        """Send an event between replies and wait for its answer."""
        await self._settle()
        event_id = await self._send(type, **fields)
        while (event := await self._receive()).type != answer:
            _raise_if_about(event, event_id)
        return event

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

    def __init__(self, client: RealtimeClient, text: str | None, asked: dict[str, Any]) -> None:
        self._client, self._text, self._asked = client, text, asked
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
            while (event := self._take(await self._client._receive())) is None:
                pass
        except (ConnectionFailed, ProtocolError):
            self._ended = True
            raise
        if isinstance(event, Done):
            self._ended = True
            if event.status == "failed" and event.item_id is None:
                self._unanswered()
        return event

    def _unanswered(self) -> None:
        if self._text is not None:
            self._client._unanswered.append(self._item_id)

    async def _ask(self) -> None:
        client = self._client
        await client._settle()
        while client._unanswered:
            await client._send("conversation.item.delete", item_id=client._unanswered[-1])
            client._unanswered.pop()
        client._reply = self
        said: tuple[str, ...] = ()
        if self._text is not None:
            content = [{"type": "input_text", "text": self._text}]
            item = {"type": "message", "role": "user", "id": self._item_id, "content": content}
            said = (await client._send("conversation.item.create", item=item),)
        asked = await client._send("response.create", response=self._asked)
        self._event_ids = (*said, asked)
        if self._cancelled:
            await self._cancel()  # called while the request was being sent

    def _take(self, event: ev.ServerEvent) -> RealtimeEvent | None:
        """The event as a reader sees it; None for one that a reader needs not see."""
        if isinstance(event, ev.ErrorEvent) and self._event_ids:
            if event.error.event_id == self._event_ids[-1]:
                self._ended = True  # the response was refused; without its item only, it goes on
                self._unanswered()
            for event_id in self._event_ids:
                _raise_if_about(event, event_id)
        return translate(event)


def _raise_if_about(event: ev.ServerEvent, event_id: str) -> None:
    if isinstance(event, ev.ErrorEvent) and event.error.event_id == event_id:
        raise RequestError(f"the server refused: {event.error.message} ({event.error.code})")
