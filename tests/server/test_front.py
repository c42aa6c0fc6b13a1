"""The port answers while models load, and then serves."""

import json

import anyio

from specstream.client.client import RealtimeClient
from specstream.server.asgi import Front, listen_app
from specstream.server.server import RealtimeServer
from specstream.testing import ScriptedEngine
from tests.server.doubles import end_of, read
from tests.server.test_http import get


async def test_the_port_answers_before_there_is_an_application() -> None:
    front, server = Front(), RealtimeServer(ScriptedEngine(["fine."]))
    async with listen_app(front, "127.0.0.1", 0) as port:
        for path, status in (("/health", 200), ("/ready", 503), ("/v1/models", 503), ("/", 503)):
            code, head, body = await get(port, path)
            assert (code, json.loads(body)["status"]) == (status, "loading")
            assert ("retry-after" in head.lower()) == (status == 503)
        tried = anyio.Event()

        async def connect() -> None:
            async with RealtimeClient.connect(f"ws://127.0.0.1:{port}") as client:
                events = await read(client.respond("Hi", audio=False))
                assert end_of(events).status == "completed"
            tried.set()

        async with server.open(), anyio.create_task_group() as group:
            group.start_soon(connect)
            await anyio.wait_all_tasks_blocked()
            assert not tried.is_set()
            front.app = server.app
            await tried.wait()
            assert (await get(port, "/ready"))[0] == 200
