"""Serves one adapter over WebSockets, to any number of pipelines."""

from __future__ import annotations

import hmac
import ssl
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from contextlib import aclosing, asynccontextmanager
from functools import partial
from http import HTTPStatus
from typing import Any
from urllib.parse import parse_qs, urlsplit

import anyio
from anyio import to_thread
from anyio.abc import TaskGroup
from websockets.asyncio.server import ServerConnection
from websockets.http11 import Request, Response
from websockets.typing import Subprotocol

from specstream.errors import (
    AdapterUnavailable,
    ConfigError,
    ConnectionFailed,
    SpecstreamError,
)
from specstream.pipeline.link import Inlet, Link
from specstream.pipeline.stage import Stage, as_failure
from specstream.pipeline.stages import AvatarStage, PromptStage, VoiceStage
from specstream.types import AvatarCue, Cancel
from specstream.ws.listen import check_key, listen
from specstream.ws.log import LOG
from specstream.ws.stage.channel import MAX_SIZE, Channel
from specstream.ws.stage.codec import Violation
from specstream.ws.stage.frames import (
    MAX_WINDOW,
    SUBPROTOCOL,
    CancelFrame,
    CancelledFrame,
    DoneFrame,
    EndFrame,
    ErrorFrame,
    Kind,
    ReadyFrame,
    StartFrame,
)
from specstream.ws.stage.protocol import WINDOW, Conversation

__all__ = ["adapter_server", "serve_adapter"]

_STAGES: dict[str, Callable[[Any], Stage[Any, Any]]] = {
    "voice": VoiceStage,
    "avatar": AvatarStage,
    "prompt": PromptStage,
}
_MAX_REST = 64  # cues that bring a face to rest
_RELEASE_TIMEOUT = 10.0
MAX_CONNECTIONS = 64
"""Clients that are served at once, unless something else is said."""


async def serve_adapter(
    kind: Kind,
    make_adapter: Callable[[], Any],
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    api_key: str | None = None,
    tls: ssl.SSLContext | None = None,
    ready: Callable[[int], None] | None = None,
    until: Callable[[Callable[[float], Coroutine[Any, Any, None]]], Awaitable[None]] | None = None,
) -> None:
    """Serve until ``until`` returns, or for good; ``ready`` is called with the port once it listens.

    ``until`` is given a function that drains the server: turns that run come to their end within so
    many seconds, no new one begins, and every connection is closed (1001). A turn that takes longer
    ends with an error. Takes and raises what `adapter_server` does.
    """
    service = _Service(kind, make_adapter, WINDOW, MAX_CONNECTIONS)
    async with _serving(service, host, port, api_key, tls) as bound:
        if ready is not None:
            ready(bound)
        if until is None:
            await anyio.sleep_forever()
        else:
            await until(service.drain)


@asynccontextmanager
async def adapter_server(
    kind: Kind,
    make_adapter: Callable[[], Any],
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    api_key: str | None = None,
    tls: ssl.SSLContext | None = None,
    window: int = WINDOW,
    max_connections: int = MAX_CONNECTIONS,
) -> AsyncGenerator[int, None]:
    """Serve an adapter while the block runs; gives the port.

    Every connection has an adapter of its own (they are not made for turns side by side):
    ``make_adapter`` is called in a worker thread for each, the first time before the port opens, so
    that an adapter that can't be loaded is known at once. Browsers are refused: any web page could
    reach a port on this machine otherwise.

    Args:
        kind: What ``make_adapter`` makes.
        make_adapter: Gives an adapter; its ``aclose``, if it has one, is called in the end.
        host: Address to listen on; loopback unless there is a key.
        port: 0 takes a free one.
        api_key: What clients must bring: a bearer header, or ``?token=`` in the address.
        tls: Serve ``wss://`` with this context.
        window: How many items may be on their way to a connection's stage.
        max_connections: How many clients are served at once; more are told so.

    Raises:
        PortUnavailable: the address can't be listened on.
        AdapterUnavailable: the adapter can't be made.
        ConfigError: no such kind, a number out of range, or a public address without a key.
    """
    service = _Service(kind, make_adapter, window, max_connections)
    async with _serving(service, host, port, api_key, tls) as bound:
        yield bound


