"""Callers of the Realtime server at once: when each hears the first sound, and whether sound lacks.

The server, with its models and its voice, has a process of its own; the callers share this one. Each
plays what comes as an ideal player would: from the first audio on, and again as soon as there is more
after a gap.
"""

from __future__ import annotations

import asyncio
import json
import math
import multiprocessing
import signal
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.connection import Connection

import anyio
from websockets.asyncio.client import ClientConnection, connect

from specstream.bench.load.capacity import Order, ServingCosts
from specstream.bench.questions import ALOUD, WRITTEN
from specstream.bench.records import percentile
from specstream.config import EngineConfig
from specstream.errors import ConfigError, EngineBusy
from specstream.realtime.wire import SAMPLE_RATE
from specstream.signals import event_loops

__all__ = ["ORDERS", "Caller", "Order", "figures", "measure_callers"]

ORDERS: Sequence[Order] = ("play-out", "arrival")
"""Who goes first: whoever would hear silence first, or (for comparison) whoever came first."""

_QUESTIONS = (*WRITTEN, *ALOUD)
_WARM = 2  # callers of an untimed round before the first
_LEAST_S = 0.02  # a gap that is shorter is the clock's rounding, not silence
_PATIENCE_S = 300.0  # the longest reply


@dataclass(slots=True)
class Caller:
    """What one caller heard. Times are seconds of the event loop.

    Attributes:
        asked: When the reply was asked for.
        pieces: When each piece of audio came, and its seconds.
        status: How the reply ended.
        order: Who went first.
        at_once: How many callers there were.
    """

    asked: float
    order: Order
    at_once: int
    pieces: list[tuple[float, float]] = field(default_factory=list)
    status: str = ""

    @property
    def first_s(self) -> float:
        """Seconds from the question to the first audio; inf if there was none."""
        return self.pieces[0][0] - self.asked if self.pieces else math.inf

    @property
    def late_s(self) -> float:
        """Seconds of silence inside the reply."""
        silent, end = 0.0, self.pieces[0][0] if self.pieces else 0.0
        for at, seconds in self.pieces:
            if at - end > _LEAST_S:
                silent += at - end
            end = max(end, at) + seconds
        return silent

    def ahead(self, at: float) -> float:
        """Seconds of audio that were there and not played yet at a time."""
        end = self.asked
        for came, seconds in self.pieces:
            if came > at:
                break
            end = max(end, came) + seconds
        return max(0.0, end - at)


def figures(callers: Sequence[Caller]) -> dict[str, float]:
    """First audio and silence of callers, in seconds; of those who heard nothing only the number."""
    first = [caller.first_s for caller in callers if caller.pieces] or [math.nan]
    return {
        "callers": len(callers),
        "first_audio_s_p50": round(percentile(first, 0.5), 3),
        "first_audio_s_max": round(max(first), 3),
        "unheard": sum(not caller.pieces for caller in callers),
        "late": sum(caller.late_s > 0 for caller in callers),
        "late_s_max": round(max(caller.late_s for caller in callers), 3),
        "audio_s": round(sum(s for caller in callers for _, s in caller.pieces), 1),
    }


async def measure_callers(
    config: EngineConfig,
    voice: str,
    counts: Sequence[int],
    rounds: int,
    max_tokens: int,
    tell: Callable[[str], object] = lambda line: None,
    orders: Sequence[Order] = ORDERS,
) -> tuple[list[Caller], ServingCosts]:
    """Let each number of callers ask at once, ``rounds`` times in either order of serving, in turn.

    Returns what the callers heard, and what a pass and a phrase take here. Cancelling it ends the
    servers.

    Raises:
        ConfigError: the server can't start.
        EngineBusy: a round took minutes.
    """
    found: list[Caller] = []
    async with AsyncExitStack() as stack:
        ports: dict[Order, int] = {}
        for order in orders:
            tell(f"starting a server ({order} order)")
            ports[order], costs = await stack.enter_async_context(_serving(config, voice, order))
            await _round(ports[order], order, _WARM, 64, 0)
        for number in range(rounds):
            for count in counts:
                for order in orders if number % 2 == 0 else orders[::-1]:
                    tell(f"round {number + 1} of {rounds}: {count} callers, {order} order")
                    found += await _round(ports[order], order, count, max_tokens, number)
    return found, costs


