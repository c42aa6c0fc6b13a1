"""The Python client of a Realtime server, and the events of a reply. Imports no torch.

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

from websockets.exceptions import ConnectionClosed

import specstream.realtime.events as ev
from specstream.client.dial import READY_S
from specstream.client.resume import RESUME_S, ClientSocket, resuming
from specstream.errors import ConnectionFailed, ProtocolError, RequestError
from specstream.realtime.client_events import (
    AudioDelta,
    AvatarDelta,
    Done,
    Problem,
    PromptDelta,
    RealtimeEvent,
    RealtimeReport,
    ReasoningDelta,
    Revoked,
    TextDelta,
    TextPreview,
    ToolCalled,
    ToolDelta,
    translate,
)
from specstream.realtime.items import setting_of
from specstream.realtime.settings import OwnEvent, Sampling
from specstream.realtime.wire import MAX_EVENT, new_id
from specstream.types import SamplingParams, ToolCall, template_kwargs

__all__ = [
    "AudioDelta",
    "AvatarDelta",
    "Done",
    "Exchange",
    "Problem",
    "PromptDelta",
    "RealtimeClient",
    "RealtimeEvent",
    "RealtimeReport",
    "ReasoningDelta",
    "Reply",
    "Revoked",
    "TextDelta",
    "TextPreview",
    "ToolCalled",
    "ToolDelta",
]


class Exchange:
    """Sends client events of at most ``max_size`` bytes and receives server events over one socket.

    Attributes:
        reply: The latest reply that was requested.
        unanswered: Ids of user items whose reply was refused or failed; the next request deletes them.
    """

    def __init__(self, socket: ClientSocket, max_size: int = MAX_EVENT) -> None:
        self._socket, self._max_size = socket, max_size
        self.reply: Reply | None = None
        self.unanswered: list[str] = []

    async def settle(self) -> None:
        """End the reply under way, so that the next events answer the next request."""
        if self.reply is not None and self.reply.under_way:
            await self.reply.cancel()
            async for _ in self.reply:
                pass

    async def ask(self, type: str, answer: str, /, **fields: Any) -> ev.ServerEvent:
        """End the reply under way, send an event and return the server's event of type ``answer``.

        Raises:
            RequestError: the server refused the event.
        """
        await self.settle()
        event_id = await self.send(type, **fields)
        while (event := await self.receive()).type != answer:
            _raise_if_about(event, event_id)
        return event

    async def send(self, type: str, **fields: Any) -> str:
        """Send an event; returns its id.

        Raises:
            RequestError: the event can't be sent; the connection stays usable.
            ConnectionFailed: the connection broke.
        """
        event_id = new_id("client")
        frame = _frame({"type": type, "event_id": event_id, **fields}, self._max_size)
        try:
            await self._socket.send(frame)
        except ConnectionClosed as error:
            raise ConnectionFailed(f"the server closed the connection: {error}") from error
        return event_id

    async def receive(self) -> ev.ServerEvent:
        """Return the server's next event. Cancelling the call loses no event.

        Raises:
            ConnectionFailed: the connection broke.
            ProtocolError: the frame is no event.
        """
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
        RequestError: the server refused the request, or it can't be sent.
        ConnectionFailed: the connection broke.
    """

    def __init__(self, exchange: Exchange, text: str | None, asked: dict[str, Any]) -> None:
        self._exchange, self._text, self._asked = exchange, text, asked
        self._item_id = new_id("item")
        self._event_ids: tuple[str, ...] = ()
        self._cancelled = False
        self._ended = False

    @property
    def under_way(self) -> bool:
        """Whether the reply was requested and has not ended."""
        return bool(self._event_ids) and not self._ended

    async def cancel(self) -> None:
        """See `RealtimeClient.cancel`."""
        self._cancelled = True
        if self.under_way:
            await self._exchange.send("response.cancel")

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> RealtimeEvent:
        if self._ended:
            raise StopAsyncIteration
        try:
            if not self._event_ids:
                await self._ask()
            while (event := self._take(await self._exchange.receive())) is None:
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
            self._exchange.unanswered.append(self._item_id)

    async def _ask(self) -> None:
        exchange = self._exchange
        await exchange.settle()
        while exchange.unanswered:
            await exchange.send("conversation.item.delete", item_id=exchange.unanswered[-1])
            exchange.unanswered.pop()
        exchange.reply = self
        said: tuple[str, ...] = ()
        try:
            if self._text is not None:
                content = [{"type": "input_text", "text": self._text}]
                item = {"type": "message", "role": "user", "id": self._item_id, "content": content}
                said = (await exchange.send("conversation.item.create", item=item),)
            asked = await exchange.send("response.create", response=self._asked)
        except RequestError:
            self._ended = True
            if said:
                self._unanswered()
            raise
        self._event_ids = (*said, asked)
        if self._cancelled:
            await self.cancel()  # called while the request was being sent

    def _take(self, event: ev.ServerEvent) -> RealtimeEvent | None:
        """Translate the event for the reader; None for an event that the reader does not get."""
        if isinstance(event, ev.ErrorEvent) and self._event_ids:
            if event.error.event_id == self._event_ids[-1]:
                self._ended = True  # if only the item was refused, the response goes on
                self._unanswered()
            for event_id in self._event_ids:
                _raise_if_about(event, event_id)
        return translate(event)


