"""The items of one Realtime session, in order, and how far each was heard."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from specstream.playback.played import PlayedTrack
from specstream.realtime.items import AnyItemInput, FunctionCallInput, FunctionOutputInput, ItemReference
from specstream.realtime.resources import (
    AnyItem,
    FunctionCallItem,
    FunctionOutputItem,
    Item,
    ItemStatus,
    Part,
    Phase,
)
from specstream.realtime.wire import SAMPLE_RATE, Refused, new_id
from specstream.text.tags import spoken_text
from specstream.types import Message, ToolCall

__all__ = ["ConversationItems", "ItemEntry", "SpokenTrack", "entry_of", "history_of"]


class SpokenTrack(PlayedTrack):
    """When each word of a reply is spoken, in samples at 24 kHz; ``sent`` samples were sent so far."""

    sent = 0


@dataclass(slots=True)
class ItemEntry:
    """One item. ``text`` is what the model reads; clients see a spoken item's transcript.

    With ``call_id`` the item is a function call (``text``: its arguments) or, without ``name``, the
    call's output. ``heard``: the item is a user's speech; its text, the transcript, may come later
    than the item. ``resumes``: the id of the user's speech before, of which this is the rest; the model
    reads both as one question, and nothing that was said between them. ``unheard``: a reply's text that
    was cut off before a listener can have heard enough of it to answer.
    """

    id: str
    role: Literal["system", "user", "assistant"]
    text: str
    status: ItemStatus = "completed"
    spoken: SpokenTrack | None = None
    call_id: str | None = None
    name: str | None = None
    heard: bool = False
    phase: Phase | None = None
    resumes: str | None = None
    unheard: bool = False

    def wire(self) -> AnyItem:
        """Build the item for clients; without content while it is in progress and empty."""
        if self.call_id is not None:
            call: dict[str, Any] = {"id": self.id, "status": self.status, "call_id": self.call_id}
            if self.name is None:
                return FunctionOutputItem(**call, output=self.text)
            return FunctionCallItem(**call, name=self.name, arguments=self.text)
        if self.status == "in_progress" and not self.text:
            part = None
        elif self.spoken is not None:
            part = Part(type="output_audio", transcript=spoken_text(self.text, self.spoken.tags))
        elif self.heard:
            part = Part(type="input_audio", transcript=self.text or None)
        elif self.role == "assistant":
            part = Part(type="output_text", text=self.text)
        else:
            part = Part(type="input_text", text=self.text)
        content = [] if part is None else [part]
        return Item(id=self.id, status=self.status, role=self.role, content=content, phase=self.phase)

    def cut_to(self, samples: int) -> None:
        """Remove the text that was not heard if only ``samples`` were played."""
        if self.spoken is not None:
            self.text = self.text[: self.spoken.cut(self.text, samples)]
            self.spoken.sent = min(self.spoken.sent, samples)


def entry_of(item: AnyItemInput, id: str, status: ItemStatus = "completed") -> ItemEntry:
    """Make an entry of a client's item."""
    match item:
        case FunctionCallInput(call_id=call_id, name=name, arguments=text):
            return ItemEntry(id, "assistant", text, status, call_id=call_id, name=name)
        case FunctionOutputInput(call_id=call_id, output=text):
            return ItemEntry(id, "user", text, status, call_id=call_id)
    text = "".join(part.text or "" for part in item.content)
    return ItemEntry(id, item.role, text, status)


def history_of(entries: Sequence[ItemEntry]) -> list[Message]:
    """Convert entries to prompt messages: those that have text, and calls with their outputs.

    Speech is joined to that which it resumes; text and calls that follow one another are one message.
    Calls that are not complete are left out, and so are outputs without such a call.
    """
    entries = _joined(entries)
    calls = dict[str, str]()  # names of the complete calls so far, by their ids
    messages: list[Message] = []
    for entry in entries:
        last = messages[-1] if messages and messages[-1]["role"] == "assistant" else None
        if entry.call_id is None:
            if not entry.text:
                continue
            if last is not None and entry.role == "assistant" and not last["content"]:
                last["content"] = entry.text
            else:
                messages.append({"role": entry.role, "content": entry.text})
        elif entry.name is None and entry.call_id in calls:
            result: Message = {"role": "tool", "content": entry.text}
            name = calls[entry.call_id]
            messages.append({**result, "tool_call_id": entry.call_id, "name": name})
        elif entry.name and entry.status == "completed":
            calls[entry.call_id] = entry.name
            if last is None:
                last = {"role": "assistant", "content": ""}
                messages.append(last)
            made = ToolCall(entry.call_id, entry.name, entry.text).message()
            last["tool_calls"] = [*last.get("tool_calls", ()), made]
    return messages


def _joined(entries: Sequence[ItemEntry]) -> list[ItemEntry]:
    out: list[ItemEntry] = []
    for entry in entries:
        at = None
        if entry.resumes is not None:
            at = next((i for i, e in enumerate(out) if e.id == entry.resumes), None)
        if at is not None and all(e.unheard for e in out[at + 1 :]):
            entry = replace(entry, text=f"{out[at].text} {entry.text}")
            del out[at:]
        out.append(entry)
    return out


