"""The plain HTTP side of the Realtime server: demo page, health, metrics, checks before an upgrade."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from http import HTTPStatus
from urllib.parse import urlsplit

from websockets.asyncio.server import ServerConnection
from websockets.http11 import Request, Response
from websockets.typing import Subprotocol

from specstream import __version__
from specstream.realtime.wire import PATH
from specstream.server.auth import Authentication, respond
from specstream.server.counters import Counters, format_for
from specstream.server.limits import ConnectionLimit
from specstream.server.page import CONTENT_POLICY, page

__all__ = ["Routes", "address_of", "select_subprotocol"]


def address_of(connection: ServerConnection) -> str:
    """Return the address that a client connects from."""
    peer = connection.remote_address
    return str(peer[0]) if isinstance(peer, tuple) and peer else str(peer)


def select_subprotocol(
    _connection: ServerConnection, offered: Sequence[Subprotocol]
) -> Subprotocol | None:
    """Select ``realtime`` if it was offered, never the subprotocol that carries a key."""
    return Subprotocol("realtime") if "realtime" in offered else None


@dataclass(frozen=True, slots=True)
class Routes:
    """Answers one HTTP request with a page or a refusal, or lets it upgrade to a WebSocket."""

    authentication: Authentication
    counters: Counters
    limit: ConnectionLimit
    bundled: bool

    def __call__(self, connection: ServerConnection, request: Request) -> Response | None:
        """See `websockets.asyncio.server.serve`, ``process_request``."""
        method = getattr(request, "method", "GET")  # websockets 15 accepts only GET
        if method not in ("GET", "HEAD"):
            return respond(HTTPStatus.METHOD_NOT_ALLOWED, "only GET\n", allow="GET, HEAD")
        try:
            response = self._route(connection, request)
        except (ValueError, LookupError):
            return respond(HTTPStatus.BAD_REQUEST, "this request can't be read\n")
        if response is not None and method == "HEAD":
            response.body = b""
        return response

    def _route(self, connection: ServerConnection, request: Request) -> Response | None:
        if not self.authentication.host_passes(request):
            text = "this server isn't known by that name; its owner can allow it (--hosts)\n"
            self.counters.refused_total += 1
            return respond(HTTPStatus.MISDIRECTED_REQUEST, text)
        path = urlsplit(request.path).path
        if path == PATH:
            return self._upgrade(connection, request)
        if path == "/":
            html, policy = page(bundled=self.bundled), {"Content_Security_Policy": CONTENT_POLICY}
            return respond(HTTPStatus.OK, html, "text/html; charset=utf-8", **policy)
        if path == "/healthz":
            return self._health()
        if path == "/metrics":
            if (refusal := self.authentication.require_key(connection, request)) is not None:
                return refusal
            kind = format_for(", ".join(request.headers.get_all("Accept")))
            return respond(HTTPStatus.OK, self.counters.text(kind), kind, vary="Accept")
        if path == "/favicon.ico":
            return respond(HTTPStatus.NO_CONTENT, "")
        return respond(HTTPStatus.NOT_FOUND, f"nothing here; the protocol is at {PATH}\n")

    def _health(self) -> Response:
        """Report the state; a load balancer stops sending clients when the HTTP status is 503."""
        stopping = self.limit.stopping
        state = {
            "status": "stopping" if stopping else "ok",
            "version": __version__,
            "sessions": self.counters.sessions,
        }
        status = HTTPStatus.SERVICE_UNAVAILABLE if stopping else HTTPStatus.OK
        return respond(status, json.dumps(state) + "\n", "application/json")

    def _upgrade(self, connection: ServerConnection, request: Request) -> Response | None:
        if request.headers.get("Upgrade", "").lower() != "websocket":
            text = "this is a WebSocket endpoint\n"
            return respond(HTTPStatus.UPGRADE_REQUIRED, text, upgrade="websocket")
        refusal = self.authentication.require_key(connection, request)
        if refusal is None and not self.authentication.origin_passes(request):
            text = "this origin may not connect; the server's owner can allow it\n"
            refusal = respond(HTTPStatus.FORBIDDEN, text)
        why = self.limit.refusal(address_of(connection))
        if refusal is None and why is not None:
            refusal = respond(HTTPStatus.SERVICE_UNAVAILABLE, why + "\n", retry_after="5")
        self.counters.refused_total += refusal is not None
        return refusal
