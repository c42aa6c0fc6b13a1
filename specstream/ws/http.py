"""What a server answers before the WebSocket begins: who may come in, and the plain pages."""

from __future__ import annotations

import hmac
import json
from collections.abc import Sequence
from http import HTTPStatus
from urllib.parse import parse_qs, urlsplit

from websockets.asyncio.server import ServerConnection
from websockets.datastructures import Headers
from websockets.http11 import Request, Response
from websockets.typing import Subprotocol

from specstream import __version__
from specstream.ws.counters import Counters, format_for
from specstream.ws.page import CONTENT_POLICY, page
from specstream.ws.places import Places, is_address
from specstream.ws.realtime.wire import PATH

__all__ = ["Authentication", "address_of", "query_of", "select_subprotocol"]

_KEY_PROTOCOL = "openai-insecure-api-key."
_LOOPBACK = {"localhost", "127.0.0.1", "::1"}


def address_of(connection: ServerConnection) -> str:
    """The address that a client connects from."""
    peer = connection.remote_address
    return str(peer[0]) if isinstance(peer, tuple) and peer else str(peer)


def query_of(path: str) -> dict[str, str]:
    """The last value of each query parameter."""
    return {name: values[-1] for name, values in parse_qs(urlsplit(path).query).items()}


def select_subprotocol(
    _connection: ServerConnection, offered: Sequence[Subprotocol]
) -> Subprotocol | None:
    """``realtime`` if it was offered, and never the one that carries a key."""
    return Subprotocol("realtime") if "realtime" in offered else None


class Authentication:
    """Decides about one HTTP request: a page, a refusal, or on to the WebSocket.

    A browser sends the page's origin, so a foreign page can't talk to a server on this machine. An
    origin passes if it is listed, or if it is the server's own address: with a key any such,
    without one only on loopback.

    A foreign page could also have its own name point at this machine. So on every path the name in
    ``Host`` must be a literal address, ``localhost``, or a listed host; ``any_host`` lets all pass.
    """

    def __init__(
        self,
        *,
        api_key: str | None,
        allowed_origins: Sequence[str],
        allowed_hosts: Sequence[str],
        any_host: bool,
        counters: Counters,
        places: Places,
        bundled: bool = False,
    ) -> None:
        self._key = api_key
        self._origins = set(allowed_origins)
        self._hosts = {"localhost", *(host.lower() for host in allowed_hosts)}
        self._any_host = any_host or "*" in self._hosts
        self._counters = counters
        self._places = places
        self._bundled = bundled

    def __call__(self, connection: ServerConnection, request: Request) -> Response | None:
        """See `websockets.asyncio.server.serve`, ``process_request``."""
        method = getattr(request, "method", "GET")  # websockets 15 takes nothing but GET
        if method not in ("GET", "HEAD"):
            return _answer(HTTPStatus.METHOD_NOT_ALLOWED, "only GET\n", allow="GET, HEAD")
        try:
            response = self._open(connection, request)
        except (ValueError, LookupError):
            return _answer(HTTPStatus.BAD_REQUEST, "this request can't be read\n")
        if response is not None and method == "HEAD":
            response.body = b""
        return response

    def _open(self, connection: ServerConnection, request: Request) -> Response | None:
        if not self._host_passes(request.headers.get("Host", "")):
            text = "this server isn't known by that name; its owner can allow it (--hosts)\n"
            self._counters.refused_total += 1
            return _answer(HTTPStatus.MISDIRECTED_REQUEST, text)
        path = urlsplit(request.path).path
        if path == PATH:
            return self._admit(connection, request)
        if path == "/":
            policy = {"Content_Security_Policy": CONTENT_POLICY}
            return _answer(
                HTTPStatus.OK, page(bundled=self._bundled), "text/html; charset=utf-8", **policy
            )
        if path == "/healthz":
            return self._health()
        if path == "/metrics":
            if not self._has_key(request):
                return self._unauthorized()
            kind = format_for(", ".join(request.headers.get_all("Accept")))
            return _answer(HTTPStatus.OK, self._counters.text(kind), kind, vary="Accept")
        if path == "/favicon.ico":
            return _answer(HTTPStatus.NO_CONTENT, "")
        return _answer(HTTPStatus.NOT_FOUND, f"nothing here; the protocol is at {PATH}\n")

    def _health(self) -> Response:
        """Whoever hands out clients sees in the status whether to send more of them here."""
        stopping = self._places.stopping
        state = {
            "status": "stopping" if stopping else "ok",
            "version": __version__,
            "sessions": self._counters.sessions,
        }
        status = HTTPStatus.SERVICE_UNAVAILABLE if stopping else HTTPStatus.OK
        return _answer(status, json.dumps(state) + "\n", "application/json")

    def _admit(self, connection: ServerConnection, request: Request) -> Response | None:
        if request.headers.get("Upgrade", "").lower() != "websocket":
            text = "this is a WebSocket endpoint\n"
            return _answer(HTTPStatus.UPGRADE_REQUIRED, text, upgrade="websocket")
        refusal: Response | None = None
        if not self._has_key(request):
            refusal = self._unauthorized()
        elif not self._origin_passes(request):
            text = "this origin may not connect; the server's owner can allow it\n"
            refusal = _answer(HTTPStatus.FORBIDDEN, text)
        elif (why := self._places.refusal(address_of(connection))) is not None:
            refusal = _answer(HTTPStatus.SERVICE_UNAVAILABLE, why + "\n", retry_after="5")
        self._counters.refused_total += refusal is not None
        return refusal

    def _host_passes(self, host: str) -> bool:
        name = urlsplit(f"//{host}").hostname or ""
        return bool(host) and (self._any_host or is_address(name) or name in self._hosts)

    def _origin_passes(self, request: Request) -> bool:
        origin = request.headers.get("Origin")
        if origin is None or origin in self._origins or "*" in self._origins:
            return True
        address = urlsplit(origin)
        own = address.netloc == request.headers.get("Host")
        return own and (self._key is not None or address.hostname in _LOOPBACK)

    def _has_key(self, request: Request) -> bool:
        if self._key is None:
            return True
        keys = [query_of(request.path).get("token", "")]
        for header in request.headers.get_all("Authorization"):
            scheme, _, key = header.partition(" ")
            if scheme.lower() == "bearer":
                keys.append(key.strip())
        for header in request.headers.get_all("Sec-WebSocket-Protocol"):
            for offered in header.split(","):
                if offered.strip().startswith(_KEY_PROTOCOL):
                    keys.append(offered.strip().removeprefix(_KEY_PROTOCOL))
        wanted = self._key.encode()
        return sum(hmac.compare_digest(key.encode(), wanted) for key in keys) > 0

    def _unauthorized(self) -> Response:
        text = "a key is needed: 'Authorization: Bearer KEY', or ?token=KEY\n"
        return _answer(HTTPStatus.UNAUTHORIZED, text, www_authenticate="Bearer")


def _answer(
    status: HTTPStatus, body: str, kind: str = "text/plain; charset=utf-8", **headers: str
) -> Response:
    data = body.encode()
    fields = Headers()
    fields["Content-Type"] = kind
    fields["Content-Length"] = str(len(data))
    fields["Cache-Control"] = "no-store"
    fields["X-Content-Type-Options"] = "nosniff"
    fields["Connection"] = "close"
    for name, value in headers.items():
        fields[name.replace("_", "-")] = value
    return Response(status.value, status.phrase, fields, data)
