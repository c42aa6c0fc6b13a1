"""A session as it was written down, read again by the process that goes on with it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from specstream.errors import JournalFailed
from specstream.realtime.resources import ResponseEnd
from specstream.realtime.settings import ResponseSettings, SessionSettings
from specstream.server.journal.base import Frame, SavedSession
from specstream.server.journal.record import PLAIN
from specstream.server.sessions.entries import ConversationItems, ItemEntry, SpokenTrack
from specstream.server.sessions.request import ResponseRequest
from specstream.server.sessions.session import RealtimeSession
from specstream.types import Message, SamplingParams, Span

__all__ = ["RestoredReply", "RestoredSession", "restored"]


@dataclass(slots=True)
class RestoredReply:
    """A response that was under way when the process ended.

    Attributes:
        created: Whether the client was told of it; else it begins anew.
        asked: What the client asked for, with ``settings``, those of the session at that time.
        messages: The prompt.
        entries: Its items so far, as far as the client was told of them.
        closed: The closing events that were sent: output index and type.
        number: Of how many that process had begun before.
        tokens: Those of the text that was sent.
        reasoned: Whether reasoning was sent.
        end: How it was about to end.
        emotions: Those that the avatar's cues have told, with their samples.
        lost: Whether this server can't write it on.
        goes_on: Whether it is written on; else it ends as it is.
    """

    id: str
    asked: ResponseSettings
    settings: SessionSettings
    messages: list[Message]
    seed: int | None
    created: bool = False
    entries: list[ItemEntry] = field(default_factory=list)
    closed: set[tuple[int, str]] = field(default_factory=set)
    number: int = 0
    tokens: int = 0
    reasoned: bool = False
    end: ResponseEnd | None = None
    emotions: list[tuple[str, Span]] = field(default_factory=list)
    lost: bool = False
    goes_on: bool = False

    @property
    def message(self) -> ItemEntry | None:
        """Its text; None if it has written none."""
        return next((entry for entry in self.entries if entry.call_id is None), None)

    @property
    def may_go_on(self) -> bool:
        """Whether text, spoken or not, is all that it has written, and it was still being written."""
        writing = self.end is None and not self.lost
        return writing and not self.reasoned and self.entries in ([], [self.message])

    def request(self, session: RealtimeSession) -> ResponseRequest:
        """What was asked for, with the settings of that time.

        Raises:
            Refused: the server can't do it any more.
        """
        now, session.settings = session.settings, self.settings
        try:
            request = session.request(self.asked.model_copy(update={"input": None}))
        finally:
            session.settings = now
        params = replace(request.params, seed=self.seed)
        return replace(request, messages=self.messages, params=params)

    def told(self, session: RealtimeSession) -> ResponseRequest:
        """What the events that close it tell of the request, where the server can't do it any more."""
        asked, now = self.asked, self.settings
        output = asked.audio.output if asked.audio is not None else None
        return ResponseRequest(
            messages=self.messages,
            params=SamplingParams(),
            audio="audio" in (asked.output_modalities or now.output_modalities),
            wants=frozenset(now.specstream.events),
            conversation=None if asked.conversation == "none" else session.conversation,
            max_output_tokens=asked.max_output_tokens or now.max_output_tokens,
            voice=(output and output.voice) or now.audio.output.voice,
            format=(output and output.format) or now.audio.output.format,
            metadata=asked.metadata,
        )

    def take(self, said: Mapping[str, Any]) -> None:
        """Take what was told of it, in order."""
        if "created" in said:
            self.created = True
        elif "reasoned" in said:
            self.reasoned = True
        elif "end" in said:
            self.end = ResponseEnd.model_validate(said["end"])
        elif "closed" in said:
            index, type = said["closed"]
            self.closed.add((index, type))
        elif "index" in said:
            entry = ItemEntry(said["item"], "assistant", "", "in_progress")
            entry.call_id, entry.name = said["call_id"], said["name"]
            self.entries.append(entry)
        elif "emotion" in said:
            name, samples = said["emotion"]
            self.emotions.append((name, Span(*samples)))
        else:
            entry = next(entry for entry in self.entries if entry.id == said["item"])
            entry.text += said.get("text", "")
            self.tokens = said.get("tokens", self.tokens)
            if entry.call_id is None and ("sent" in said or said.get("tags")):
                entry.spoken = entry.spoken or SpokenTrack([])
            if entry.spoken is not None:
                entry.spoken.tags = [*entry.spoken.tags, *_spans(said.get("tags", ()))]
                entry.spoken.restore(map(_spans, said.get("words", ())))
                entry.spoken.sent = said.get("sent", entry.spoken.sent)
                entry.spoken.half = said.get("half", entry.spoken.half)


