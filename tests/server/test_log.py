"""Keys stay out of every log, whatever its level; TLS keeps them from the wire."""

import asyncio
import io
import json
import logging
import ssl
from collections.abc import Generator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus
from websockets.typing import Subprotocol

from specstream.client.client import RealtimeClient
from specstream.client.dial import hide_keys
from specstream.errors import ConfigError, ConnectionFailed
from specstream.remote.server import adapter_server
from specstream.remote.stage import RemoteStage
from specstream.server.keys import Key
from specstream.server.logs import log_json
from specstream.testing import ScriptedEngine
from tests.server.certificate import CERTIFICATE
from tests.server.doubles import Stand, wait_for
from tests.server.test_http import get
from tests.support.standins import ToneVoice

KEY = "s3cret-KEY.of_mine"
WAYS: list[tuple[str, dict[str, Any]]] = [
    ("", {"additional_headers": {"Authorization": f"Bearer {KEY}"}}),
    (f"?model=m&token={KEY}", {}),
    ("", {"subprotocols": [Subprotocol("realtime"), Subprotocol(f"openai-insecure-api-key.{KEY}")]}),
    ("", {"additional_headers": {"Cookie": f"session={KEY}"}}),
]


@pytest.fixture
def everything() -> Generator[io.StringIO, None, None]:
    """What every logger of the process writes at its lowest level."""
    text = io.StringIO()
    handler = logging.StreamHandler(text)
    names = [
        "specstream.server",
        "specstream.sockets",
        "specstream.realtime",
        "websockets",
        "websockets.client",
        "asyncio",
    ]
    loggers = [logging.getLogger(), *map(logging.getLogger, names)]
    before = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.DEBUG)
    logging.getLogger().addHandler(handler)
    yield text
    logging.getLogger().removeHandler(handler)
    for logger, level in zip(loggers, before, strict=True):
        logger.setLevel(level)


async def test_what_the_server_itself_has_to_say_is_printed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And nothing of a refused handshake, by programs that ask for no logs."""
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    stand = Stand(ScriptedEngine(["fine."]), keys=["another"])
    async with stand.running():
        with suppress(InvalidStatus):
            async with connect(f"{stand.url}?token={KEY}", proxy=None):
                pass
    logging.getLogger("specstream.server").warning("the journal can't be swept, %s", KEY)
    assert capsys.readouterr().err == f"the journal can't be swept, {KEY}\n"


@pytest.mark.parametrize(("query", "options"), WAYS, ids=["header", "query", "subprotocol", "cookie"])
@pytest.mark.parametrize("right", [True, False])
async def test_no_key_is_logged_by_the_server(
    right: bool, query: str, options: dict[str, Any], everything: io.StringIO
) -> None:
    stand = Stand(ScriptedEngine(["fine."]), keys=[KEY if right else "another"])
    silent = logging.getLogger("elsewhere")
    silent.disabled = True
    async with stand.running():
        with suppress(InvalidStatus):
            async with connect(stand.url + query, proxy=None, logger=silent, **options) as socket:
                await socket.recv()
    log = everything.getvalue()
    assert "WebSocket /v1/realtime" in log, "the request is logged"
    assert "ASGI" not in log, "a refusal is no error"
    assert KEY not in log


async def test_no_key_is_logged_with_an_error(everything: io.StringIO) -> None:
    stand = Stand(ScriptedEngine(["fine."]), keys=[KEY])
    async with stand.running():
        for request in (
            f"GET /v1/realtime?token={KEY} HTTP/9\r\n\r\n",
            f"GET /v1/realtime HTTP/1.1\r\nAuthorization : Bearer {KEY}\r\n\r\n",
            f"GET /v1/realtime HTTP/1.1\r\nAuthorization: Bearer {KEY}\x01\r\n\r\n",
            f"GET /v1/realtime HTTP/1.1\r\nSec-WebSocket-Protocol: openai-insecure-api-key.{KEY}\x01"
            "\r\n\r\n",
        ):
            reader, writer = await asyncio.open_connection("127.0.0.1", stand.port)
            writer.write(request.encode())
            await reader.read()
            writer.close()
            await writer.wait_closed()
    log = everything.getvalue()
    assert "Invalid HTTP request" in log
    assert KEY not in log


async def test_no_key_is_logged_by_clients(everything: io.StringIO) -> None:
    stand = Stand(ScriptedEngine(["fine."]), keys=[KEY])
    async with stand.running():
        async with RealtimeClient.connect(stand.url, api_key=KEY):
            pass
        with pytest.raises(ConnectionFailed) as caught:
            async with RealtimeClient.connect(f"{stand.url}?token=not-{KEY}"):
                pass
        assert KEY not in str(caught.value)
    with pytest.raises(ConnectionFailed) as caught:
        async with RealtimeClient.connect(f"{stand.url}?token={KEY}", ready_timeout=0):
            pass
    assert KEY not in str(caught.value)
    async with adapter_server("voice", ToneVoice, api_key=KEY) as port:
        for url, key in ((f"ws://127.0.0.1:{port}", KEY), (f"ws://127.0.0.1:{port}?token={KEY}", None)):
            async with RemoteStage(url, "voice", api_key=key) as stage:
                await stage.connect()
    log = everything.getvalue()
    assert log.count("HTTP/1.1 101") >= 3
    assert KEY not in log


def test_what_hides_a_key_leaves_the_rest() -> None:
    kept = "< GET /v1/realtime HTTP/1.1\n< Host: 127.0.0.1:8765\n> TEXT 'who?are you' [11 bytes]"
    assert hide_keys(kept) == kept
    assert hide_keys("< GET /?model=m&token=k HTTP/1.1") == "< GET /?… HTTP/1.1"
    assert hide_keys("WebSocket /v1/realtime?resume=k&seq=3") == "WebSocket /v1/realtime?resume=…&seq=3"
    assert hide_keys("< authorization: Bearer k\n< Host: h") == "< authorization: …\n< Host: h"


@pytest.fixture
def tls(tmp_path: Path) -> tuple[ssl.SSLContext, Path]:
    """A server's context, and the file to trust it by."""
    file = tmp_path / "certificate.pem"
    file.write_text(CERTIFICATE)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(file)
    return context, file