async def _round(port: int, order: Order, count: int, max_tokens: int, number: int) -> list[Caller]:
    url = f"ws://127.0.0.1:{port}/v1/realtime"
    async with AsyncExitStack() as stack:
        sockets = [
            await stack.enter_async_context(connect(url, proxy=None, max_queue=None))
            for _ in range(count)
        ]
        questions = [_QUESTIONS[(number * count + i) % len(_QUESTIONS)] for i in range(count)]
        for socket, question in zip(sockets, questions, strict=True):
            said = {
                "type": "message",
                "role": "user",
                "content": [{"type": "input_text", "text": question}],
            }
            await socket.send(json.dumps({"type": "conversation.item.create", "item": said}))
        asking = (_call(socket, order, count, max_tokens) for socket in sockets)
        try:
            return await asyncio.wait_for(asyncio.gather(*asking), _PATIENCE_S)
        except TimeoutError:
            raise EngineBusy(f"{count} replies took longer than {_PATIENCE_S:g} seconds") from None


async def _call(socket: ClientConnection, order: Order, count: int, max_tokens: int) -> Caller:
    now = asyncio.get_running_loop().time
    response = {"output_modalities": ["audio"], "max_output_tokens": max_tokens}
    caller = Caller(now(), order, count)
    await socket.send(json.dumps({"type": "response.create", "response": response}))
    async for frame in socket:
        head = frame[:160]
        if "response.output_audio.delta" in head:
            pcm = len(json.loads(frame)["delta"]) * 3 // 4
            caller.pieces.append((now(), pcm / 2 / SAMPLE_RATE))
        elif "response.done" in head:
            caller.status = json.loads(frame)["response"]["status"]
            break
    return caller


@asynccontextmanager
async def _serving(
    config: EngineConfig, voice: str, order: Order
) -> AsyncGenerator[tuple[int, ServingCosts], None]:
    """Run a server in a process of its own; gives its port, and what it measured before it served."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=_server, args=(there, config, voice, order), daemon=True)
    process.start()
    there.close()
    try:
        try:
            port, costs = await asyncio.to_thread(here.recv)
        except EOFError:
            raise ConfigError("the server ended before it was ready; its words are above") from None
        yield port, costs
    finally:
        process.terminate()
        await asyncio.to_thread(process.join)


def _server(parent: Connection, config: EngineConfig, voice: str, order: Order) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends it
    faster = {"use_uvloop": "uvloop" in event_loops()}  # as `specstream serve` has it
    anyio.run(_serve, parent, config, voice, order, backend_options=faster)


async def _serve(parent: Connection, config: EngineConfig, voice: str, order: Order) -> None:
    from specstream.bench.load.capacity import measured_costs
    from specstream.engine.engine import Engine
    from specstream.engine.generation import Generation
    from specstream.server.options import ServerLimits
    from specstream.server.server import RealtimeServer
    from specstream.stages.adapters import default_voice, load_adapter
    from specstream.stages.deadline import Deadlines

    if order == "arrival":  # as if nobody told the engine and the voice who has how much to hear
        Generation.needed_by = lambda *_: None  # type: ignore[method-assign]
        Deadlines.silent_at = math.inf  # type: ignore[method-assign,assignment]
    async with Engine(config) as engine:
        make = partial(load_adapter, "voice", voice if voice != "auto" else default_voice().name)
        async with aclosing(make()) as speaker:
            costs = await measured_costs(engine, speaker)
        limits = ServerLimits(max_sessions=1_000, max_per_address=1_000)
        server = RealtimeServer(engine, voice=make, port=0, limits=limits)
        async with server.start() as port:
            parent.send((port, costs))
            await asyncio.Event().wait()
