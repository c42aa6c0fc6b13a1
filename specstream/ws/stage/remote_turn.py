"""One turn of a stage that runs in another process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field

import anyio

from specstream.errors import ProtocolError, SpecstreamError
from specstream.pipeline.link import Inlet
from specstream.pipeline.stage import as_failure
from specstream.types import AvatarCue, Cancel, Flush, Phrase, Revoke, ScenePrompt, Speech
from specstream.ws.stage import frames as fr
from specstream.ws.stage.channel import Channel
from specstream.ws.stage.order import Order

__all__ = ["Output", "RemoteTurn"]

Input = Phrase | Speech
Output = Speech | AvatarCue | ScenePrompt | Flush | Revoke | Cancel


@dataclass(slots=True, eq=False)
class RemoteTurn:
    """One turn on one connection: a task sends the input, `outputs` yields the adapter's output.

    The frame that begins the turn is posted before.

    Attributes:
        name: The stage's name in errors.
        channel: The connection.
        items: The stage's input.
        cancel_timeout: Seconds that the adapter may take to end a cancelled turn.
        order: Checks the adapter's output.
        complete: Whether the next turn may use the connection.
    """

    name: str
    channel: Channel
    items: Inlet[Input]
    cancel_timeout: float
    order: Order
    complete: bool = False
    _cancel: Cancel | None = None
    _broken: SpecstreamError | None = None
    _feeder: asyncio.Task[None] = field(init=False)

    def __post_init__(self) -> None:
        self._feeder = asyncio.create_task(self._feed())

    async def outputs(self) -> AsyncGenerator[Output, None]:
        """Yield what the adapter makes, and the cancel at the end of a cancelled turn.

        Raises:
            ProtocolError: the adapter contradicts the turn, or breaks the protocol.
            SpecstreamError: the adapter's own error, or the connection was lost.
        """
        try:
            while True:
                received = await self.channel.receive()
                if isinstance(received, fr.ErrorFrame):
                    raise received.error()
                if isinstance(received, fr.CancelledFrame):
                    for cue in received.cues:
                        self.order.check_rest(cue)
                    self.complete = True
                    for cue in received.cues:
                        yield cue
                    break
                if self.items.cancelled:
                    continue  # sent before the adapter read the cancel
                if isinstance(received, fr.DoneFrame):
                    self.order.finish()
                    self.complete = True
                    return
                assert isinstance(received, Output)  # the rules let nothing else through
                self._check(received)
                yield received
        except SpecstreamError as error:
            if not self.items.cancelled:
                failure = self._broken or error
                raise failure from failure.__cause__
        await self.stop()
        async for unread in self.items:
            assert isinstance(unread, Cancel)
            self._cancel = unread
        assert self._cancel is not None
        yield self._cancel

    def _check(self, received: Output) -> None:
        if isinstance(received, Revoke):
            self.order.revoke(received)
        elif isinstance(received, Flush):
            self.order.flush()
        else:
            self.order.check(received, self.channel.rules.read)
        if isinstance(received, ScenePrompt):
            self._tell_source()

    def _tell_source(self) -> None:
        """Tell the link which text a prompt was made from: the feeding task may have read further."""
        read = self.channel.rules.read
        if read is None and self.items.drafted:
            raise ProtocolError(
                f"stage {self.name!r} gave a prompt without 'read', so nobody can tell whether it was "
                "made of drafted text: give that adapter no drafts"
            )
        self.items.made_of(read)

    async def stop(self) -> None:
        """End the feeding task. Idempotent."""
        self._feeder.cancel()
        with anyio.CancelScope(shield=True):
            await asyncio.wait({self._feeder})

    async def _feed(self) -> None:
        try:
            async for item in self.items:
                if isinstance(item, Cancel):
                    return await self._withdraw(item)
                await self.items.unless_cancelled(self.channel.room)
                if not self.items.cancelled:
                    self.order.send(item)
                    self.channel.post(item)
            self.order.send(fr.EndFrame())
            self.channel.post(fr.EndFrame())
            await self.items.unless_cancelled(anyio.sleep_forever)
            async for item in self.items:
                assert isinstance(item, Cancel)
                await self._withdraw(item)
        except Exception as error:
            self._broken = as_failure(f"stage {self.name!r}", error)
            self.channel.abort()

    async def _withdraw(self, cancel: Cancel) -> None:
        self._cancel = cancel
        self.channel.post(fr.CancelFrame(reason=cancel.reason[:1000]))
        await anyio.sleep(self.cancel_timeout)
        self.channel.abort()  # no answer: the turn ends without it
