"""What is written down of a session while it runs, for another process to go on with it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import anyio

from specstream.realtime import events as ev
from specstream.realtime.resources import ResponseEnd
from specstream.realtime.settings import ResponseSettings
from specstream.server.journal.base import Change, Drop, Forget, Frame, Put, SessionLog
from specstream.server.sessions.entries import ItemEntry
from specstream.server.sessions.request import ResponseRequest
from specstream.server.sessions.session import RealtimeSession

__all__ = ["PLAIN", "SessionRecord", "key"]

_CLOSING = (ev.TextDone, ev.AudioDone, ev.TranscriptDone, ev.ArgumentsDone)
_TEXT = ("response.output_text.delta", "response.output_audio_transcript.delta")


class SessionRecord:
    """Writes down a session: its unacknowledged frames, and what it needs to go on with them.

    Each event is written together with what it changed, so whatever is written last, the frames, the
    conversation and the number of the client's frames that were applied belong together.

    Args:
        log: Where to write.
    """

    def __init__(self, log: SessionLog) -> None:
        self._log = log
        self._pending: list[Change] = []
        self._committing = anyio.Lock()
        self._session: RealtimeSession | None = None
        self._items: dict[str, ItemEntry] = {}  # of responses under way
        self._said: dict[str, tuple[int, int, int]] = {}  # of each: characters, tags, words
        self._unheard: dict[str, ItemEntry] = {}  # the user's turns without a transcript
        self._deferred: ResponseSettings | None = None
        self._begun = 0  # responses
        self._by_hand = 0  # turns without a detector whose audio isn't committed
        self._owing = False  # the words that are noted next are to be answered

    def begin(self, session: RealtimeSession, began: float) -> None:
        """Note which session it is; ``began``: on the system's clock."""
        self._session = session
        about = {"id": session.id, "conversation": session.conversation.id, "began": began}
        self._put("session", about)

    def saw(self, event: ev.ServerEvent, frame: str) -> None:
        """Note a numbered event on its way to the client, and what it says has changed."""
        self._pending.append(Frame(event.specstream.seq, frame))
        self._note_heard()
        session = self._session
        assert session is not None
        match event:
            case ev.SessionEvent():
                self._put("settings", session.settings.model_dump(mode="json"))
            case ev.ItemEvent(item=item):
                self._put_item(item.id)
            case ev.ItemDeleted(item_id=item_id):
                self._pending.append(Drop(key("item", item_id)))
                self._put_order()
            case ev.ItemTruncated(item_id=item_id):
                self._put_item(item_id)
            case ev.InputSpeechStarted(item_id=item_id):
                self._put(key("turn", item_id), "speaking")
            case ev.InputCleared():
                self._by_hand = 0
                self._pending.append(Drop("turn:"))
                for item_id in self._unheard:
                    self._put(key("turn", item_id), "waiting")
            case ev.InputCommitted(item_id=item_id):
                self._by_hand = max(0, self._by_hand - 1)
                if not self._by_hand:
                    self._pending.append(Drop(_BY_HAND))
                self._unheard[item_id] = session.conversation.get(item_id)
                self._put(key("turn", item_id), "waiting")
            case ev.TranscriptionCompleted(item_id=item_id) | ev.TranscriptionFailed(item_id=item_id):
                self._unheard.pop(item_id, None)
                self._pending.append(Drop(key("turn", item_id)))
                self._put_item(item_id)
                self._note_owed()
            case ev.ResponseEvent(type="response.done", response=response):
                self.over(response.id)
                for item in response.output:
                    self._items.pop(item.id, None)
                    self._said.pop(item.id, None)
            case ev.ResponseEvent(response=response):
                self._say(response.id, event, {"created": True})
            case ev.OutputItemEvent(type="response.output_item.added"):
                call = getattr(event.item, "name", None)
                begun = {"item": event.item.id, "index": event.output_index, "name": call}
                begun["call_id"] = getattr(event.item, "call_id", None)
                self._say(event.response_id, event, begun)
            case ev.TextDeltaEvent(type=type) if type in _TEXT:
                self._say(event.response_id, event, self._text(event))
            case ev.TextDeltaEvent():
                self._say(event.response_id, event, {"reasoned": True})
            case ev.AudioDeltaEvent():
                self._say(event.response_id, event, self._audio(event))
            case ev.AvatarDeltaEvent(cue=cue) if cue.kind == "emotion":
                said = {"item": event.item_id, "emotion": [cue.name, cue.samples]}
                self._say(event.response_id, event, said)
            case ev.ArgumentsDelta():
                self._say(event.response_id, event, {"item": event.item_id, "text": event.delta})
            case ev.OutputItemEvent() | ev.ContentPartEvent(type="response.content_part.done"):
                self._closed(event)
            case _ if isinstance(event, _CLOSING):
                self._closed(event)

    def output(self, entry: ItemEntry) -> None:
        """Note an item that a response announces, or has announced, and goes on writing."""
        track = entry.spoken
        self._items[entry.id] = entry
        known = (0, 0) if track is None else (len(track.tags), len(track.words))
        self._said[entry.id] = (len(entry.text), *known)

    def item(self, item_id: str) -> None:
        """Note a complete item of which something changed that no event tells."""
        self._put_item(item_id)

    def answers(
        self, id: str, asked: ResponseSettings, request: ResponseRequest, *, again: bool
    ) -> None:
        """Note a response that begins, with what is needed to write it again.

        ``again``: an earlier process had begun it, and what is owed was heard since.
        """
        assert self._session is not None
        self._note_heard()
        told = {
            "asked": asked.model_dump(mode="json", exclude_unset=True),
            "settings": self._session.settings.model_dump(mode="json"),
            "messages": request.messages,
            "seed": request.params.seed,
            "number": self._begun,
        }
        self._begun += 1
        self.settled(asked)
        if request.conversation is not None and not again:
            self.owes(False)
        self._put(f"response:{id}", told)

    def over(self, id: str) -> None:
        """Note that nothing of a response is to be done any more."""
        self._pending += [Drop(f"response:{id}"), Drop(f"said:{id}:")]

    def ends(self, id: str, end: ResponseEnd) -> None:
        """Note how a response ends, before the events that close it."""
        self._put(f"said:{id}:end", {"end": end.model_dump(mode="json")})

    def deferred(self, asked: ResponseSettings) -> None:
        """Note a response that waits for a transcript."""
        self._deferred = asked
        self._put("deferred", asked.model_dump(mode="json", exclude_unset=True))

    def settled(self, asked: ResponseSettings) -> None:
        """Note that a response has begun or was refused, which may have waited for a transcript."""
        if asked is self._deferred:
            self._deferred = None
            self._pending.append(Drop("deferred"))

    def owes(self, owed: bool | None) -> None:
        """Note whether words were heard that no response has answered; None: the next will be."""
        self._owing = owed is None
        if owed is not None:
            self._note_heard()
        if owed:
            self._put("owed", True)
        elif owed is not None:
            self._pending.append(Drop("owed"))

    def hears(self) -> None:
        """Note that a turn's audio begins in the buffer that the client commits by hand."""
        self._by_hand += 1
        self._put(_BY_HAND, "speaking")

    def applied(self, frames: int) -> None:
        """Note how many of the client's frames were applied, acknowledgements not counted."""
        self._put("applied", frames)

    def forget(self, seq: int) -> None:
        """Note that the client has acknowledged the frames up to this number."""
        self._pending.append(Forget(seq))

    async def commit(self, *, touch: bool = False) -> None:
        """Write everything that was noted. ``touch``: write even if nothing was.

        Raises:
            JournalTaken, JournalFailed: see `SessionLog.commit`.
        """
        async with self._committing:
            if touch:
                self._put("alive", True)
            if self._pending:
                pending, self._pending = self._pending, []
                try:
                    await self._log.commit(pending)
                except BaseException:  # nothing was written: the next commit begins with it
                    self._pending[:0] = pending
                    raise

    async def aclose(self, *, remove: bool) -> None:
        """See `SessionLog.aclose`."""
        async with self._committing:
            await self._log.aclose(remove=remove)

    def _put(self, name: str, value: object) -> None:
        self._pending.append(Put(name, json.dumps(value)))

    def _put_item(self, item_id: str) -> None:
        assert self._session is not None
        entries = self._session.conversation.entries
        entry = next((entry for entry in entries if entry.id == item_id), None)
        if entry is not None and entry.status != "in_progress":
            self._put(key("item", item_id), _of_entry(entry))
        self._put_order()

    def _put_order(self) -> None:
        assert self._session is not None
        self._put("order", [entry.id for entry in self._session.conversation.entries])

    def _note_heard(self) -> None:
        """Transcripts that no event tells, because the client asked for none."""
        for item_id, entry in list(self._unheard.items()):
            if entry.text:
                del self._unheard[item_id]
                self._put(key("item", item_id), _of_entry(entry))
                self._pending.append(Drop(key("turn", item_id)))
                self._note_owed()

    def _note_owed(self) -> None:
        if self._owing:
            self._owing = False
            self._put("owed", True)

    def _say(self, response_id: str, event: ev.ServerEvent, what: Mapping[str, object]) -> None:
        self._put(f"said:{response_id}:{event.specstream.seq:012}", what)

    def _closed(self, event: Any) -> None:
        self._say(event.response_id, event, {"closed": [event.output_index, event.type]})

    def _text(self, event: ev.TextDeltaEvent) -> dict[str, object]:
        entry, extra = self._items[event.item_id], event.specstream
        chars, tags, words = self._said[entry.id]
        assert extra.chars is not None and extra.tokens is not None
        end = extra.chars.end
        known = entry.spoken.tags if entry.spoken is not None else ()
        new = [tag for tag in known[tags:] if tag.end <= end]
        self._said[entry.id] = (end, tags + len(new), words)
        text = entry.text[chars:end]
        return {"item": entry.id, "text": text, "tags": new, "tokens": extra.tokens.end}

    def _audio(self, event: ev.AudioDeltaEvent) -> dict[str, object]:
        entry = self._items[event.item_id]
        assert entry.spoken is not None and event.specstream.samples is not None
        end = event.specstream.samples.end
        chars, tags, words = self._said[entry.id]
        new = [word for word in entry.spoken.words[words:] if word[0].end <= end]
        self._said[entry.id] = (chars, tags, words + len(new))
        half = entry.spoken.half_given(end)
        return {"item": entry.id, "sent": end, "words": new, "half": half}


def _of_entry(entry: ItemEntry) -> dict[str, object]:
    track = entry.spoken
    spoken = None if track is None else [track.tags, track.words, track.sent]
    plain = {name: getattr(entry, name) for name in PLAIN}
    return {**plain, "spoken": spoken}


def key(kind: str, id: str) -> str:
    """The name of an item's record: in quotes, so that none is the beginning of another."""
    return f"{kind}:{json.dumps(id)}"


_BY_HAND = key("turn", "")  # has no item yet
PLAIN = ("id", "role", "text", "status", "call_id", "name", "heard", "phase", "resumes", "unheard")
