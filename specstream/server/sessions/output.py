"""The events of a response's items, from ``output_item.added`` to ``conversation.item.done``."""

from __future__ import annotations

import base64
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Any

from specstream.errors import SpecstreamError
from specstream.realtime import events as ev
from specstream.realtime.resources import EndStatus, ErrorDetail, Extra, Part, Word
from specstream.realtime.wire import SAMPLE_RATE, new_id
from specstream.server.journal.restored import RestoredReply
from specstream.server.sessions.audio import Piece, of_cue
from specstream.server.sessions.boxes import Outbox
from specstream.server.sessions.entries import ConversationItems, ItemEntry, SpokenTrack
from specstream.server.sessions.request import ResponseRequest
from specstream.server.sessions.timings import Timings
from specstream.text.tags import SpokenText
from specstream.types import AvatarCue, Chunk, Phrase, Preview, Revoke, ScenePrompt, Span, Speech

__all__ = ["ItemWriter", "OutputItems"]

_NEUTRAL = "neutral"  # an emotion's end
_INCOMPLETE = ("cut_off", "no_name")  # problems with which a call's item ends as incomplete


class OutputItems:
    """The items of one response in order, which are also items of ``conversation`` if there is one.

    Attributes:
        entries: The items that have begun; an item's index is the wire's ``output_index``.
        sent: Closing events that an earlier process has sent: output index and type.
    """

    def __init__(self, response_id: str, conversation: ConversationItems | None, outbox: Outbox) -> None:
        self.entries: list[ItemEntry] = []
        self.sent: Collection[tuple[int, str]] = ()
        self._places: list[int] = []  # index of each function call
        self._response_id = response_id
        self._conversation = conversation
        self._outbox = outbox

    def go_on(self, entries: Sequence[ItemEntry], sent: Collection[tuple[int, str]]) -> None:
        """Go on with items that an earlier process has announced."""
        self.entries, self.sent = list(entries), sent
        self._places = [at for at, entry in enumerate(entries) if entry.call_id is not None]
        if self._outbox.record is not None:
            for entry in entries:
                self._outbox.record.output(entry)

    @property
    def calls(self) -> bool:
        """Whether the reply has called functions."""
        return bool(self._places)

    def make(
        self, event: Callable[..., ev.ServerEvent], index: int, extra: Extra | None = None, **fields: Any
    ) -> ev.ServerEvent:
        """Make an event about the item at ``index``, which may not have begun yet.

        The event's number and time will be entered in ``extra``.
        """
        ids = {"response_id": self._response_id, "output_index": index}
        return event(**ids, **fields, specstream=extra or Extra())

    async def put(
        self, event: Callable[..., ev.ServerEvent], index: int, *extra: Extra | None, **fields: Any
    ) -> None:
        """Send an event; see `make`."""
        made = self.make(event, index, *extra, **fields)
        if (index, made.type) not in self.sent:
            await self._outbox.put(made)

    async def begin(self, entry: ItemEntry, *parts: ev.ServerEvent) -> None:
        """Append an item and announce it, with the parts that it begins with.

        Raises:
            Refused: the conversation is full.
        """
        events = [
            self.make(
                ev.OutputItemEvent,
                len(self.entries),
                type="response.output_item.added",
                item=entry.wire(),
            )
        ]
        if self._conversation is not None:
            previous = self._conversation.insert(entry)
            events.append(self._entered("conversation.item.added", entry, previous))
        self.entries.append(entry)
        if self._outbox.record is not None:
            self._outbox.record.output(entry)
        await self._outbox.put(*events, *parts)

    async def end(self, index: int, extra: Extra | None = None) -> None:
        """Send the item at ``index`` as it is now: it is final."""
        entry, done = self.entries[index], "response.output_item.done"
        events = [self.make(ev.OutputItemEvent, index, extra, type=done, item=entry.wire())]
        conversation = self._conversation
        if conversation is not None and entry in conversation.entries:
            before = conversation.before(entry)
            events.append(self._entered("conversation.item.done", entry, before))
        if (index, done) not in self.sent:
            await self._outbox.put(*events)

    def _entered(self, type: Any, entry: ItemEntry, previous: str | None) -> ev.ServerEvent:
        return ev.ItemEvent(type=type, item=entry.wire(), previous_item_id=previous)

    async def take_calls(self, chunk: Chunk) -> None:
        """Send the parts of calls that a chunk brings, as the model writes them.

        So they may overtake the audio of the text before them.
        """
        extra = Extra(tokens=chunk.tokens, round=chunk.round)
        for delta in chunk.tool_calls:
            if delta.index == len(self._places):
                self._places.append(len(self.entries))
                entry = ItemEntry(new_id("item"), "assistant", "", "in_progress")
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


