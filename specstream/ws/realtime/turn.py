"""The life of one response, from ``response.created`` to ``response.done``."""

from __future__ import annotations

import base64
import logging
from contextlib import nullcontext
from dataclasses import asdict
from typing import Any

import anyio

from specstream.errors import AdapterFailed, SpecstreamError
from specstream.pipeline.stage import Run, StageFailed
from specstream.types import (
    AvatarCue,
    Chunk,
    Phrase,
    Revoke,
    ScenePrompt,
    Span,
    Speech,
)
from specstream.ws.realtime import events as ev
from specstream.ws.realtime.audio import AudioPacer, first_audible
from specstream.ws.realtime.conversation import Entry, SpokenTrack
from specstream.ws.realtime.request import Order, ResponseContext
from specstream.ws.realtime.resources import (
    EndStatus,
    Extra,
    Part,
    Response,
    Status,
    StatusDetails,
    Usage,
)
from specstream.ws.realtime.transcript import SpokenText
from specstream.ws.realtime.wire import SAMPLE_RATE, new_id

__all__ = ["Turn"]

CANCEL_GRACE_S = 0.25
"""How long the stages of a cancelled turn may take to come to rest before they are stopped."""

_log = logging.getLogger("specstream.realtime")


class Turn:
    """One response. `run` it in a task of its own; `cancel` it from anywhere."""

    def __init__(self, order: Order, tools: ResponseContext) -> None:
        self.id = new_id("resp")
        self.finished = anyio.Event()
        self.entry: Entry | None = None
        self._order = order
        self._tools = tools
        self._put = tools.outbox.put
        self._begun_ms = tools.outbox.t_ms
        self._outflow = AudioPacer(tools.clock, lead_s=tools.lead_s, buffer_s=tools.buffer_s)
        self._speaker: SpokenText[Extra] = SpokenText()
        self._track = SpokenTrack(self._speaker.tags) if order.audio else None
        self.item_id = new_id("item")
        self._said = ""
        self._tokens_from = 0
        self._generation: Any = None
        self._run: Run | None = None
        self._scope = anyio.CancelScope()
        self._playing = anyio.CancelScope()
        self._cancelled = False
        self._why: SpecstreamError | None = None
        self._closing = False
        self._muted = False
        self._error: BaseException | None = None
        self._times: dict[str, float] = {}
        self._chunk_ms: float | None = None

    @property
    def out_of_band(self) -> bool:
        """Whether the response stays out of the conversation."""
        return self._order.conversation is None

    def cancel(self, why: SpecstreamError | None = None) -> bool:
        """Stop the reply and its audio; returns whether there was something left to stop.

        ``why`` is told in ``response.done`` when it is not the client who stops it. Returns at once.
        `finished` is set after ``response.done``, and nothing is sent after that.
        """
        if self._cancelled or self._closing:
            return False
        self._cancelled, self._why = True, why
        self._outflow.drop()
        self._playing.cancel()
        if self._run is None:
            self._scope.cancel()
        else:
            self._generation.cancel()
            self._run.cancel(why.code if why else "client_cancelled")
            self._scope.deadline = anyio.current_time() + CANCEL_GRACE_S
        return True

    async def run(self) -> None:
        """Perform the turn. Cancelling it (the connection is gone) releases everything, unsaid."""
        try:
            await self._put(ev.ResponseCreated(response=self._response("in_progress")))
            try:
                with self._scope:
                    await self._perform()
            except SpecstreamError as error:
                self._error = error
            except Exception as error:  # a response may break; the session goes on
                _log.exception("response %s broke", self.id)
                self._error = error
            self._closing = True
            await self._close()
        finally:
            self.finished.set()

    async def _perform(self) -> None:
        order = self._order
        async with (
            self._tools.places if self.out_of_band else nullcontext(),
            self._tools.replies.reply(
                order.messages, order.params, chat_template_kwargs=order.template_kwargs
            ) as generation,
        ):
            self._generation = generation
            async with self._tools.pipeline.run(generation) as run:
                self._run = run
                async with anyio.create_task_group() as group:
                    if order.audio:
                        group.start_soon(self._play)
                    await self._collect(run)
                    self._outflow.close()

    async def _collect(self, run: Run) -> None:
        """Text, cues and shots leave as they come; speech goes into the outflow."""
        try:
            async for event in run:
                item = event.item
                if isinstance(item, AvatarCue):
                    await self._on_cue(item)
                elif isinstance(item, Revoke):
                    await self._on_revoke(event.source, item)
                elif self._cancelled:
                    continue
                elif isinstance(item, Chunk):
                    await self._on_chunk(item)
                elif isinstance(item, Phrase):
                    await self._say(self._speaker.learn(item))
                elif isinstance(item, Speech):
                    await self._on_speech(item)
                elif isinstance(item, ScenePrompt):
                    await self._on_shot(item)
                elif isinstance(item, StageFailed):
                    await self._on_failure(event.source, item.error)
        except SpecstreamError as error:
            self._error = self._error or error

    async def _open(self) -> None:
        """The response's item and its one content part begin with the first chunk."""
        self.entry = entry = Entry(self.item_id, "assistant", "", "in_progress", self._track)
        await self._put(ev.OutputItemAdded(response_id=self.id, item=entry.wire()))
        if self._order.conversation is not None:
            previous = self._order.conversation.insert(entry)
            await self._put(ev.ItemAdded(item=entry.wire(), previous_item_id=previous))
        part = Part(type="audio", transcript="") if self._track else Part(type="text", text="")
        await self._put(ev.ContentPartAdded(response_id=self.id, item_id=self.item_id, part=part))

    async def _on_chunk(self, chunk: Chunk) -> None:
        if self.entry is None:
            await self._open()
        assert self.entry is not None
        self._count(chunk)
        self.entry.text += chunk.text
        if chunk.reasoning and "reasoning" in self._order.wants:
            where = Extra(tokens=chunk.tokens, round=chunk.round)
            await self._put(
                ev.ReasoningDelta(
                    response_id=self.id,
                    item_id=self.item_id,
                    delta=chunk.reasoning,
                    specstream=where,
                )
            )
        self._tokens_from = max(self._tokens_from, chunk.reasoning_end)
        if not chunk.text:
            return
        extra = Extra(
            tokens=Span(self._tokens_from, chunk.tokens.end),
            chars=chunk.chars,
            round=chunk.round,
            drafted=chunk.drafted,
            accepted=chunk.accepted,
        )
        self._tokens_from = chunk.tokens.end
        if self._track is None:
            await self._say([(chunk.text, chunk.chars, extra)])
        else:
            await self._say(self._speaker.add(chunk.text, extra))

    def _count(self, chunk: Chunk) -> None:
        if not chunk.token_ids:
            return
        now, before = self._tools.outbox.t_ms, self._chunk_ms
        gap_s = None if before is None else (now - before) / 1e3
        self._tools.counters.count_chunk(chunk, (now - self._begun_ms) / 1e3, gap_s)
        self._chunk_ms = now

    async def _say(self, pieces: list[tuple[str, Span, Extra]]) -> None:
        kind = ev.TextDelta if self._track is None else ev.TranscriptDelta
        for text, chars, origin in pieces:
            self._times.setdefault("first_text_ms", self._tools.outbox.t_ms - self._begun_ms)
            self._said += text
            extra = origin.model_copy(update={"chars": chars})
            await self._put(
                kind(response_id=self.id, item_id=self.item_id, delta=text, specstream=extra)
            )

    async def _on_speech(self, speech: Speech) -> None:
        if self._muted:
            return
        try:
            words = await self._outflow.put(speech)
        except AdapterFailed as error:  # the text goes on
            self._muted, self._error = True, error
            assert self._run is not None
            self._run.stop("voice", error)
            return
        if self._track is not None and self.entry is not None:
            samples = self._outflow.at_24k(speech.samples)
            self._track.add(words, speech, samples, self.entry.text)

    async def _play(self) -> None:
        with self._playing:
            while (piece := await self._outflow.take()) is not None:
                extra = Extra(
                    samples=piece.samples,
                    chars=piece.chars,
                    tokens=piece.tokens,
                    words=list(piece.words) or None,
                )
                delta = base64.b64encode(piece.pcm).decode()
                await self._put(
                    ev.AudioDelta(
                        response_id=self.id, item_id=self.item_id, delta=delta, specstream=extra
                    )
                )
                assert self._track is not None
                self._track.sent = piece.samples.end
                self._note_audio(piece.samples.start, piece.pcm)

    def _note_audio(self, start: int, pcm: bytes) -> None:
        """Time to the first piece, and to the first audible sample if playing began with that."""
        self._tools.counters.audio_samples += len(pcm) // 2
        if "ttfa_ms" in self._times:
            return
        now = self._tools.outbox.t_ms - self._begun_ms
        first = self._times.setdefault("first_audio_ms", now)
        audible = first_audible(pcm)
        if audible is not None:
            at = (start + audible) / SAMPLE_RATE * 1e3
            self._times["ttfa_ms"] = round(max(first + at, now), 3)
            self._tools.counters.first_audio.observe(self._times["ttfa_ms"] / 1e3)

    async def _on_cue(self, cue: AvatarCue) -> None:
        data = {**asdict(cue), "samples": self._outflow.at_24k(cue.samples)}
        await self._put(ev.AvatarDelta(response_id=self.id, item_id=self.item_id, cue=data))

    async def _on_shot(self, shot: ScenePrompt) -> None:
        await self._put(
            ev.PromptDelta(response_id=self.id, item_id=self.item_id, shot=asdict(shot))
        )

    async def _on_revoke(self, stage: str, revoke: Revoke) -> None:
        if "revoke" in self._order.wants:
            await self._put(
                ev.RevokeEvent(
                    response_id=self.id,
                    item_id=self.item_id,
                    stage=stage,
                    from_char=revoke.from_char,
                )
            )

    async def _on_failure(self, stage: str, error: SpecstreamError) -> None:
        """Without its voice an audio response has failed; without cues or shots it goes on."""
        if self._track is not None and stage in ("text", "voice"):
            self._error = error
            return
        detail = ev.ErrorDetail(type="server_error", code=error.code, message=str(error))
        await self._put(ev.ErrorEvent(error=detail))

    async def _close(self) -> None:
        status = self._status()
        if self.entry is not None:
            await self._close_item(self.entry, status)
        if "report" in self._order.wants and self._generation is not None:
            await self._put(ev.ReportEvent(response_id=self.id, report=self._report()))
        self._tools.counters.count_response(status)
        await self._put(ev.ResponseDone(response=self._response(status)))

    async def _close_item(self, entry: Entry, status: EndStatus) -> None:
        ids: dict[str, Any] = {"response_id": self.id, "item_id": self.item_id}
        if self._track is None:
            await self._put(ev.TextDone(**ids, text=self._said))
            part = Part(type="text", text=self._said)
        else:
            if not self._cancelled:
                await self._say(self._speaker.close())
            words = Extra(words=list(self._outflow.unsent()) or None)
            await self._put(ev.AudioDone(**ids, specstream=words))
            await self._put(ev.TranscriptDone(**ids, transcript=self._said))
            part = Part(type="audio", transcript=self._said)
        await self._put(ev.ContentPartDone(**ids, part=part))
        entry.status = "completed" if status == "completed" else "incomplete"
        if self._cancelled and self._track is not None:
            entry.cut_to(self._track.sent)
        item = entry.wire()
        await self._put(ev.OutputItemDone(response_id=self.id, item=item))
        conversation = self._order.conversation
        if conversation is not None and entry in conversation.entries:
            previous = conversation.before(entry)
            await self._put(ev.ItemDone(item=item, previous_item_id=previous))

    def _status(self) -> EndStatus:
        if self._cancelled:
            return "cancelled"
        if self._error is not None:
            return "failed"
        finish = self._generation.report.finish_reason if self._generation is not None else "stop"
        return "incomplete" if finish == "length" else "completed"

    def _response(self, status: Status) -> Response:
        order, ended = self._order, status != "in_progress"
        details = None if status == "in_progress" else self._details(status)
        output = {"format": {"type": "audio/pcm", "rate": SAMPLE_RATE}, "voice": order.voice}
        return Response(
            id=self.id,
            status=status,
            status_details=details,
            output=[] if self.entry is None else [self.entry.wire()],
            conversation_id=order.conversation.id if order.conversation is not None else None,
            output_modalities=["audio" if order.audio else "text"],
            max_output_tokens=order.max_output_tokens,
            audio={"output": output} if order.audio else None,
            usage=Usage.of(self._generation and self._generation.report) if ended else None,
            metadata=order.metadata,
        )

    def _details(self, status: EndStatus) -> StatusDetails:
        return StatusDetails.of(status, self._why if self._cancelled else self._error)

    def _report(self) -> dict[str, Any]:
        report: dict[str, Any] = self._generation.report.to_dict()
        if self._track is not None:
            report["audio_seconds"] = round(self._track.sent / SAMPLE_RATE, 3)
        return {**report, **{name: round(ms, 3) for name, ms in self._times.items()}}
