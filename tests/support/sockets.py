"""A WebSocket server of a test, with a handler that says what the test wants said."""

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from websockets.asyncio.server import ServerConnection, serve


@asynccontextmanager
async def listen(
    handler: Callable[[ServerConnection], Awaitable[None]], **options: Any
) -> AsyncGenerator[int, None]:
    """Serve on a free port of this machine while the block runs; gives the port."""
    usual: dict[str, Any] = {"compression": None, "close_timeout": 2.0}
    async with serve(handler, "127.0.0.1", 0, **{**usual, **options}) as server:
        yield next(iter(server.sockets)).getsockname()[1]
