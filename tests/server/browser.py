"""A headless Chromium that is driven through its DevTools protocol."""

import asyncio
import itertools
import json
import os
import shutil
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from websockets.asyncio.client import ClientConnection, connect

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("chrome")
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")
_UNTIL = """new Promise((done) => {
  const look = () => { const value = (%s); value ? done(value) : setTimeout(look, 20); };
  look();
})"""


class Tab:
    """One page."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket
        self._ids = itertools.count(1)
        self.errors: list[str] = []

    async def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Send one command of the protocol; returns its result."""
        number = next(self._ids)
        await self._socket.send(json.dumps({"id": number, "method": method, "params": params}))
        while True:
            message = json.loads(await self._socket.recv())
            if message.get("method") == "Runtime.exceptionThrown":
                self.errors.append(json.dumps(message["params"]["exceptionDetails"]))
            if message.get("id") == number:
                assert "error" not in message, message
                result: dict[str, Any] = message["result"]
                return result

    async def js(self, expression: str) -> Any:
        """The value of an expression, awaited if it is a promise."""
        made = await self.call(
            "Runtime.evaluate",
            expression=expression,
            awaitPromise=True,
            returnByValue=True,
            userGesture=True,
        )
        assert "exceptionDetails" not in made, made
        return made["result"].get("value")

    async def until(self, condition: str) -> Any:
        """Wait in the page until ``condition`` is truthy; its value."""
        return await self.js(_UNTIL % condition)


@asynccontextmanager
async def tab(url: str, folder: Path, *, microphone: Path | None = None) -> AsyncGenerator[Tab, None]:
    """Open ``url`` in a fresh browser; ``microphone``: a WAV file that its microphone plays."""
    assert CHROMIUM is not None
    options = [
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--no-first-run",
        "--mute-audio",
        "--autoplay-policy=no-user-gesture-required",
        "--use-fake-ui-for-media-stream",
        "--use-fake-device-for-media-stream",
        "--remote-debugging-port=0",
        f"--user-data-dir={folder}",
    ]
    if microphone is not None:
        options.append(f"--use-file-for-fake-audio-capture={microphone}%noloop")
    process = await asyncio.create_subprocess_exec(
        CHROMIUM,
        *options,
        "about:blank",
        stderr=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.DEVNULL,
        env={**os.environ, "HOME": str(folder)},
    )
    assert process.stderr is not None
    try:
        while b"DevTools listening on" not in (line := await process.stderr.readline()):
            assert line, "Chromium ended before it listened"
        address = line.decode().split()[-1].strip()
        drain = asyncio.create_task(process.stderr.read())
        async with connect(address, max_size=None, proxy=None) as browser:
            target = (await Tab(browser).call("Target.createTarget", url="about:blank"))["targetId"]
            host = address.split("/devtools/")[0]
            async with connect(f"{host}/devtools/page/{target}", max_size=None, proxy=None) as page:
                made = Tab(page)
                await made.call("Runtime.enable")
                await made.call("Page.enable")
                await made.call("Page.navigate", url=url)
                await made.until("document.readyState === 'complete' && location.href !== 'about:blank'")
                yield made
        drain.cancel()
    finally:
        process.kill()
        await process.wait()