async def test_an_adapter_behind_tls(
    tls: tuple[ssl.SSLContext, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    serving, file = tls
    trusting = ssl.create_default_context(cafile=str(file))
    async with adapter_server("voice", ToneVoice, tls=serving, api_key=KEY) as port:
        url = f"wss://localhost:{port}"
        async with RemoteStage(url, "voice", api_key=KEY, tls=trusting) as stage:
            assert (await stage.connect()).kind == "voice"
        stranger = RemoteStage(url, "voice", api_key=KEY)
        with pytest.raises(ConnectionFailed, match="(?i)certificate"):
            await stranger.connect()
        monkeypatch.setenv("SSL_CERT_FILE", str(file))
        async with RemoteStage(url, "voice", api_key=KEY) as stage:
            assert (await stage.connect()).kind == "voice"
    with pytest.raises(ConfigError, match="wss"):
        RemoteStage(f"ws://localhost:{port}", "voice", tls=trusting)


async def test_a_client_over_tls(tls: tuple[ssl.SSLContext, Path]) -> None:
    serving, file = tls
    stand = Stand(ScriptedEngine(["fine."]), tls=serving)
    async with stand.running():
        url = f"wss://127.0.0.1:{stand.port}"
        context = ssl.create_default_context(cafile=str(file))
        async with RealtimeClient.connect(url, tls=context) as client:
            assert client.session["id"]


async def test_lines_of_json_carry_the_ids_of_session_and_request() -> None:
    text = io.StringIO()
    log = logging.getLogger("specstream")
    before = (log.level, log.propagate, list(log.handlers))
    log_json(text)
    stand = Stand(ScriptedEngine(["one."]), voice=None, keys=[Key("k", "web")])
    try:
        async with stand.running():
            async with stand.client("?token=k") as wire:
                id = wire.seen[0]["session"]["id"]
            headers = ("Authorization: Bearer k", "X-Request-Id: mine")
            _, head, _ = await get(stand.port, "/v1/models", "GET", *headers)
            assert "x-request-id: mine" in head.lower()
            await wait_for(lambda: text.getvalue().count("\n") == 3)
            logging.getLogger("specstream.server").error("broken", exc_info=ValueError("x"))
    finally:
        log.setLevel(before[0])
        log.propagate, log.handlers[:] = before[1], before[2]
    lines = [json.loads(line) for line in text.getvalue().splitlines()]
    opened, closed, request, broken = lines
    assert (opened["message"], opened["session"], opened["key"]) == ("session opened", id, "web")
    assert closed["session"] == id and closed["address"] == "127.0.0.1"
    assert (request["request"], request["key"]) == ("mine", "web")
    assert request["message"].startswith("GET /v1/models: 200 after")
    assert broken["level"] == "error" and "ValueError: x" in broken["traceback"]
