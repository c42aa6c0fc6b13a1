"""The applications inside somebody else's, on a server that isn't ours."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from specstream.client.client import RealtimeClient
from specstream.errors import ConnectionFailed
from specstream.remote.server import AdapterServer
from specstream.remote.stage import RemoteStage
from specstream.server.server import RealtimeServer
from specstream.testing import ScriptedEngine
from tests.server.doubles import end_of, read, text_of, wait_for
from tests.server.remotes import spoken
from tests.server.test_http import get
from tests.support.standins import Script, ToneVoice, feed, phrases_of

fastapi = pytest.importorskip("fastapi")
uvicorn = pytest.importorskip("uvicorn")

PHRASES = phrases_of("Hello there. This is another sentence.")


@asynccontextmanager
async def hosted(app: Any) -> AsyncGenerator[int, None]:
    """Run an application as uvicorn does by itself; gives the port."""
    running = uvicorn.Server(uvicorn.Config(app, port=0, log_config=None, ws="websockets-sansio"))
    async with anyio.create_task_group() as group:
        group.start_soon(running.serve)
        while not running.started:
            await anyio.lowlevel.checkpoint()
        yield running.servers[0].sockets[0].getsockname()[1]
        running.should_exit = True


async def test_a_fastapi_application_has_it_below_a_path() -> None:
    server = RealtimeServer(ScriptedEngine(["fine."]))

    @asynccontextmanager
    async def lifespan(_: object) -> AsyncGenerator[None, None]:
        async with server.open():
            yield

    host = fastapi.FastAPI(lifespan=lifespan)
    host.mount("/voice", server.app)

    host.get("/own")(lambda: {"own": 1})

    async with hosted(host) as port:
        assert (await get(port, "/own"))[0] == 200
        assert (await get(port, "/voice/ready"))[0] == 200
        assert (await get(port, "/voice/v1/nothing"))[0] == 404
        code, _, body = await get(port, "/voice/v1/models")
        assert (code, '"object":"model"' in body) == (200, True)
        url = f"ws://127.0.0.1:{port}/voice/v1/realtime"
        async with RealtimeClient.connect(url) as client:
            events = await read(client.respond("Hi", audio=False))
            assert text_of(events) == "fine." and end_of(events).status == "completed"


@pytest.mark.parametrize("path", ["", "/tone"])
async def test_an_adapter_is_served_by_itself_or_below_a_path(path: str) -> None:
    """uvicorn opens the application that is its own; who mounts it need not: adapters come later."""
    script = Script()
    server = AdapterServer("voice", lambda: ToneVoice(script), api_key="s3cret")
    app: Any = server.app
    if path:
        app = fastapi.FastAPI()
        app.mount(path, server.app)
    async with hosted(app) as port:
        assert (await get(port, f"{path}/"))[0] == 426
        url = f"ws://127.0.0.1:{port}{path}/"
        with pytest.raises(ConnectionFailed, match="401"):
            await RemoteStage(url, "voice").connect()
        async with RemoteStage(url, "voice", api_key="s3cret") as stage:
            for _ in range(2):
                assert await feed(stage, PHRASES) == await spoken(PHRASES)
        await wait_for(lambda: script.closed == 1)
