"""Before the WebSocket begins: keys, origins, capacity, the plain pages."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus
from websockets.typing import Origin, Subprotocol
from websockets.version import version as websockets_version

from specstream.errors import ConfigError, PortUnavailable
from specstream.testing import ScriptedEngine
from specstream.ws.server import RealtimeServer
from tests.ws.doubles import Stand, WordVoice, wait_for

KEY = "s3cret"


def stand(**options: Any) -> Stand:
    return Stand(ScriptedEngine(["fine."]), **options)


async def get(
    port: int, path: str, method: str = "GET", *headers: str, host: str | None = None
) -> tuple[int, str, str]:
    """Status, headers and body of one plain request."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    lines = [f"{method} {path} HTTP/1.1", f"Host: {host or f'127.0.0.1:{port}'}", *headers, "", ""]
    writer.write("\r\n".join(lines).encode())
    answer = (await reader.read()).decode()
    writer.close()
    await writer.wait_closed()
    head, _, body = answer.partition("\r\n\r\n")
    return int(head.split()[1]), head, body


async def status(server: Stand, query: str = "", **options: Any) -> int:
    """101 when the connection is let in."""
    try:
        async with connect(server.url + query, proxy=None, **options) as socket:
            first = json.loads(await socket.recv())
            assert first["type"] == "session.created"
            return 101
    except InvalidStatus as error:
        return error.response.status_code


def bearer(key: str) -> dict[str, Any]:
    return {"additional_headers": {"Authorization": f"Bearer {key}"}}


def protocols(*names: str) -> dict[str, Any]:
    return {"subprotocols": [Subprotocol(name) for name in names]}


@pytest.mark.parametrize(
    ("query", "options", "wanted"),
    [
        ("", {}, 401),
        ("", bearer(KEY), 101),
        ("", bearer("wrong"), 401),
        ("", bearer(KEY + "x"), 401),
        ("", {"additional_headers": {"Authorization": f"Basic {KEY}"}}, 401),
        (f"?token={KEY}", {}, 101),
        ("?token=", {}, 401),
        ("?token=%C3%A9", {}, 401),
        ("", protocols("realtime", f"openai-insecure-api-key.{KEY}", "sdk.1"), 101),
        ("", protocols("realtime", "openai-insecure-api-key.wrong"), 401),
        ("", protocols("realtime"), 401),
    ],
)
async def test_a_key_is_asked_for(query: str, options: dict[str, Any], wanted: int) -> None:
    server = stand(api_key=KEY)
    async with server.running():
        assert await status(server, query, **options) == wanted
        assert server.server.counters.refused_total == (wanted == 401)


async def test_only_the_protocol_is_echoed_never_the_key() -> None:
    server = stand(api_key=KEY)
    async with server.running():
        offered = protocols(f"openai-insecure-api-key.{KEY}", "realtime")
        async with connect(server.url, proxy=None, **offered) as socket:
            assert socket.subprotocol == "realtime"
        async with connect(server.url + f"?token={KEY}", proxy=None) as socket:
            assert socket.subprotocol is None


@pytest.mark.parametrize(
    ("origin", "options", "wanted"),
    [
        (None, {}, 101),
        ("http://127.0.0.1:{port}", {}, 101),
        ("http://127.0.0.1:1", {}, 403),
        ("http://evil.example", {}, 403),
        ("null", {}, 403),
        ("http://good.example", {"allowed_origins": ["http://good.example"]}, 101),
        ("http://evil.example", {"allowed_origins": ["http://good.example"]}, 403),
        ("http://evil.example", {"allowed_origins": ["*"]}, 101),
    ],
)
async def test_foreign_pages_are_kept_out(
    origin: str | None, options: dict[str, Any], wanted: int
) -> None:
    server = stand(**options)
    async with server.running():
        told = Origin(origin.format(port=server.port)) if origin is not None else None
        assert await status(server, origin=told) == wanted


async def test_a_name_that_was_pointed_at_this_machine_is_kept_out() -> None:
    server = stand()
    async with server.running():
        code, _, _ = await get(
            server.port,
            "/v1/realtime",
            "GET",
            "Upgrade: websocket",
            "Connection: Upgrade",
            "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
            "Sec-WebSocket-Version: 13",
            "Origin: http://rebound.example",
            host="rebound.example",
        )
        assert code == 403


async def test_when_all_sessions_are_taken_the_next_is_told_to_come_back() -> None:
    server = stand(max_sessions=1)
    async with server.running():
        async with server.client():
            assert await status(server) == 503
        await wait_for(lambda: server.server.counters.sessions == 0)
        assert await status(server) == 101


async def test_the_plain_pages() -> None:
    server = stand()
    async with server.running():
        code, head, body = await get(server.port, "/")
        assert (code, body.startswith("<!doctype html>")) == (200, True)
        assert "text/html; charset=utf-8" in head
        assert "default-src 'none'" in head
        assert "PAGE." not in body, "style and scripts are laid in"
        for word in ("http://", "https://", "//cdn"):
            assert word not in body.replace("http://www.w3.org/", ""), "the page is self-contained"
        code, _, body = await get(server.port, "/healthz")
        assert (code, json.loads(body)["status"], json.loads(body)["sessions"]) == (200, "ok", 0)
        async with server.client() as wire:
            await wire.ask("Hi")
            await wire.until("response.done")
            code, _, body = await get(server.port, "/metrics")
        assert code == 200
        assert "specstream_sessions 1\n" in body
        assert 'specstream_responses_total{status="completed"} 1\n' in body
        assert "specstream_audio_seconds_total 0.2\n" in body
        assert (await get(server.port, "/nothing"))[0] == 404
        assert (await get(server.port, "/favicon.ico"))[0] == 204
        assert (await get(server.port, "/v1/realtime"))[0] == 426


@pytest.mark.skipif(websockets_version < "16", reason="it drops what is not GET")
async def test_other_methods() -> None:
    server = stand()
    async with server.running():
        code, head, _ = await get(server.port, "/", "DELETE")
        assert (code, "GET" in head) == (405, True)
        code, head, body = await get(server.port, "/healthz", "HEAD")
        assert (code, body) == (200, "")


async def test_figures_need_the_key_and_the_page_does_not() -> None:
    server = stand(api_key=KEY)
    async with server.running():
        assert (await get(server.port, "/metrics"))[0] == 401
        assert (await get(server.port, "/metrics", "GET", f"Authorization: Bearer {KEY}"))[0] == 200
        assert (await get(server.port, "/"))[0] == 200
        assert (await get(server.port, "/healthz"))[0] == 200


@pytest.mark.parametrize(
    "options",
    [
        {"host": "0.0.0.0"},
        {"host": "::"},
        {"host": "192.168.1.5"},
        {"host": "example.org"},
        {"host": ""},
        {"api_key": ""},
        {"max_sessions": 0},
        {"max_size": 10},
        {"lead_s": 0.0},
        {"buffer_s": 0.0},
        {"voice": WordVoice()},
    ],
)
def test_unsafe_and_senseless_options_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        RealtimeServer(ScriptedEngine(["x"]), **options)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1", "127.8.8.8"])
def test_loopback_needs_no_key(host: str) -> None:
    RealtimeServer(ScriptedEngine(["x"]), host=host)
    RealtimeServer(ScriptedEngine(["x"]), host="0.0.0.0", api_key=KEY)


async def test_a_taken_port_is_named() -> None:
    server = stand()
    async with server.running():
        with pytest.raises(PortUnavailable, match=str(server.port)):
            async with RealtimeServer(ScriptedEngine(["x"]), port=server.port).start():
                raise AssertionError("listening twice")
