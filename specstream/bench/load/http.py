"""Chat completions over HTTP beside the Python API: the same engine and prompts, in turn."""

from __future__ import annotations

import asyncio
import json
import statistics
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from specstream.engine.engine import Engine
from specstream.server.server import RealtimeServer
from specstream.types import Message, SamplingParams

__all__ = ["HttpFigures", "measure_http"]


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

    The HTTP client is one raw connection that is kept open; it reads every event as JSON.
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
