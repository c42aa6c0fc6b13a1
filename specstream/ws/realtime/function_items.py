"""Items of function calls and their outputs: sent, read from a client, and as prompt messages."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, Protocol

from pydantic import Field, StringConstraints

from specstream.types import Message, ToolCall
from specstream.ws.realtime.wire import Refused, Sparse, Strict

__all__ = [
    "CallPart",
    "FunctionCallInput",
    "FunctionCallItem",
    "FunctionOutputInput",
    "FunctionOutputItem",
    "ItemId",
    "ItemStatus",
    "check_call_id",
    "history",
]

ItemStatus = Literal["completed", "incomplete", "in_progress"]
ItemId = Annotated[str, StringConstraints(pattern=r"^[a-zA-Z0-9_-]{1,64}$")]
_CallId = Annotated[str, Field(min_length=1, max_length=256)]


class FunctionCallItem(Sparse):
    """A call that the model made. ``incomplete``: it was cut off, or names no function."""

    id: str
    object: Literal["realtime.item"] = "realtime.item"
    type: Literal["function_call"] = "function_call"
    status: ItemStatus
    call_id: str
    name: str
    arguments: str


class FunctionOutputItem(Sparse):
    """The result of a call."""

    id: str
    object: Literal["realtime.item"] = "realtime.item"
    type: Literal["function_call_output"] = "function_call_output"
    status: ItemStatus
    call_id: str
    output: str


@dataclass(frozen=True, slots=True)
class CallPart:
    """Marks an entry of the conversation as a call, or (without a name) as the output of a call."""

    call_id: str
    name: str | None = None

    def wire(
        self, item_id: str, status: ItemStatus, text: str
    ) -> FunctionCallItem | FunctionOutputItem:
        """Build the item for clients; ``text`` is the call's arguments or its output."""
        if self.name is None:
            return FunctionOutputItem(id=item_id, status=status, call_id=self.call_id, output=text)
        return FunctionCallItem(
            id=item_id, status=status, call_id=self.call_id, name=self.name, arguments=text
        )


class _ItemInput(Strict):
    id: ItemId | None = None
    object: Literal["realtime.item"] | None = None
    status: ItemStatus | None = None
    call_id: _CallId


class FunctionCallInput(_ItemInput):
    """A call that a client creates, for example one from an earlier session."""

    type: Literal["function_call"]
    name: Annotated[str, Field(min_length=1)]
    arguments: str

    @property
    def role(self) -> Literal["assistant"]:
        """The role of the item's entry."""
        return "assistant"

    @property
    def text(self) -> str:
        """The arguments."""
        return self.arguments

    @property
    def call(self) -> CallPart:
        """The call's id and name."""
        return CallPart(self.call_id, self.name)


class FunctionOutputInput(_ItemInput):
    """The result of a call, from the client that ran the function."""

    type: Literal["function_call_output"]
    output: str

    @property
    def role(self) -> Literal["user"]:
        """The role of the item's entry."""
        return "user"

    @property
    def text(self) -> str:
        """The output."""
        return self.output

    @property
    def call(self) -> CallPart:
        """The id of the call that the output belongs to."""
        return CallPart(self.call_id)


class _Entry(Protocol):
    """The part of a conversation's entry that is used here."""

    role: Literal["system", "user", "assistant"]
    text: str
    status: ItemStatus
    call: CallPart | None


def check_call_id(part: CallPart | None, entries: Iterable[_Entry]) -> None:
    """Refuse an output whose call isn't in the conversation.

    Raises:
        Refused: no call among ``entries`` has its id.
    """
    if part is None or part.name is not None:
        return
    calls = (entry.call for entry in entries if entry.call is not None)
    if not any(call.call_id == part.call_id and call.name is not None for call in calls):
        message = f"Tool call ID '{part.call_id}' not found in conversation."
        raise Refused("invalid_tool_call_id", message, param="item.call_id")


def history(entries: Sequence[_Entry]) -> list[Message]:
    """Convert entries to prompt messages: those that have text, and calls with their outputs.

    Text and calls that follow one another become one message of the assistant. Calls that are not
    complete are left out, and so are outputs without such a call.
    """
    calls = {
        entry.call.call_id: entry.call.name
        for entry in entries
        if entry.call is not None and entry.call.name and entry.status == "completed"
    }
    messages: list[Message] = []
    for entry in entries:
        last = messages[-1] if messages and messages[-1]["role"] == "assistant" else None
        if entry.call is None:
            if (
                entry.text
                and last is not None
                and entry.role == "assistant"
                and not last["content"]
            ):
                last["content"] = entry.text
            elif entry.text:
                messages.append({"role": entry.role, "content": entry.text})
            continue
        call_id, name = entry.call.call_id, calls.get(entry.call.call_id)
        if name is None:
            continue
        if entry.call.name is None:
            result: Message = {"role": "tool", "content": entry.text}
            messages.append({**result, "tool_call_id": call_id, "name": name})
        elif entry.status == "completed":
            if last is None:
                last = {"role": "assistant", "content": ""}
                messages.append(last)
            made = ToolCall(call_id, name, entry.text).message()
            last["tool_calls"] = [*last.get("tool_calls", ()), made]
    return messages
