"""A spoken turn under way: one player, whatever plays its sound, and what was heard of it.

An agent's turn is played by a `Playout`, a response of the server by a paced socket.
"""

from __future__ import annotations

import asyncio
import math
from bisect import bisect_left
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Generic, Protocol, Self, TypeVar

from specstream.errors import RequestError, SpecstreamError
from specstream.playback.cue_order import cues_first
from specstream.playback.played import AfterStop, PlayedTrack
from specstream.playback.playout import Playout
from specstream.stages.pipeline import Event, HeldChunks, Hold, Pipeline, Run, StageFailed
from specstream.types import Chunk, Interruption, Phrase, Span, Speech

__all__ = ["GRACE_S", "Interruption", "Output", "Turn", "speaking"]

GRACE_S = 0.25
"""Seconds that the stages of an interrupted turn may still deliver events."""


class ReplySource(Protocol):
    """The part of `Generation` that a turn uses."""

    def __aiter__(self) -> AsyncIterator[Chunk]: ...

    def cancel(self) -> None: ...

    def needed_by(self, moment: float, heard: bool = False) -> None: ...

    @property
    def text_read(self) -> str: ...


class Output(Protocol):
    """What plays the sound of one turn, such as `specstream.playback.playout.Playback`.

    Samples count on the voice's clock, from the turn's begin.
    """

    @property
    def played(self) -> int:
        """Samples that were heard so far."""

    @property
    def played_ms(self) -> float:
        """Milliseconds that were heard so far."""

    @property
    def over(self) -> bool:
        """Whether everything that was put in was played and nothing will follow, or it has stopped."""

    @property
    def failure(self) -> SpecstreamError | None:
        """What broke the output; nothing is played any more then."""

    async def room(self) -> None:
        """Wait until speech may be put in, or is no longer wanted. Cancelling it changes nothing."""

    def put(self, speech: Speech) -> None:
        """Take the next speech; ignored once it has stopped.

        Raises:
            AdapterFailed: the speech doesn't go on where the last one ended.
        """

    def finish(self) -> None:
        """No more speech will be put in. Idempotent."""

    async def drained(self) -> None:
        """Wait until all of it was played (after `finish`), or it has stopped."""

    def pause(self) -> None:
        """Play nothing for now. Idempotent."""

    def resume(self) -> None:
        """Go on with the next sample. Idempotent."""

    def stop(self) -> int:
        """Play nothing any more; returns the samples that were heard. Idempotent."""


R = TypeVar("R", bound=ReplySource)


