"""Before the WebSocket begins: keys, origins, capacity, the plain pages."""

import asyncio
import json
from contextlib import ExitStack
from typing import Any, cast

import anyio
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus
from websockets.typing import Origin, Subprotocol
from websockets.version import version as websockets_version

from specstream.errors import ConfigError, PortUnavailable
from specstream.server.keys import KeyAccount
from specstream.server.limits import ConnectionLimit, Meter
from specstream.server.server import RealtimeServer
from specstream.server.sessions.connection import RealtimeConnection
from specstream.signals import LoopClock
from specstream.testing import ScriptedEngine
from tests.server.doubles import Gate, Stand, WordVoice, server_options, wait_for
from tests.server.sessions.test_floods import Scripted

KEY = "s3cret"


def stand(**options: Any) -> Stand:
    return Stand(ScriptedEngine(["fine."]), **options)


async def get(
    port: int, path: str, method: str = "GET", *headers: str, host: str | None = None
) -> tuple[int, str, str]:
    """Status, headers and body of one plain request."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    named = host or f"127.0.0.1:{port}"
    lines = [f"{method} {path} HTTP/1.1", f"Host: {named}", "Connection: close", *headers, "", ""]
    writer.write("\r\n".join(lines).encode())
    answer = (await reader.read()).decode()
    writer.close()
    await writer.wait_closed()
    head, _, body = answer.partition("\r\n\r\n")
    return int(head.split()[1]), head, body


async def status(server: Stand, query: str = "", **options: Any) -> int:
    """Return the status of the handshake: 101 if the connection is accepted."""
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
    server = stand(keys=[KEY])
    async with server.running():
        assert await status(server, query, **options) == wanted
        assert server.server.counters.refused_total == (wanted == 401)


async def test_only_the_protocol_is_echoed_never_the_key() -> None:
    server = stand(keys=[KEY])
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
        ("http://good.example", {"origins": ["http://good.example"]}, 101),
        ("http://evil.example", {"origins": ["http://good.example"]}, 403),
        ("http://evil.example", {"origins": ["*"]}, 101),
        ("http://good.example:81", {"origins": ["http://Good.example:81"]}, 101),
        ("app://-", {"origins": ["app://-"]}, 101),
        ("null", {"origins": ["null"]}, 101),
    ],
)
async def test_foreign_pages_are_kept_out(
    origin: str | None, options: dict[str, Any], wanted: int
) -> None:
    server = stand(**options)
    async with server.running():
        told = Origin(origin.format(port=server.port)) if origin is not None else None
        assert await status(server, origin=told) == wanted


UPGRADE = (
    "Upgrade: websocket",
    "Connection: Upgrade",
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
    "Sec-WebSocket-Version: 13",
)


@pytest.mark.parametrize("path", ["/", "/ready", "/metrics", "/v1/realtime", "/nothing"])
async def test_a_name_that_was_pointed_at_this_machine_is_kept_out(path: str) -> None:
    server = stand()
    async with server.running():
        rebound = (*UPGRADE, "Origin: http://rebound.example")
        for headers in ((), rebound):
            code, _, body = await get(server.port, path, "GET", *headers, host="rebound.example")
            assert code == 421
            assert "specstream" not in body
        assert server.server.counters.refused_total == 2


@pytest.mark.parametrize(
    ("host", "options", "code"),
    [
        ("127.0.0.1:1234", {}, 200),
        ("localhost", {}, 200),
        ("LocalHost:8765", {}, 200),
        ("[::1]:8765", {}, 200),
        ("192.168.1.5", {}, 200),
        ("localhost.evil.example", {}, 421),
        ("127.0.0.1.evil.example", {}, 421),
        ("evil.example:80", {"keys": [KEY]}, 421),
        ("voice.example", {"hosts": ["Voice.example"]}, 200),
        ("other.example", {"hosts": ["voice.example"]}, 421),
        ("other.example", {"hosts": ["*"]}, 200),
        ("any.example", {"keys": [KEY], "host": "0.0.0.0"}, 200),
        ("any.example", {"keys": [KEY], "host": "0.0.0.0", "hosts": ["v.example"]}, 421),
        ("user@localhost@evil.example", {}, 421),
        ("[::1", {}, 400),
    ],
)
async def test_only_names_of_this_server_are_answered(
    host: str, options: dict[str, Any], code: int
) -> None:
    server = stand(**options)
    async with server.running():
        assert (await get(server.port, "/ready", host=host))[0] == code


async def test_when_all_sessions_are_taken_the_next_is_told_to_come_back() -> None:
    server = stand(max_sessions=1)
    async with server.running():
        async with server.client():
            assert await status(server) == 503
        await wait_for(lambda: server.server.counters.sessions == 0)
        assert await status(server) == 101


@pytest.mark.parametrize(
    ("address", "most", "each", "let_in"),
    [
        ("203.0.113.7", 8, None, 4),
        ("203.0.113.7", 8, 3, 3),
        ("::ffff:203.0.113.7", 8, 3, 3),
        ("2001:db8::1", 8, 3, 3),
        ("127.0.0.1", 8, None, 8),
        ("127.0.0.1", 8, 3, 3),
        ("::1", 8, None, 8),
        ("203.0.113.7", 1, None, 1),
    ],
)
def test_one_address_cannot_have_all_places(
    address: str, most: int, each: int | None, let_in: int
) -> None:
    places, account = ConnectionLimit(most, each), KeyAccount()
    with ExitStack() as stack:
        for _ in range(let_in):
            assert places.refusal(address, account) is None
            stack.enter_context(places.taken(address, account))
        assert places.refusal(address, account) is not None
        if address.startswith("2001:db8::"):
            assert places.refusal("2001:db8::ffff:2", account) is not None, "the same network"
            assert places.refusal("2001:db8:0:1::1", account) is None
        if let_in < most:
            assert places.refusal("198.51.100.1", account) is None, "others still can"
    assert places.refusal(address, account) is None


async def test_an_address_with_all_its_places_is_told() -> None:
    server = stand(max_per_address=1)
    async with server.running():
        async with server.client():
            code, _, body = await get(server.port, "/v1/realtime", "GET", *UPGRADE)
            assert (code, "your address" in body) == (503, True)
        await wait_for(lambda: server.server.counters.sessions == 0)
        assert await status(server) == 101


async def test_a_client_that_says_nothing_gives_its_place_back() -> None:
    """A client whose response is running is not idle, however long the response takes."""
    gate = Gate()
    server = Stand(ScriptedEngine(["fine."], gate=gate), idle_s=0.01)
    async with server.running(), server.client() as waiting:
        await waiting.ask("Hi", output_modalities=["text"])
        await waiting.until("response.created")
        for _ in range(2):
            async with server.client() as silent:
                assert await silent.closed() == (1008, "idle_timeout: no frame for 0.01 s")
        gate.open()
        await waiting.until("response.done")


@pytest.mark.virtual_time
async def test_whoever_was_answered_just_now_has_the_whole_time_to_speak() -> None:
    gate, socket = Gate(), Scripted()
    stand = Stand(ScriptedEngine(["fine."], gate=gate), voice=None, idle_s=30.0)
    connection = RealtimeConnection(
        cast(Any, socket), stand.server.service, None, Meter(LoopClock(), [])
    )
    began = anyio.current_time()
    async with anyio.create_task_group() as group:
        group.start_soon(connection.serve)
        socket.say("response.create")
        await anyio.sleep(29)
        gate.open()
        await socket.over.wait()
    assert socket.closed is not None and socket.closed[0] == 1008
    assert anyio.current_time() - began == pytest.approx(59)


async def test_the_plain_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    server = stand()
    async with server.running():
        code, head, body = await get(server.port, "/")
        assert (code, body.startswith("<!doctype html>")) == (200, True)
        assert "text/html; charset=utf-8" in head
        assert "default-src 'none'" in head
        assert "PAGE." not in body, "style and scripts are laid in"
        for word in ("http://", "https://", "//cdn"):
            assert word not in body.replace("http://www.w3.org/", ""), "the page is self-contained"
        code, _, body = await get(server.port, "/health")
        assert (code, json.loads(body)["status"], json.loads(body)["sessions"]) == (200, "ok", 0)
        assert (await get(server.port, "/ready"))[0] == 200
        with monkeypatch.context() as patch:
            patch.setattr(server.engine, "failure", SystemError("planted"), raising=False)
            for path in ("/health", "/ready"):
                code, _, body = await get(server.port, path)
                assert (code, json.loads(body)["status"]) == (503, "failed")
        async with server.client() as wire:
            await wire.reply("Hi")
            code, _, body = await get(server.port, "/metrics")
        assert (code, "specstream_open_sessions 1.0\n" in body) == (200, True)
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
        code, head, body = await get(server.port, "/ready", "HEAD")
        assert (code, body) == (200, "")


async def test_figures_need_the_key_and_the_page_does_not() -> None:
    server = stand(keys=[KEY])
    async with server.running():
        assert (await get(server.port, "/metrics"))[0] == 401
        assert (await get(server.port, "/metrics", "GET", f"Authorization: Bearer {KEY}"))[0] == 200
        assert (await get(server.port, "/"))[0] == 200
        assert (await get(server.port, "/ready"))[0] == 200


@pytest.mark.parametrize(
    "options",
    [
        {"host": "0.0.0.0"},
        {"host": "::"},
        {"host": "192.168.1.5"},
        {"host": "example.org"},
        {"host": ""},
        {"keys": [""]},
        {"keys": [KEY, KEY]},
        {"keys": KEY},
        {"max_sessions": 0},
        {"max_per_address": 0},
        {"idle_s": 0.0},
        {"max_frame": 10},
        {"lead_s": 0.0},
        {"buffer_s": 0.0},
        {"voice": WordVoice()},
        {"origins": ["https://good.example/"]},
        {"origins": ["good.example"]},
        {"hosts": ["voice.example:80"]},
    ],
)
def test_unsafe_and_senseless_options_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        RealtimeServer(ScriptedEngine(["x"]), **server_options(**options))


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("engine", "smollm2"),
        ("params", {"temperature": 1}),
        ("system", 3),
        ("model", None),
        ("keys", "secret"),
        ("tls", True),
    ],
)
def test_an_option_of_the_wrong_kind_is_named(name: str, given: Any) -> None:
    options: dict[str, Any] = {"engine": ScriptedEngine(["x"]), name: given}
    with pytest.raises(ConfigError, match=f"{name} must be") as caught:
        RealtimeServer(**options)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1", "127.8.8.8"])
def test_loopback_needs_no_key(host: str) -> None:
    RealtimeServer(ScriptedEngine(["x"]), host=host)
    RealtimeServer(ScriptedEngine(["x"]), host="0.0.0.0", keys=[KEY])


async def test_a_taken_port_is_named() -> None:
    server = stand()
    async with server.running():
        with pytest.raises(PortUnavailable, match=str(server.port)):
            async with RealtimeServer(ScriptedEngine(["x"]), port=server.port).start():
                raise AssertionError("listening twice")


@pytest.mark.parametrize(
    ("proxies", "seen"),
    [((), "127.0.0.1"), (("127.0.0.0/8",), "203.0.113.9"), (("10.0.0.1",), "127.0.0.1")],
)
async def test_a_proxy_that_is_named_tells_the_clients_address(
    proxies: tuple[str, ...], seen: str
) -> None:
    stand = Stand(ScriptedEngine([]), voice=None, proxies=proxies)
    forwarded: dict[str, Any] = {"additional_headers": {"X-Forwarded-For": "203.0.113.9"}}
    async with stand.running(), stand.client(**forwarded):
        (connection,) = stand.server.sessions.connections
        assert connection.socket.address == seen
