"""The routes of the HTTP API: each request has a place, is counted, and ends with its client."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import anyio
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import BaseRoute, Route
from starlette.types import Message, Receive, Scope, Send

from specstream.errors import SpecstreamError
from specstream.realtime.wire import new_id
from specstream.server.api.answering import Events, Streamed, read_body, while_connected
from specstream.server.api.audio import SpeechBody, kind_of, listening_of, spoken, transcribed
from specstream.server.api.body import ChatBody, parsed
from specstream.server.api.chat import chat_events, chat_whole
from specstream.server.api.completions import CompletionBody, completion_events, completion_whole
from specstream.server.api.errors import ApiError
from specstream.server.api.responses import ResponsesBody, response_events, response_whole
from specstream.server.api.secrets import SecretBody, client_secret
from specstream.server.keys import CALLER, ClientSecrets
from specstream.server.limits import ANSWER_COST, Allowances, ConnectionLimit, UnderWay, cost
from specstream.server.logs import labelled
from specstream.server.sessions.request import Service

__all__ = ["api_routes"]

_log = logging.getLogger("specstream.server")

_MOST_BYTES = 4 << 20  # of a body of JSON
_MOST_AUDIO = 26 << 20  # of a form with a sound file


@dataclass(frozen=True, slots=True)
class _Api:
    service: Callable[[], Service]
    limit: ConnectionLimit
    allowances: Allowances
    running: UnderWay
    began: int

    def name(self) -> str:
        """The name of the model that answers."""
        return self.service().names.get("target", self.service().settings.model or "specstream")

    def checked(self, model: str | None) -> str:
        """The name of the model, if it is the one that a request names; ``None`` and ours are.

        Raises:
            ApiError: another model.
        """
        name, own = self.name(), self.service().settings.model
        if model not in (None, name, own):
            message = f"there is no model {model!r} here; it is called {name!r}"
            raise ApiError(404, message, param="model", code="model_not_found")
        return model or name


@dataclass(frozen=True, slots=True)
class _Endpoint:
    """A route as an application: the request's place is held until its answer has been sent."""

    api: _Api
    handle: Callable[[Request], Awaitable[Response]]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        status, whole, began, name = 0, False, time.monotonic(), _name_of(request)

        async def sent(message: Message) -> None:
            nonlocal status, whole
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message.get("headers", ()), (b"x-request-id", name.encode())]
            await send(message)
            whole = whole or (message["type"] == "http.response.body" and not message.get("more_body"))

        key = request.scope[CALLER].account.key
        with labelled(request=name, key=key and key.name):
            try:
                await self._serve(request, sent)
                status = status if whole else 499
            finally:
                route = scope["route"].path
                self.api.service().counters.requests[route, str(status or 499)] += 1
                ms = (time.monotonic() - began) * 1e3
                _log.info("%s %s: %d after %.0f ms", scope["method"], route, status or 499, ms)

    async def _serve(self, request: Request, send: Send) -> None:
        scope, receive, begun, over = request.scope, request.receive, False, False
        response: Response | None = None

        async def sent(message: Message) -> None:
            nonlocal begun, over
            begun, over = True, message["type"] == "http.response.body" and not message.get("more_body")
            await send(message)

        client, account = scope.get("client"), scope[CALLER].account
        address = client[0] if client else ""
        if (refusal := self._refusal(request, address)) is not None:
            await refusal.response()(scope, receive, send)
            return
        with self.api.limit.taken(address, account), self.api.running.scope() as served:
            with suppress(ClientDisconnect):  # in the middle of its body: nobody reads an answer
                response = await self._answer(request)
                await response(scope, receive, sent)
        if not served.cancelled_caught or over:
            return
        error = ApiError(503, "the server is stopping", "server_error", retry_s=5)
        if not begun:
            await error.response()(scope, receive, send)
        elif isinstance(response, Streamed) and (told := response.told(error)) is not None:
            with anyio.move_on_after(1):  # a client may take nothing
                await send({"type": "http.response.body", "body": told})

    def _refusal(self, request: Request, address: str) -> ApiError | None:
        account = request.scope[CALLER].account
        if (why := account.refusal()) is not None:
            return ApiError(429, why, "insufficient_quota", code="insufficient_quota")
        if (why := account.full()) is not None:
            return ApiError(429, why, "rate_limit_error", code="rate_limit_exceeded", retry_s=1)
        if (why := self.api.limit.refusal(address, account)) is not None:
            return ApiError(503, why, "server_error", code="no_place", retry_s=5)
        length = request.headers.get("content-length", "")
        price = ANSWER_COST + cost(int(length) if length.isascii() and length.isdigit() else 0)
        shared = self.api.allowances.of(address, account)
        if wait_s := max((one.spend(price) for one in shared), default=0.0):
            why, code = "your key or address asks for too much at once", "rate_limit_exceeded"
            return ApiError(429, why, "rate_limit_error", code=code, retry_s=math.ceil(wait_s))
        return None

    async def _answer(self, request: Request) -> Response:
        try:
            return await self.handle(request)
        except ApiError as error:
            return error.response()
        except SpecstreamError as error:
            return ApiError.of(error).response()


