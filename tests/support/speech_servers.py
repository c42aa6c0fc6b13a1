"""Servers of speech for tests: OpenAI's HTTP API for audio, and ElevenLabs' WebSocket."""

from __future__ import annotations

import asyncio
import base64
import json
import threading
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response

from specstream.types import Mark, Phrase, Span
from specstream_adapters.voice import ReferenceVoice
from tests.support.openai_server import HttpServer, write_whole

__all__ = ["AudioServer", "ElevenLabsServer", "Reply", "in_thread", "spoken", "timed_frames"]

RATE = 24_000


async def spoken(text: str) -> tuple[bytes, list[Mark]]:
    """The PCM and the marks of a test voice, at 24 kHz."""
    pcm, marks = b"", list[Mark]()
    async for buffer in ReferenceVoice(sample_rate=RATE).synthesize(
        Phrase(text, Span(0, len(text)), Span(0, 1))
    ):
        pcm += buffer.pcm
        marks += buffer.marks
    return pcm, marks


@dataclass
class Reply:
    """Pieces of a body, one after another, or a status with a body; then ``hang`` or ``cut``."""

    pieces: Sequence[bytes] = ()
    kind: str = "audio/pcm"
    status: int = 200
    body: Any = None
    header: str = ""  # one more, of a reply with a body
    hang: bool = False  # never ends
    cut: bool = False  # resets the connection


@dataclass
class AudioServer(HttpServer):
    """Answers each request as ``answer`` says, which is given its path and body."""

    answer: Callable[[str, bytes], Reply] | None = None
    bodies: list[bytes] = field(default_factory=list)

    @property
    def asked(self) -> list[dict[str, Any]]:
        """The requests with a JSON body."""
        return [json.loads(body) for body in self.bodies]

    async def _answer(
        self, path: str, body: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.bodies.append(body)
        reply = self.answer(path, body) if self.answer else await _babble(json.loads(body))
        if reply.body is not None:
            write_whole(writer, reply.status, reply.body, reply.header, "")
            return
        head = f"HTTP/1.1 200 OK\r\nContent-Type: {reply.kind}\r\nTransfer-Encoding: chunked\r\n\r\n"
        writer.write(head.encode())
        for piece in reply.pieces:
            writer.write(f"{len(piece):x}\r\n".encode() + piece + b"\r\n")
            await writer.drain()
        if reply.hang and not await reader.read(1):
            raise ConnectionResetError
        if reply.cut:
            writer.transport.abort()
            return
        writer.write(b"0\r\n\r\n")
        await writer.drain()


async def _babble(asked: dict[str, Any]) -> Reply:
    pcm, _ = await spoken(asked["input"])
    return Reply([pcm[at : at + 5001] for at in range(0, len(pcm), 5001)])


def timed_frames(text: str, pcm: bytes, marks: Sequence[Mark], ends: Sequence[int]) -> list[Any]:
    """Frames that end at the samples ``ends``, with the times of the characters that begin in each.

    A word's characters share its time evenly; others take none.
    """
    times: dict[int, tuple[float, float]] = {}
    for mark in marks:
        if mark.kind == "word":
            each = mark.samples.length / mark.chars.length
            for number, place in enumerate(range(*mark.chars)):
                times[place] = mark.samples.start + number * each, each
    begin, at, frames = 0, 0, list[Any]()
    for end in [*ends, len(pcm) // 2]:
        chars: list[tuple[str, float, float]] = []
        while at < len(text) and times.get(at, (begin, 0))[0] < end:
            first, length = times.get(at, (max(begin, chars[-1][1] if chars else 0), 0.0))
            chars.append((text[at], first, length))
            at += 1
        alignment = {
            "chars": [char for char, _, _ in chars],
            "charStartTimesMs": [1e3 * (first - begin) / RATE for _, first, _ in chars],
            "charDurationsMs": [1e3 * length / RATE for _, _, length in chars],
        }
        audio = base64.b64encode(pcm[2 * begin : 2 * end]).decode()
        frames.append({"audio": audio, "isFinal": False, "alignment": alignment})
        begin = end
    return [*frames, {"audio": None, "isFinal": True}]


async def _frames(text: str) -> list[Any]:
    """What a server says for a text: a frame for each word, without what follows it."""
    pcm, marks = await spoken(text)
    ends = [mark.samples.end for mark in marks if mark.kind == "word"]
    return timed_frames(text, pcm, marks, ends)


@dataclass
class ElevenLabsServer:
    """Speaks ``stream-input``; ``frames`` are what it says for a text, instead of a test voice's.

    Of these, an `asyncio.Event` is waited for, ``(code, reason)`` closes the connection and a text is
    sent as it is.
    """

    frames: Callable[[str], Sequence[Any]] | None = None
    refuses: tuple[int, str] | None = None
    paths: list[str] = field(default_factory=list)
    keys: list[str | None] = field(default_factory=list)
    begins: list[dict[str, Any]] = field(default_factory=list)  # the first frames
    texts: list[str] = field(default_factory=list)
    open: set[ServerConnection] = field(default_factory=set)
    changed: asyncio.Condition = field(default_factory=asyncio.Condition)
    url: str = ""

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[ElevenLabsServer, None]:
        async with serve(self._serve, "127.0.0.1", 0, process_request=self._look) as server:
            port = next(iter(server.sockets)).getsockname()[1]
            self.url = f"ws://127.0.0.1:{port}/v1"
            yield self

    def _look(self, socket: ServerConnection, request: Request) -> Response | None:
        self.paths.append(request.path)
        self.keys.append(request.headers.get("xi-api-key"))
        if self.refuses is None:
            return None
        return socket.respond(HTTPStatus(self.refuses[0]), self.refuses[1])

    async def until_open(self, count: int) -> None:
        """Wait until so many connections are open."""
        async with self.changed:
            await self.changed.wait_for(lambda: len(self.open) == count)

    async def _note(self, change: Callable[[ServerConnection], None], it: ServerConnection) -> None:
        async with self.changed:
            change(it)
            self.changed.notify_all()

    async def _serve(self, socket: ServerConnection) -> None:
        await self._note(self.open.add, socket)
        try:
            with suppress(ConnectionClosed):
                await self._speak(socket)
                await socket.wait_closed()
        finally:
            await self._note(self.open.discard, socket)

    async def _speak(self, socket: ServerConnection) -> None:
        text, first = "", True
        while (frame := json.loads(await socket.recv()))["text"]:
            if first:
                self.begins.append(frame)
            else:
                text += frame["text"]
            first = False
        self.texts.append(text)
        for each in self.frames(text) if self.frames else await _frames(text):
            if isinstance(each, asyncio.Event):
                waits = {asyncio.create_task(w) for w in (each.wait(), socket.wait_closed())}
                _, left = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
                for task in left:
                    task.cancel()
            elif isinstance(each, tuple):
                await socket.close(*each)
            else:
                await socket.send(each if isinstance(each, str) else json.dumps(each))


@contextmanager
def in_thread(make: Callable[[], AudioServer] | Callable[[], ElevenLabsServer]) -> Iterator[str]:
    """Run a server on a loop of its own; gives its address."""
    ready, found = threading.Event(), list[Any]()

    async def run() -> None:
        server, stop = make(), asyncio.Event()
        running: AbstractAsyncContextManager[Any] = server.running()
        async with running:
            found.extend((server.url, asyncio.get_running_loop(), stop))
            ready.set()
            await stop.wait()

    thread = threading.Thread(target=lambda: asyncio.run(run()), daemon=True)
    thread.start()
    assert ready.wait(30)
    url, loop, stop = found
    try:
        yield url
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(30)