def _frame(event: dict[str, Any], max_size: int) -> str:
    """Write an event as JSON that the server can read: it would close the connection at a longer frame.

    Raises:
        RequestError: a value that JSON doesn't have, text that is not Unicode, or too much of it.
    """
    try:
        frame = json.dumps(event, ensure_ascii=False, allow_nan=False)
        size = len(frame.encode())
    except UnicodeEncodeError:
        raise RequestError("a text to be sent is not valid Unicode: half a surrogate") from None
    except (TypeError, ValueError, RecursionError) as error:
        raise RequestError(f"this can't be sent as JSON: {error}") from None
    if size > max_size:
        raise RequestError(f"{event['type']} has {size} bytes; {max_size} may be sent: shorten it")
    return frame


def _raise_if_about(event: ev.ServerEvent, event_id: str) -> None:
    if isinstance(event, ev.ErrorEvent) and event.error.event_id == event_id:
        raise RequestError(f"the server refused: {event.error.message} ({event.error.code})")


DEFAULT_EVENTS: tuple[OwnEvent, ...] = tuple(e for e in get_args(OwnEvent) if e != "preview")


class RealtimeClient:
    """One conversation with a server: one reply at a time, read by one task.

    Made by `connect`. Another task may call `cancel` while one reads.

    Attributes:
        session: All settings of the session.
        exchange: Sends and receives the protocol's own events; for clients that need more than replies.
    """

    def __init__(self, socket: ClientSocket, max_size: int = MAX_EVENT) -> None:
        self.exchange = Exchange(socket, max_size)
        self.session: dict[str, Any] = {}

    @classmethod
    @asynccontextmanager
    async def connect(
        cls,
        url: str,
        *,
        api_key: str | None = None,
        events: Sequence[OwnEvent] = DEFAULT_EVENTS,
        instructions: str | None = None,
        open_timeout: float = 10.0,
        tls: ssl.SSLContext | None = None,
        ready_timeout: float = READY_S,
        max_size: int = MAX_EVENT,
        resume_s: float = RESUME_S,
    ) -> AsyncGenerator[Self, None]:
        """Open a conversation; leaving the block ends it and the reply that is under way.

        A server refuses connections until its models are loaded, so a refused connection is retried.

        Args:
            url: ``ws://host:port``; the protocol's path is added if there is none.
            api_key: Sent as a bearer token.
            events: The server's own event types to receive, in addition to text and audio. Default:
                all but "preview", which gives a `TextPreview` of the text that each round drafted.
            instructions: The system prompt.
            open_timeout: Seconds to wait for the handshake, and for the server's first event.
            ready_timeout: Seconds to retry while the connection is refused; 0 tries once.
            max_size: Bytes of the largest frame that the server takes; only audio may be longer than the
                default. What is larger raises RequestError and isn't sent.
            resume_s: If the connection breaks, come back to the session for so many seconds: no event is
                lost or comes twice, and the reply goes on meanwhile. 0: a broken connection is an error.
            tls: The context that verifies a ``wss://`` server; None: trust the authorities of this
                machine, or those in the file that ``SSL_CERT_FILE`` names.

        Raises:
            ConnectionFailed: nobody answers, or the server refuses the connection.
            ProtocolError: the peer does not speak the protocol.
            ConfigError: the address is not a WebSocket address.
        """
        options: dict[str, Any] = {"api_key": api_key, "open_timeout": open_timeout, "tls": tls}
        async with resuming(url, resume_s, ready_timeout, options) as (socket, greeting):
            client = cls(socket, max_size)
            first = ev.parse_server_event(greeting)
            if not isinstance(first, ev.SessionEvent) or first.type != "session.created":
                raise ProtocolError(f"a server begins with session.created, not {first.type}")
            client.session = first.session
            wanted: dict[str, Any] = {"specstream": {"events": list(events)}} if events else {}
            if instructions is not None:
                wanted["instructions"] = instructions
            if wanted:  # a server of another make knows no ``specstream``
                await client.update(**wanted)
            yield client

    async def update(self, **session: Any) -> dict[str, Any]:
        """Change settings of the session, by their wire names; returns all settings.

        Only between replies. ``tools`` may be `specstream.Tool` objects.

        Raises:
            RequestError: the server refuses a value (then nothing is changed), or can't serve a setting
                (then the other settings are changed).
        """
        if isinstance(session.get("tools"), list | tuple):
            session["tools"] = [setting_of(tool) for tool in session["tools"]]
        event = await self.exchange.ask(
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
        """Request a reply to user message ``text``: an async iterator of events that ends after `Done`.

        With ``text`` None no user message is added: the server replies to the conversation as it is,
        for example after `add_result`.

        ``text`` stays in the conversation if the reply is cancelled. If the reply was refused or
        failed before its first word, the next request begins by deleting the message.

        A new request ends an unfinished reply. ``sampling`` and ``chat_template_kwargs`` (variables
        of the chat template) are for this reply only; ``max_tokens`` overrides ``sampling``'s.

        Raises:
            SamplingError: ``sampling`` has a field that can't be sent, such as a callback.
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
        return Reply(self.exchange, text, asked)

    async def cancel(self) -> None:
        """Stop the reply under way, if there is one. Returns once the request is sent.

        Events that the server had already sent are still delivered, then ``Done(status="cancelled")``.
        """
        if self.exchange.reply is not None:
            await self.exchange.reply.cancel()

    async def add_result(self, call: ToolCall, result: str) -> None:
        """Send the result of a tool call; the model reads it in the next reply.

        May be called while the reply that contains the call is being read. Returns once the result is
        sent: if the server refuses it (no such call in the conversation), the reply that is being read,
        or the next one, has a `Problem`.
        """
        item = {"type": "function_call_output", "call_id": call.id, "output": result}
        await self.exchange.send("conversation.item.create", item=item)

    async def truncate(self, item_id: str, heard_ms: int) -> None:
        """Cut a spoken item (see `Done.item_id`) to the words heard in its first ``heard_ms`` ms.

        Raises:
            RequestError: no such item, or less of its audio was sent.
        """
        where = {"item_id": item_id, "content_index": 0, "audio_end_ms": heard_ms}
        await self.exchange.ask(
            "conversation.item.truncate", "conversation.item.truncated", **where
        )
