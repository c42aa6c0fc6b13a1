"""A proxy on loopback that stands for a bad network: slow, cut, or silent without an end."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Literal

__all__ = ["Fault", "FaultyProxy"]

_AT_ONCE = 4096  # bytes


@dataclass(frozen=True)
class Fault:
    """What happens to one connection.

    ``close`` ends it in both directions, ``reset`` drops it, and ``swallow`` loses all that comes from
    either side from then on, its end included, and tells nobody: once ``after`` bytes behind the
    handshake went ``up`` (to the server) or ``down``. ``delay`` holds each piece back for a moment, and
    ``trickle`` passes on a few bytes at a time.
    """

    kind: Literal["close", "reset", "swallow", "delay", "trickle"]
    way: Literal["up", "down"] = "down"
    after: int = 0


@dataclass
class _Link:
    """A connection through the proxy."""

    fault: Fault | None
    writers: list[asyncio.StreamWriter]
    struck: bool = False

    def strike(self, kind: str) -> None:
        self.struck = True
        for writer in self.writers:
            if kind == "close":
                writer.close()
            elif kind == "reset":
                writer.transport.abort()


class FaultyProxy:
    """Connects to ``port``; the first connections have these ``faults``, later ones none.

    ``struck`` counts the connections whose fault has come, ``connections`` all.
    """

    def __init__(self, port: int, faults: Sequence[Fault | None]) -> None:
        self._port, self._faults = port, list(faults)
        self._links: list[_Link] = []
        self._tasks = set[asyncio.Task[None]]()

    @property
    def connections(self) -> int:
        return len(self._links)

    @property
    def struck(self) -> int:
        return sum(link.struck for link in self._links)

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[int, None]:
        """Listen while the block runs; gives the port."""
        server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        try:
            yield server.sockets[0].getsockname()[1]
        finally:
            server.close()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            for writer in (writer for link in self._links for writer in link.writers):
                writer.transport.abort()
                with suppress(OSError):
                    await writer.wait_closed()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        link = _Link(self._faults.pop(0) if self._faults else None, [writer])
        self._links.append(link)
        self._tasks.add(asyncio.create_task(self._serve(link, reader)))

    async def _serve(self, link: _Link, down: asyncio.StreamReader) -> None:
        up, server = await asyncio.open_connection("127.0.0.1", self._port)
        link.writers.append(server)
        await asyncio.gather(
            self._carry(down, server, "up", link), self._carry(up, link.writers[0], "down", link)
        )

    async def _carry(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, way: str, link: _Link
    ) -> None:
        fault = link.fault
        left = fault.after if fault is not None and fault.way == way else None
        with suppress(OSError, asyncio.IncompleteReadError):
            writer.write(await reader.readuntil(b"\r\n\r\n"))
            while data := await reader.read(_AT_ONCE):
                if link.struck and fault is not None and fault.kind == "swallow":
                    continue
                if fault is not None and fault.kind in ("delay", "trickle"):
                    link.struck = True
                    await self._slowly(data, writer, fault.kind)
                    continue
                if left is not None and fault is not None and len(data) > left:
                    writer.write(data[:left])
                    link.strike(fault.kind)
                    continue
                left = None if left is None else left - len(data)
                writer.write(data)
                await writer.drain()
        if link.struck and fault is not None and fault.kind == "swallow":
            await asyncio.Event().wait()  # the other side hears of nothing, until the proxy ends
        writer.close()

    async def _slowly(self, data: bytes, writer: asyncio.StreamWriter, kind: str) -> None:
        each = len(data) if kind == "delay" else 251
        for at in range(0, len(data), each):
            await asyncio.sleep(0.003 if kind == "delay" else 0.0005)
            writer.write(data[at : at + each])
            await writer.drain()
