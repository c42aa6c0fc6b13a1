"""The items of one Realtime session, in order, and how far each was heard."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from typing import Any, Generic, Literal, TypeVar

from specstream.playback.played import PlayedTrack
from specstream.realtime.items import (
    AnyItemInput,
    FunctionCallInput,
    FunctionOutputInput,
    ItemReference,
)
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
from specstream.types import Message, Phrase, Span, ToolCall

__all__ = [
    "ConversationItems",
    "ItemEntry",
    "SpokenText",
    "SpokenTrack",
    "entry_of",
    "history_of",
    "spoken_text",
]

O = TypeVar("O")  # noqa: E741 - the origin of a piece of text


class _TagRemover:
    """Removes tags, and the white space after a tag if there was white space before the tag."""

    def __init__(self) -> None:
        self._gap = True  # the last kept character is white space, or nothing was kept yet
        self._after_tag = False

    def remove(self, text: str, start: int, tags: Sequence[Span]) -> str:
        """Strip ``tags`` (they may overlap its edges) from ``text`` at offset ``start`` of the reply."""
        kept, at, end = "", start, start + len(text)
        for tag in tags:
            if tag.start < end and tag.end > start:
                kept += self._keep(text[at - start : max(at, tag.start) - start])
                self._after_tag, at = self._gap, max(at, min(tag.end, end))
        return kept + self._keep(text[at - start :])

    def _keep(self, text: str) -> str:
        if self._after_tag:
            text = text.lstrip()
        if text:
            self._after_tag, self._gap = False, text[-1].isspace()
        return text


class SpokenText(Generic[O]):
    """Releases a growing text as soon as it is certain that it contains no tag.

    Text passes straight through up to a bracket; from there it waits for its phrase, which says
    whether the bracket was a tag, and always comes before the phrase's audio. Each piece keeps its
    origin, and the result does not depend on how the text was cut.
    """

    def __init__(self) -> None:
        self.tags: list[Span] = []
        self._pieces: deque[tuple[int, str, O]] = deque()
        self._end = 0
        self._known = 0  # the tags before this offset are known
        self._remover = _TagRemover()

    def go_on(self, text: str, tags: Sequence[Span]) -> str:
        """Begin behind this text, which has these tags and was released; returns it without them."""
        self._end = self._known = len(text)
        self.tags += tags
        return self._remover.remove(text, 0, tags)

    def add(self, text: str, origin: O) -> list[tuple[str, Span, O]]:
        """Append text; returns the released pieces: text, its place in the reply, its origin."""
        self._pieces.append((self._end, text, origin))
        self._end += len(text)
        return self._release()

    def peek(self, text: str) -> str:
        """Return what `add` would release of ``text``, without adding it; empty while text waits."""
        if self._pieces:
            return ""
        ready, _, _ = text.partition("[")
        return copy(self._remover).remove(ready, self._end, self.tags)

    def learn(self, phrase: Phrase) -> list[tuple[str, Span, O]]:
        """Take note of the tags up to the end of ``phrase``; returns the released pieces."""
        return self.know([tag.chars for tag in phrase.tags], phrase.chars.end)

    def know(self, tags: Sequence[Span], end: int) -> list[tuple[str, Span, O]]:
        """Take note of further tags: there are no others before ``end``."""
        self.tags += tags
        self._known = max(self._known, end)
        return self._release()

    def close(self) -> list[tuple[str, Span, O]]:
        """Release the rest: there will be no more text and no more phrases."""
        self._known = self._end
        return self._release()

    def _release(self) -> list[tuple[str, Span, O]]:
        out: list[tuple[str, Span, O]] = []
        while self._pieces:
            start, text, origin = self._pieces[0]
            stop = text.find("[", max(0, self._known - start))
            ready = text if stop < 0 else text[:stop]
            kept = self._remover.remove(ready, start, self.tags)
            if kept:
                out.append((kept, Span(start, start + len(ready)), origin))
            if stop >= 0:
                self._pieces[0] = (start + stop, text[stop:], origin)
                break
            self._pieces.popleft()
        return out


def spoken_text(text: str, tags: Sequence[Span]) -> str:
    """Return ``text`` without its tags, as `SpokenText` releases it."""
    return _TagRemover().remove(text, 0, tags)


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
        return Item(
            id=self.id, status=self.status, role=self.role, content=content, phase=self.phase
        )

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

    def _check_call(self, entry: ItemEntry) -> None:
        """Refuse an output whose call isn't in the conversation."""
        if entry.call_id is None or entry.name is not None:
            return
        if not any(e.call_id == entry.call_id and e.name is not None for e in self.entries):
            message = f"Tool call ID '{entry.call_id}' not found in conversation."
            raise Refused("invalid_tool_call_id", message, param="item.call_id")

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
