"""Serves one adapter over WebSockets to any number of pipelines."""

from __future__ import annotations

import ssl
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, get_args

import anyio
from anyio import to_thread
from websockets.asyncio.server import ServerConnection
from websockets.typing import Subprotocol

from specstream.errors import AdapterUnavailable, ConfigError, SpecstreamError
from specstream.pipeline.adapters import stage_of
from specstream.pipeline.stage import as_failure
from specstream.ws.auth import Authentication, check_key
from specstream.ws.listen import listen
from specstream.ws.log import LOG
from specstream.ws.stage.channel import MAX_SIZE, Channel
from specstream.ws.stage.codec import Violation
from specstream.ws.stage.connection import AdapterConnection
from specstream.ws.stage.frames import MAX_WINDOW, SUBPROTOCOL, ErrorFrame, Kind, ReadyFrame
from specstream.ws.stage.protocol import WINDOW, StageRules

__all__ = ["AdapterServer", "adapter_server"]

_RELEASE_TIMEOUT = 10.0
MAX_CONNECTIONS = 64
"""Default limit of clients at once."""


class AdapterServer:
    """Serves one adapter while an ``async with`` block runs, which gives the port (see `start`).

    Every connection has an adapter of its own, since an adapter serves one turn at a time.
    ``make_adapter`` is called in a worker thread for each, the first time before the port opens, so
    that an adapter that can't be loaded fails at once. Browsers are refused: any web page could
    reach a port on this machine otherwise.

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
            raise ConfigError(
                f"there is no {kind!r} adapter; there are: {', '.join(get_args(Kind))}"
            )
        if not 1 <= window <= MAX_WINDOW or max_connections < 1:
            raise ConfigError(f"window must be from 1 to {MAX_WINDOW}, max_connections at least 1")
        check_key(host, api_key)
        self._address = (host, port)
        self._options: dict[str, Any] = {
            "subprotocols": [Subprotocol(SUBPROTOCOL)],
            "origins": [None],
            "process_request": Authentication(api_key).require_key,
            "max_size": MAX_SIZE,
            "ssl": tls,
        }
        self._kind: Kind = kind
        self._make = make_adapter
        self._window = window
        self._places = max_connections  # that are free
        self._spare: Any = None  # the first adapter, made before the port opens
        self._stopping = False
        self._connections: set[AdapterConnection] = set()
        self._started = AsyncExitStack()

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
        self._spare = await self._load()
        try:
            async with listen(self._handle, *self._address, **self._options) as port:
                yield port
        finally:
            await _release(self._spare)

    async def drain(self, seconds: float) -> None:
        """Begin no new turn, let running ones end, then close every connection (1001).

        A turn that takes longer than ``seconds`` ends with an error.
        """
        self._stopping = True
        async with anyio.create_task_group() as group:
            for connection in self._connections:
                group.start_soon(connection.drain, seconds)

    async def _handle(self, socket: ServerConnection) -> None:
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
                    adapter = await self._load()
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

    async def _load(self) -> Any:
        try:
            adapter = await to_thread.run_sync(self._make)
            stage_of(self._kind, adapter)  # raises now if it is no adapter of this kind
            return adapter
        except Exception as error:
            if isinstance(error, SpecstreamError):
                raise
            raise AdapterUnavailable(f"the {self._kind} adapter can't be made: {error}") from error

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


async def _release(adapter: Any) -> None:
    aclose = getattr(adapter, "aclose", None)
    if aclose is None:
        return
    try:
        with anyio.move_on_after(_RELEASE_TIMEOUT, shield=True):
            await aclose()
    except Exception:
        LOG.exception("an adapter failed while it was closed")
