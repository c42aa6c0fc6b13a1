"""The Realtime WebSocket server."""

from __future__ import annotations

import ssl
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import Any, Protocol

import anyio
from websockets.asyncio.server import ServerConnection
from websockets.exceptions import ConnectionClosed

from specstream.errors import ConfigError
from specstream.types import SamplingParams
from specstream.ws.counters import Counters
from specstream.ws.http import Authentication, address_of, query_of, select_subprotocol
from specstream.ws.listen import check_key, is_loopback, listen
from specstream.ws.places import Places
from specstream.ws.realtime.adapter_pool import AdapterPool, Factories, Maker
from specstream.ws.realtime.audio import Clock, SystemClock
from specstream.ws.realtime.connection import Connection, Service
from specstream.ws.realtime.request import Replies
from specstream.ws.realtime.settings import SessionSettings
from specstream.ws.slow_readers import SEND_BUFFER

__all__ = ["RealtimeServer"]


class Engine(Protocol):
    """What the server needs of `specstream.Engine`."""

    def session(self) -> Replies:
        """A conversation with a cache of its own."""
        ...


class RealtimeServer:
    """Serves the OpenAI Realtime protocol, the demo page at ``/``, ``/healthz`` and ``/metrics``.

    ::

        server = RealtimeServer(engine, voice=lambda: load_adapter("voice", "espeak"))
        async with server.start() as port:
            await server.serve_forever()

    Args:
        engine: A running `specstream.Engine`, or anything with its face.
        voice: Makes a `SpeechSynthesizer` (or a ready stage, such as a remote one) for a
            connection; without it the server answers in text only.
        avatar: The same for an `AvatarScripter`.
        prompt: The same for a `PromptRewriter`.
        params: Sampling where a client says nothing; ``max_tokens`` is what ``"inf"`` means.
        system: Instructions of a session that sets none.
        model: The name that sessions show.
        host: Address to listen on; loopback unless there is a key.
        port: 0 takes a free one.
        api_key: What clients must bring: a bearer header, the ``openai-insecure-api-key.`` sub-
            protocol, or ``?token=``.
        allowed_origins: Pages of other origins that may connect from a browser; ``"*"``: any.
        allowed_hosts: Names that the server is reached by, besides literal addresses and
            ``localhost``; ``"*"``: any. What is asked for another name is refused with 421. A server
            that can be reached from other machines, and so has a key, takes any if none is given.
        max_sessions: Connections at once; more are refused with 503.
        max_per_address: Of these, how many from one address; see `Places`.
        idle_s: A client that sends no frame for so long while no response runs is closed (1008).
        max_size: Bytes of the largest frame a client may send; larger ones close with 1009.
        lead_s: Audio is sent at most this far ahead of its play-out, so that a cancel means
            something; the first ``lead_s`` seconds go at once.
        buffer_s: Audio that may wait for that; then the reply waits, too.
        clock: What the pacing goes by.
        timer: What the deadlines go by.
        tls: Serve ``wss://`` and ``https://`` with this context.
        bundled: The package's own pair answers; the page then says what to ask it.

    Raises:
        ConfigError: a value out of range, or a public address without a key.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        voice: Maker | None = None,
        avatar: Maker | None = None,
        prompt: Maker | None = None,
        params: SamplingParams | None = None,
        system: str | None = None,
        model: str = "specstream",
        host: str = "127.0.0.1",
        port: int = 8765,
        api_key: str | None = None,
        allowed_origins: Sequence[str] = (),
        allowed_hosts: Sequence[str] = (),
        max_sessions: int = 32,
        max_per_address: int | None = None,
        idle_s: float = 600.0,
        max_size: int = 1 << 20,
        lead_s: float = 2.0,
        buffer_s: float = 30.0,
        clock: Clock | None = None,
        timer: Clock | None = None,
        tls: ssl.SSLContext | None = None,
        bundled: bool = False,
    ) -> None:
        for name, maker in (("voice", voice), ("avatar", avatar), ("prompt", prompt)):
            if maker is not None and not callable(maker):
                raise ConfigError(f"{name} must be a function that makes one for each connection")
        _check(host, api_key, max_size, lead_s, buffer_s, idle_s)
        self._makers = Factories(voice, avatar, prompt)
        modality: dict[str, Any] = {"output_modalities": ["audio" if voice else "text"]}
        settings = SessionSettings(
            type="realtime", model=model, instructions=system or "", **modality
        )
        self.counters = Counters()
        self._service = Service(
            engine=engine,
            makers=self._makers,
            settings=settings,
            params=params or SamplingParams(),
            clock=clock or SystemClock(),
            timer=timer or SystemClock(),
            counters=self.counters,
            lead_s=lead_s,
            buffer_s=buffer_s,
            idle_s=idle_s,
        )
        self._places = Places(max_sessions, max_per_address)
        self._connections: set[Connection] = set()
        self._address = (host, port)
        door = Authentication(
            api_key=api_key,
            allowed_origins=allowed_origins,
            allowed_hosts=[*allowed_hosts, host],
            any_host=not allowed_hosts and not is_loopback(host),
            counters=self.counters,
            places=self._places,
            bundled=bundled,
        )
        self._options: dict[str, Any] = {
            "process_request": door,
            "select_subprotocol": select_subprotocol,
            "subprotocols": ["realtime"],
            "max_size": max_size,
            "ssl": tls,
            "send_buffer": SEND_BUFFER,
            "ping_timeout": 60,  # a ping waits behind the audio that a slow reader has still to read
        }

    @asynccontextmanager
    async def start(self) -> AsyncGenerator[int, None]:
        """Listen while the block runs; gives the port. Leaving it closes every connection.

        Raises:
            PortUnavailable: the address can't be listened on.
            AdapterUnavailable: an adapter can't be made.
        """
        trial = AdapterPool(self._makers)
        try:
            await trial.pipeline(audio=self._makers.voice is not None, avatar=True, prompt=True)
        finally:
            await trial.aclose()
        async with listen(self._handle, *self._address, **self._options) as port:
            yield port

    async def serve_forever(self) -> None:
        """Wait until cancelled; the connections are served by `start`."""
        await anyio.sleep_forever()

    async def drain(self, seconds: float) -> None:
        """Let what runs come to its end, and take nothing new; then close every connection (1001).

        A response that is not over after ``seconds`` ends with ``response.done``, cancelled, and the
        code ``server_stopping``. Cancelling the call leaves the rest to the end of `start`.
        """
        self._places.stopping = True
        async with anyio.create_task_group() as group:
            for connection in self._connections:
                group.start_soon(connection.drain, seconds)

    async def _handle(self, socket: ServerConnection) -> None:
        address = address_of(socket)
        if (why := self._places.refusal(address)) is not None:  # several handshakes at once
            await socket.close(1013, why)
            return
        assert socket.request is not None
        connection = Connection(socket, self._service, query_of(socket.request.path).get("model"))
        self.counters.sessions += 1
        self.counters.sessions_total += 1
        self._connections.add(connection)
        try:
            with self._places.taken(address):
                await connection.serve()
        except ConnectionClosed:
            pass
        finally:
            self._connections.remove(connection)
            self.counters.sessions -= 1


def _check(
    host: str, api_key: str | None, max_size: int, lead_s: float, buffer_s: float, idle_s: float
) -> None:
    check_key(host, api_key)
    if max_size < 1024:
        raise ConfigError("max_size must be at least 1024")
    if lead_s < 0.2 or buffer_s < 0.2:
        raise ConfigError("lead_s and buffer_s must be at least 0.2 seconds")
    if idle_s <= 0:
        raise ConfigError("idle_s must be more than 0 seconds")
