"""The ASGI application: who may ask, the demo page, health, metrics, and the Realtime socket."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast
from urllib.parse import parse_qs

from prometheus_client.exposition import choose_encoder
from starlette.applications import Starlette
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import BaseRoute, Route, WebSocketRoute
from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.websockets import WebSocket
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from specstream import __version__
from specstream.realtime.wire import PATH
from specstream.server.api.errors import ApiError, broken
from specstream.server.auth import NO_KEY, Asked, Authentication
from specstream.server.counters import Counters
from specstream.server.keys import CALLER, ApiCaller
from specstream.server.limits import ConnectionLimit
from specstream.server.options import ServerAccess
from specstream.server.page import CONTENT_POLICY, page
from specstream.server.socket import AsgiSocket, deny

__all__ = ["AccessGuard", "make_app"]

_API = "/v1/"
_RETRY = {"Retry-After": "5"}
_NOTHING = f"nothing here; the protocol is at {PATH}\n"


@dataclass(frozen=True, slots=True)
class AccessGuard:
    """Lets requests through to ``app`` that may come in; the others get a refusal.

    Every request: its ``Host``. Figures, the API and sessions: the key. The API and sessions: the
    browser page's ``Origin``. Sessions: a free place.
    """

    app: ASGIApp
    authentication: Authentication
    counters: Counters
    limit: ConnectionLimit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        if scope["type"] in ("http", "websocket"):
            refusal = self._refusal(scope)
            if refusal is not None:
                self.counters.refused_total += refusal.status_code not in (400, 426)
                if scope["type"] == "websocket":
                    await deny(WebSocket(scope, receive, send), refusal)
                else:
                    await refusal(scope, receive, send)
                return
        await self.app(scope, receive, send)

    def _refusal(self, scope: Scope) -> Response | None:
        path = _path(scope)
        try:
            asked = Asked.of(scope)
            if not self.authentication.host_passes(asked):
                text = "this server isn't known by that name; its owner can allow it (--hosts)\n"
                return PlainTextResponse(text, 421)
            if path == PATH and scope["type"] == "http":
                return PlainTextResponse("this is a WebSocket endpoint\n", 426, {"Upgrade": "websocket"})
            caller = self.authentication.caller(asked, session=path == PATH)
            if caller is None and (path.startswith(_API) or path == "/metrics"):
                return self._no_key(path)
            if path.startswith(_API) and not self.authentication.origin_passes(asked):
                text = "this origin may not connect; the server's owner can allow it"
                if path == PATH:
                    return PlainTextResponse(text + "\n", 403)
                return ApiError(403, text, code="origin_not_allowed").response()
        except (ValueError, LookupError):
            told = "this request can't be read: look at its headers"
            if path.startswith(_API) and scope["type"] == "http":
                return ApiError(400, told, code="invalid_header").response()
            return PlainTextResponse(told + "\n", 400)
        if scope["type"] == "websocket":
            if path != PATH:
                return PlainTextResponse(_NOTHING, 404)
            client = scope.get("client")
            assert caller is not None
            if "resume" not in _query(scope):  # else nothing new begins, and the session has its place
                if (why := caller.account.refusal()) is not None:
                    return PlainTextResponse(why + "\n", 403)
                if (why := self.limit.refusal(client[0] if client else "", caller.account)) is not None:
                    return PlainTextResponse(why + "\n", 503, _RETRY)
        scope[CALLER] = caller
        return None

    def _no_key(self, path: str) -> Response:
        headers = {"WWW-Authenticate": "Bearer"}
        if path in ("/metrics", PATH):
            return PlainTextResponse(NO_KEY, 401, headers)
        error = ApiError(401, NO_KEY.strip(), "authentication_error", code="invalid_api_key")
        return error.response(headers)


def _path(scope: Scope) -> str:
    """The path below the place where the application is mounted."""
    path: str = scope["path"].removeprefix(scope.get("root_path", ""))
    return path


def _query(scope: Scope) -> dict[str, str]:
    """The parameters of an address; of several with one name the last, and none that is empty."""
    asked = parse_qs(scope["query_string"].decode("latin-1"))
    return {name: values[-1] for name, values in asked.items()}


def make_app(
    *,
    counters: Counters,
    limit: ConnectionLimit,
    authentication: Authentication,
    bundled: bool,
    realtime: Callable[[AsgiSocket, Mapping[str, str], ApiCaller], Awaitable[None]],
    api: Sequence[BaseRoute],
    ready: Callable[[], bool],
    failed: Callable[[], bool],
    access: ServerAccess,
) -> ASGIApp:
    """Build the application.

    Args:
        counters: Told at ``/metrics``.
        limit: Of sessions.
        authentication: Who may come in.
        bundled: See `page`.
        realtime: Serves an accepted session; gets the query of its address.
        api: The routes of the HTTP API.
        ready: Whether requests can be served now.
        failed: Whether the engine has ended by itself, so that none ever will be.
        access: The pages elsewhere whose browsers may ask the API and read the answers, and the
            proxies that tell a client's address.
    """

    def show_page(request: Request) -> Response:
        return HTMLResponse(page(bundled=bundled), headers={"Content-Security-Policy": CONTENT_POLICY})

    def state() -> str:
        if failed():
            return "failed"
        return "stopping" if limit.stopping else "ok" if ready() else "loading"

    def health(request: Request) -> Response:
        """Whether the process can go on, and what it does; one whose engine has ended can't (503)."""
        told = {"status": state(), "version": __version__, "sessions": counters.sessions}
        return JSONResponse(told, 503 if told["status"] == "failed" else 200)

    def readiness(request: Request) -> Response:
        """A load balancer stops sending clients when the HTTP status is 503."""
        status = 200 if state() == "ok" else 503
        return JSONResponse({"status": state()}, status, _RETRY if status == 503 else None)

    def metrics(request: Request) -> Response:
        try:
            encode, kind = choose_encoder(", ".join(request.headers.getlist("accept")))
        except (TypeError, ValueError):  # a version that is no number
            encode, kind = choose_encoder("")
        return Response(encode(counters.registry), headers={"Content-Type": kind, "Vary": "Accept"})

    async def session(socket: WebSocket) -> None:
        # Never the subprotocol that carries a key.
        known = "realtime" if "realtime" in socket.scope.get("subprotocols", ()) else None
        await socket.accept(known)
        await realtime(AsgiSocket(socket), _query(socket.scope), socket.scope[CALLER])

    def nothing(request: Request) -> Response:
        return Response(status_code=204)

    def wrong_method(request: Request, error: Exception) -> Response:
        allow = getattr(error, "headers", None)
        if (path := _path(request.scope)).startswith(_API):
            return ApiError(405, f"{path} doesn't take {request.method}").response(allow)
        return PlainTextResponse("Method Not Allowed", 405, allow)

    def unknown(request: Request, error: Exception) -> Response:
        if (path := _path(request.scope)).startswith(_API):
            return ApiError(404, f"there is no {path} here").response()
        return PlainTextResponse(_NOTHING, 404)

    def breaks(request: Request, error: Exception) -> Response:
        if _path(request.scope).startswith(_API):
            return broken().response()
        return PlainTextResponse("Internal Server Error", 500)

    routes: list[BaseRoute] = [
        Route("/", show_page),
        Route("/health", health),
        Route("/ready", readiness),
        Route("/metrics", metrics),
        Route("/favicon.ico", nothing),
        WebSocketRoute(PATH, session),
        *api,
    ]
    app = Starlette(routes=routes, exception_handlers={404: unknown, 405: wrong_method, 500: breaks})
    gate: ASGIApp = AccessGuard(app, authentication, counters, limit)
    if access.origins:
        methods = ["GET", "POST"]
        gate = CORSMiddleware(gate, access.origins, allow_methods=methods, allow_headers=["*"])
    if access.proxies:
        gate = cast(ASGIApp, ProxyHeadersMiddleware(cast(Any, gate), list(access.proxies)))
    return gate
