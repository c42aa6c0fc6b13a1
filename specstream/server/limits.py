"""Limits of the Realtime server per client: connections, work a second, unread output."""

from __future__ import annotations

import ipaddress
import logging
from collections import Counter
from collections.abc import Callable, Generator, Hashable
from contextlib import contextmanager
from typing import TYPE_CHECKING

import anyio

from specstream.client.dial import literal_address
from specstream.server.keys import KeyAccount
from specstream.signals import Clock, Signal

if TYPE_CHECKING:
    from specstream.server.socket import ServedSocket

__all__ = [
    "ANSWER_COST",
    "AUDIO_BURST",
    "AUDIO_PER_S",
    "SEND_BUFFER",
    "Allowances",
    "ConnectionLimit",
    "Meter",
    "RateLimit",
    "UnderWay",
    "cost",
    "drop_slow_reader",
]

_log = logging.getLogger("specstream.server")

FRAMES_PER_S = 200
"""Sustained rate: small frames of one session read per second; a microphone sends 50 to 100."""
BURST = 800
"""Small frames that are read at once from a client that was quiet before."""
_FRAME_CHARS = 4096  # characters of JSON that cost as much as one small frame
ANSWER_COST = 20.0
"""Small frames that beginning a reply costs as much as."""
_AUDIO = 50.0  # and a second of microphone audio: a live one's is as many frames again
_MOST_SHARED = 4096  # addresses and keys that are told apart

PATIENCE_S = 20.0
"""Seconds that a client may read too slowly in total; faster reading restores them."""
AUDIO_PER_S = 2.0
"""Sustained rate: seconds of microphone audio of one session that are taken a second."""
AUDIO_BURST = 240.0
"""Seconds of audio that are taken at once: two turns of the longest kind."""
MIN_BYTES_PER_S = 4096
"""A client that reads less than this while output is waiting uses up its patience."""
MAX_UNSENT = 4 << 20
"""Bytes buffered in the process for one client; only answers to a flood of pings reach this."""
SEND_BUFFER = 64 << 10
"""Bytes of a socket's send buffer in the kernel; a cancel can't recall audio that is already there."""
_TICK_S = 1.0
_SLACK = 1024  # frame headers, pings and pongs, which are not counted


class UnderWay:
    """What is being served, so that it can be waited for and ended."""

    def __init__(self) -> None:
        self._scopes = set[anyio.CancelScope]()
        self._ended = Signal()

    @contextmanager
    def scope(self) -> Generator[anyio.CancelScope, None, None]:
        """A block that `end` cancels."""
        with anyio.CancelScope() as scope:
            self._scopes.add(scope)
            try:
                yield scope
            finally:
                self._scopes.discard(scope)
                self._ended.notify()

    async def over(self) -> None:
        """Wait until nothing is served."""
        while self._scopes:
            await self._ended.wait()

    def end(self) -> None:
        """Cancel all that is served."""
        for scope in self._scopes:
            scope.cancel()


class ConnectionLimit:
    """Limits the connected clients, in total and per address; admits none while the server stops.

    Args:
        most: Maximum clients at once.
        per_address: Maximum from one address (for IPv6: one /64 network). None means half
            of ``most``, and no limit for loopback, where one proxy may connect for all clients.

    Attributes:
        clients: How many are connected, by address.
        stopping: Whether the server stops.
    """

    def __init__(self, most: int, per_address: int | None = None) -> None:
        self._most = most
        self._most_per_address = per_address or (most + 1) // 2
        self._loopback_too = per_address is not None
        self.clients: Counter[str] = Counter()
        self.stopping = False

    def refusal(self, address: str, account: KeyAccount) -> str | None:
        """Return why a client may not connect now; None if it may."""
        if self.stopping:
            return "the server is stopping; try again in a moment"
        if self.clients.total() >= self._most:
            return "all sessions are taken; try again later"
        network, loopback = _network(address)
        if self.clients[network] >= self._most_per_address and (self._loopback_too or not loopback):
            return "your address has all the sessions that one may have; close some first"
        return account.full()

    @contextmanager
    def taken(self, address: str, account: KeyAccount) -> Generator[None, None, None]:
        """Count a client while the block runs."""
        network, _ = _network(address)
        self.clients[network] += 1
        account.taken += 1
        try:
            yield
        finally:
            account.taken -= 1
            self.clients[network] -= 1
            self.clients += Counter()  # removes zero counts


def _network(address: str) -> tuple[str, bool]:
    """Return the key that clients of an address are counted under, and whether it is loopback."""
    parsed = literal_address(address.partition("%")[0])
    if parsed is None:  # a socket of another family
        return address, True
    if isinstance(parsed, ipaddress.IPv6Address):
        if parsed.ipv4_mapped is None:
            network = ipaddress.ip_network((int(parsed), 64), strict=False)
            return str(network), parsed.is_loopback
        parsed = parsed.ipv4_mapped
    return str(parsed), parsed.is_loopback


