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

import ssl
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Self, get_args

import specstream.realtime.events as ev
from specstream.client.dial import READY_S
from specstream.client.exchange import Exchange, Reply
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
)
from specstream.realtime.items import setting_of
from specstream.realtime.settings import OwnEvent, Sampling
from specstream.realtime.wire import MAX_EVENT
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


DEFAULT_EVENTS: tuple[OwnEvent, ...] = tuple(e for e in get_args(OwnEvent) if e != "preview")


class RealtimeClient:
    """One conversation with a server: one reply at a time.

    Made by `connect`. Every task may call `cancel`, `update`, `truncate` and `add_result` while another
    reads a reply, or request the next one, which ends the one under way.

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
            if isinstance(first, ev.ErrorEvent):
                raise ConnectionFailed(f"the server begins no session: {first.error.message}")
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

        They hold from the next reply on; one under way goes on and can be read to its end.
        ``tools`` may be `specstream.Tool` objects.

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
        await self.exchange.ask("conversation.item.truncate", "conversation.item.truncated", **where)
