"""A client that comes before its server is ready."""

import asyncio
import contextlib
import errno
import json
import socket
import ssl
from typing import Any

import pytest
from websockets.asyncio.client import connect
from websockets.asyncio.server import ServerConnection

from specstream.client import dial
from specstream.client.client import RealtimeClient
from specstream.errors import ConfigError, ConnectionFailed
from specstream.remote.stage import RemoteStage
from specstream.testing import ScriptedEngine
from tests.server.doubles import Stand, end_of, read
from tests.support.sockets import listen

REFUSED = ConnectionRefusedError(errno.ECONNREFUSED, "Connect call failed ('127.0.0.1', 1)")
BOTH = OSError(f"Multiple exceptions: [Errno {errno.ECONNREFUSED}] x ('::1', 1), [Errno 99] y")


@pytest.fixture
def free_port() -> int:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        port = int(holder.getsockname()[1])
    return port


def failing(monkeypatch: pytest.MonkeyPatch, error: Exception) -> list[float]:
    """Dial while every attempt fails; returns when the attempts were made."""
    at: list[float] = []

    async def attempt(*args: Any, **options: Any) -> None:
        at.append(asyncio.get_running_loop().time())
        raise error

    monkeypatch.setattr(dial, "connect", attempt)
    return at


@pytest.mark.virtual_time
@pytest.mark.parametrize("error", [REFUSED, BOTH], ids=["one address", "two"])
async def test_a_refused_connection_is_tried_again_for_so_long_and_no_longer(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    at = failing(monkeypatch, error)
    with pytest.raises(ConnectionFailed, match="for 7 s.*specstream serve") as caught:
        async with RealtimeClient.connect("ws://localhost:1", ready_timeout=7):
            raise AssertionError("connected")
    assert 6 < at[-1] - at[0] <= 7
    assert 7 <= len(at) < 20
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("error", "patience"),
    [(socket.gaierror(-2, "Name or service not known"), 20), (REFUSED, 0), (TimeoutError(), 20)],
)
async def test_what_waiting_does_not_mend_fails_at_once(
    error: Exception, patience: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    at = failing(monkeypatch, error)
    with pytest.raises(ConnectionFailed, match="no Realtime server answers at ws://nowhere:1"):
        async with RealtimeClient.connect("ws://nowhere:1", ready_timeout=patience):
            raise AssertionError("connected")
    assert len(at) == 1


async def test_a_server_that_comes_up_meanwhile_is_found(
    free_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand = Stand(ScriptedEngine(["five."]), port=free_port)
    attempts = 0
    async with contextlib.AsyncExitStack() as stack:

        async def counted(*args: Any, **options: Any) -> Any:
            nonlocal attempts
            attempts += 1
            if attempts == 3:
                await stack.enter_async_context(stand.running())
            return await connect(*args, **options)

        monkeypatch.setattr(dial, "connect", counted)
        monkeypatch.setattr(dial, "PAUSES_S", (0.0,))
        async with RealtimeClient.connect(f"ws://127.0.0.1:{free_port}") as client:
            events = await read(client.respond("Hi", audio=False))
    assert attempts == 3
    assert end_of(events).status == "completed"


async def test_a_server_that_asks_to_come_back_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dial, "PAUSES_S", (0.0,))
    visits = 0

    async def busy_at_first(visitor: ServerConnection) -> None:
        nonlocal visits
        visits += 1
        if visits < 3:
            await visitor.close(1013, "not ready yet; try again")
            return
        for kind in ("session.created", "session.updated"):
            await visitor.send(json.dumps({"type": kind, "session": {}}))
        await visitor.wait_closed()

    async with listen(busy_at_first) as port, RealtimeClient.connect(f"ws://127.0.0.1:{port}"):
        pass
    assert visits == 3


async def test_a_peer_that_says_nothing_is_not_waited_for() -> None:
    async def silent(visitor: ServerConnection) -> None:
        await visitor.wait_closed()

    async with listen(silent) as port:
        with pytest.raises(ConnectionFailed, match="says nothing"):
            async with RealtimeClient.connect(f"ws://127.0.0.1:{port}", open_timeout=0.05):
                raise AssertionError("greeted")


@pytest.mark.parametrize(
    "url", ["ws://[::1", "ws://h:abc", "ws://h:99999", "http://h", f"ws://{'a' * 64}.example:1"]
)
async def test_an_address_that_is_none_is_told_by_a_typed_error(url: str) -> None:
    with pytest.raises(ConfigError, match="isn't an address such as ws://host:port"):
        async with RealtimeClient.connect(url, ready_timeout=0):
            raise AssertionError("connected")


async def test_something_else_than_a_text_is_no_address() -> None:
    with pytest.raises(ConfigError, match="None isn't an address such as ws://host:port"):
        async with RealtimeClient.connect(None):  # type: ignore[arg-type]
            raise AssertionError("connected")


async def test_an_error_without_a_text_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    failing(monkeypatch, ConnectionResetError())
    with pytest.raises(ConnectionFailed, match="ws://nowhere:1: ConnectionResetError"):
        async with RealtimeClient.connect("ws://nowhere:1"):
            raise AssertionError("connected")


async def test_white_space_around_a_key_is_not_sent() -> None:
    stand = Stand(ScriptedEngine(["five."]), keys=["secret"])
    async with stand.running(), RealtimeClient.connect(stand.url, api_key=" secret\n"):
        pass


@pytest.mark.parametrize("key", ["secret\nline", "secret\0", "secret€", b"secret"])
async def test_a_key_that_cannot_be_sent_is_refused_and_not_quoted(key: Any) -> None:
    for connecting in (
        lambda: RealtimeClient.connect("ws://localhost:1", api_key=key),
        lambda: RemoteStage("ws://localhost:1", "voice", api_key=key),
    ):
        with pytest.raises(ConfigError, match="api_key") as caught:
            async with connecting():
                raise AssertionError("connected")
        assert "secret" not in str(caught.value)


@pytest.mark.parametrize("name", ["http_proxy", "https_proxy", "socks_proxy"])
@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
async def test_a_server_on_this_machine_is_not_reached_through_a_proxy(
    name: str, host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for bypass in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(bypass, raising=False)
    monkeypatch.setenv(name, f"{name.split('_')[0].replace('socks', 'socks5')}://127.0.0.1:1")
    stand = Stand(ScriptedEngine(["five."]))
    async with stand.running():
        async with RealtimeClient.connect(f"ws://{host}:{stand.port}", ready_timeout=0):
            pass


async def test_a_proxy_that_needs_another_package_is_a_typed_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    at = failing(monkeypatch, ImportError("connecting through a SOCKS proxy requires python-socks"))
    with pytest.raises(ConnectionFailed, match=r"requires python-socks, or set \$NO_PROXY"):
        async with RealtimeClient.connect("ws://nowhere:1"):
            raise AssertionError("connected")
    assert len(at) == 1


async def test_tls_without_wss_is_refused() -> None:
    with pytest.raises(ConfigError, match="tls is for wss://"):
        async with RealtimeClient.connect("ws://localhost:1", tls=ssl.create_default_context()):
            raise AssertionError("connected")
