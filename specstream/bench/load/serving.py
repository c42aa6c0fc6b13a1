"""What the server costs: many sessions and streams beside less than it, and completions over HTTP.

The engine is scripted, so what is measured is the server: the CPU time that an event costs, and the gaps
between the events that clients see. Each server has a process of its own; the clients share this one.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import socket as sockets
import statistics
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection
from typing import Any, Literal, Self

import anyio
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from uvicorn import Config, Server
from websockets.asyncio.client import ClientConnection, connect
from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed

from specstream.engine.engine import Engine
from specstream.server.options import ServerLimits
from specstream.server.server import RealtimeServer
from specstream.signals import event_loops
from specstream.testing.doubles import ScriptedVoice
from specstream.testing.engine import ScriptedEngine, chunks_of
from specstream.types import Message, SamplingParams

__all__ = ["ARMS", "SETTLE_S", "HttpFigures", "ServerFigures", "measure_http", "measure_serving"]

Arm = Literal["bare", "text", "audio", "bare events", "events"]
ARMS: Sequence[Arm] = ("bare", "text", "audio", "bare events", "events")
"""Servers: over WebSockets a bare one and our sessions, as server-sent events a bare application and our
chat completions."""
PER_S = 20.0
"""Deltas a second of each session."""
_PAD = 330  # characters of the bare server's events, as many as our text deltas have
SETTLE_S = 1.0
"""What servers have to settle after all sessions have begun."""


@dataclass(slots=True)
class ServerFigures:
    """What the clients of one server saw, in all rounds.

    Attributes:
        events: Events that came.
        cpu_s: Seconds of the server's CPU time meanwhile.
        gaps_ms: Times between two text deltas of one session.
    """

    events: int = 0
    cpu_s: float = 0.0
    gaps_ms: list[float] = field(default_factory=list)

    def to_dict(self) -> dict[str, float]:
        """The figures: microseconds of CPU an event, and percentiles of the gaps in milliseconds."""
        cuts = statistics.quantiles(self.gaps_ms, n=100)
        return {
            "events": self.events,
            "cpu_us_per_event": round(self.cpu_s / self.events * 1e6, 1),
            "gap_ms_p50": round(cuts[49], 1),
            "gap_ms_p99": round(cuts[98], 1),
        }


async def measure_serving(
    sessions: int, seconds: float, rounds: int, tell: Callable[[str], object] = lambda line: None
) -> dict[tuple[Arm, str], ServerFigures]:
    """Measure every server on every event loop in turn, ``rounds`` times, in alternating order.

    Cancelling it ends the servers.
    """
    figures = {(arm, loop): ServerFigures() for arm in ARMS for loop in event_loops()}
    for number in range(rounds):
        for arm, loop in list(figures)[:: 1 if number % 2 == 0 else -1]:
            tell(f"round {number + 1} of {rounds}: {arm} on {loop}")
            await _measure(arm, loop, sessions, seconds, figures[arm, loop])
    return figures


async def _measure(arm: Arm, loop: str, sessions: int, seconds: float, served: ServerFigures) -> None:
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    tokens = round((seconds + 30) * PER_S)
    process = context.Process(target=_server, args=(there, arm, tokens, loop), daemon=True)
    process.start()
    try:
        port = await asyncio.to_thread(here.recv)
        async with AsyncExitStack() as stack:
            kind = _EventClient if arm in ("bare events", "events") else _Client
            seen = [await stack.enter_async_context(kind.to(port)) for _ in range(sessions)]
            reading = [asyncio.create_task(client.read()) for client in seen]
            await asyncio.gather(*(client.ask(arm) for client in seen))
            await asyncio.gather(*(client.began.wait() for client in seen))
            await asyncio.sleep(SETTLE_S)
            before = await _cpu_s(here)
            for client in seen:
                client.count()
            await asyncio.sleep(seconds)
            served.cpu_s += await _cpu_s(here) - before
            for client in seen:
                served.events += client.events
                served.gaps_ms += client.gaps_ms
            for task in reading:
                task.cancel()
    finally:
        process.terminate()
        await asyncio.to_thread(process.join)


async def _cpu_s(server: Any) -> float:  # a Connection, of another class on Windows
    server.send("cpu")
    used: float = await asyncio.to_thread(server.recv)
    return used


class _Reader(ABC):
    """Counts what one client sees."""

    def __init__(self) -> None:
        self._last: float | None = None
        self.began = asyncio.Event()
        self.events = 0
        self.gaps_ms: list[float] = []

    def count(self) -> None:
        """Forget what came so far."""
        self.events = 0
        self.gaps_ms.clear()

    @abstractmethod
    async def ask(self, arm: Arm) -> None:
        """Ask for a reply."""

    @abstractmethod
    async def read(self) -> None:
        """Read it to its end."""

    def saw_delta(self) -> None:
        """A delta of the text has come."""
        now = asyncio.get_running_loop().time()
        if self._last is not None:
            self.gaps_ms.append((now - self._last) * 1e3)
        self._last = now
        self.began.set()


class _Client(_Reader):
    def __init__(self, socket: ClientConnection) -> None:
        super().__init__()
        self._socket = socket

    @classmethod
    @asynccontextmanager
    async def to(cls, port: int) -> AsyncGenerator[Self, None]:
        url = f"ws://127.0.0.1:{port}/v1/realtime"
        async with connect(url, proxy=None, max_queue=None) as socket:
            yield cls(socket)

    async def ask(self, arm: Arm) -> None:
        said = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hi"}]}
        await self._send("conversation.item.create", item=said)
        modality = "audio" if arm == "audio" else "text"
        await self._send("response.create", response={"output_modalities": [modality]})

    async def _send(self, type: str, **fields: Any) -> None:
        await self._socket.send(json.dumps({"type": type, **fields}))

    async def read(self) -> None:
        async for frame in self._socket:
            self.events += 1
            # The type comes early in a frame, and parsing all of it would cost the clients more.
            head = frame[:120]
            if "response.output_text.delta" in head or "transcript.delta" in head:
                self.saw_delta()


class _EventClient(_Reader):
    """Reads server-sent events off a plain socket."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        super().__init__()
        self._reader, self._writer = reader, writer

    @classmethod
    @asynccontextmanager
    async def to(cls, port: int) -> AsyncGenerator[Self, None]:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            yield cls(reader, writer)
        finally:
            writer.close()

    async def ask(self, arm: Arm) -> None:
        body = json.dumps({"messages": [{"role": "user", "content": "Hi"}], "stream": True})
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}"
        self._writer.write(f"{head}\r\n\r\n{body}".encode())

    async def read(self) -> None:
        async for line in self._reader:
            if line.startswith(b"data: {"):
                self.events += 1
                if b'"content":"' in line:
                    self.saw_delta()


