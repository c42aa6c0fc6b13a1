import asyncio
import json
import re
import socket
import ssl
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from specstream.commands.main import main
from specstream.errors import PortUnavailable
from specstream.server import asgi
from specstream.server.asgi import Front, check_address, listen_app, location
from specstream.server.server import RealtimeServer
from specstream.testing import ScriptedEngine
from tests.server.certificate import CERTIFICATE
from tests.server.doubles import Gate, Stand, wait_for


async def test_an_address_that_was_looked_at_is_free_again() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
    await check_address("127.0.0.1", port, False)
    async with listen_app(Front(), "127.0.0.1", port) as bound:
        assert bound == port


@pytest.mark.parametrize("command", [["serve"], ["adapter", "prompt", "--name", "model"]])
def test_a_taken_port_is_told_before_any_model_is_loaded(
    command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """The target is no model either; that would be told if it were loaded first."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        assert main([*command, "--port", str(port), "--target", "/nowhere"]) != 0
    assert f"can't listen on 127.0.0.1:{port}" in capsys.readouterr().err


def test_a_missing_key_is_told_before_anything_is_opened_or_loaded(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["serve", "--host", "0.0.0.0", "--port", "0", "--target", "/nowhere"]) != 0
    assert "set an api key" in capsys.readouterr().err


@pytest.mark.parametrize("host", ["a..b", "x" * 64 + ".example"])
async def test_a_name_that_is_none_is_told_as_an_address_that_cannot_be_had(host: str) -> None:
    with pytest.raises(PortUnavailable, match="choose another port"):
        await check_address(host, 0, True)


@pytest.mark.parametrize(
    ("host", "shown"),
    [("127.0.0.1", "127.0.0.1:80"), ("a.example", "a.example:80"), ("::1", "[::1]:80")],
)
def test_an_address_is_shown_as_a_url_has_it(host: str, shown: str) -> None:
    assert location(host, 80) == shown


HEALTH = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
CHAT = b'{"messages": [{"role": "user", "content": "Hi"}]}'
ASKED = (
    b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
    b"Content-Length: %d\r\n\r\n%s" % (len(CHAT), CHAT)
)


@pytest.mark.parametrize(
    ("sent", "statuses"),
    [
        (b"", []),
        (HEALTH[:-2], [b"408"]),
        (HEALTH + HEALTH[:-2], [b"200", b"408"]),
        (b"POST /health HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\n{", [b"421"]),
    ],
)
async def test_a_head_that_does_not_come_is_given_up_but_no_reply_is(
    sent: bytes, statuses: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor is the rest of a body waited for that was refused."""
    monkeypatch.setattr(asgi, "HEAD_S", 0.05)
    gate = Gate()
    server = Stand(ScriptedEngine(["fine."], gate=gate))
    async with server.running():
        slow, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(ASKED)
        reader, other = await asyncio.open_connection("127.0.0.1", server.port)
        other.write(sent)
        answer = await reader.readline()
        other.write(b"x")  # more of what was begun
        answer += await reader.read()
        assert re.findall(rb"HTTP/1.1 (\d+)", answer) == statuses
        gate.open()
        assert b"200 OK" in await slow.read()
        for one in (writer, other):
            one.close()


async def test_of_too_many_connections_without_a_request_the_oldest_are_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(asgi, "MOST_WAITING", 2)
    gate = Gate()
    server = Stand(ScriptedEngine(["fine."], gate=gate))
    async with server.running(), AsyncExitStack() as stack:

        async def opened(sent: bytes) -> asyncio.StreamReader:
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            stack.callback(writer.close)
            writer.write(sent)
            return reader

        slow = await opened(ASKED)
        await wait_for(lambda: bool(server.engine.generations))
        quiet = await opened(b"")
        kept = await opened(HEALTH)
        assert b"200" in await kept.readuntil(b"}")
        assert b"200" in await (await opened(HEALTH)).readuntil(b"}")
        assert await quiet.read() == b"", "it has waited longest"
        assert b"200" in await (await opened(HEALTH)).readuntil(b"}")
        assert await kept.read() == b""
        gate.open()
        assert b"200 OK" in await slow.read(), "one with a request isn't closed"


async def test_an_unreadable_handshake_holds_up_no_stop(tmp_path: Path) -> None:
    """Over TLS, whose end the client doesn't answer."""
    file = tmp_path / "own.pem"
    file.write_text(CERTIFICATE)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(file)
    trusting = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    trusting.check_hostname, trusting.verify_mode = False, ssl.CERT_NONE
    lines = ["GET / HTTP/1.1", "Host: x", "Connection: Upgrade", "Upgrade: websocket"]
    head = "\r\n".join([*lines, *(f"A{n}: x" for n in range(200)), "", ""])

    def send(port: int) -> ssl.SSLSocket:
        made = trusting.wrap_socket(socket.create_connection(("127.0.0.1", port)))
        made.sendall(head.encode())
        assert b"400" in made.recv(4096)
        return made

    async with listen_app(Front(), "127.0.0.1", 0, tls=tls) as port:
        left = await asyncio.to_thread(send, port)
    left.close()


@pytest.mark.parametrize("path", ["/v1/models", "/health", "/v1/realtime"])
@pytest.mark.parametrize("name", ["Cookie", "User-Agent"])
async def test_a_header_that_cannot_be_read_is_refused(path: str, name: str) -> None:
    server = Stand(ScriptedEngine(["fine."]))
    upgrade = "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
    key = "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
    rest = upgrade + key if path == "/v1/realtime" else "Connection: close\r\n"
    async with server.running():
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        head = f"GET {path} HTTP/1.1\r\nHost: localhost\r\n{name}: a\x01b\x7f\r\n{rest}\r\n"
        writer.write(head.encode("latin-1"))
        answer = (await reader.read()).decode()
        writer.close()
    assert answer.startswith("HTTP/1.1 400")
    if path == "/v1/models":
        assert json.loads(answer.partition("\r\n\r\n")[2])["error"]["code"] == "invalid_header"


@pytest.mark.skipif(not hasattr(socket, "SO_REUSEPORT"), reason="this platform has no such option")
async def test_two_servers_may_share_a_port_if_both_say_so() -> None:
    """So the next version can start before the last one has ended."""
    old = Stand(ScriptedEngine([]), reuse_port=True)
    async with old.running():
        again = RealtimeServer(ScriptedEngine([]), port=old.port)
        with pytest.raises(PortUnavailable):
            async with again.start():
                pass
        again = RealtimeServer(ScriptedEngine([]), port=old.port, reuse_port=True)
        async with again.start() as port:
            assert port == old.port
