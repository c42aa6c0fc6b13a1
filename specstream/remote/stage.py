"""A stage that runs behind a WebSocket, and one turn of it."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, get_args

import anyio
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import InvalidStatus, WebSocketException
from websockets.typing import Subprotocol

from specstream.checks import check_numbers
from specstream.client.dial import LOG, bearer, check_url, shown
from specstream.client.socket import CLOSE_TIMEOUT, DialedSocket
from specstream.errors import ConfigError, ConnectionFailed, ProtocolError, SpecstreamError
from specstream.remote import frames as fr
from specstream.remote.channel import MAX_SIZE, DialedChannel
from specstream.remote.frames import MAX_WINDOW, SUBPROTOCOL, Kind, ReadyFrame, StartFrame, Violation
from specstream.remote.guards import CueOrder, PromptOrder, SpokenOrder
from specstream.remote.order import Order
from specstream.remote.protocol import WINDOW, StageRules
from specstream.signals import finished
from specstream.stages.contract import Inlet
from specstream.stages.pipeline import as_failure
from specstream.types import AvatarCue, Cancel, Flush, Phrase, Revoke, ScenePrompt, Speech

__all__ = ["Output", "RemoteStage", "RemoteTurn"]

Input = Phrase | Speech
Output = Speech | AvatarCue | ScenePrompt | Flush | Revoke | Cancel


@dataclass(slots=True, eq=False)
class RemoteTurn:
    """One turn on one connection: a task sends the input, `outputs` yields the adapter's output.

    The frame that begins the turn is posted before.

    Attributes:
        name: The stage's name in errors.
        channel: The connection.
        items: The stage's input.
        cancel_timeout: Seconds that the adapter may take to end a cancelled turn.
        order: Checks the adapter's output.
        complete: Whether the next turn may use the connection.
    """

    name: str
    channel: DialedChannel
    items: Inlet[Input]
    cancel_timeout: float
    order: Order
    complete: bool = False
    _cancel: Cancel | None = None
    _broken: SpecstreamError | None = None
    _feeder: asyncio.Task[None] = field(init=False)

    def __post_init__(self) -> None:
        self._feeder = asyncio.create_task(self._feed())

    async def outputs(self) -> AsyncGenerator[Output, None]:
        """Yield what the adapter makes, and the cancel at the end of a cancelled turn.

        Raises:
            ProtocolError: the adapter contradicts the turn, or breaks the protocol.
            SpecstreamError: the adapter's own error, or the connection was lost.
        """
        try:
            while True:
                received = await self.channel.receive()
                if isinstance(received, fr.ErrorFrame):
                    raise received.error()
                if isinstance(received, fr.CancelledFrame):
                    for cue in received.cues:
                        self.order.check_rest(cue)
                    self.complete = True
                    for cue in received.cues:
                        yield cue
                    break
                if self.items.cancelled:
                    continue  # sent before the adapter read the cancel
                if isinstance(received, fr.DoneFrame):
                    self.order.finish()
                    self.complete = True
                    return
                assert isinstance(received, Output)  # the rules let nothing else through
                self._check(received)
                yield received
        except SpecstreamError as error:
            if not self.items.cancelled:
                failure = self._broken or error
                raise failure from failure.__cause__
        await self.stop()
        async for unread in self.items:
            assert isinstance(unread, Cancel)
            self._cancel = unread
        assert self._cancel is not None
        yield self._cancel

    def _check(self, received: Output) -> None:
        if isinstance(received, Revoke):
            self.order.revoke(received)
        elif isinstance(received, Flush):
            self.order.flush()
        else:
            self.order.check(received, self.channel.rules.read)
        if isinstance(received, ScenePrompt):
            self._tell_source()

    def _tell_source(self) -> None:
        """Tell the link which text a prompt was made from: the feeding task may have read further."""
        read = self.channel.rules.read
        if read is None and self.items.drafted:
            raise ProtocolError(
                f"stage {self.name!r} gave a prompt without 'read', so nobody can tell whether it was "
                "made of drafted text: give that adapter no drafts"
            )
        self.items.made_of(read)

    async def stop(self) -> None:
        """End the feeding task. Idempotent."""
        self._feeder.cancel()
        await finished(asyncio.wait({self._feeder}))

    async def _feed(self) -> None:
        try:
            async for item in self.items:
                if isinstance(item, Cancel):
                    return await self._withdraw(item)
                await self.items.unless_cancelled(self.channel.room)
                if not self.items.cancelled:
                    self.order.send(item)
                    self.channel.post(item)
            self.order.send(fr.EndFrame())
            self.channel.post(fr.EndFrame())
            await self.items.unless_cancelled(anyio.sleep_forever)
            async for item in self.items:
                assert isinstance(item, Cancel)
                await self._withdraw(item)
        except Exception as error:
            self._broken = as_failure(f"stage {self.name!r}", error)
            self.channel.abort()

    async def _withdraw(self, cancel: Cancel) -> None:
        self._cancel = cancel
        self.channel.post(fr.CancelFrame(reason=cancel.reason[:1000]))
        await anyio.sleep(self.cancel_timeout)
        self.channel.abort()  # no answer: the turn ends without it


_ORDERS: dict[Kind, Callable[[], Order]] = {
    "voice": SpokenOrder,
    "avatar": CueOrder,
    "prompt": PromptOrder,
}
_PING_S = 5.0  # how often the peer is asked whether it lives
_PONG_S = 10.0  # how long its answer may take
_MAX_IDLE = 2  # connections kept open between turns; concurrent turns may use more


class RemoteStage:
    """Stands in for the stage of an adapter that ``specstream adapter KIND`` serves at ``url``.

    It takes and gives the same items in the same order as the local stage, bit for bit. The first
    turn (or `connect`) opens the connection, later turns reuse it; a lost connection is opened
    again at the next turn. ``async with`` closes it in the end.

    Args:
        url: ``ws://host:port`` or ``wss://host:port``.
        kind: The kind of the adapter at ``url``.
        name: The stage's name in events; the kind if not given.
        window: Maximum unacknowledged items on their way here; a reader that stops reading stops the
            remote adapter after that many.
        connect_timeout: Seconds to wait for the connection.
        cancel_timeout: Seconds that the adapter may take to end a cancelled turn; after that the
            turn ends here and the connection is dropped.
        api_key: Sent as a bearer token (``?token=`` in the address works as well).
        tls: The context that verifies a ``wss://`` server, such as
            ``ssl.create_default_context(cafile="ca.pem")``. None: trust the authorities of this
            machine, or those in the file that ``SSL_CERT_FILE`` names.
        takes_drafts: Send items that are made of drafted text, and revoke them if that text is not
            verified: for a voice that streams, or an adapter whose tracks or boards can be copied.
        punctual: Give readers of a turn each piece of speech after its cues: for an avatar that has
            made a piece's cues once it was given the piece. The speech then waits one round trip.

    Raises:
        ConfigError: ``url`` is no WebSocket address, or a number is out of range.
    """

    def __init__(
        self,
        url: str,
        kind: Kind,
        name: str | None = None,
        *,
        window: int = WINDOW,
        connect_timeout: float = 5.0,
        cancel_timeout: float = 2.0,
        api_key: str | None = None,
        tls: ssl.SSLContext | None = None,
        takes_drafts: bool = False,
        punctual: bool = False,
    ) -> None:
        check_url(url, tls)
        if kind not in get_args(Kind):
            raise ConfigError(f"kind must be one of {', '.join(get_args(Kind))}, not {kind!r:.80}")
        if not isinstance(window, int) or not 1 <= window <= MAX_WINDOW:
            raise ConfigError(f"window must be a number from 1 to {MAX_WINDOW}, not {window!r:.80}")
        check_numbers(0.0, connect_timeout=connect_timeout, cancel_timeout=cancel_timeout)
        self.name = name or kind
        self.takes_drafts = takes_drafts
        self.punctual = punctual
        self._tls: dict[str, Any] = {} if tls is None else {"ssl": tls}
        self.url = url
        self._shown = shown(url)
        self._kind: Kind = kind
        self._start = StartFrame(window=window)
        self._connect_timeout = connect_timeout
        self._cancel_timeout = cancel_timeout
        self._headers = bearer(api_key)
        self.idle: list[tuple[DialedChannel, ReadyFrame]] = []

    async def connect(self) -> ReadyFrame:
        """Open the connection now, so that the first turn doesn't wait; returns the greeting.

        Raises:
            ConnectionFailed: nobody answers at the address, or the connection is refused.
            ProtocolError: the peer is no adapter.
            ConfigError: the adapter there is of another kind.
        """
        channel, ready = await self._take()
        await self._give(channel, ready)
        return ready

    async def aclose(self) -> None:
        """Close the connections that no turn uses. Idempotent."""
        while self.idle:
            channel, _ = self.idle.pop()
            if channel.here:
                await channel.close()

    async def __aenter__(self) -> RemoteStage:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.aclose()

    async def run(self, items: Inlet[Any]) -> AsyncGenerator[Output, None]:
        """Run one turn, on a connection that no other turn uses meanwhile.

        Raises:
            ConnectionFailed: nobody answers, or the connection was lost in the middle of the turn.
            ProtocolError: the adapter broke the protocol, or its output doesn't fit its input.
            SpecstreamError: the adapter's own error, as the local stage would have raised it.
        """
        taken = await items.unless_cancelled(self._take)
        if taken is None:  # cancelled before the connection was open
            async for item in items:
                yield item
            return
        channel, ready = taken
        channel.post(self._start)
        order = _ORDERS[self._kind]()
        turn = RemoteTurn(self.name, channel, items, self._cancel_timeout, order)
        try:
            async with aclosing(turn.outputs()) as outputs:
                async for output in outputs:
                    yield output
                    channel.took()
        except Violation as error:
            await channel.close(error.close_code)
            raise self._named(error) from error
        finally:
            await turn.stop()
            if turn.complete and channel.usable:
                await self._give(channel, ready)
            else:
                channel.abort()

    async def _take(self) -> tuple[DialedChannel, ReadyFrame]:
        while self.idle:
            channel, ready = self.idle.pop()
            if channel.here and await channel.wake(self._connect_timeout):
                return channel, ready
        return await self._open()

    async def _give(self, channel: DialedChannel, ready: ReadyFrame) -> None:
        if len(self.idle) < _MAX_IDLE:
            channel.rest()
            self.idle.append((channel, ready))
        else:
            await channel.close()

    async def _open(self) -> tuple[DialedChannel, ReadyFrame]:
        try:
            with anyio.fail_after(self._connect_timeout):
                socket = await connect(
                    self.url,
                    subprotocols=[Subprotocol(SUBPROTOCOL)],
                    additional_headers=self._headers,
                    compression=None,
                    proxy=None,
                    **self._tls,
                    logger=LOG,
                    max_size=MAX_SIZE,
                    # Room for all that the windows allow: a full queue would stop the reading of pongs.
                    max_queue=4 * self._start.window + 64,
                    ping_interval=_PING_S,
                    ping_timeout=_PONG_S,
                    close_timeout=CLOSE_TIMEOUT,
                    open_timeout=None,
                )
                return await self._greet(socket)
        except (OSError, WebSocketException) as error:
            late = isinstance(error, TimeoutError) and not error.errno
            why = f"no answer in {self._connect_timeout:g} s" if late else str(error)
            hint = f"does `specstream adapter {self._kind}` run there?"
            if isinstance(error, InvalidStatus) and error.response.status_code == 401:
                hint = "it wants a key: set SPECSTREAM_ADAPTER_KEY, or pass api_key"
            raise ConnectionFailed(f"can't reach {self._who}: {why}; {hint}") from error

    async def _greet(self, socket: ClientConnection) -> tuple[DialedChannel, ReadyFrame]:
        rules = StageRules("client", self._kind)
        channel = DialedChannel(DialedSocket(socket), rules, self._who)
        try:
            if socket.subprotocol != SUBPROTOCOL:
                raise ProtocolError(f"{self._shown} doesn't speak {SUBPROTOCOL}; it is no adapter")
            ready = await channel.receive()
            if isinstance(ready, fr.ErrorFrame):
                raise ready.error()
            assert isinstance(ready, ReadyFrame)  # the rules let nothing else through
            if ready.kind != self._kind:
                raise ConfigError(f"{self._shown} serves: {ready.kind}, not: {self._kind}")
            return channel, ready
        except BaseException as error:
            channel.abort()
            if isinstance(error, Violation):
                raise self._named(error) from error
            raise

    def _named(self, error: Violation) -> Violation:
        """Say who broke the protocol: a pipeline may have several adapters."""
        return Violation(f"{self._who}: {error}", error.close_code)

    @property
    def _who(self) -> str:
        return f"the {self._kind} adapter at {self._shown}"
