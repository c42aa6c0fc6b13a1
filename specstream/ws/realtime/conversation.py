"""The conversation of one session: its items in order, and what of the spoken ones was heard."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from specstream.types import Message, Span, Speech
from specstream.ws.realtime.protocol import ItemInput, ItemReference
from specstream.ws.realtime.resources import Item, Part, Word
from specstream.ws.realtime.transcript import spoken_text
from specstream.ws.realtime.wire import SAMPLE_RATE, Refused, new_id

__all__ = ["Conversation", "Entry", "SpokenTrack"]

MAX_ITEMS = 1000
MAX_CHARS = 1 << 20
Doing = Literal["retrieve", "delete", "truncate"]
_MISSING: dict[Doing, tuple[str, str]] = {  # clients know what failed by these codes
    "retrieve": ("item_retrieve_invalid_item_id", "retrieving"),
    "delete": ("item_delete_invalid_item_id", "deleting"),
    "truncate": ("item_truncate_invalid_item_id", "truncating"),
}
_WORD = re.compile(r"\S+")


class SpokenTrack:
    """Which words of a reply were spoken when, on the 24 kHz clock, and how much audio was sent.

    ``tags`` are the directions in the text that are not spoken.
    """

    def __init__(self, tags: Sequence[Span] = ()) -> None:
        self.tags = tags
        self.sent = 0
        self._words: list[Word] = []
        self._phrase_from: int | None = None
        self._words_before = 0

    def add(self, words: Sequence[Word], speech: Speech, samples: Span, text: str) -> None:
        """Take the words of the next piece of speech, which covers ``samples``.

        A phrase whose voice gave no words has its words spread over its audio by their length.
        """
        if self._phrase_from is None:
            self._phrase_from, self._words_before = samples.start, len(self._words)
        self._words.extend(words)
        if speech.last:
            if len(self._words) == self._words_before:
                self._spread(text, speech.chars, Span(self._phrase_from, samples.end))
            self._phrase_from = None

    def _spread(self, text: str, chars: Span, samples: Span) -> None:
        for found in _WORD.finditer(text, chars.start, chars.end):
            word = Span(*found.span())
            if any(tag.start < word.end and tag.end > word.start for tag in self.tags):
                continue
            edges = (
                samples.start + samples.length * (edge - chars.start) // chars.length
                for edge in word
            )
            self._words.append(Word(text=found[0], samples=Span(*edges), chars=word))

    def cut(self, text: str, samples: int) -> int:
        """How much of ``text`` was heard once ``samples`` were played: a length in characters.

        The cut is right behind the last word that was heard to its end, with the punctuation that
        clings to it.
        """
        heard = [word.chars.end for word in self._words if word.samples.end <= samples]
        if not heard:
            return 0
        end = min(max(heard), len(text))
        rest = [word.chars.start for word in self._words if word.samples.end > samples]
        # What an earlier cut took away is still among the words.
        limit = min([start for start in rest if start >= end], default=len(text))
        limit = min(limit, len(text))
        while end < limit and not (text[end].isspace() or text[end] == "["):
            end += 1
        return end


@dataclass(slots=True)
class Entry:
    """One item. ``text`` is what the model reads; clients see a spoken item's transcript."""

    id: str
    role: Literal["system", "user", "assistant"]
    text: str
    status: Literal["completed", "incomplete", "in_progress"] = "completed"
    spoken: SpokenTrack | None = None

    def wire(self) -> Item:
        """The item as clients see it; it has no content while the model is still at it."""
        content: list[Part] = []
        if self.status != "in_progress" or self.text:
            if self.spoken is not None:
                content = [
                    Part(type="output_audio", transcript=spoken_text(self.text, self.spoken.tags))
                ]
            else:
                kind = "output_text" if self.role == "assistant" else "input_text"
                content = [Part.model_validate({"type": kind, "text": self.text})]
        return Item(id=self.id, status=self.status, role=self.role, content=content)

    def cut_to(self, samples: int) -> None:
        """Forget the text that nobody can have heard when only ``samples`` were played."""
        if self.spoken is not None:
            self.text = self.text[: self.spoken.cut(self.text, samples)]
            self.spoken.sent = min(self.spoken.sent, samples)


