"""The items of a response's output: the events that begin and end each, and those of function calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from specstream.types import Chunk
from specstream.ws.realtime import events as ev
from specstream.ws.realtime.conversation import Conversation
from specstream.ws.realtime.entries import Entry
from specstream.ws.realtime.outbox import Outbox
from specstream.ws.realtime.resources import Extra
from specstream.ws.realtime.wire import new_id

__all__ = ["OutputItems"]

_INCOMPLETE = ("cut_off", "no_name")  # problems with which a call's item ends as incomplete


class OutputItems:
    """The items of one response in order, which are also items of ``conversation`` if there is one.

    Attributes:
        entries: The items that have begun; an item's index is the wire's ``output_index``.
    """

    def __init__(self, response_id: str, conversation: Conversation | None, outbox: Outbox) -> None:
        self.entries: list[Entry] = []
        self._places: list[int] = []  # index of each function call
        self._response_id = response_id
        self._conversation = conversation
        self._outbox = outbox

    async def put(
        self,
        event: Callable[..., ev.ServerEvent],
        index: int,
        extra: Extra | None = None,
        **fields: Any,
    ) -> None:
        """Send an event about the item at ``index``, which may not have begun yet.

        The event's number and time are entered in ``extra``.
        """
        ids = {"response_id": self._response_id, "output_index": index}
        await self._outbox.put(event(**ids, **fields, specstream=extra or Extra()))

    async def begin(self, entry: Entry) -> None:
        """Append an item and announce it.

        Raises:
            Refused: the conversation is full.
        """
        index = len(self.entries)
        self.entries.append(entry)
        added = "response.output_item.added"
        await self.put(ev.OutputItemEvent, index, type=added, item=entry.wire())
        if self._conversation is not None:
            previous = self._conversation.insert(entry)
            await self._put_entered("conversation.item.added", entry, previous)

    async def end(self, index: int, extra: Extra | None = None) -> None:
        """Send the item at ``index`` as it is now: it is final."""
        entry, done = self.entries[index], "response.output_item.done"
        await self.put(ev.OutputItemEvent, index, extra, type=done, item=entry.wire())
        conversation = self._conversation
        if conversation is not None and entry in conversation.entries:
            await self._put_entered("conversation.item.done", entry, conversation.before(entry))

    async def _put_entered(self, type: Any, entry: Entry, previous: str | None) -> None:
        item = entry.wire()
        await self._outbox.put(ev.ItemEvent(type=type, item=item, previous_item_id=previous))

    async def take_calls(self, chunk: Chunk) -> None:
        """Send the parts of calls that a chunk brings, as the model writes them.

        So they may overtake the audio of the text before them.
        """
        extra = Extra(tokens=chunk.tokens, round=chunk.round)
        for delta in chunk.tool_calls:
            if delta.index == len(self._places):
                self._places.append(len(self.entries))
                entry = Entry(new_id("item"), "assistant", "", "in_progress")
                entry.call_id, entry.name = delta.id, delta.name
                await self.begin(entry)
            place = self._places[delta.index]
            if delta.arguments:
                self.entries[place].text += delta.arguments
                await self._put_call(ev.ArgumentsDelta, place, extra, delta=delta.arguments)
            if delta.done:
                incomplete = delta.problem in _INCOMPLETE
                await self._end_call(place, incomplete, Extra(problem=delta.problem or None))

    async def close_calls(self) -> None:
        """End the call that the end of the response has cut off, if there is one."""
        for place in self._places:
            if self.entries[place].status == "in_progress":
                await self._end_call(place, True, Extra(problem="cut_off"))

    async def _end_call(self, place: int, incomplete: bool, extra: Extra) -> None:
        entry = self.entries[place]
        entry.status = "incomplete" if incomplete else "completed"
        done = {"arguments": entry.text, "name": entry.name}
        await self._put_call(ev.ArgumentsDone, place, extra, **done)
        await self.end(place, extra)

    async def _put_call(
        self, event: Callable[..., ev.ServerEvent], place: int, extra: Extra, **fields: Any
    ) -> None:
        entry = self.entries[place]
        ids = {"item_id": entry.id, "call_id": entry.call_id}
        await self.put(event, place, extra.model_copy(), **ids, **fields)