def _name_of(request: Request) -> str:
    """The id that the client or a proxy gave the request, if it can be used; else a new one."""
    given = request.headers.get("x-request-id", "")
    fits = 0 < len(given) <= 64 and given.isascii() and given.isprintable()
    return given if fits else new_id("req")


def api_routes(
    service: Callable[[], Service],
    limit: ConnectionLimit,
    allowances: Allowances,
    running: UnderWay,
    secrets: ClientSecrets,
) -> list[BaseRoute]:
    """The routes; ``service`` gives what requests are served with, as it is once the server is open."""
    api = _Api(service, limit, allowances, running, int(time.time()))

    def served(request: Request) -> Service:
        return replace(service(), caller=request.scope[CALLER])

    def described(name: str) -> dict[str, Any]:
        return {"id": name, "object": "model", "created": api.began, "owned_by": "specstream"}

    async def models(request: Request) -> Response:
        return JSONResponse({"object": "list", "data": [described(api.name())]})

    async def one_model(request: Request) -> Response:
        return JSONResponse(described(api.checked(request.path_params["name"])))

    async def chat(request: Request) -> Response:
        body = parsed(ChatBody, await read_body(request, _MOST_BYTES))
        model = api.checked(body.model)
        if body.stream:
            return Events(chat_events(body, served(request), model))
        return await _whole(request, lambda: chat_whole(body, served(request), model))

    async def completions(request: Request) -> Response:
        body = parsed(CompletionBody, await read_body(request, _MOST_BYTES))
        model = api.checked(body.model)
        if body.stream:
            return Events(completion_events(body, served(request), model))
        return await _whole(request, lambda: completion_whole(body, served(request), model))

    async def responses(request: Request) -> Response:
        body = parsed(ResponsesBody, await read_body(request, _MOST_BYTES))
        model = api.checked(body.model)
        if body.stream:
            return Events(response_events(body, served(request), model), named=True, done=False)
        return await _whole(request, lambda: response_whole(body, served(request), model))

    async def speech(request: Request) -> Response:
        body = parsed(SpeechBody, await read_body(request, _MOST_BYTES))
        return Streamed(spoken(body, served(request)), kind_of(body))

    async def transcriptions(request: Request) -> Response:
        asked = await listening_of(request.headers, await read_body(request, _MOST_AUDIO))
        found = await while_connected(request, lambda: transcribed(asked, served(request)))
        if found is None:
            return Response(status_code=499)
        if asked.stream:
            return Events(_transcript_events(found["text"]), done=False)
        if asked.format == "text":
            return PlainTextResponse(found["text"] + "\n")
        return JSONResponse(found if asked.format == "verbose_json" else {"text": found["text"]})

    async def client_secrets(request: Request) -> Response:
        body = parsed(SecretBody, await read_body(request, _MOST_BYTES) or b"{}")
        return JSONResponse(client_secret(body, served(request), secrets))

    return [
        Route("/v1/realtime/client_secrets", _Endpoint(api, client_secrets), methods=["POST"]),
        Route("/v1/models", _Endpoint(api, models), methods=["GET"]),
        Route("/v1/models/{name:path}", _Endpoint(api, one_model), methods=["GET"]),
        Route("/v1/chat/completions", _Endpoint(api, chat), methods=["POST"]),
        Route("/v1/completions", _Endpoint(api, completions), methods=["POST"]),
        Route("/v1/responses", _Endpoint(api, responses), methods=["POST"]),
        Route("/v1/audio/speech", _Endpoint(api, speech), methods=["POST"]),
        Route("/v1/audio/transcriptions", _Endpoint(api, transcriptions), methods=["POST"]),
    ]


async def _transcript_events(text: str) -> AsyncGenerator[list[dict[str, Any]], None]:
    delta = [{"type": "transcript.text.delta", "delta": text}] if text else []
    yield [*delta, {"type": "transcript.text.done", "text": text}]


async def _whole(request: Request, work: Callable[[], Awaitable[dict[str, Any]]]) -> Response:
    """Wait for a whole answer; a client that has gone gets none."""
    made = await while_connected(request, work)
    return JSONResponse(made) if made is not None else Response(status_code=499)
