"""Who may connect now: a bound for all clients, one for each address, nobody once the server stops."""

from __future__ import annotations

import ipaddress
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager

from specstream.errors import ConfigError

__all__ = ["Places", "is_address"]


class Places:
    """The places of a server.

    Args:
        most: Clients at once.
        per_address: Of these, how many from one address (for IPv6: one network of 64 bits). None is
            half of ``most``, and no bound for this machine itself, where a proxy may stand for
            everybody.

    Raises:
        ConfigError: a number below 1.
    """

    def __init__(self, most: int, per_address: int | None = None) -> None:
        if most < 1 or (per_address is not None and per_address < 1):
            raise ConfigError("max_sessions and max_per_address must be at least 1")
        self._most = most
        self._each = per_address or (most + 1) // 2
        self._loopback_too = per_address is not None
        self._taken: Counter[str] = Counter()
        self.stopping = False

    def refusal(self, address: str) -> str | None:
        """Why a client from ``address`` can't have a place; None if it can."""
        if self.stopping:
            return "the server is stopping; try again in a moment"
        if self._taken.total() >= self._most:
            return "all sessions are taken; try again later"
        whom, local = _network(address)
        if self._taken[whom] >= self._each and (self._loopback_too or not local):
            return "your address has all the sessions that one may have; close some first"
        return None

    @contextmanager
    def taken(self, address: str) -> Generator[None, None, None]:
        """A place is in use while the block runs."""
        whom, _ = _network(address)
        self._taken[whom] += 1
        try:
            yield
        finally:
            self._taken[whom] -= 1
            self._taken += Counter()  # drops what is down to nothing


def is_address(name: str) -> bool:
    """Whether ``name`` is a literal address, which no name server can point elsewhere."""
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _network(address: str) -> tuple[str, bool]:
    """Whom an address counts for, and whether that is this machine."""
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:  # a socket of another family
        return address, True
    if isinstance(parsed, ipaddress.IPv6Address):
        if parsed.ipv4_mapped is None:
            network = ipaddress.ip_network((int(parsed), 64), strict=False)
            return str(network), parsed.is_loopback
        parsed = parsed.ipv4_mapped
    return str(parsed), parsed.is_loopback