def cost(chars: int) -> float:
    """Cost of reading or writing ``chars`` characters of JSON, in small frames."""
    return chars / _FRAME_CHARS


class RateLimit:
    """A token bucket that makes a client wait instead of refusing what it sends.

    Args:
        clock: Tells the time.
        per_s: What may be spent a second, by default small frames.
        burst: What may be spent at once by a client that was quiet before.
    """

    def __init__(self, clock: Clock, *, per_s: float = FRAMES_PER_S, burst: float = BURST) -> None:
        self._clock, self._per_s, self._burst = clock, per_s, burst
        self._left = burst
        self._at = clock.now()

    async def take(self, amount: float) -> None:
        """Spend ``amount`` and wait until the bucket is not in debt; cancelling refunds nothing."""
        if debt_s := self.spend(amount):
            await self._clock.sleep_until(self._at + debt_s)

    def spend(self, amount: float) -> float:
        """Spend ``amount``; returns the seconds until the bucket is not in debt any more."""
        now = self._clock.now()
        self._left = min(self._burst, self._left + (now - self._at) * self._per_s) - amount
        self._at = now
        return max(0.0, -self._left / self._per_s)

    @property
    def full(self) -> bool:
        """Whether a client that comes now would find the whole burst."""
        return self._left + (self._clock.now() - self._at) * self._per_s >= self._burst


class Meter:
    """What one client asks for; it waits where it asks for more than its connection, address or key may.

    Args:
        clock: Tells the time.
        shared: The allowances that its connections have in common (see `Allowances.of`).
    """

    def __init__(self, clock: Clock, shared: list[RateLimit]) -> None:
        self._frames = RateLimit(clock)
        self._audio = RateLimit(clock, per_s=AUDIO_PER_S, burst=AUDIO_BURST)
        self._shared = shared

    async def take(self, frames: float) -> None:
        """Pay for small frames, or what costs as much. Others' turn comes first: it always yields."""
        for bucket in (self._frames, *self._shared):
            await bucket.take(frames)
        await anyio.lowlevel.checkpoint()

    async def hear(self, seconds: float) -> None:
        """Pay for microphone audio."""
        await self._audio.take(seconds)
        for bucket in self._shared:
            await bucket.take(seconds * _AUDIO)

    async def answer(self) -> None:
        """Pay for the beginning of a reply."""
        await self.take(ANSWER_COST)


class Allowances:
    """The work that all connections of an address, or of a key, may ask for together.

    Each may have that of half the server's connections. A client that connects again finds what it left.
    Loopback has none, as one proxy may connect for all clients, and neither has a server without keys.
    """

    def __init__(self, clock: Clock, places: int) -> None:
        self._clock, self._share = clock, (places + 1) // 2
        self._buckets: dict[Hashable, RateLimit] = {}

    def of(self, address: str, account: KeyAccount) -> list[RateLimit]:
        """Those of one client."""
        network, loopback = _network(address)
        whose: list[Hashable] = [] if loopback else [network]
        if account.key is not None:
            whose.append(account)
        return [self._bucket(one) for one in whose]

    def _bucket(self, whose: Hashable) -> RateLimit:
        if whose not in self._buckets:
            if len(self._buckets) >= _MOST_SHARED:  # a full one is as good as none
                kept = {one: bucket for one, bucket in self._buckets.items() if not bucket.full}
                self._buckets = dict(list(kept.items())[-_MOST_SHARED // 2 :])
            per_s, burst = self._share * FRAMES_PER_S, self._share * BURST
            self._buckets[whose] = RateLimit(self._clock, per_s=per_s, burst=burst)
        return self._buckets[whose]


async def drop_slow_reader(socket: ServedSocket, written: Callable[[], int], timer: Clock) -> None:
    """Watch a socket while the call runs; abort it once its peer has gone or has stopped reading.

    A keepalive detects neither in time: the ping itself waits for room, and a server that isn't
    reading, as there is too much to work off, doesn't see the end of what it would read. ``written``
    gives the bytes handed to the socket so far. Returns after the abort. Cancel the call to stop
    watching.
    """
    patience, last_sent, last_acked = PATIENCE_S, 0, 0
    while True:
        await timer.sleep_until(timer.now() + _TICK_S)
        if socket.gone():
            socket.abort()
            return
        waiting, in_kernel = socket.unread()
        unread, sent = waiting + in_kernel, written()
        acked = sent - unread
        if unread <= sent - last_sent + _SLACK:
            patience = PATIENCE_S  # everything that was unread a tick ago has been read
        else:
            earned = max(0, acked - last_acked) / MIN_BYTES_PER_S
            patience = min(PATIENCE_S, patience - _TICK_S + earned)
        last_sent, last_acked = sent, acked
        if patience <= 0 or waiting > MAX_UNSENT:
            _log.info("a client that does not read is dropped")
            socket.abort()
            return
