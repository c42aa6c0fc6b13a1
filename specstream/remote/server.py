"""Serves one adapter over WebSockets: its connections, each a turn at a time."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections import deque
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, suppress
from typing import Any, get_args

import anyio
from anyio import to_thread
from anyio.abc import TaskGroup
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route, WebSocketRoute
from starlette.types import ASGIApp
from starlette.websockets import WebSocket

from specstream.checks import check_numbers
from specstream.errors import AdapterUnavailable, ConfigError, ConnectionFailed, SpecstreamError
from specstream.remote import frames as fr
from specstream.remote.channel import MAX_SIZE, Channel
from specstream.remote.frames import MAX_WINDOW, SUBPROTOCOL, ErrorFrame, Kind, ReadyFrame, Violation
from specstream.remote.protocol import WINDOW, StageRules
from specstream.server.asgi import listen_app
from specstream.server.auth import NO_KEY, Asked, Authentication, check_key
from specstream.server.keys import Key, KeyRing
from specstream.server.socket import AsgiSocket, deny
from specstream.signals import finished
from specstream.stages.adapters import stage_of
from specstream.stages.contract import Link, close_part
from specstream.stages.pipeline import Stage, as_failure
from specstream.types import AvatarCue, Cancel, ScenePrompt

__all__ = ["AdapterConnection", "AdapterServer", "adapter_server"]

_log = logging.getLogger("specstream.remote")
_MAX_REST = 64  # most cues that return a face to rest


class AdapterConnection:
    """Runs the stage for each turn that the client starts, until the client leaves or `drain`."""

    def __init__(self, channel: Channel, stage: Stage[Any, Any], window: int) -> None:
        self._channel = channel
        self._stage = stage
        self._window = window
        self._inbox = _Inbox(window, channel)
        self._rest: deque[AvatarCue] = deque(maxlen=_MAX_REST)  # made after the input
        self._over = True  # whether the turn's output is complete
        self._failure: SpecstreamError | None = None
        self._scope = anyio.CancelScope()
        self._idle = anyio.Event()
        self._idle.set()

    async def drain(self, seconds: float) -> None:
        """End the connection after the running turn, or with an error if the turn takes longer."""
        with anyio.move_on_after(seconds):
            await self._idle.wait()
        if not self._over and self._failure is None:
            self._failure = AdapterUnavailable("the adapter's server is stopping; ask it again")
        self._scope.cancel()

    async def run(self) -> None:
        """Serve until the client goes away.

        Raises:
            Violation: the client broke the protocol.
            SpecstreamError: the stage broke.
        """
        with self._scope:
            async with anyio.create_task_group() as group:
                try:
                    await self._read(group)
                except ConnectionFailed:
                    pass  # how connections normally end
                except Violation as error:
                    self._failure = error
                self._scope.cancel()
        if self._failure is not None:
            raise self._failure

    async def _read(self, group: TaskGroup) -> None:
        while True:  # never waits for the stage, so that a cancel is read at once
            received = await self._channel.receive()
            if isinstance(received, fr.StartFrame):
                self._inbox, self._over = _Inbox(self._window, self._channel), False
                self._idle = anyio.Event()
                self._rest.clear()
                group.start_soon(self._turn, self._inbox)
            elif isinstance(received, fr.EndFrame):
                self._inbox.close()
            elif isinstance(received, fr.CancelFrame):
                self._channel.drop()
                self._inbox.cancel(Cancel(received.reason))
                if self._over:  # "done" and "cancel" crossed
                    self._channel.post(fr.CancelledFrame(cues=tuple(self._rest)))
            else:
                await self._inbox.send(received)  # has room: the window is its capacity

    async def _turn(self, inbox: _Inbox) -> None:
        try:
            async with aclosing(self._stage.run(inbox)) as outputs:
                item: Any
                async for item in outputs:
                    if inbox.finished and isinstance(item, AvatarCue):
                        self._rest.append(item)
                    await inbox.unless_cancelled(self._channel.room)
                    if not inbox.cancelled:
                        if isinstance(item, ScenePrompt):
                            item = fr.PromptFrame(prompt=item, read=inbox.reach)
                        self._channel.post(item)
            self._over = True
            end: fr.Frame = fr.DoneFrame()
            if inbox.cancelled:
                end = fr.CancelledFrame(cues=tuple(self._rest))
            self._channel.post(end)
        except Exception as error:
            self._failure = as_failure(f"stage {self._stage.name!r}", error)
            self._scope.cancel()
        finally:
            self._idle.set()  # also after the stage broke or the client left


class _Inbox(Link[Any]):
    """Acknowledges each item that the stage takes, so that the client may send another."""

    def __init__(self, window: int, channel: Channel) -> None:
        super().__init__(window, drafted=True)
        self._channel = channel

    async def __anext__(self) -> Any:
        item = await super().__anext__()
        if not isinstance(item, Cancel):
            self._channel.took()
        return item


MAX_CONNECTIONS = 64
"""Default limit of clients at once."""


class AdapterServer:
    """Serves one adapter while an ``async with`` block runs, which gives the port (see `start`).

    Every connection has an adapter of its own, since an adapter serves one turn at a time.
    ``make_adapter`` is called in a worker thread for each, the first time before the port opens, so
    that an adapter that can't be loaded fails at once. Browsers are refused: any web page could
    reach a port on this machine otherwise.

    Attributes:
        app: The ASGI application, for another host than ours (see `open`).

    Args:
        kind: What ``make_adapter`` makes.
        make_adapter: Makes an adapter; its ``aclose``, if it has one, is called in the end.
        host: Address to listen on; loopback unless there is a key.
        port: 0 takes a free one.
        api_key: Required of clients: a bearer header, or ``?token=`` in the address.
        tls: Serve ``wss://`` with this context.
        window: Maximum unacknowledged items on their way to a connection's stage.
        max_connections: Maximum clients at once; more are refused with an error frame.

    Raises:
        ConfigError: no such kind, a number out of range, or a public address without a key.
    """

    def __init__(
        self,
        kind: Kind,
        make_adapter: Callable[[], Any],
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        api_key: str | None = None,
        tls: ssl.SSLContext | None = None,
        window: int = WINDOW,
        max_connections: int = MAX_CONNECTIONS,
    ) -> None:
        if kind not in get_args(Kind):
            raise ConfigError(f"there is no {kind!r} adapter; there are: {', '.join(get_args(Kind))}")
        check_numbers(1, MAX_WINDOW, window=window)
        check_numbers(1, max_connections=max_connections)
        keys = KeyRing([] if api_key is None else [Key(api_key)])
        check_key(host, keys.needed)
        self._address, self._tls = (host, port), tls
        self._authentication = Authentication(keys)
        self._kind: Kind = kind
        self._make = make_adapter
        self._window = window
        self._places = max_connections  # that are free
        self._spare: Any = None  # the first adapter, made before the port opens
        self._stopping = False
        self._connections: set[AdapterConnection] = set()
        self._loading: set[anyio.CancelScope] = set()  # of connections without an adapter yet
        self._opened = False
        self._started = AsyncExitStack()
        everywhere = "/{path:path}"
        routes = [WebSocketRoute(everywhere, self._accept), Route(everywhere, _no_socket)]
        self.app: ASGIApp = Starlette(routes=routes, lifespan=lambda _: self.open())

    async def __aenter__(self) -> int:
        """See `start`."""
        return await self._started.enter_async_context(self.start())

    async def __aexit__(self, *error: Any) -> None:
        await self._started.__aexit__(*error)

    @asynccontextmanager
    async def start(self) -> AsyncGenerator[int, None]:
        """Listen while the block runs; gives the port.

        Raises:
            PortUnavailable: the address can't be listened on.
            AdapterUnavailable: the adapter can't be made.
        """
        async with (
            self._loaded(),
            listen_app(self.app, *self._address, tls=self._tls, max_frame=MAX_SIZE) as port,
            self._stopped_after(),
        ):
            yield port

    @asynccontextmanager
    async def open(self) -> AsyncGenerator[None, None]:
        """Make the first adapter and serve `app` while the block runs, on a host that isn't ours.

        That host runs `app` by itself (uvicorn does this block, too), or has it below a path: then the
        block belongs into its lifespan. It must take messages of 4 MiB.

        Raises:
            AdapterUnavailable: the adapter can't be made.
        """
        async with self._loaded(), self._stopped_after():
            yield

    async def drain(self, seconds: float) -> None:
        """Begin no new turn, let running ones end, then close every connection (1001).

        A turn that takes longer than ``seconds`` ends with an error.
        """
        self._stopping = True
        for scope in self._loading:
            scope.cancel()
        async with anyio.create_task_group() as group:
            for connection in self._connections:
                group.start_soon(connection.drain, seconds)

    @asynccontextmanager
    async def _loaded(self) -> AsyncGenerator[None, None]:
        if self._opened:
            raise ConfigError("this server runs already; make another one")
        self._opened, self._stopping = True, False
        try:
            self._spare = await self._load()
            yield
        finally:
            self._opened = False
            self._spare, spare = None, self._spare
            await _release(spare)

    @asynccontextmanager
    async def _stopped_after(self) -> AsyncGenerator[None, None]:
        try:
            yield
        finally:
            await finished(self.drain(0))

    async def _accept(self, socket: WebSocket) -> None:
        if (refusal := self._refusal(socket)) is not None:
            await deny(socket, refusal)
            return
        await socket.accept(SUBPROTOCOL)
        await self._handle(AsgiSocket(socket))

    def _refusal(self, socket: WebSocket) -> Response | None:
        try:
            asked = Asked.of(socket.scope)
            if "Origin" in asked.headers:
                return PlainTextResponse("browsers may not connect\n", 403)
            allowed = self._authentication.caller(asked) is not None
        except (ValueError, LookupError):
            return PlainTextResponse("this request can't be read\n", 400)
        if not allowed:
            return PlainTextResponse(NO_KEY, 401, {"WWW-Authenticate": "Bearer"})
        if SUBPROTOCOL not in socket.scope["subprotocols"]:
            return PlainTextResponse(f"the subprotocol here is {SUBPROTOCOL}\n", 400)
        return None

    async def _handle(self, socket: AsgiSocket) -> None:
        """Serve one connection, from greeting to close."""
        channel = Channel(socket, StageRules("adapter", self._kind), "the client")
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
                    adapter = await self._load_until_stopped()
                if adapter is None or self._stopping:
                    code = 1013
                    raise AdapterUnavailable("this server is stopping; try again later")
                await self._converse(channel, adapter)
            finally:
                self._places += 1
        except Exception as error:
            channel.post(ErrorFrame.of(as_failure(f"stage {self._kind!r}", error)))
            stopped = 1001 if self._stopping else 1011
            code = error.close_code if isinstance(error, Violation) else code or stopped
        finally:
            await channel.close(code or (1001 if self._stopping else 1000))
            await _release(adapter)

    async def _load_until_stopped(self) -> Any:
        """Make an adapter; None if the server is stopped first."""
        with anyio.CancelScope() as scope:
            self._loading.add(scope)
            try:
                return await self._load()
            finally:
                self._loading.remove(scope)
        return None

    async def _load(self) -> Any:
        """Make an adapter in a thread; cancelling the call leaves it alone, and closes what it makes."""
        loop, left = asyncio.get_running_loop(), False

        def make() -> Any:
            made = self._make()
            if left:
                with suppress(RuntimeError):  # the loop has ended, too
                    asyncio.run_coroutine_threadsafe(_release(made), loop)
            return made

        try:
            adapter = await to_thread.run_sync(make, abandon_on_cancel=True)
            stage_of(self._kind, adapter)  # raises now if it is no adapter of this kind
            return adapter
        except Exception as error:
            if isinstance(error, SpecstreamError):
                raise
            raise AdapterUnavailable(f"the {self._kind} adapter can't be made: {error}") from error
        except BaseException:
            left = True
            raise

    async def _converse(self, channel: Channel, adapter: Any) -> None:
        voice = getattr(adapter, "capabilities", None) if self._kind == "voice" else None
        name = voice.name if voice else type(adapter).__name__
        channel.post(ReadyFrame(kind=self._kind, adapter=name, window=self._window, voice=voice))
        connection = AdapterConnection(channel, stage_of(self._kind, adapter), self._window)
        self._connections.add(connection)
        try:
            await connection.run()
        finally:
            self._connections.remove(connection)


adapter_server = AdapterServer
"""For ``async with adapter_server("voice", make) as port``."""


def _no_socket(request: Request) -> Response:
    return PlainTextResponse("this is a WebSocket endpoint\n", 426, {"Upgrade": "websocket"})


async def _release(adapter: Any) -> None:
    try:
        await close_part("the adapter", adapter)
    except SpecstreamError as error:
        _log.error("an adapter is left behind: %s", error)
