"""The Realtime WebSocket server."""

from __future__ import annotations

import ssl
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import anyio
from anyio import to_thread
from starlette.types import ASGIApp

from specstream.client.dial import is_loopback
from specstream.errors import ConfigError
from specstream.listening.ears import Ears
from specstream.listening.preempt import Preempt
from specstream.realtime.input_settings import AudioFormat, AudioInput, TurnDetection
from specstream.realtime.settings import Audio, SessionSettings
from specstream.server.api.routes import api_routes
from specstream.server.asgi import listen_app
from specstream.server.auth import Authentication, check_key
from specstream.server.counters import Counters
from specstream.server.http import make_app
from specstream.server.journal.base import Journal
from specstream.server.keys import ClientSecrets, Key, KeyRing
from specstream.server.limits import SEND_BUFFER, Allowances, ConnectionLimit, UnderWay
from specstream.server.options import ServerAccess, ServerLimits
from specstream.server.sessions.hosting import SessionHost
from specstream.server.sessions.request import AdapterPool, Factories, Factory, ServedEngine, Service
from specstream.signals import Clock, LoopClock, finished
from specstream.types import Manner, SamplingParams

__all__ = ["RealtimeServer"]


class RealtimeServer:
    """Serves the OpenAI Realtime protocol, the HTTP API, the demo page, ``/health`` and ``/metrics``.

    Attributes:
        app: All of it as an ASGI application, for another server to host: it serves while the block of
            `open` runs. ``start`` hosts it itself.
        counters: What ``/metrics`` tells.
        keys: Those that are good; `KeyRing.replace` takes others while the server runs.

    ::

        server = RealtimeServer(engine, voice=lambda: load_adapter("voice", "espeak"))
        async with server.start() as port:
            await server.serve_forever()

    Args:
        engine: A running `specstream.Engine`, or another object with its ``session`` and ``no_tools``.
        voice: Makes a `SpeechSynthesizer` (or a ready stage, such as a remote one) for a
            connection; without it the server answers in text only.
        mark: Makes the `AudioMark` that the voice's speech goes through, for a connection.
        avatar: The same for an `AvatarScripter`.
        prompts: The same for a `PromptRewriter`.
        ears: Makes the `Ears` that all clients share; called once, when the server starts. Without
            it the server takes no audio input.
        params: Default sampling parameters; ``max_tokens`` is what ``"inf"`` means. None: those of
            `ServedEngine.manner`.
        system: Default instructions. None: the system message of `ServedEngine.manner`; "": none.
        model: The model name in a session's settings, for clients that name none.
        host: Address to listen on; loopback unless there is a key.
        port: 0 takes a free one.
        keys: One of them is required of clients: a bearer header, the ``openai-insecure-api-key.`` sub-
            protocol, or ``?token=``. Texts are keys without quotas.
        access: Which pages, names and proxies requests may come from.
        limits: What clients may use.
        reuse_port: Other processes may listen at the same address, such as the next version.
        preempt: Begin to answer before a spoken question is over (see `Preempt`); None: don't.
        journal: Where sessions that can be resumed are written down, so that they outlive the process.
        clock: The clock for pacing audio.
        timer: The clock for rate limits and slow readers.
        tls: Serve ``wss://`` and ``https://`` with this context.
        bundled: The package's own model pair answers; the demo page then suggests what it can do.
        names: What answers, for clients to show: ``target``, ``draft``. The names of voice and
            recogniser are added.

    Attributes:
        service: What sessions and requests share.
        limit: Who is connected.
        sessions: Serves the sessions.

    Raises:
        ConfigError: a value of the wrong kind, or a public address without a key.
    """

    def __init__(
        self,
        engine: ServedEngine,
        *,
        voice: Factory | None = None,
        mark: Factory | None = None,
        avatar: Factory | None = None,
        prompts: Factory | None = None,
        ears: Callable[[], Ears] | None = None,
        params: SamplingParams | None = None,
        system: str | None = None,
        model: str = "specstream",
        host: str = "127.0.0.1",
        port: int = 8765,
        keys: Sequence[Key | str] = (),
        access: ServerAccess = ServerAccess(),  # noqa: B008  # frozen
        limits: ServerLimits = ServerLimits(),  # noqa: B008
        reuse_port: bool = False,
        preempt: Preempt | None = None,
        journal: Journal | None = None,
        clock: Clock | None = None,
        timer: Clock | None = None,
        tls: ssl.SSLContext | None = None,
        bundled: bool = False,
        names: Mapping[str, str] | None = None,
    ) -> None:
        kinds: dict[str, tuple[object, bool, str]] = {
            "engine": (engine, hasattr(engine, "session"), "a running Engine"),
            "params": (params, isinstance(params, SamplingParams | None), "SamplingParams(...)"),
            "system": (system, isinstance(system, str | None), "a text"),
            "model": (model, isinstance(model, str), "a text"),
            "keys": ("…", not isinstance(keys, str), "a list of keys"),
            "preempt": (preempt, isinstance(preempt, Preempt | None), "a Preempt(...)"),
            "tls": (tls, isinstance(tls, ssl.SSLContext | None), "an ssl.SSLContext"),
        }
        for name, (given, fits, what) in kinds.items():
            if not fits:
                raise ConfigError(f"{name} must be {what}, not {given!r:.80}")
        made = {"voice": voice, "mark": mark, "avatar": avatar, "prompts": prompts, "ears": ears}
        for name, factory in made.items():
            if factory is not None and not callable(factory):
                raise ConfigError(f"{name} must be a function that makes one for each connection")
        if mark is not None and voice is None:
            raise ConfigError("a mark goes into speech: give the server a voice, or no mark")
        self.keys = KeyRing([Key(key) if isinstance(key, str) else key for key in keys])
        check_key(host, self.keys.needed)
        modality: dict[str, Any] = {"output_modalities": ["audio" if voice else "text"]}
        if ears is not None:
            heard = AudioInput(format=AudioFormat(), turn_detection=TurnDetection())
            modality["audio"] = Audio(input=heard)
        settings = SessionSettings(type="realtime", model=model, instructions=system or "", **modality)
        self._ears = ears
        self._by_manner = (params is None, system is None)
        self.counters = Counters()
        self.service = Service(
            engine=engine,
            factories=Factories(voice, avatar, prompts, mark),
            settings=settings,
            params=params or SamplingParams(),
            clock=clock or LoopClock(),
            timer=timer or LoopClock(),
            counters=self.counters,
            limits=limits,
            preempt=preempt,
            names=dict(names or {}),
        )
        self.limit = ConnectionLimit(limits.max_sessions, limits.max_per_address)
        self._allowances = Allowances(self.service.timer, limits.max_sessions)
        self._address = (host, port)
        secrets = ClientSecrets()
        authentication = Authentication(
            self.keys,
            origins=access.origins,
            hosts=[*access.hosts, host],
            any_host=not access.hosts and not is_loopback(host),
            secrets=secrets,
        )
        self._open = False
        self.sessions = SessionHost(lambda: self.service, self.limit, self._allowances, journal)
        self._options: dict[str, Any] = {
            "tls": tls,
            "max_frame": limits.max_frame,
            "send_buffer": SEND_BUFFER,
            "reuse_port": reuse_port,
        }
        self._requests = UnderWay()
        self.app: ASGIApp = make_app(
            counters=self.counters,
            limit=self.limit,
            authentication=authentication,
            bundled=bundled,
            realtime=self.sessions.serve,
            api=api_routes(lambda: self.service, self.limit, self._allowances, self._requests, secrets),
            ready=lambda: self._open,
            failed=lambda: getattr(self.service.engine, "failure", None) is not None,
            access=access,
        )

    @asynccontextmanager
    async def start(self) -> AsyncGenerator[int, None]:
        """Listen while the block runs; gives the port. Leaving the block closes every connection.

        Raises:
            PortUnavailable: the address can't be listened on.
            AdapterUnavailable: an adapter can't be made.
        """
        async with self.open(), listen_app(self.app, *self._address, **self._options) as port:
            try:
                yield port
            finally:
                self._end()

    @asynccontextmanager
    async def open(self) -> AsyncGenerator[None, None]:
        """Be ready to serve `app` while the block runs, for a server that hosts it.

        Raises:
            AdapterUnavailable: an adapter can't be made.
        """
        factories = self.service.factories
        trial = AdapterPool(factories)  # an adapter that can't be made fails the start
        try:
            made = await trial.pipeline(audio=factories.voice is not None, avatar=True, prompt=True)
            trial.release(made)
            names = {**self.service.names, **trial.names()}
        finally:
            await trial.aclose()
        ears = await to_thread.run_sync(self._ears) if self._ears is not None else None
        if ears is not None:
            names["ears"] = ears.recognizer.capabilities.name
        self.service = replace(self.service, ears=ears, names=names, **self._manners())
        try:
            async with self.sessions.open():
                self._open, self.limit.stopping = True, False
                try:
                    yield
                finally:
                    self._open = False
                    self._end()
        finally:
            if ears is not None:
                await finished(ears.aclose())

    def _manners(self) -> dict[str, Any]:
        """What the model's manner decides of the settings that weren't given."""
        manner: Manner = getattr(self.service.engine, "manner", Manner())
        decided: dict[str, Any] = {}
        if self._by_manner[0]:
            decided["params"] = manner.params
        if self._by_manner[1] and manner.system:
            told = {"instructions": manner.system}
            decided["settings"] = self.service.settings.model_copy(update=told)
        return decided

    async def serve_forever(self) -> None:
        """Wait until cancelled; `start` serves the connections."""
        await anyio.sleep_forever()

    async def drain(self, seconds: float) -> None:
        """Refuse new requests and responses, let running ones end, then close every connection (1001).

        A response that is not over after ``seconds`` ends with ``response.done``, cancelled, and the
        code ``server_stopping``. If the call is cancelled, leaving `start` closes the rest.
        """
        self.limit.stopping = True
        async with anyio.create_task_group() as group:
            group.start_soon(self.sessions.drain, seconds)
            with anyio.move_on_after(seconds):
                await self._requests.over()
            self._requests.end()

    def _end(self) -> None:
        self.sessions.end()
        self._requests.end()
