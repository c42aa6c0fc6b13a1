"""The events of a response's function calls, each an item of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from specstream.types import Chunk, ToolCallDelta
from specstream.ws.realtime import events as ev
from specstream.ws.realtime.conversation import Conversation, Entry
from specstream.ws.realtime.function_items import CallPart
from specstream.ws.realtime.outbox import Outbox
from specstream.ws.realtime.resources import Extra
from specstream.ws.realtime.wire import new_id

__all__ = ["CallWriter"]

_INCOMPLETE = ("cut_off", "no_name")  # problems with which a call's item ends as incomplete


class CallWriter:
    """Turns the calls of one response into events and items; numbers all items of the response.

    Calls are sent as the model writes them, so they may overtake the audio of the text before them.

    Attributes:
        entries: The items of the calls so far, by their index in the response's output.
    """

    def __init__(self, response_id: str, conversation: Conversation | None, outbox: Outbox) -> None:
        self.entries: dict[int, Entry] = {}
        self._response_id = response_id
        self._conversation = conversation
        self._outbox = outbox
        self._indices = 0
        self._places: list[int] = []  # index in the response's output of each call

    def next_index(self) -> int:
        """Return the index in the response's output for an item that begins now."""
        self._indices += 1
        return self._indices - 1

    async def take(self, chunk: Chunk) -> None:
        """Send the parts of calls that a chunk brings."""
        extra = Extra(tokens=chunk.tokens, round=chunk.round)
        for delta in chunk.tool_calls:
            if delta.index == len(self._places):
                await self._open(delta)
            place = self._places[delta.index]
            entry = self.entries[place]
            if delta.arguments:
                entry.text += delta.arguments
                await self._put_part(ev.ArgumentsDelta, place, extra, delta=delta.arguments)
            if delta.done:
                incomplete = delta.problem in _INCOMPLETE
                await self._end(place, incomplete, Extra(problem=delta.problem or None))

    async def close(self) -> None:
        """End the call that the end of the response has cut off, if there is one."""
        for place, entry in self.entries.items():
            if entry.status == "in_progress":
                await self._end(place, True, Extra(problem="cut_off"))

    async def _open(self, delta: ToolCallDelta) -> None:
        place = self.next_index()
        self._places.append(place)
        part = CallPart(delta.id, delta.name)
        entry = Entry(new_id("item"), "assistant", "", "in_progress", call=part)
        self.entries[place] = entry
        await self._put_item("response.output_item.added", place)
        if self._conversation is not None:
            previous = self._conversation.insert(entry)
            await self._put_entered("conversation.item.added", entry, previous)

    async def _end(self, place: int, incomplete: bool, extra: Extra) -> None:
        entry = self.entries[place]
        entry.status = "incomplete" if incomplete else "completed"
        assert entry.call is not None
        done = {"arguments": entry.text, "name": entry.call.name}
        await self._put_part(ev.ArgumentsDone, place, extra, **done)
        await self._put_item("response.output_item.done", place, extra)
        conversation = self._conversation
        if conversation is not None and entry in conversation.entries:
            await self._put_entered("conversation.item.done", entry, conversation.before(entry))

    async def _put_part(
        self, event: Callable[..., ev.ServerEvent], place: int, extra: Extra, **fields: Any
    ) -> None:
        entry = self.entries[place]
        assert entry.call is not None
        await self._outbox.put(
            event(
                response_id=self._response_id,
                output_index=place,
                item_id=entry.id,
                call_id=entry.call.call_id,
                specstream=extra.model_copy(),
                **fields,
            )
        )

    async def _put_item(self, type: Any, place: int, extra: Extra | None = None) -> None:
        event = ev.OutputItemEvent(
            type=type,
            response_id=self._response_id,
            output_index=place,
            item=self.entries[place].wire(),
            specstream=extra.model_copy() if extra is not None else Extra(),
        )
        await self._outbox.put(event)

    async def _put_entered(self, type: Any, entry: Entry, previous: str | None) -> None:
        item = entry.wire()
        await self._outbox.put(ev.ItemEvent(type=type, item=item, previous_item_id=previous))