def _server(parent: Connection, arm: Arm, tokens: int, loop: str) -> None:
    serving = {"bare": _bare, "bare events": _bare_events}.get(arm, _ours)
    anyio.run(serving, parent, arm, tokens, backend_options={"use_uvloop": loop == "uvloop"})


async def _answer(parent: Connection) -> None:
    """Tell the CPU time of this process whenever it is asked for."""
    while await asyncio.to_thread(parent.recv) == "cpu":
        parent.send(time.process_time())


async def _bare(parent: Connection, arm: Arm, tokens: int) -> None:
    async def stream(socket: ServerConnection) -> None:
        with suppress(ConnectionClosed):  # a caller that has measured enough leaves
            await socket.recv()
            loop = asyncio.get_running_loop()
            began = loop.time()
            for number in range(tokens):
                await asyncio.sleep(began + number / PER_S - loop.time())
                event = {"type": "response.output_text.delta", "delta": "word", "pad": "x" * _PAD}
                await socket.send(json.dumps(event))

    async with serve(stream, "127.0.0.1", 0, compression=None) as server:
        parent.send(next(iter(server.sockets)).getsockname()[1])
        await _answer(parent)


async def _bare_events(parent: Connection, arm: Arm, tokens: int) -> None:
    """Uvicorn with an application that does nothing else."""

    async def events() -> AsyncGenerator[bytes, None]:
        loop = asyncio.get_running_loop()
        began = loop.time()
        for number in range(tokens):
            await asyncio.sleep(began + number / PER_S - loop.time())
            event = {"choices": [{"delta": {"content": "word"}}], "pad": "x" * _PAD}
            yield b"data: " + json.dumps(event, separators=(",", ":")).encode() + b"\n\n"

    async def chat(request: Request) -> Response:
        await request.body()
        return StreamingResponse(events(), media_type="text/event-stream")

    app = Starlette(routes=[Route("/v1/chat/completions", chat, methods=["POST"])])
    server = Server(Config(app, log_level="error", http="h11", lifespan="off"))
    with sockets.create_server(("127.0.0.1", 0)) as listening:  # who connects early waits
        parent.send(listening.getsockname()[1])
        async with asyncio.TaskGroup() as group:
            group.create_task(server.serve([listening]))
            await _answer(parent)


