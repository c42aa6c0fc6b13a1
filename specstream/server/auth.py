"""Who may connect to a server: keys, browser origins, host names. Used by both servers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import parse_qs, urlsplit

from websockets.datastructures import Headers
from websockets.exceptions import InvalidHeader

from specstream.client.dial import is_loopback, literal_address
from specstream.errors import ConfigError
from specstream.server.keys import ApiCaller, ClientSecrets, KeyRing

if TYPE_CHECKING:
    from starlette.types import Scope

__all__ = ["NO_KEY", "Asked", "Authentication", "check_key", "check_names"]

_KEY_PROTOCOL = "openai-insecure-api-key."
_DEFAULT_PORTS = {"http": 80, "https": 443}


NO_KEY = "a key is needed: 'Authorization: Bearer KEY', or ?token=KEY\n"


class Asked(NamedTuple):
    """What of a request is checked: its path with the query, and its headers."""

    path: str
    headers: Headers

    @classmethod
    def of(cls, scope: Scope) -> Asked:
        """Take it from an ASGI scope.

        Raises:
            ValueError: a header can't be read.
        """
        pairs = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in scope["headers"]]
        query = scope["query_string"].decode("latin-1")
        try:
            return cls(f"{scope['path']}?{query}", Headers(pairs))
        except InvalidHeader as error:
            raise ValueError(str(error)) from None


class Authentication:
    """Checks one HTTP request: its key, its ``Origin`` and its ``Host``.

    A browser sends the page's origin; checking it keeps foreign pages from talking to a server on this
    machine. An origin passes if it is listed, or if it is the server's own address: with a key any such
    address, without one only loopback.

    A foreign page could also make its own host name resolve to this machine. So the name in ``Host``
    must be a literal address, ``localhost`` or one of ``hosts``; ``any_host`` lets all names pass.
    """

    def __init__(
        self,
        keys: KeyRing,
        *,
        origins: Sequence[str] = (),
        hosts: Sequence[str] = (),
        any_host: bool = False,
        secrets: ClientSecrets | None = None,
    ) -> None:
        self._keys, self._secrets = keys, secrets
        self._origins = {origin.lower() for origin in origins}
        self._hosts = {"localhost", *(host.lower() for host in hosts)}
        self._any_host = any_host or "*" in self._hosts

    def caller(self, request: Asked, *, session: bool = False) -> ApiCaller | None:
        """Return whose key is in the header, the query or a subprotocol; None if a key is needed.

        ``session``: a client secret is good, too.
        """
        keys = parse_qs(urlsplit(request.path).query).get("token", [])
        for header in request.headers.get_all("Authorization"):
            scheme, _, key = header.partition(" ")
            if scheme.lower() == "bearer":
                keys.append(key.strip())
        for header in request.headers.get_all("Sec-WebSocket-Protocol"):
            for offered in map(str.strip, header.split(",")):
                if offered.startswith(_KEY_PROTOCOL):
                    keys.append(offered.removeprefix(_KEY_PROTOCOL))
        secret = self._secrets.find(keys) if session and self._secrets is not None else None
        return secret or self._keys.find(keys)

    def host_passes(self, request: Asked) -> bool:
        """Return whether the server accepts the name or address in ``Host``."""
        host = request.headers.get("Host", "")
        name = urlsplit(f"//{host}").hostname or ""
        return bool(host) and (
            self._any_host or literal_address(name) is not None or name in self._hosts
        )

    def origin_passes(self, request: Asked) -> bool:
        """Return whether the request's origin may connect; a request without one is from no web page."""
        origin = request.headers.get("Origin")
        if origin is None or origin in self._origins or "*" in self._origins:
            return True
        page = urlsplit(origin)
        own = page.netloc == request.headers.get("Host")
        return own and (self._keys.needed or is_loopback(page.hostname or ""))


def check_key(host: str, keyed: bool) -> None:
    """Require a key where other machines can connect; ``keyed``: there is one.

    Raises:
        ConfigError: ``host`` can't be a host's name, or needs a key and there is none.
    """
    if literal_address(host) is None and _name_in(host) != host.lower():
        raise ConfigError(f"{host!r} is no host name or address to listen on")
    if not keyed and not is_loopback(host):
        raise ConfigError(
            f"{host} can be reached from other machines: set an api key (for a command, "
            "$SPECSTREAM_API_KEY or --api-key-file), or listen on 127.0.0.1"
        )


def check_names(origins: Sequence[str], hosts: Sequence[str]) -> None:
    """Require origins and host names that a request can have: any other would match none.

    Raises:
        ConfigError: an origin with a path or the scheme's own port, or a host with a scheme or port.
    """
    for origin in origins:
        sent = _as_sent(origin)
        if origin not in ("*", "null") and origin.lower() != sent:
            right = sent or "https://NAME"
            raise ConfigError(f"{origin!r} is no origin; write {right}, as browsers send it")
    for host in hosts:
        if (
            host != "*"
            and literal_address(host) is None
            and (not host or _name_in(host) != host.lower())
        ):
            raise ConfigError(f"{host!r} is no host name; leave out the scheme, port and path")


def _as_sent(origin: str) -> str:
    """Return an origin as browsers send it; empty if it lacks a scheme or a name."""
    try:
        page = urlsplit(origin)
        port = page.port
    except ValueError:
        return ""
    if not page.scheme or not page.hostname:
        return ""
    name = f"[{page.hostname}]" if ":" in page.hostname else page.hostname
    own = port is None or port == _DEFAULT_PORTS.get(page.scheme)
    return f"{page.scheme}://{name}" if own else f"{page.scheme}://{name}:{port}"


def _name_in(host: str) -> str:
    try:
        name = urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""
    return "" if any(map(str.isspace, name)) else name
