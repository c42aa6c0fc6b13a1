from __future__ import annotations

import socket

import pytest
from websockets.asyncio.client import connect
from websockets.asyncio.server import ServerConnection

from specstream.cli import main
from specstream.ws.listen import check_address, listen


async def _greet(client: ServerConnection) -> None:
    await client.send("hello")


async def test_an_address_that_was_looked_at_is_free_again() -> None:
    async with listen(_greet) as port:
        pass
    await check_address("127.0.0.1", port)
    async with listen(_greet, port=port), connect(f"ws://127.0.0.1:{port}") as client:
        assert await client.recv() == "hello"


@pytest.mark.parametrize("command", [["serve"], ["adapter", "prompt", "--name", "model"]])
def test_a_taken_port_is_told_before_any_model_is_loaded(
    command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """The target is no model either; that would be told if it were loaded first."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        assert main([*command, "--port", str(port), "--target", "/nowhere"]) != 0
    assert f"can't listen on 127.0.0.1:{port}" in capsys.readouterr().err