async def _ours(parent: Connection, arm: Arm, tokens: int) -> None:
    text = " ".join("word." if n % 9 == 8 else "word" for n in range(tokens))
    chunks = [replace(c, t_ms=c.tokens.start / PER_S * 1e3) for c in chunks_of(text)]
    server = RealtimeServer(
        ScriptedEngine([chunks], timed=True),
        voice=(lambda: ScriptedVoice(word_ms=1e3 / PER_S)) if arm == "audio" else None,
        port=0,
        params=SamplingParams(max_tokens=tokens),
        limits=ServerLimits(max_sessions=10_000, max_per_address=10_000),
    )
    async with server.start() as port:
        parent.send(port)
        await _answer(parent)


@dataclass(slots=True)
class HttpFigures:
    """Replies by one way to the engine: seconds to the first text, in all, and tokens of each."""

    first_s: list[float] = field(default_factory=list)
    whole_s: list[float] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)

    @property
    def rate(self) -> float:
        """Tokens a second, of all replies."""
        return sum(self.tokens) / sum(self.whole_s)

    def to_dict(self) -> dict[str, float]:
        """The figures as JSON data."""
        first = statistics.median(self.first_s)
        return {"tokens_per_second": round(self.rate, 1), "first_ms": round(1e3 * first, 2)}


async def measure_http(
    engine: Engine,
    prompts: Sequence[Sequence[Message]],
    max_tokens: int,
    rounds: int,
    tell: Callable[[str], object] = lambda line: None,
) -> dict[str, HttpFigures]:
    """Ask for greedy replies by both ways, each prompt by one after the other, in alternating order.

    The HTTP client is one raw connection that is kept open; it reads every event as JSON. Both ways find
    the prompt in the engine's cache, where one reply to it, which isn't counted, has left it.
    """
    params = SamplingParams(max_tokens=max_tokens)
    ways = {"python": HttpFigures(), "http": HttpFigures()}
    server = RealtimeServer(engine, port=0, params=replace(params))
    async with server.start() as port, _connected(port) as connection:
        for number in range(-1, rounds):  # the round before the first one is not counted
            tell(f"round {number + 1} of {rounds}" if number >= 0 else "warm-up")
            kept = ways if number >= 0 else {"python": HttpFigures(), "http": HttpFigures()}
            for index, prompt in enumerate(prompts):
                messages = list(prompt)
                await _by_python(engine, messages, replace(params, max_tokens=1), HttpFigures())
                order = ("python", "http") if (number + index) % 2 else ("http", "python")
                for name in order:
                    if name == "python":
                        await _by_python(engine, messages, params, kept[name])
                    else:
                        await _by_http(connection, messages, max_tokens, kept[name])
    return ways


async def _by_python(
    engine: Engine, messages: list[Message], params: SamplingParams, way: HttpFigures
) -> None:
    began, first = time.perf_counter(), None
    async with engine.generate(messages, params) as generation:
        async for chunk in generation:
            first = first or (time.perf_counter() if chunk.text else None)
        way.tokens.append(generation.report.completion_tokens)
    ended = time.perf_counter()
    way.first_s.append((first or ended) - began)
    way.whole_s.append(ended - began)


_Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@asynccontextmanager
async def _connected(port: int) -> AsyncGenerator[_Connection, None]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        yield reader, writer
    finally:
        writer.close()


async def _by_http(
    connection: _Connection, messages: list[Message], max_tokens: int, way: HttpFigures
) -> None:
    reader, writer = connection
    asked = {"messages": messages, "max_tokens": max_tokens, "temperature": 0, "stream": True}
    body = json.dumps({**asked, "stream_options": {"include_usage": True}}).encode()
    sizes = f"Host: localhost\r\nContent-Length: {len(body)}"
    head = f"POST /v1/chat/completions HTTP/1.1\r\n{sizes}\r\n\r\n"
    began, first, tokens = time.perf_counter(), None, 0
    writer.write(head.encode() + body)
    await reader.readuntil(b"\r\n\r\n")
    async for event in _events(reader):
        for choice in event["choices"]:
            first = first or (time.perf_counter() if choice["delta"].get("content") else None)
        tokens = (event.get("usage") or {}).get("completion_tokens", tokens)
    ended = time.perf_counter()
    way.first_s.append((first or ended) - began)
    way.whole_s.append(ended - began)
    way.tokens.append(tokens)


async def _events(reader: asyncio.StreamReader) -> AsyncGenerator[dict[str, Any], None]:
    """The events of a chunked body, to its end."""
    while size := int((await reader.readline()).strip() or b"0", 16):
        data = await reader.readexactly(size)
        await reader.readexactly(2)
        for line in data.split(b"\n\n"):
            if line.startswith(b"data: {"):
                yield json.loads(line[6:])
    await reader.readline()