@asynccontextmanager
async def _serving(
    service: _Service, host: str, port: int, key: str | None, tls: ssl.SSLContext | None
) -> AsyncGenerator[int, None]:
    check_key(host, key)
    await service.prepare()
    try:
        async with listen(
            service.handle,
            host,
            port,
            subprotocols=[Subprotocol(SUBPROTOCOL)],
            origins=[None],
            process_request=partial(_authorize, key) if key else None,
            max_size=MAX_SIZE,
            ssl=tls,
        ) as bound:
            yield bound
    finally:
        await service.aclose()


def _authorize(key: str, connection: ServerConnection, request: Request) -> Response | None:
    query = parse_qs(urlsplit(request.path).query)
    given = [*query.get("token", []), *request.headers.get_all("Authorization")]
    wanted = key.encode()
    if any(
        hmac.compare_digest(g.removeprefix("Bearer ").encode(errors="replace"), wanted)
        for g in given
    ):
        return None
    text = "a key is needed: 'Authorization: Bearer KEY', or ?token=KEY\n"
    return connection.respond(HTTPStatus.UNAUTHORIZED, text)


class _Service:
    """What the connections share: how adapters are made, and how many there may be."""

    def __init__(
        self, kind: Kind, make: Callable[[], Any], window: int, max_connections: int
    ) -> None:
        if kind not in _STAGES:
            raise ConfigError(f"there is no {kind!r} adapter; there are: {', '.join(_STAGES)}")
        if not 1 <= window <= MAX_WINDOW or max_connections < 1:
            raise ConfigError(f"window must be from 1 to {MAX_WINDOW}, max_connections at least 1")
        self._kind: Kind = kind
        self._make = make
        self._window = window
        self._places = max_connections
        self._spare: Any = None
        self._stopping = False
        self._connections: set[_Connection] = set()

    async def prepare(self) -> None:
        self._spare = await self._load()

    async def aclose(self) -> None:
        await _release(self._spare)

    async def drain(self, seconds: float) -> None:
        """See `serve_adapter`."""
        self._stopping = True
        async with anyio.create_task_group() as group:
            for connection in self._connections:
                group.start_soon(connection.drain, seconds)

    async def handle(self, socket: ServerConnection) -> None:
        """One connection, from greeting to close."""
        channel = Channel(socket, Conversation("adapter", self._kind), "the client")
        adapter, code = None, 0
        try:
            if self._places <= 0 or self._stopping:
                code = 1013
                state = "stopping" if self._stopping else "full"
                raise AdapterUnavailable(f"this server is {state}; try again later")
            self._places -= 1
            try:
                self._spare, adapter = None, self._spare
                if adapter is None:
                    adapter = await self._load()
                await self._converse(channel, adapter)
            finally:
                self._places += 1
        except Exception as error:
            channel.post(ErrorFrame.of(as_failure(self._kind, error)))
            stopped = 1001 if self._stopping else 1011
            code = error.close_code if isinstance(error, Violation) else code or stopped
        finally:
            await channel.close(code or (1001 if self._stopping else 1000))
            await _release(adapter)

    async def _load(self) -> Any:
        try:
            adapter = await to_thread.run_sync(self._make)
            _STAGES[self._kind](adapter)  # what isn't an adapter shall be known now
            return adapter
        except Exception as error:
            if isinstance(error, SpecstreamError):
                raise
            raise AdapterUnavailable(f"the {self._kind} adapter can't be made: {error}") from error

    async def _converse(self, channel: Channel, adapter: Any) -> None:
        capabilities = getattr(adapter, "capabilities", None) if self._kind == "voice" else None
        name = capabilities.name if capabilities else type(adapter).__name__
        channel.post(
            ReadyFrame(kind=self._kind, adapter=name, window=self._window, voice=capabilities)
        )
        connection = _Connection(channel, _STAGES[self._kind](adapter), self._window)
        self._connections.add(connection)
        try:
            await connection.run()
        finally:
            self._connections.remove(connection)


