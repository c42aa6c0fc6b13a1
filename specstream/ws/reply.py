"""One reply of a Realtime server as the Python client reads it, and its use of the connection."""

from __future__ import annotations

import json
from typing import Any, Self

from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosed

import specstream.ws.realtime.events as ev
from specstream.errors import ConnectionFailed, ProtocolError, RequestError
from specstream.ws.realtime.client_events import Done, RealtimeEvent, translate
from specstream.ws.realtime.wire import new_id

__all__ = ["Exchange", "Reply"]


class Exchange:
    """Sends client events and receives server events over one socket.

    Attributes:
        reply: The latest reply that was requested.
        unanswered: Ids of user items whose reply was refused or failed; the next request deletes them.
    """

    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket
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
            ConnectionFailed: the connection broke.
        """
        event_id = new_id("client")
        try:
            await self._socket.send(json.dumps({"type": type, "event_id": event_id, **fields}))
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
        RequestError: the server refused the request.
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
        if self._text is not None:
            content = [{"type": "input_text", "text": self._text}]
            item = {"type": "message", "role": "user", "id": self._item_id, "content": content}
            said = (await exchange.send("conversation.item.create", item=item),)
        asked = await exchange.send("response.create", response=self._asked)
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


def _raise_if_about(event: ev.ServerEvent, event_id: str) -> None:
    if isinstance(event, ev.ErrorEvent) and event.error.event_id == event_id:
        raise RequestError(f"the server refused: {event.error.message} ({event.error.code})")