class Turn(Generic[R]):
    """One turn: an async iterator of the pipeline's events, in order, speech after its avatar cues.

    Text and cues come as they are made, ahead of the play-out. The iteration ends when everything was
    made and heard. It feeds the play-out: if the consumer stops reading, the sound stops after the
    speech that was read, and back-pressure stops the voice and the decoding. Cancelling an iteration
    that waits loses no event.

    Attributes:
        reply: The reply under way (a `Generation`), with its report.
        text: The reply's text in the events that were read.
        outcome: What was heard, once the turn was interrupted or its block was left.
    """

    def __init__(
        self, reply: R, run: Run, events: AsyncIterator[Event], playback: Output | None
    ) -> None:
        self.reply = reply
        self._run = run
        self._events = events
        self._playback = playback
        self.text = ""
        self._ends: list[int] = []  # for each token, the length of the text once it is in
        self._tags: list[Span] = []
        self._track = PlayedTrack(self._tags)
        self._rate = 0
        self._end = 0  # of the speech, in samples
        self._pending: Event | None = None
        self._last = Event(-1, 0.0, "", None)
        self._told_failure = False
        self._rest = AfterStop()
        self._made = False  # whether the run has ended and all its events were read
        self._grace: asyncio.TimerHandle | None = None  # of a turn that was stopped
        self._made_before = 0  # events that the run had made when the turn was stopped
        self._everything = False  # whether all was made and played when the turn was stopped
        self._samples: int | None = None  # samples heard; None: everything that was read counts
        self._error: SpecstreamError | None = None
        self.outcome: Interruption | None = None
        self._closed = False

    @property
    def played_ms(self) -> float:
        """Milliseconds of the turn's audio that were heard; 0 without a play-out."""
        return self._playback.played_ms if self._playback is not None else 0.0

    @property
    def broken(self) -> bool:
        """Whether the reply or one of its stages has failed so far, read or not."""
        return self._run.broken

    @property
    def made_s(self) -> float:
        """Seconds of speech that the voice has made so far, read or not."""
        return self._run.made_s

    def pause(self) -> None:
        """Stop the play-out until `resume`: somebody may be about to interrupt.

        Decoding and voice go on until the play-out's ``ahead_s`` are full. Idempotent.
        """
        if self._playback is not None:
            self._playback.pause()

    def resume(self) -> None:
        """A false alarm: go on with the next sample. Idempotent."""
        if self._playback is not None:
            self._playback.resume()

    def interrupt(self, played_ms: float | None = None, reason: str = "interrupted") -> Interruption:
        """Stop the turn: no sample leaves after this call, the decoding stops within one round.

        Returns at once; the iteration then ends with the cues that bring an avatar to rest. The history
        ends at the last word that was heard. A further call can only shorten what counts as heard;
        after the turn's block it changes nothing.

        Args:
            played_ms: How much of the turn's audio was heard, by a better count than the play-out's
                own. Without a play-out and without this, all text that was read counts as heard.
            reason: What stages are told (see `Cancel`).

        Raises:
            RequestError: ``played_ms`` is negative or no number.
        """
        a_number = isinstance(played_ms, int | float)
        if played_ms is not None and not (a_number and 0 <= played_ms < math.inf):
            raise RequestError(f"played_ms must be milliseconds from 0 on, not {played_ms!r}")
        if self._closed:
            assert self.outcome is not None
            return self.outcome
        if self.outcome is None:
            self._stop(reason)
        if self._playback is not None:
            self._hear(self._playback.played)
        if played_ms is not None:
            told = int(played_ms * self._rate / 1e3 + 1e-6)
            self._hear(min(told, self._end))  # nobody hears more than was made
        self.outcome = self._heard()
        at = self._end if self._samples is None else self._samples
        self._rest.stopped(self._made_before, at, at * 1e3 / self._rate if self._rate else 0.0)
        return self.outcome

    def _hear(self, samples: int) -> None:
        self._samples = samples if self._samples is None else min(self._samples, samples)

    def close(self) -> None:
        """Interrupt the turn here and fix the outcome, as its block is left. Idempotent."""
        self.interrupt()
        self._closed = True
        if self._grace is not None:
            self._grace.cancel()

    def _stop(self, reason: str) -> None:
        played_all = self._playback is None or self._playback.over
        self._everything = self._made and played_all
        if self._playback is not None:
            self._playback.stop()
        self._made_before = self._run.count
        self.reply.cancel()
        self._run.cancel(reason)
        self._grace = asyncio.get_running_loop().call_later(GRACE_S, self._run.end_log)

    def _heard(self) -> Interruption:
        text, samples = self.text, self._samples
        if self._everything and self._playback is not None and self._playback.failure is not None:
            samples = None  # the play-out broke and nobody could hear the rest: it counts as read
        complete = self._everything and (samples is None or samples >= self._end)
        cut = len(text)
        if samples is not None and not complete:
            cut = self._track.cut(text, samples)
        kept = bisect_left(self._ends, cut) if cut else 0
        if cut and self._ends[kept : kept + 1] == [cut]:
            kept += 1
        if complete:
            kept = len(self._ends)
        ms = (self._samples or 0) * 1e3 / self._rate if self._rate else 0.0
        unheard = self.reply.text_read[cut:]
        return Interruption(text[:cut], unheard, kept, len(self._ends) - kept, ms, complete)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event:
        while True:
            event = await self._following()
            if isinstance(event.item, Speech) and self._playback is not None:
                self._pending = event
                await self._playback.room()
            self._pending = None
            self._last = event
            if self.outcome is None:
                self._take(event)
                return event
            if isinstance(event.item, StageFailed):
                self._take(event)
            if self._made:  # `_finish` made the event for a turn that was stopped
                return event
            if (late := self._rest.late(event)) is not None:
                return late

    async def _following(self) -> Event:
        if self._pending is not None:
            return self._pending
        if not self._made:
            try:
                return await anext(self._events)
            except StopAsyncIteration:
                pass
            except SpecstreamError as error:
                self._error = error
            self._made = True
        return await self._finish()

    async def _finish(self) -> Event:
        """Wait for the end of the play-out, then return a last event or end the iteration.

        Last events are a failure of the play-out and the cues that bring an avatar to rest. An error of
        the reply is raised here, once the speech before it was heard.
        """
        playback = self._playback
        # The last event that was read needn't be the latest: speech comes after the cues made from it.
        seq = max(self._last.seq + 1, self._run.count)
        if playback is not None:
            playback.finish()
            await playback.drained()
            if playback.failure is not None and not self._told_failure:
                failed = StageFailed(playback.failure)
                self._told_failure = True
                return Event(seq, self._last.t_ms, "playout", failed)
        if self.outcome is not None and not self.outcome.complete:
            if (rest := self._rest.last(seq)) is not None:
                return rest
        if self._error is not None:
            raise self._error
        raise StopAsyncIteration

    def _take(self, event: Event) -> None:
        item, playback = event.item, self._playback
        self._rest.saw(event)
        if isinstance(item, Chunk) and event.source == "engine":
            self.text += item.text
            self._ends += item.ends or [item.chars.end] * item.tokens.length
        elif isinstance(item, Phrase):
            self._tags += [tag.chars for tag in item.tags]
        elif isinstance(item, Speech):
            self._rate, self._end = item.sample_rate, item.samples.end
            words = [mark for mark in item.marks if mark.kind == "word"]
            self._track.add(words, item, item.samples, self.text)
            if playback is not None:
                self._play(playback, item)
        elif isinstance(item, StageFailed) and playback is not None:
            self._told_failure |= item.error is playback.failure

    def _play(self, playback: Output, speech: Speech) -> None:
        try:
            playback.put(speech)
        except SpecstreamError as error:
            self._run.stop("voice", error)
        if playback.failure is not None:
            self._run.stop("voice", playback.failure)


