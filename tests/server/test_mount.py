"""The application inside somebody else's, on a server that isn't ours."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import anyio
import anyio.lowlevel
import pytest

from specstream.client.client import RealtimeClient
from specstream.server.server import RealtimeServer
from specstream.testing import ScriptedEngine
from tests.server.doubles import end_of, read, text_of
from tests.server.test_http import get

fastapi = pytest.importorskip("fastapi")
uvicorn = pytest.importorskip("uvicorn")


async def test_a_fastapi_application_has_it_below_a_path() -> None:
    server = RealtimeServer(ScriptedEngine(["fine."]))

    @asynccontextmanager
    async def lifespan(_: object) -> AsyncGenerator[None, None]:
        async with server.open():
            yield

    host = fastapi.FastAPI(lifespan=lifespan)
    host.mount("/voice", server.app)

    host.get("/own")(lambda: {"own": 1})

    config = uvicorn.Config(host, port=0, log_config=None, ws="websockets-sansio")
    running = uvicorn.Server(config)
    async with anyio.create_task_group() as group:
        group.start_soon(running.serve)
        while not running.started:
            await anyio.lowlevel.checkpoint()
        port = running.servers[0].sockets[0].getsockname()[1]
        assert (await get(port, "/own"))[0] == 200
        assert (await get(port, "/voice/ready"))[0] == 200
        assert (await get(port, "/voice/v1/nothing"))[0] == 404
        code, _, body = await get(port, "/voice/v1/models")
        assert (code, '"object":"model"' in body) == (200, True)
        url = f"ws://127.0.0.1:{port}/voice/v1/realtime"
        async with RealtimeClient.connect(url) as client:
            events = await read(client.respond("Hi", audio=False))
            assert text_of(events) == "fine." and end_of(events).status == "completed"
        running.should_exit = True
