from __future__ import annotations

import socket

import pytest

from specstream.commands.main import main
from specstream.errors import PortUnavailable
from specstream.server.asgi import Front, check_address, listen_app, location
from specstream.server.server import RealtimeServer
from specstream.testing import ScriptedEngine
from tests.server.doubles import Stand


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
