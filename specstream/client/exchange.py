"""The events between a Realtime client and its server: requests with their answers, and replies."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Self

import anyio
from websockets.exceptions import ConnectionClosed

import specstream.realtime.events as ev
from specstream.client.resume import ClientSocket
from specstream.errors import ConnectionFailed, ProtocolError, RequestError
from specstream.realtime.client_events import Done, RealtimeEvent, translate
from specstream.realtime.wire import MAX_EVENT, new_id

__all__ = ["Exchange", "Reply"]

_MOST_KEPT = 4096  # events of a reply that nobody reads while the client waits for an answer


@dataclass(slots=True)
class _Asked:
    """A client event whose answer is waited for: an event of a type, or an error about the request."""

    event_id: str
    answer: str
    answered: ev.ServerEvent | None = None

    def takes(self, event: ev.ServerEvent) -> bool:
        """Return whether ``event`` is the answer, and keep it if so."""
        if event.type == self.answer or _is_about(event, self.event_id):
            self.answered = event
        return self.answered is not None


class Exchange:
    """Sends client events of at most ``max_size`` bytes and receives server events over one socket.

    Several tasks may use it; whichever reads hands the others the answers that they wait for.

    Attributes:
        reply: The latest reply that was requested.
        unanswered: Ids of user items whose reply was refused or failed; the next request deletes them.
        requesting: Held while a reply is requested.
    """

    def __init__(self, socket: ClientSocket, max_size: int = MAX_EVENT) -> None:
        self._socket, self._max_size = socket, max_size
        self.reply: Reply | None = None
        self.unanswered: list[str] = []
        self.requesting = anyio.Lock(fast_acquire=True)
        self._reading = anyio.Lock(fast_acquire=True)
        self._asked = deque[_Asked]()
        self._kept = deque[ev.ServerEvent]()  # received while an answer was waited for

    async def settle(self) -> None:
        """End the reply under way, so that the next events answer the next request."""
        if self.reply is not None and self.reply.under_way:
            await self.reply.cancel()
            reply = self.reply
            while reply.under_way:
                if (event := await self._next(lambda: not reply.under_way)) is not None:
                    reply._add(event)  # for another task that reads it

    async def ask(self, type: str, answer: str, /, **fields: Any) -> ev.ServerEvent:
        """Send an event and return the server's event of type ``answer``.

        A reply under way goes on, and whoever reads it gets all of its events.

        Raises:
            RequestError: the server refused the event, or too much of the reply came before the answer.
            ConnectionFailed: the connection broke.
        """
        asked = _Asked(new_id("client"), answer)
        self._asked.append(asked)  # before sending: another task may read the answer first
        try:
            await self._send({"type": type, "event_id": asked.event_id, **fields})
        except BaseException:
            with suppress(ValueError):  # cancelled once another task had read the answer
                self._asked.remove(asked)
            raise
        while asked.answered is None:
            if len(self._kept) >= _MOST_KEPT:
                raise RequestError(
                    f"{_MOST_KEPT} events of the reply came before the answer: read it meanwhile"
                )
            async with self._reading:
                if asked.answered is None and not self._answers(event := await self._read()):
                    self._keep(event)
        _raise_if_about(asked.answered, asked.event_id)
        return asked.answered

    def _answers(self, event: ev.ServerEvent) -> bool:
        """Give an answer to the first that waits for it; returns whether there is one."""
        for asked in self._asked:
            if asked.takes(event):
                self._asked.remove(asked)  # one whose caller was cancelled waited until now
                return True
        return False

    def _keep(self, event: ev.ServerEvent) -> None:
        read_later = self.reply is not None and self.reply.under_way
        if read_later or isinstance(event, ev.ErrorEvent):
            self._kept.append(event)

    async def send(self, type: str, **fields: Any) -> str:
        """Send an event; returns its id.

        Raises:
            RequestError: the event can't be sent; the connection stays usable.
            ConnectionFailed: the connection broke.
        """
        event_id = new_id("client")
        await self._send({"type": type, "event_id": event_id, **fields})
        return event_id

    async def _send(self, event: dict[str, Any]) -> None:
        frame = _frame(event, self._max_size)
        try:
            await self._socket.send(frame)
        except ConnectionClosed as error:
            raise ConnectionFailed(f"the server closed the connection: {error}") from error

    async def receive(self) -> ev.ServerEvent:
        """Return the server's next event that answers no `ask`. Cancelling the call loses no event.

        Raises:
            ConnectionFailed: the connection broke.
            ProtocolError: the frame is no event.
        """
        while (event := await self._next()) is None:
            pass
        return event

    async def follow(self, reply: Reply) -> None:
        """Give ``reply`` the next event, unless another task does meanwhile; see `receive`."""
        if (event := await self._next(lambda: reply._ready)) is not None:
            reply._add(event)

    async def _next(self, needless: Callable[[], bool] = bool) -> ev.ServerEvent | None:
        async with self._reading:
            if needless():  # by now
                return None
            if self._kept:
                return self._kept.popleft()
            event = await self._read()
        return None if self._answers(event) else event

    async def _read(self) -> ev.ServerEvent:
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
        self._due = deque[RealtimeEvent | RequestError]()  # for whoever iterates

    @property
    def _ready(self) -> bool:
        """Whether the next step of the iteration needs nothing from the server."""
        return bool(self._due) or self._ended

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
        try:
            if not self._event_ids and not self._ended:
                await self._ask()
            while not self._ready:
                await self._exchange.follow(self)
        except (ConnectionFailed, ProtocolError):
            self._ended = True
            raise
        if not self._due:
            raise StopAsyncIteration
        event = self._due.popleft()
        if isinstance(event, RequestError):
            raise event
        return event

    def _add(self, event: ev.ServerEvent) -> None:
        """Take an event of the server, for whoever iterates."""
        try:
            made = self._take(event)
        except RequestError as error:
            self._due.append(error)
            return
        if made is not None:
            self._due.append(made)
        if isinstance(made, Done):
            self._ended = True
            if made.status == "failed" and made.item_id is None:
                self._unanswered()

    def _unanswered(self) -> None:
        if self._text is not None:
            self._exchange.unanswered.append(self._item_id)

    async def _ask(self) -> None:
        async with self._exchange.requesting:
            await self._request()

    async def _request(self) -> None:
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


def _is_about(event: ev.ServerEvent, event_id: str) -> bool:
    return isinstance(event, ev.ErrorEvent) and event.error.event_id == event_id


def _raise_if_about(event: ev.ServerEvent, event_id: str) -> None:
    if isinstance(event, ev.ErrorEvent) and _is_about(event, event_id):
        raise RequestError(f"the server refused: {event.error.message} ({event.error.code})")