class FixedReply:
    """A text in place of a model's reply."""

    def __init__(self, text: str) -> None:
        self._text, self.text_read = text, ""

    async def __aiter__(self) -> AsyncGenerator[Chunk, None]:
        if self._text:
            text, self._text = self._text, ""
            self.text_read = text
            nothing = Span(0, 0)
            yield Chunk(text, (), nothing, Span(0, len(text)), finish_reason="stop")

    def cancel(self) -> None:
        """Give nothing more."""
        self._text = ""

    def needed_by(self, moment: float, heard: bool = False) -> None:
        """See `ReplySource`; the text is there already."""


@asynccontextmanager
async def speaking(
    reply: R,
    pipeline: Pipeline,
    output: Playout | Output | None,
    hold: Hold | None = None,
    chunks: AsyncIterable[Any] | None = None,
) -> AsyncGenerator[Turn[R], None]:
    """Run ``reply`` through ``pipeline`` as a turn. Leaving the block early interrupts the turn.

    ``output`` plays it, or (a play-out) begins to; ``chunks`` are read in place of the reply's own.
    """
    chunks = chunks or (reply if hold is None else HeldChunks(reply, hold))
    paced = output is not None
    async with AsyncExitStack() as stack:
        playback: Output | None
        if isinstance(output, Playout):
            paced = output.paced
            playback = await stack.enter_async_context(output.play())
        else:
            playback = output
        run = await stack.enter_async_context(pipeline.run(chunks))
        if playback is not None and paced:
            played = playback
            run.follow(lambda: played.played_ms / 1e3, reply.needed_by)
        turn = Turn(reply, run, cues_first(pipeline, run), playback)
        try:
            yield turn
        finally:
            turn.close()
