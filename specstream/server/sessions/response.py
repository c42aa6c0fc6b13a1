"""One response, from ``response.created`` to ``response.done``: a turn whose events go to a client."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any, Self

import anyio
from anyio.lowlevel import checkpoint_if_cancelled

from specstream.errors import SpecstreamError
from specstream.listening.taking import UNANSWERED_MS
from specstream.playback.turn import Turn, speaking
from specstream.realtime import events as ev
from specstream.realtime.resources import EndStatus, Reason, Response, ResponseEnd, StatusDetails, Usage
from specstream.realtime.wire import SAMPLE_RATE, new_id
from specstream.server.journal.restored import RestoredReply
from specstream.server.sessions.audio import AudioPacer, Encoder, Piece
from specstream.server.sessions.boxes import Outbox
from specstream.server.sessions.output import ItemWriter
from specstream.server.sessions.request import ResponseRequest, ServedSession, Service
from specstream.server.sessions.timings import Timings
from specstream.stages.pipeline import Event, HeldChunks, Hold, Pipeline, StageFailed
from specstream.types import AvatarCue, Chunk, Phrase, Preview, Revoke, ScenePrompt, Span, Speech

__all__ = ["PreviewTap", "ResponseTurn"]


class PreviewTap:
    """Stands for a generation in a pipeline and passes each `Preview` to ``show`` first.

    The pipeline reads the same items as without it. A pipeline that doesn't ask for previews gets
    none, and ``show`` is still called. Cancelling an iteration that waits loses nothing.
    """

    def __init__(self, generation: Any, show: Callable[[Preview], None]) -> None:
        self._generation = generation
        self._items: AsyncIterator[Chunk | Preview] = aiter(
            getattr(generation, "previewed", lambda: generation)()
        )
        self._show = show
        self._previews = False

    def previewed(self) -> Self:
        """Return this iterator, which from now on also yields the previews."""
        self._previews = True
        return self

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Chunk | Preview:
        while True:
            item = await anext(self._items)
            if not isinstance(item, Preview):
                return item
            self._show(item)
            if self._previews:
                return item

    def cancel(self) -> None:
        """See `specstream.engine.generation.Generation.cancel`."""
        self._generation.cancel()


_log = logging.getLogger("specstream.realtime")


class ResponseTurn:
    """One response: a `Turn` whose events and sound go to a client.

    `run` it in a task of its own; `cancel` it from anywhere.

    Args:
        request: What was asked for.
        service: What the server's sessions share.
        replies: The conversation with the engine.
        pipeline: The stages that make speech, cues and shots.
        outbox: Where its events go.
        place: Is held while the reply is made, so that not too many are made at once.
        begun: The response, as far as an earlier process has got with it.
        hold: Until it is released, the response is prepared and the client is told nothing. Then, or at
            `drop`, the response ends like any other, or leaves no trace.
    """

    def __init__(
        self,
        request: ResponseRequest,
        service: Service,
        replies: ServedSession,
        pipeline: Pipeline,
        outbox: Outbox,
        place: AbstractAsyncContextManager[object],
        begun: RestoredReply | None = None,
        hold: Hold | None = None,
    ) -> None:
        self.id = begun.id if begun is not None else new_id("resp")
        self._begun, self._hold = begun, hold
        self._announced = begun is not None
        self.finished = anyio.Event()
        self.request = request
        self.replies = replies
        self.pipeline = pipeline
        self._counters = service.counters
        self._place = place
        self._put, self._record = outbox.put, outbox.record
        self._timings = Timings(lambda: outbox.t_ms, service.counters)
        self._item = ItemWriter(self.id, request, outbox, self._timings)
        if begun is not None:
            self._item.go_on(begun)
        limits = service.limits
        self._pacer = AudioPacer(
            service.clock, lead_s=limits.lead_s, buffer_s=limits.buffer_s, since=self._item.sent
        )
        self._account = service.caller.account
        self._generation: Any = None
        self._turn: Turn[Any] | None = None
        self._scope = anyio.CancelScope()
        self._cancelled: SpecstreamError | Reason | None = None  # why, once it was cancelled
        self._lost = False  # with the process that had begun it
        self._closing = False
        self._counted = False
        self._error: BaseException | None = None

    @property
    def item_id(self) -> str:
        """The id of the item that the response writes."""
        return self._item.id

    @property
    def played_ms(self) -> float:
        """Milliseconds of its sound that were heard so far."""
        return self._turn.played_ms if self._turn is not None else 0.0

    @property
    def usable(self) -> bool:
        """Whether it is under way and nothing of it has failed."""
        broken = self._error is not None or (self._turn is not None and self._turn.broken)
        return not (self._closing or broken or self._scope.cancel_called)

    @property
    def tokens(self) -> int:
        """Tokens of the reply that were made so far."""
        return self._generation.report.completion_tokens if self._generation is not None else 0

    @property
    def made_s(self) -> float:
        """Seconds of speech that the voice has made so far."""
        return self._turn.made_s if self._turn is not None else 0.0

    @property
    def out_of_band(self) -> bool:
        """Whether the response stays out of the conversation."""
        return self.request.conversation is None

    def cancel(
        self, why: SpecstreamError | Reason = "client_cancelled", heard_ms: int | None = None
    ) -> bool:
        """Stop the reply and its audio; returns False if it was cancelled before, or is ending.

        ``response.done`` reports ``why``, an error if the server cancels. Returns at once; `finished`
        is set after ``response.done``, and nothing is sent after that. The face comes to rest at
        ``heard_ms``, or where a listener can be by now.
        """
        if self._cancelled or self._closing:
            return False
        self._cancelled = why
        self._item.preview(None)
        if self._turn is None:
            self._scope.cancel()
        else:
            if heard_ms is not None and self._begun is not None:
                heard_ms = max(0, heard_ms - self._pacer.since_ms)
            self._turn.interrupt(heard_ms, why.code if isinstance(why, SpecstreamError) else why)
        return True

    def drop(self) -> None:
        """End a response that is held back, at once. `finished` is set soon after."""
        self._scope.cancel()

    @property
    def _held(self) -> bool:
        return self._hold is not None and not self._hold.released

    async def run(self) -> None:
        """Perform the response. Cancelling it (the connection is gone) releases everything."""
        try:
            if self._hold is None:
                await self._announce()
            try:
                with self._scope:
                    if self._begun is None or self._begun.goes_on:
                        await self._perform()
                    else:
                        self._lost = self._begun.end is None
            except SpecstreamError as error:
                self._error = error
            except Exception as error:  # a response may break; the session goes on
                _log.exception("response %s broke", self.id)
                self._error = error
            # A server that stops ends the stages first, so that a reply seems to have ended here.
            await checkpoint_if_cancelled()
            self._closing = True
            if not self._held:
                await self._announce()
                await self._close()
        finally:
            self._account.spend(self.tokens)
            if not self._counted and not self._held:
                self._counters.responses["abandoned"] += 1
            self.finished.set()

    async def _announce(self) -> None:
        if not self._announced:
            self._announced = True
            self._timings.begin()
            await self._put_response("response.created", ResponseEnd(status="in_progress"))

    async def _perform(self) -> None:
        request, hold = self.request, self._hold
        async with (
            self._place,
            self.replies.reply(
                request.messages,
                request.params,
                speculate=request.speculate,
                learn=request.learn and hold is None,
                chat_template_kwargs=request.template_kwargs,
                tools=request.tools,
                truncation=request.truncation,
            ) as generation,
        ):
            self._generation = generation
            shown: AsyncIterator[Chunk | Preview] | None = None
            if self._begun is not None:
                shown = self._rest(generation, self._begun)
            elif "preview" in request.wants:
                held = generation if hold is None else HeldChunks(generation, hold)
                shown = PreviewTap(held, self._preview)
            output = self._pacer if request.audio else None
            async with (
                speaking(generation, self.pipeline, output, hold, shown) as turn,
                anyio.create_task_group() as group,
            ):
                self._turn = turn
                if hold is not None:
                    await hold.wanted.wait()
                    await self._announce()
                if request.audio:
                    group.start_soon(self._play)
                try:
                    async for event in turn:
                        await self._take(event)
                except SpecstreamError as error:
                    self._error = self._error or error

    async def _rest(self, generation: Any, begun: RestoredReply) -> AsyncGenerator[Chunk, None]:
        """What an earlier process has not sent of the same reply, from the first word that wasn't heard.

        A reply that begins otherwise now (by another model, say) is lost.
        """
        entry = begun.message
        sent = entry.text if entry is not None else ""
        heard = len(sent)
        if entry is not None and entry.spoken is not None:
            heard = entry.spoken.cut(sent, entry.spoken.sent)
        async for chunk in generation:
            rest = sent[chunk.chars.start :]
            if not (rest.startswith(chunk.text) or chunk.text.startswith(rest)):
                self._lost = True
                generation.cancel()
                return
            yield chunk.since(heard)

    def _preview(self, preview: Preview) -> None:
        if not self._cancelled and not self._held:
            self._item.preview(preview)

    async def _take(self, event: Event) -> None:
        """Send text, cues and shots as they come; the turn gives speech to the pacer."""
        source, item = event.source, event.item
        if isinstance(item, AvatarCue):
            await self._item.cue(item)
        elif isinstance(item, Revoke):
            await self._item.revoke(source, item)
        elif self._cancelled:
            return
        elif isinstance(item, Chunk):
            await self._item.chunk(item)
            await self._item.output.take_calls(item)
        elif isinstance(item, Phrase):
            await self._item.phrase(item)
        elif isinstance(item, Speech):
            self._speak(item)
        elif isinstance(item, ScenePrompt):
            await self._item.shot(item)
        elif isinstance(item, StageFailed):
            # An audio response fails without its voice; without cues or shots it goes on.
            if self.request.audio and source in ("text", "voice"):
                self._error = item.error
            else:
                await self._item.problem(item.error)

    def _speak(self, speech: Speech) -> None:
        self._timings.first("voice")
        if not self._pacer.refused:  # else the turn has stopped the voice: the text goes on
            words = list(self._pacer.words(speech))
            self._item.speech(words, speech, self._pacer.at_24k(speech.samples))

    async def _play(self) -> None:
        encoder = Encoder(self.request.format.type)
        last: Piece | None = None
        while (piece := await self._pacer.take()) is not None:
            last = piece
            await self._item.audio(piece, encoder.push(piece.pcm))
        if last is not None and not self._cancelled and (rest := encoder.flush()):
            at, chars, tokens = last.samples.end, last.chars.end, last.tokens.end
            nothing = Piece(b"", Span(at, at), Span(chars, chars), Span(tokens, tokens))
            await self._item.audio(nothing, rest)

    async def _close(self) -> None:
        end = self._begun.end if self._begun is not None else None
        if end is None:
            end = self._end()
        if self._record is not None:
            self._record.ends(self.id, end)
        assert end.status != "in_progress"
        status = end.status
        cut = status == "cancelled" or self._lost
        if status == "cancelled":
            self.broken_off(self.played_ms)
        await self._item.close(status, self._pacer.unsent(), cut=cut)
        await self._item.output.close_calls()
        if "report" in self.request.wants and self._generation is not None:
            await self._put(ev.ReportEvent(response_id=self.id, report=self._report()))
        self._counters.responses[status] += 1
        self._counted = True
        await self._put_response("response.done", end)

    def broken_off(self, heard_ms: float | None = None) -> None:
        """Note that the user spoke after so much, if too little for an answer; None: what is by now."""
        heard_ms = self._pacer.playing_ms if heard_ms is None else heard_ms
        if self.request.audio and self._begun is None and heard_ms <= UNANSWERED_MS:
            self._item.unheard()  # text can be read at once

    def _end(self) -> ResponseEnd:
        finish = self._generation.report.finish_reason if self._generation is not None else "stop"
        status = self._status(finish)
        lost: Reason | None = "server_restarted" if self._lost else None
        if finish == "content_filter":
            lost = "content_filter"
        details = StatusDetails.of(status, self._cancelled or self._error or lost)
        usage = Usage.of(self._generation and self._generation.report)
        return ResponseEnd(status=status, status_details=details, usage=usage)

    def _status(self, finish: str | None) -> EndStatus:
        if self._cancelled:
            return "cancelled"
        if self._error is not None:
            return "failed"
        if self._lost:
            return "incomplete"
        return "incomplete" if finish in ("length", "content_filter") else "completed"

    async def _put_response(self, type: Any, end: ResponseEnd) -> None:
        request = self.request
        voice = request.voice  # in a response it is a text, whichever way a client names it
        named = voice if isinstance(voice, str) else voice.get("id", "default")
        output = {"format": request.format.model_dump(), "voice": named}
        response = Response(
            id=self.id,
            status=end.status,
            status_details=end.status_details,
            output=[entry.wire() for entry in self._item.output.entries],
            conversation_id=request.conversation.id if request.conversation is not None else None,
            output_modalities=["audio" if request.audio else "text"],
            max_output_tokens=request.max_output_tokens,
            audio={"output": output} if request.audio else None,
            usage=end.usage,
            metadata=request.metadata,
        )
        await self._put(ev.ResponseEvent(type=type, response=response))

    def _report(self) -> dict[str, Any]:
        report: dict[str, Any] = self._generation.report.to_dict()
        if self.request.audio:
            report["audio_seconds"] = round(self._item.sent / SAMPLE_RATE, 3)
        return {**report, **self._timings.to_dict()}
