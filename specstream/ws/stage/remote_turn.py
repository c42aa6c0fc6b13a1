"""One turn of a stage that runs in another process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import anyio

from specstream.errors import ProtocolError, SpecstreamError
from specstream.pipeline.link import Inlet
from specstream.pipeline.stage import as_failure
from specstream.types import AvatarCue, Cancel, Flush, Phrase, Revoke, ScenePrompt, Speech
from specstream.ws.stage import frames as fr
from specstream.ws.stage.channel import Channel
from specstream.ws.stage.frames import StartFrame
from specstream.ws.stage.given import Order

__all__ = ["Output", "RemoteTurn"]

Input = Phrase | Speech
Output = Speech | AvatarCue | ScenePrompt | Flush | Revoke | Cancel


class RemoteTurn:
    """One turn on one connection: a task sends the input, `outputs` yields the adapter's output.

    Args:
        name: The stage's name in errors.
        channel: The connection.
        items: The stage's input.
        start: The frame that begins the turn.
        cancel_timeout: Seconds that the adapter may take to end a cancelled turn.
        order: Checks the adapter's output.

    Attributes:
        complete: Whether the next turn may use the connection.
    """

    def __init__(
        self,
        name: str,
        channel: Channel,
        items: Inlet[Input],
        start: StartFrame,
        cancel_timeout: float,
        order: Order,
    ) -> None:
        self.complete = False
        self._order = order
        self._name = name
        self._channel = channel
        self._items = items
        self._cancel_timeout = cancel_timeout
        self._cancel: Cancel | None = None
        self._broken: SpecstreamError | None = None
        channel.post(start)
        self._feeder = asyncio.create_task(self._feed())

    async def outputs(self) -> AsyncGenerator[Output, None]:
        """Yield what the adapter makes, and the cancel at the end of a cancelled turn.

        Raises:
            ProtocolError: the adapter contradicts the turn, or breaks the protocol.
            SpecstreamError: the adapter's own error, or the connection was lost.
        """
        try:
            while True:
                received = await self._channel.receive()
                if isinstance(received, fr.ErrorFrame):
                    raise received.error()
                if isinstance(received, fr.CancelledFrame):
                    for cue in received.cues:
                        self._order.check_rest(cue)
                    self.complete = True
                    for cue in received.cues:
                        yield cue
                    break
                if self._items.cancelled:
                    continue  # sent before the adapter read the cancel
                if isinstance(received, fr.DoneFrame):
                    self._order.finish()
                    self.complete = True
                    return
                assert isinstance(received, Output)  # the rules let nothing else through
                self._check(received)
                yield received
        except SpecstreamError as error:
            if not self._items.cancelled:
                failure = self._broken or error
                raise failure from failure.__cause__
        await self.stop()
        async for unread in self._items:
            assert isinstance(unread, Cancel)
            self._cancel = unread
        assert self._cancel is not None
        yield self._cancel

    def _check(self, received: Output) -> None:
        if isinstance(received, Revoke):
            self._order.revoke(received)
        elif isinstance(received, Flush):
            self._order.flush()
        else:
            self._order.check(received, self._channel.rules.read)
        if isinstance(received, ScenePrompt):
            self._tell_source()

    def _tell_source(self) -> None:
        """Tell the link which text a prompt was made from: the feeding task may have read further."""
        read = self._channel.rules.read
        if read is None and self._items.drafted:
            raise ProtocolError(
                f"stage {self._name!r} gave a prompt without 'read', so nobody can tell whether it was "
                "made of drafted text: give that adapter no drafts"
            )
        self._items.made_of(read)

    async def stop(self) -> None:
        """End the feeding task. Idempotent."""
        self._feeder.cancel()
        with anyio.CancelScope(shield=True):
            await asyncio.wait({self._feeder})

    async def _feed(self) -> None:
        try:
            async for item in self._items:
                if isinstance(item, Cancel):
                    return await self._withdraw(item)
                await self._items.unless_cancelled(self._channel.room)
                if not self._items.cancelled:
                    self._order.send(item)
                    self._channel.post(item)
            self._order.send(fr.EndFrame())
            self._channel.post(fr.EndFrame())
            await self._items.unless_cancelled(anyio.sleep_forever)
            async for item in self._items:
                assert isinstance(item, Cancel)
                await self._withdraw(item)
        except Exception as error:
            self._broken = as_failure(f"stage {self._name!r}", error)
            self._channel.abort()

    async def _withdraw(self, cancel: Cancel) -> None:
        self._cancel = cancel
        self._channel.post(fr.CancelFrame(reason=cancel.reason[:1000]))
        await anyio.sleep(self._cancel_timeout)
        self._channel.abort()  # no answer: the turn ends without it
