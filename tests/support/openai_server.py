"""A server of chat completions for tests: it streams what it is given, and keeps what it was asked."""

import asyncio
import json
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Self

__all__ = ["Answer", "ChatServer", "HttpServer", "delta", "llama_events", "vllm_events", "write_whole"]

DONE = "[DONE]"


def delta(content: str | None = None, *, finish: str | None = None, **more: Any) -> dict[str, Any]:
    """One part of a stream, in the least form that clients take."""
    body = {} if content is None else {"content": content}
    extra = {key: more.pop(key) for key in ("token_ids",) if key in more}
    return {"choices": [{"index": 0, "delta": {**body, **more}, "finish_reason": finish, **extra}]}


def vllm_events(*rounds: tuple[str, list[int]], finish: str = "length") -> list[Any]:
    """As vLLM streams with n-gram speculation: a delta a round, the reason on the last one."""
    head = delta("", role="assistant")
    texts = [delta(text, token_ids=ids) for text, ids in rounds]
    texts[-1]["choices"][0]["finish_reason"] = finish
    count = sum(len(ids) for _, ids in rounds)
    usage = {
        "prompt_tokens": 31,
        "completion_tokens": count,
        "total_tokens": 31 + count,
        "prompt_tokens_details": {"cached_tokens": 16},
    }
    drafts = {
        "num_spec_steps": len(rounds),
        "num_draft_tokens": 4 * len(rounds),
        "num_accepted_draft_tokens": count - len(rounds),
    }
    return [
        head,
        *texts,
        {"choices": [], "usage": usage, "metrics": {"speculative_decoding": drafts}},
        DONE,
    ]


def llama_events(*tokens: str, finish: str = "stop") -> list[Any]:
    """As llama.cpp's server streams: a delta a token, then the reason, then the timings."""
    timings = {"cache_n": 12, "prompt_n": 3, "draft_n": 8, "draft_n_accepted": 5}
    usage = {"prompt_tokens": 15, "completion_tokens": len(tokens), "total_tokens": 15 + len(tokens)}
    return [
        {
            "choices": [
                {"index": 0, "delta": {"role": "assistant", "content": None}, "finish_reason": None}
            ]
        },
        *[delta(token) for token in tokens],
        delta(finish=finish),
        {"choices": [], "usage": usage, "timings": timings},
        DONE,
    ]


@dataclass
class Answer:
    """Events of a stream (dicts, or raw data), or a status with a body; then ``hang`` or ``cut``.

    ``events`` may be a function of the request's body.
    """

    events: Sequence[Any] | Callable[[dict[str, Any]], Sequence[Any]] = ()
    status: int = 200
    body: Any = None
    hang: bool = False  # never ends the stream
    cut: bool = False  # resets the connection
    kind: str = "text/event-stream"
    retry: str = "Retry-After-Ms: 1"  # a header of a refusal: who asks again needn't wait


async def read_request(reader: asyncio.StreamReader) -> tuple[dict[str, str], bytes]:
    """The headers by their names in small letters, and the body; the first line has been read."""
    headers: dict[str, str] = {}
    while line := (await reader.readline()).decode().strip():
        name, _, value = line.partition(":")
        headers[name.lower()] = value.strip()
    return headers, await reader.readexactly(int(headers.get("content-length", "0")))


def write_whole(writer: asyncio.StreamWriter, status: int, body: Any, more: str, kind: str) -> None:
    """Answer with a body: a text as it is, anything else as JSON; ``more``: one more header."""
    data = (body if isinstance(body, str) else json.dumps(body)).encode()
    kind = kind or ("text/plain" if isinstance(body, str) else "application/json")
    head = f"HTTP/1.1 {status} X\r\nContent-Type: {kind}\r\nContent-Length: {len(data)}\r\n"
    writer.write(f"{head}{more or 'X-Nothing: 1'}\r\n\r\n".encode() + data)


@dataclass(kw_only=True)
class HttpServer(ABC):
    """Answers each request of a connection, by ``_answer``."""

    keys: list[str] = field(default_factory=list)
    connections: int = 0
    left: asyncio.Event = field(default_factory=asyncio.Event)  # a client left before the end
    url: str = ""

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[Self, None]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
        try:
            yield self
        finally:
            server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while line := await reader.readline():
                headers, body = await read_request(reader)
                self.keys.append(headers.get("authorization", ""))
                await self._answer(line.decode().split()[1], body, reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            self.left.set()
        finally:
            writer.close()

    @abstractmethod
    async def _answer(
        self, path: str, body: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Answer one request."""


@dataclass
class ChatServer(HttpServer):
    """Answers in turn; the last answer is repeated. ``gate``: holds each event back until it is set."""

    answers: list[Answer]
    owner: str = "somebody"
    models: tuple[str, ...] = ("small",)
    requests: list[dict[str, Any]] = field(default_factory=list)
    gate: asyncio.Event | None = None
    listing: tuple[int, Any] | None = None  # instead of the list of models

    async def _answer(
        self, path: str, body: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        if path.endswith("/models"):
            data = [
                {"id": name, "object": "model", "created": 0, "owned_by": self.owner}
                for name in self.models
            ]
            status, listing = self.listing or (200, {"object": "list", "data": data})
            write_whole(writer, status, listing, "", "")
            return
        self.requests.append(json.loads(body))
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if answer.status != 200:
            write_whole(writer, answer.status, answer.body, answer.retry, "")
            return
        if answer.kind != "text/event-stream":
            write_whole(writer, 200, answer.body, "", answer.kind)
            return
        writer.write(
            b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
        )
        watch = asyncio.create_task(reader.read(1))
        events = answer.events
        for event in events(self.requests[-1]) if callable(events) else events:
            if self.gate is not None:
                opened = asyncio.create_task(self.gate.wait())
                await asyncio.wait({watch, opened}, return_when=asyncio.FIRST_COMPLETED)
                opened.cancel()
            if watch.done():
                raise ConnectionResetError
            self._chunk(writer, event)
            await writer.drain()
        if answer.hang:
            await watch
            raise ConnectionResetError
        watch.cancel()
        await asyncio.wait({watch})
        if answer.cut:
            writer.transport.abort()
            return
        writer.write(b"0\r\n\r\n")
        await writer.drain()

    def _chunk(self, writer: asyncio.StreamWriter, event: Any) -> None:
        text = event if isinstance(event, str) else json.dumps(event)
        data = f"data: {text}\n\n".encode()
        writer.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