@dataclass(slots=True)
class Conversation:
    """Items in order, at most `MAX_ITEMS`; a client may fill them with `MAX_CHARS` of text."""

    id: str = field(default_factory=lambda: new_id("conv"))
    entries: list[Entry] = field(default_factory=list)

    def _index(self, item_id: str, doing: Doing | None = None, param: str = "item_id") -> int:
        for index, entry in enumerate(self.entries):
            if entry.id == item_id:
                return index
        if doing is None:
            raise Refused("item_not_found", f"There is no item with id '{item_id}'.", param=param)
        code, verb = _MISSING[doing]
        message = f"Error {verb} item: the item with id '{item_id}' does not exist."
        raise Refused(code, message, param=param)

    def get(self, item_id: str, doing: Doing | None = None, *, param: str = "item_id") -> Entry:
        """The item of that id; ``doing`` is what for.

        Raises:
            Refused: there is none.
        """
        return self.entries[self._index(item_id, doing, param)]

    def create(self, item: ItemInput, after: str | None) -> tuple[Entry, str | None]:
        """Add a client's message behind item ``after`` (None: last; ``"root"``: first).

        Returns the entry and the id of the item before it.

        Raises:
            Refused: the id is taken, ``after`` is unknown, or the conversation is full.
        """
        if item.id is not None and any(entry.id == item.id for entry in self.entries):
            message = f"Error adding item: an item with id '{item.id}' already exists."
            raise Refused("item_create_duplicate_item_id", message, param="item.id")
        if sum(len(entry.text) for entry in self.entries) + len(item.text) > MAX_CHARS:
            message = f"The conversation holds {MAX_CHARS} characters; delete some items first."
            raise Refused("conversation_full", message)
        at = len(self.entries)
        if after is not None:
            at = 0 if after == "root" else self._index(after, param="previous_item_id") + 1
        status = "incomplete" if item.status == "incomplete" else "completed"
        entry = Entry(item.id or new_id("item"), item.role, item.text)
        entry.status = "incomplete" if status == "incomplete" else "completed"
        return entry, self.insert(entry, at)

    def insert(self, entry: Entry, at: int | None = None) -> str | None:
        """Put an entry at a position (None: last); returns the id of the one before it."""
        if len(self.entries) >= MAX_ITEMS:
            message = f"The conversation holds {MAX_ITEMS} items; delete some first."
            raise Refused("conversation_full", message)
        at = len(self.entries) if at is None else at
        self.entries.insert(at, entry)
        return self.before(entry)

    def before(self, entry: Entry) -> str | None:
        """The id of the item before ``entry``; None when it is first or has been deleted."""
        previous = None
        for other in self.entries:
            if other is entry:
                return previous
            previous = other.id
        return None

    def delete(self, item_id: str) -> None:
        """Remove an item.

        Raises:
            Refused: there is none of that id.
        """
        del self.entries[self._index(item_id, "delete")]

    def truncate(self, item_id: str, content_index: int, audio_end_ms: int) -> None:
        """Cut a spoken item to the words that were heard by ``audio_end_ms``.

        Raises:
            Refused: no such item, one without audio, or one that is shorter than that.
        """
        entry = self.get(item_id, "truncate")
        if entry.spoken is None or content_index != 0:
            message = "Only model output audio messages can be truncated, at content_index 0."
            raise Refused("unsupported_content_type", message, param="item_id")
        samples = audio_end_ms * SAMPLE_RATE // 1000
        if samples > entry.spoken.sent:
            length = entry.spoken.sent * 1000 // SAMPLE_RATE
            message = f"Audio content of {length}ms is already shorter than {audio_end_ms}ms"
            raise Refused("invalid_value", message, param="audio_end_ms")
        entry.cut_to(samples)

    def messages(self, instructions: str) -> list[Message]:
        """What the model reads: the instructions, then every item that has text."""
        return _messages(instructions, self.entries)

    def messages_of(
        self, instructions: str, items: Sequence[ItemInput | ItemReference]
    ) -> list[Message]:
        """The same for the input of one response, which may refer to items of the conversation.

        Raises:
            Refused: a reference to an item that isn't there.
        """
        entries = [
            self.get(item.id, param="response.input")
            if isinstance(item, ItemReference)
            else Entry("", item.role, item.text)
            for item in items
        ]
        return _messages(instructions, entries)


def _messages(instructions: str, entries: Sequence[Entry]) -> list[Message]:
    messages: list[Message] = []
    if instructions:
        messages.append({"role": "system", "content": instructions})
    messages += [{"role": entry.role, "content": entry.text} for entry in entries if entry.text]
    return messages