def _check_call(
    entry: ItemEntry,
    before: Sequence[ItemEntry],
    after: Sequence[ItemEntry] = (),
    param: str = "item.call_id",
) -> None:
    """Refuse an output without an open call before it, and a call whose id an open one has.

    Some models count their calls from 0 in every reply, so an id may come again once it has its output.
    """
    if entry.call_id is None:
        return
    told = f"Tool call ID '{entry.call_id}'"
    earlier = sum(other.call_id == entry.call_id and other.name is not None for other in before)
    unanswered = 0
    for other in (*before, *after):
        if other.call_id == entry.call_id:  # an output whose call was deleted answers none
            unanswered = unanswered + 1 if other.name is not None else max(0, unanswered - 1)
    if entry.name is not None and unanswered:
        message = f"{told} is that of a call without an output."
    elif entry.name is None and not earlier:
        message = f"{told} not found in conversation."
    elif entry.name is None and not unanswered:
        message = f"{told} has its output already; delete that first."
    else:
        return
    raise Refused("invalid_tool_call_id", message, param=param)


MAX_ITEMS = 1000
MAX_CHARS = 1 << 20
Action = Literal["retrieve", "delete", "truncate"]
_MISSING: dict[Action, tuple[str, str]] = {  # clients match on these codes
    "retrieve": ("item_retrieve_invalid_item_id", "retrieving"),
    "delete": ("item_delete_invalid_item_id", "deleting"),
    "truncate": ("item_truncate_invalid_item_id", "truncating"),
}


@dataclass(slots=True)
class ConversationItems:
    """At most `MAX_ITEMS` items; a client may add up to `MAX_CHARS` characters of text."""

    id: str = field(default_factory=lambda: new_id("conv"))
    entries: list[ItemEntry] = field(default_factory=list)

    def _find(self, item_id: str) -> int | None:
        return next((i for i, entry in enumerate(self.entries) if entry.id == item_id), None)

    def _index(self, item_id: str, param: str) -> int:
        if (index := self._find(item_id)) is None:
            raise Refused("item_not_found", f"There is no item with id '{item_id}'.", param=param)
        return index

    def get(self, item_id: str, action: Action = "retrieve") -> ItemEntry:
        """Find the item that ``action`` is for.

        Raises:
            Refused: there is no item of that id.
        """
        if (index := self._find(item_id)) is None:
            code, verb = _MISSING[action]
            message = f"Error {verb} item: the item with id '{item_id}' does not exist."
            raise Refused(code, message, param="item_id")
        return self.entries[index]

    def create(self, item: AnyItemInput, after: str | None) -> tuple[ItemEntry, str | None]:
        """Add a client's item behind item ``after`` (None: last; ``"root"``: first).

        Returns the entry and the id of the item before it.

        Raises:
            Refused: the id is taken, ``after`` is unknown, the conversation is full, or the item is the
                output of a call that isn't there or has one.
        """
        if item.id is not None and self._find(item.id) is not None:
            message = f"Error adding item: an item with id '{item.id}' already exists."
            raise Refused("item_create_duplicate_item_id", message, param="item.id")
        status: ItemStatus = "incomplete" if item.status == "incomplete" else "completed"
        entry = entry_of(item, item.id or new_id("item"), status)
        at = len(self.entries)
        if after is not None:
            at = 0 if after == "root" else self._index(after, "previous_item_id") + 1
        _check_call(entry, self.entries[:at], self.entries[at:])
        if sum(len(other.text) for other in self.entries) + len(entry.text) > MAX_CHARS:
            message = f"The conversation holds {MAX_CHARS} characters; delete some items first."
            raise Refused("conversation_full", message)
        return entry, self.insert(entry, at)

    def insert(self, entry: ItemEntry, at: int | None = None) -> str | None:
        """Put an entry at a position (None: last); returns the id of the one before it.

        Raises:
            Refused: the conversation is full.
        """
        if len(self.entries) >= MAX_ITEMS:
            message = f"The conversation holds {MAX_ITEMS} items; delete some first."
            raise Refused("conversation_full", message)
        self.entries.insert(len(self.entries) if at is None else at, entry)
        return self.before(entry)

    def before(self, entry: ItemEntry) -> str | None:
        """Return the id of the item before ``entry``; None if it is first or has been deleted."""
        at = next((i for i, other in enumerate(self.entries) if other is entry), 0)
        return self.entries[at - 1].id if at > 0 else None

    def join(self, entry: ItemEntry) -> None:
        """Note that a user's speech goes on with their speech before, if no reply between was heard."""
        at = self._find(entry.id) or 0  # 0, too, if the client has deleted it meanwhile
        for other in reversed(self.entries[:at]):
            if not other.unheard:
                if other.heard and other.text:
                    entry.resumes = other.id
                return

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

    def check_truncation(self, item_id: str, content_index: int, audio_end_ms: int) -> ItemEntry:
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
            Refused: a reference to an item that does not exist, or an output without a call before it.
        """
        entries = self.entries if items is None else self._named(items)
        messages: list[Message] = []
        if instructions:
            messages.append({"role": "system", "content": instructions})
        return messages + history_of(entries)

    def _named(self, items: Sequence[AnyItemInput | ItemReference]) -> list[ItemEntry]:
        """The items of one response, which may refer to those of the conversation."""
        entries: list[ItemEntry] = []
        for number, item in enumerate(items):
            if isinstance(item, ItemReference):
                entry = self.entries[self._index(item.id, "response.input")]
            else:
                entry = entry_of(item, "")
            _check_call(entry, entries, param=f"response.input[{number}].call_id")
            entries.append(entry)
        return entries
