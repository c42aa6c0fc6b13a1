"""Names and addresses of machines."""

from __future__ import annotations

import ipaddress

__all__ = ["is_loopback", "literal_address"]


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach ``host``; the only name accepted is localhost."""
    address = literal_address(host)
    return host == "localhost" or (address is not None and address.is_loopback)


def literal_address(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """Parse a literal address, which no name server can point elsewhere; None for a name."""
    try:
        return ipaddress.ip_address(name)
    except ValueError:
        return None