class ItemWriter:
    """Turns the output of a response into events, and keeps the item's text and heard words.

    Attributes:
        id: The item's id.
        entry: The item; None until it is announced.
        text: The text or transcript that was sent.
        index: The item's index in the response's output.
        output: All items of the response; function calls are items of their own.
    """

    def __init__(
        self, response_id: str, request: ResponseRequest, outbox: Outbox, timings: Timings
    ) -> None:
        self.id = new_id("item")
        self.entry: ItemEntry | None = None
        self.text = ""
        self.index = 0
        self.output = OutputItems(response_id, request.conversation, outbox)
        self._response_id = response_id
        self._request = request
        self._outbox = outbox
        self._timings = timings
        self._spoken: SpokenText[Extra] = SpokenText()
        self._track = SpokenTrack(self._spoken.tags) if request.audio else None
        self._tokens_from = 0  # the first token that no text event covers yet
        self._ends: list[int] = []  # of the tokens from there on
        self._read = 0  # tokens of the chunks so far
        self._preview: Preview | None = None
        self._known_chars = 0  # what an earlier process has sent, and milliseconds of audio
        self._since_ms = 0.0
        self._emotion: Span | None = None  # when a face shows what an earlier process has told it to

    def go_on(self, reply: RestoredReply) -> None:
        """Go on with the items of a reply that an earlier process has begun."""
        self.output.go_on(reply.entries, reply.closed)
        self._tokens_from = reply.tokens
        if (entry := reply.message) is None:
            return
        self.entry, self.id, self.index = entry, entry.id, reply.entries.index(entry)
        self.text, self._known_chars = entry.text, len(entry.text)
        if self._track is not None:
            self._track = entry.spoken = entry.spoken or SpokenTrack()
            self.text = self._spoken.go_on(entry.text, self._track.tags)
            self._track.tags = self._spoken.tags
            self._since_ms = self._track.sent / SAMPLE_RATE * 1e3
            # Later ones are taken back by the first viseme from now on, and given again.
            shown = [one for one in reply.emotions if one[1].start <= self._track.sent]
            if shown and shown[-1][0] != _NEUTRAL:
                self._emotion = shown[-1][1]

    @property
    def sent(self) -> int:
        """Samples of audio that were sent."""
        return self._track.sent if self._track is not None else 0

    async def _put(
        self, event: Callable[..., ev.ServerEvent], extra: Extra | None = None, **fields: Any
    ) -> None:
        await self.output.put(event, self.index, extra, item_id=self.id, **fields)

    async def _open(self) -> None:
        """Announce the item and its one content part; see `_due`."""
        self.index = len(self.output.entries)
        self.entry = ItemEntry(self.id, "assistant", "", "in_progress", self._track)
        added: dict[str, Any] = {"type": "response.content_part.added", "part": self._part("")}
        part = self.output.make(ev.ContentPartEvent, self.index, item_id=self.id, **added)
        await self.output.begin(self.entry, part)

    def _part(self, text: str) -> Part:
        if self._track is not None:
            return Part(type="audio", transcript=text)
        return Part(type="text", text=text)

    async def chunk(self, chunk: Chunk) -> None:
        """Send a chunk's text (in an audio response: the part that is certain to contain no tag)."""
        self._timings.chunk(chunk)
        chunk = chunk.since(self._known_chars)
        if self.entry is None and self._due(chunk):
            await self._open()
        if self.entry is not None:
            self.entry.text += chunk.text
        if chunk.reasoning and "reasoning" in self._request.wants:
            extra = Extra(tokens=chunk.tokens, round=chunk.round)
            delta: dict[str, Any] = {"type": "specstream.reasoning.delta", "delta": chunk.reasoning}
            await self._put(ev.TextDeltaEvent, extra, **delta)
        self._ends += chunk.ends[self._tokens_from + len(self._ends) - chunk.tokens.start :]
        if chunk.reasoning_end > self._tokens_from:
            del self._ends[: chunk.reasoning_end - self._tokens_from]
            self._tokens_from = chunk.reasoning_end
        if chunk.text:
            extra = Extra(
                tokens=Span(self._tokens_from, chunk.tokens.end),
                chars=chunk.chars,
                round=chunk.round,
                drafted=chunk.drafted,
                accepted=chunk.accepted,
                proposer=chunk.proposer or None,
                kept=Span(chunk.tokens.start, chunk.tokens.start + chunk.accepted),
                ends=self._ends,
            )
            self._tokens_from, self._ends = chunk.tokens.end, []
            if self._track is None:
                await self._say([(chunk.text, chunk.chars, extra)])
            else:
                await self._say(self._spoken.add(chunk.text, extra))
        self._read = chunk.tokens.end
        self._show()

    def preview(self, preview: Preview | None) -> None:
        """Send a preview, now or once the chunk before it was sent.

        It replaces a preview that still waits; None only drops that one.
        """
        self._preview = preview
        self._show()

    def _show(self) -> None:
        """Offer the waiting preview to the outbox if it directly follows the chunks sent so far."""
        preview = self._preview
        if preview is None or self.entry is None or preview.tokens.start > self._read:
            return
        self._preview = None
        if preview.tokens.start < self._read:
            return  # its round has been verified
        text = preview.text if self._track is None else self._spoken.peek(preview.text)
        if not text:
            return
        self._outbox.offer(
            ev.PreviewEvent(
                response_id=self._response_id,
                item_id=self.id,
                output_index=self.index,
                text=text,
                specstream=Extra(tokens=preview.tokens, chars=preview.chars, round=preview.round),
            )
        )

    def _due(self, chunk: Chunk) -> bool:
        """Whether to begin the item: with tools, a reply may consist of calls only and need none."""
        if self._request.tools is None or chunk.text:
            return True
        called = bool(self.output.entries or chunk.tool_calls)
        return chunk.finish_reason is not None and not called

    async def phrase(self, phrase: Phrase) -> None:
        """Send the text that waited for the phrase's tags."""
        self._timings.first("phrase")
        await self._say(self._spoken.learn(phrase))

    async def _say(self, pieces: list[tuple[str, Span, Extra]]) -> None:
        kind = "output_text" if self._track is None else "output_audio_transcript"
        for text, chars, origin in pieces:
            self._timings.text()
            self.text += text
            extra = origin.model_copy(update={"chars": chars})
            await self._put(ev.TextDeltaEvent, extra, type=f"response.{kind}.delta", delta=text)

    def speech(self, words: list[Word], speech: Speech, samples: Span) -> None:
        """Note which words the speech at ``samples`` (24 kHz) contains."""
        if self._track is not None and self.entry is not None:
            self._track.add(words, speech, samples, self.entry.text)

    async def audio(self, piece: Piece, coded: bytes) -> None:
        """Send audio; ``coded`` is the encoder's output for the piece, in the response's format."""
        words = list(piece.words) or None
        extra = Extra(samples=piece.samples, chars=piece.chars, tokens=piece.tokens, words=words)
        extra.first = self._timings.take_firsts()
        await self._put(ev.AudioDeltaEvent, extra, delta=base64.b64encode(coded).decode())
        assert self._track is not None
        self._track.sent = piece.samples.end
        self._timings.audio(piece.samples.start, piece.pcm)

    async def cue(self, cue: AvatarCue) -> None:
        """Send a cue."""
        if cue.kind == "emotion":
            self._emotion = None
        cue = replace(cue, t_ms=cue.t_ms + self._since_ms)
        await self._put(ev.AvatarDeltaEvent, cue=replace(cue, samples=of_cue(cue)))

    async def _calm(self) -> None:
        """End an emotion that the avatar of this process doesn't know of, where the speech ends."""
        shown, end = self._emotion, self.sent
        if shown is not None and shown.end > end:
            chars, tokens = Span(len(self.text), len(self.text)), Span(self._read, self._read)
            at_ms, none = end * 1e3 / SAMPLE_RATE, Span(end, end)
            cue = AvatarCue("emotion", _NEUTRAL, at_ms, 0.0, 1.0, none, chars, tokens)
            await self._put(ev.AvatarDeltaEvent, cue=cue)

    async def shot(self, shot: ScenePrompt) -> None:
        """Send a scene prompt."""
        await self._put(ev.PromptDeltaEvent, shot=shot)

    async def revoke(self, stage: str, revoke: Revoke) -> None:
        """Report a revoke, if the client asked for these events."""
        if "revoke" in self._request.wants:
            await self._put(ev.RevokeEvent, stage=stage, from_char=revoke.from_char)

    async def problem(self, error: SpecstreamError) -> None:
        """Report an error that does not end the response."""
        await self._put(ev.ErrorEvent, error=ErrorDetail.of(error))

    def unheard(self) -> None:
        """Note that the item was cut off before anybody can answer it."""
        if self.entry is not None:
            self.entry.unheard = True
            if self._outbox.record is not None:  # no event tells this
                self._outbox.record.item(self.entry.id)

    async def close(self, status: EndStatus, unsent: tuple[Word, ...], *, cut: bool) -> None:
        """End the item, if it began; ``unsent`` are words that no audio carried.

        ``cut``: what was not sent will not be heard, and leaves the text.
        """
        if (entry := self.entry) is None:
            return
        if self._track is None:
            await self._put(ev.TextDone, text=self.text)
        else:
            if not cut:
                await self._say(self._spoken.close())
            await self._calm()
            await self._put(ev.AudioDone, Extra(words=list(unsent) or None))
            await self._put(ev.TranscriptDone, transcript=self.text)
        done: dict[str, Any] = {"type": "response.content_part.done", "part": self._part(self.text)}
        await self._put(ev.ContentPartEvent, **done)
        entry.status = "completed" if status == "completed" else "incomplete"
        entry.phase = "commentary" if self.output.calls else "final_answer"
        if cut:
            entry.cut_to(self.sent)
        await self.output.end(self.index)
