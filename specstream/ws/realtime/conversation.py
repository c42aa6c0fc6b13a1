"""The items of one Realtime session, in order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from specstream.types import Message
from specstream.ws.realtime.entries import Entry, entry_of, history_of
from specstream.ws.realtime.item_inputs import AnyItemInput, ItemReference
from specstream.ws.realtime.resources import ItemStatus
from specstream.ws.realtime.wire import SAMPLE_RATE, Refused, new_id

__all__ = ["Conversation"]

MAX_ITEMS = 1000
MAX_CHARS = 1 << 20
Action = Literal["retrieve", "delete", "truncate"]
_MISSING: dict[Action, tuple[str, str]] = {  # clients match on these codes
    "retrieve": ("item_retrieve_invalid_item_id", "retrieving"),
    "delete": ("item_delete_invalid_item_id", "deleting"),
    "truncate": ("item_truncate_invalid_item_id", "truncating"),
}


@dataclass(slots=True)
class Conversation:
    """At most `MAX_ITEMS` items; a client may add up to `MAX_CHARS` characters of text."""

    id: str = field(default_factory=lambda: new_id("conv"))
    entries: list[Entry] = field(default_factory=list)

    def _find(self, item_id: str) -> int | None:
        return next((i for i, entry in enumerate(self.entries) if entry.id == item_id), None)

    def _index(self, item_id: str, param: str) -> int:
        if (index := self._find(item_id)) is None:
            raise Refused("item_not_found", f"There is no item with id '{item_id}'.", param=param)
        return index

    def get(self, item_id: str, action: Action = "retrieve") -> Entry:
        """Find the item that ``action`` is for.

        Raises:
            Refused: there is no item of that id.
        """
        if (index := self._find(item_id)) is None:
            code, verb = _MISSING[action]
            message = f"Error {verb} item: the item with id '{item_id}' does not exist."
            raise Refused(code, message, param="item_id")
        return self.entries[index]

    def create(self, item: AnyItemInput, after: str | None) -> tuple[Entry, str | None]:
        """Add a client's item behind item ``after`` (None: last; ``"root"``: first).

        Returns the entry and the id of the item before it.

        Raises:
            Refused: the id is taken, ``after`` is unknown, the conversation is full, or the item is the
                output of a call that isn't there.
        """
        if item.id is not None and self._find(item.id) is not None:
            message = f"Error adding item: an item with id '{item.id}' already exists."
            raise Refused("item_create_duplicate_item_id", message, param="item.id")
        status: ItemStatus = "incomplete" if item.status == "incomplete" else "completed"
        entry = entry_of(item, item.id or new_id("item"), status)
        self._check_call(entry)
        if sum(len(other.text) for other in self.entries) + len(entry.text) > MAX_CHARS:
            message = f"The conversation holds {MAX_CHARS} characters; delete some items first."
            raise Refused("conversation_full", message)
        at = len(self.entries)
        if after is not None:
            at = 0 if after == "root" else self._index(after, "previous_item_id") + 1
        return entry, self.insert(entry, at)

    def _check_call(self, entry: Entry) -> None:
        """Refuse an output whose call isn't in the conversation."""
        if entry.call_id is None or entry.name is not None:
            return
        if not any(e.call_id == entry.call_id and e.name is not None for e in self.entries):
            message = f"Tool call ID '{entry.call_id}' not found in conversation."
            raise Refused("invalid_tool_call_id", message, param="item.call_id")

    def insert(self, entry: Entry, at: int | None = None) -> str | None:
        """Put an entry at a position (None: last); returns the id of the one before it.

        Raises:
            Refused: the conversation is full.
        """
        if len(self.entries) >= MAX_ITEMS:
            message = f"The conversation holds {MAX_ITEMS} items; delete some first."
            raise Refused("conversation_full", message)
        self.entries.insert(len(self.entries) if at is None else at, entry)
        return self.before(entry)

    def before(self, entry: Entry) -> str | None:
        """Return the id of the item before ``entry``; None if it is first or has been deleted."""
        at = next((i for i, other in enumerate(self.entries) if other is entry), 0)
        return self.entries[at - 1].id if at > 0 else None

    def delete(self, item_id: str) -> None:
        """Remove an item.

        Raises:
            Refused: there is no item of that id.
        """
        self.entries.remove(self.get(item_id, "delete"))

    def truncate(self, item_id: str, content_index: int, audio_end_ms: int) -> None:
        """Cut a spoken item to the words that were heard by ``audio_end_ms``.

        Raises:
            Refused: see `check_truncation`.
        """
        entry = self.check_truncation(item_id, content_index, audio_end_ms)
        entry.cut_to(audio_end_ms * SAMPLE_RATE // 1000)

    def check_truncation(self, item_id: str, content_index: int, audio_end_ms: int) -> Entry:
        """Return the item that `truncate` would cut.

        Raises:
            Refused: no such item, an item without audio, or less of its audio was sent.
        """
        entry = self.get(item_id, "truncate")
        if entry.spoken is None or content_index != 0:
            message = "Only model output audio messages can be truncated, at content_index 0."
            raise Refused("unsupported_content_type", message, param="item_id")
        if audio_end_ms * SAMPLE_RATE // 1000 > entry.spoken.sent:
            length = entry.spoken.sent * 1000 // SAMPLE_RATE
            message = f"Audio content of {length}ms is already shorter than {audio_end_ms}ms"
            raise Refused("invalid_value", message, param="audio_end_ms")
        return entry

    def messages(
        self, instructions: str, items: Sequence[AnyItemInput | ItemReference] | None = None
    ) -> list[Message]:
        """Build the prompt: the instructions, then every item that has text, calls included.

        ``items`` replace those of the conversation, and may refer to them.

        Raises:
            Refused: a reference to an item that does not exist.
        """
        entries = self.entries
        if items is not None:
            entries = [
                self.entries[self._index(item.id, "response.input")]
                if isinstance(item, ItemReference)
                else entry_of(item, "")
                for item in items
            ]
        messages: list[Message] = []
        if instructions:
            messages.append({"role": "system", "content": instructions})
        return messages + history_of(entries)