@dataclass(slots=True)
class RestoredSession:
    """What was read of a session.

    Attributes:
        frames: Those that were not acknowledged, in order.
        began: When the session began, on the system's clock.
        applied: How many of the client's frames were applied.
        deferred: A response that waited for a transcript.
        owed: Whether words were heard that no response has answered.
        turns: Turns of the user without a transcript: the item's id, and whether it was committed.
        replies: The responses that were under way.
    """

    id: str
    settings: SessionSettings
    conversation: ConversationItems
    frames: list[Frame]
    began: float
    applied: int
    deferred: ResponseSettings | None
    owed: bool
    turns: dict[str, bool]
    replies: list[RestoredReply]

    @property
    def next(self) -> int:
        """The number of the next event."""
        return self.frames[-1].seq + 1 if self.frames else 0


def restored(saved: SavedSession) -> RestoredSession:
    """Read a session.

    Raises:
        JournalFailed: the records can't be understood.
    """
    try:
        read = {name: json.loads(value) for name, value in saved.records.items()}
        about = read["session"]
        replies = {
            name.removeprefix("response:"): _reply(name.removeprefix("response:"), told)
            for name, told in read.items()
            if name.startswith("response:")
        }
        for name in sorted(name for name in read if name.startswith("said:")):
            replies[name.split(":")[1]].take(read[name])
        entries = {told["id"]: _entry(told) for name, told in read.items() if name.startswith("item:")}
        entries |= {e.id: e for reply in replies.values() for e in reply.entries}
        deferred = read.get("deferred")
        return RestoredSession(
            id=about["id"],
            settings=SessionSettings.model_validate(read["settings"]),
            conversation=ConversationItems(
                about["conversation"], [entries[id] for id in read.get("order", ()) if id in entries]
            ),
            frames=list(saved.frames),
            began=about["began"],
            applied=read.get("applied", 0),
            deferred=None if deferred is None else ResponseSettings.model_validate(deferred),
            owed=bool(read.get("owed")),
            turns={
                json.loads(name.removeprefix("turn:")): told == "waiting"
                for name, told in read.items()
                if name.startswith("turn:")
            },
            replies=sorted(replies.values(), key=lambda reply: reply.number),
        )
    except (ValueError, KeyError, TypeError, AttributeError, StopIteration) as error:
        raise JournalFailed(f"a session in the journal can't be understood: {error!r}") from error


def _reply(id: str, told: Mapping[str, Any]) -> RestoredReply:
    return RestoredReply(
        id,
        ResponseSettings.model_validate(told["asked"]),
        SessionSettings.model_validate(told["settings"]),
        told["messages"],
        told["seed"],
        number=told.get("number", 0),
    )


def _entry(told: Mapping[str, Any]) -> ItemEntry:
    entry = ItemEntry(**{name: told[name] for name in PLAIN})
    if told["spoken"] is not None:
        tags, words, sent = told["spoken"]
        entry.spoken = SpokenTrack(_spans(tags))
        entry.spoken.restore(map(_spans, words))
        entry.spoken.sent = sent
    return entry


def _spans(told: Iterable[Sequence[int]]) -> list[Span]:
    return [Span(*span) for span in told]
