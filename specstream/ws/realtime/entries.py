"""The items of a conversation: as clients create and see them, and as the model reads them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from specstream.types import Message, ToolCall
from specstream.ws.realtime.item_inputs import AnyItemInput, FunctionCallInput, FunctionOutputInput
from specstream.ws.realtime.resources import (
    AnyItem,
    FunctionCallItem,
    FunctionOutputItem,
    Item,
    ItemStatus,
    Part,
)
from specstream.ws.realtime.spoken import SpokenTrack, spoken_text

__all__ = ["Entry", "entry_of", "history_of"]


@dataclass(slots=True)
class Entry:
    """One item. ``text`` is what the model reads; clients see a spoken item's transcript.

    With ``call_id`` the item is a function call (``text``: its arguments) or, without ``name``, the
    call's output. ``heard``: the item is a user's speech; its text, the transcript, may come later
    than the item.
    """

    id: str
    role: Literal["system", "user", "assistant"]
    text: str
    status: ItemStatus = "completed"
    spoken: SpokenTrack | None = None
    call_id: str | None = None
    name: str | None = None
    heard: bool = False

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
        return Item(id=self.id, status=self.status, role=self.role, content=content)

    def cut_to(self, samples: int) -> None:
        """Remove the text that was not heard if only ``samples`` were played."""
        if self.spoken is not None:
            self.text = self.text[: self.spoken.cut(self.text, samples)]
            self.spoken.sent = min(self.spoken.sent, samples)


def entry_of(item: AnyItemInput, id: str, status: ItemStatus = "completed") -> Entry:
    """Make an entry of a client's item."""
    match item:
        case FunctionCallInput(call_id=call_id, name=name, arguments=text):
            return Entry(id, "assistant", text, status, call_id=call_id, name=name)
        case FunctionOutputInput(call_id=call_id, output=text):
            return Entry(id, "user", text, status, call_id=call_id)
    text = "".join(part.text or "" for part in item.content)
    return Entry(id, item.role, text, status)


def history_of(entries: Sequence[Entry]) -> list[Message]:
    """Convert entries to prompt messages: those that have text, and calls with their outputs.

    Text and calls that follow one another become one message of the assistant. Calls that are not
    complete are left out, and so are outputs without such a call.
    """
    calls = {e.call_id: e.name for e in entries if e.name and e.status == "completed"}
    messages: list[Message] = []
    for entry in entries:
        last = messages[-1] if messages and messages[-1]["role"] == "assistant" else None
        name = calls.get(entry.call_id)
        if entry.call_id is None:
            if not entry.text:
                continue
            if last is not None and entry.role == "assistant" and not last["content"]:
                last["content"] = entry.text
            else:
                messages.append({"role": entry.role, "content": entry.text})
        elif name is not None and entry.name is None:
            result: Message = {"role": "tool", "content": entry.text}
            messages.append({**result, "tool_call_id": entry.call_id, "name": name})
        elif name is not None and entry.status == "completed":
            if last is None:
                last = {"role": "assistant", "content": ""}
                messages.append(last)
            made = ToolCall(entry.call_id, name, entry.text).message()
            last["tool_calls"] = [*last.get("tool_calls", ()), made]
    return messages