class _Connection:
    """The turns of one client, one after another, through one stage."""

    def __init__(self, channel: Channel, stage: Stage[Any, Any], window: int) -> None:
        self._channel = channel
        self._stage = stage
        self._window = window
        self._inbox: Link[Any] = Link(window)
        self._rest: deque[AvatarCue] = deque(maxlen=_MAX_REST)
        self._over = True
        self._failure: SpecstreamError | None = None
        self._scope: anyio.CancelScope | None = None
        self._idle = anyio.Event()
        self._idle.set()

    async def drain(self, seconds: float) -> None:
        """End with the turn that runs, if that is over within ``seconds``; else with an error."""
        with anyio.move_on_after(seconds):
            await self._idle.wait()
        if not self._over and self._failure is None:
            self._failure = AdapterUnavailable("the adapter's server is stopping; ask it again")
        if self._scope is not None:
            self._scope.cancel()

    async def run(self) -> None:
        """Serve until the client goes away.

        Raises:
            Violation: the client broke the protocol.
            SpecstreamError: the stage broke.
        """
        async with anyio.create_task_group() as group:
            self._scope = group.cancel_scope
            try:
                await self._read(group)
            except ConnectionFailed:
                pass  # which is how conversations end
            except Violation as error:
                self._failure = error
            group.cancel_scope.cancel()
        if self._failure is not None:
            raise self._failure

    async def _read(self, group: TaskGroup) -> None:
        while True:  # never waits for the stage, so that a cancel is heard at once
            received = await self._channel.receive()
            if isinstance(received, StartFrame):
                self._inbox, self._over = Link(self._window), False
                self._idle = anyio.Event()
                self._rest.clear()
                group.start_soon(self._turn, group, self._inbox)
            elif isinstance(received, EndFrame):
                self._inbox.close()
            elif isinstance(received, CancelFrame):
                self._channel.drop()
                self._inbox.cancel(Cancel(received.reason))
                if self._over:  # "done" and "cancel" crossed
                    self._channel.post(CancelledFrame(cues=tuple(self._rest)))
            else:
                await self._inbox.send(received)  # has room: the window is its capacity

    async def _turn(self, group: TaskGroup, inbox: Link[Any]) -> None:
        try:
            async with aclosing(self._stage.run(_Acknowledging(inbox, self._channel))) as outputs:
                async for item in outputs:
                    await self._emit(inbox, item)
            self._over = True
            if inbox.cancelled:
                self._channel.post(CancelledFrame(cues=tuple(self._rest)))
            else:
                self._channel.post(DoneFrame())
        except Exception as error:
            self._failure = as_failure(self._stage.name, error)
            group.cancel_scope.cancel()
        finally:
            self._idle.set()  # a stage that broke, or a client that left, is over too

    async def _emit(self, inbox: Link[Any], item: Any) -> None:
        if inbox.finished and isinstance(item, AvatarCue):
            self._rest.append(item)
        await inbox.inlet.unless_cancelled(self._channel.room)
        if not inbox.cancelled:
            self._channel.post(item)


class _Acknowledging(Inlet[Any]):
    """Gives the client room for another item with each one that the stage takes."""

    def __init__(self, link: Link[Any], channel: Channel) -> None:
        super().__init__(link)
        self._channel = channel

    async def __anext__(self) -> Any:
        item = await super().__anext__()
        if not isinstance(item, Cancel):
            self._channel.took()
        return item


async def _release(adapter: Any) -> None:
    aclose = getattr(adapter, "aclose", None)
    if aclose is None:
        return
    try:
        with anyio.move_on_after(_RELEASE_TIMEOUT, shield=True):
            await aclose()
    except Exception:
        LOG.exception("an adapter failed while it was closed")
