"""One client of an adapter's server: its turns, one after another, through one stage."""

from __future__ import annotations

from collections import deque
from contextlib import aclosing
from typing import Any

import anyio
from anyio.abc import TaskGroup

from specstream.errors import AdapterUnavailable, ConnectionFailed, SpecstreamError
from specstream.pipeline.link import Link
from specstream.pipeline.stage import Stage, as_failure
from specstream.types import AvatarCue, Cancel, ScenePrompt
from specstream.ws.stage import frames as fr
from specstream.ws.stage.channel import Channel
from specstream.ws.stage.codec import Violation

__all__ = ["AdapterConnection"]

_MAX_REST = 64  # most cues that return a face to rest


class AdapterConnection:
    """Runs the stage for each turn that the client starts, until the client leaves or `drain`."""

    def __init__(self, channel: Channel, stage: Stage[Any, Any], window: int) -> None:
        self._channel = channel
        self._stage = stage
        self._window = window
        self._inbox = _Inbox(window, channel)
        self._rest: deque[AvatarCue] = deque(maxlen=_MAX_REST)  # made after the input
        self._over = True  # whether the turn's output is complete
        self._failure: SpecstreamError | None = None
        self._scope = anyio.CancelScope()
        self._idle = anyio.Event()
        self._idle.set()

    async def drain(self, seconds: float) -> None:
        """End the connection after the running turn, or with an error if the turn takes longer."""
        with anyio.move_on_after(seconds):
            await self._idle.wait()
        if not self._over and self._failure is None:
            self._failure = AdapterUnavailable("the adapter's server is stopping; ask it again")
        self._scope.cancel()

    async def run(self) -> None:
        """Serve until the client goes away.

        Raises:
            Violation: the client broke the protocol.
            SpecstreamError: the stage broke.
        """
        with self._scope:
            async with anyio.create_task_group() as group:
                try:
                    await self._read(group)
                except ConnectionFailed:
                    pass  # how connections normally end
                except Violation as error:
                    self._failure = error
                self._scope.cancel()
        if self._failure is not None:
            raise self._failure

    async def _read(self, group: TaskGroup) -> None:
        while True:  # never waits for the stage, so that a cancel is read at once
            received = await self._channel.receive()
            if isinstance(received, fr.StartFrame):
                self._inbox, self._over = _Inbox(self._window, self._channel), False
                self._idle = anyio.Event()
                self._rest.clear()
                group.start_soon(self._turn, self._inbox)
            elif isinstance(received, fr.EndFrame):
                self._inbox.close()
            elif isinstance(received, fr.CancelFrame):
                self._channel.drop()
                self._inbox.cancel(Cancel(received.reason))
                if self._over:  # "done" and "cancel" crossed
                    self._channel.post(fr.CancelledFrame(cues=tuple(self._rest)))
            else:
                await self._inbox.send(received)  # has room: the window is its capacity

    async def _turn(self, inbox: _Inbox) -> None:
        try:
            async with aclosing(self._stage.run(inbox)) as outputs:
                item: Any
                async for item in outputs:
                    if inbox.finished and isinstance(item, AvatarCue):
                        self._rest.append(item)
                    await inbox.unless_cancelled(self._channel.room)
                    if not inbox.cancelled:
                        if isinstance(item, ScenePrompt):
                            item = fr.PromptFrame(prompt=item, read=inbox.reach)
                        self._channel.post(item)
            self._over = True
            end: fr.Frame = fr.DoneFrame()
            if inbox.cancelled:
                end = fr.CancelledFrame(cues=tuple(self._rest))
            self._channel.post(end)
        except Exception as error:
            self._failure = as_failure(f"stage {self._stage.name!r}", error)
            self._scope.cancel()
        finally:
            self._idle.set()  # also after the stage broke or the client left


class _Inbox(Link[Any]):
    """Acknowledges each item that the stage takes, so that the client may send another."""

    def __init__(self, window: int, channel: Channel) -> None:
        super().__init__(window, drafted=True)
        self._channel = channel

    async def __anext__(self) -> Any:
        item = await super().__anext__()
        if not isinstance(item, Cancel):
            self._channel.took()
        return item
