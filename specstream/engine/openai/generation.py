"""One reply of a server: its deltas become chunks with spans, its end a finish reason or an error."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from typing import Any, Self

import anyio

from specstream.engine.core.detokenizer import Repeats, StopMatcher
from specstream.engine.core.reasoning import Reasoning
from specstream.engine.openai.parts import (
    Joiner,
    ServerCalls,
    ServerCounts,
    delta_of,
    error_in,
    reasoning_in,
    text_in,
)
from specstream.engine.openai.start import ReplyStart
from specstream.errors import EngineError, EngineFailed, SpecstreamError
from specstream.metrics import Report
from specstream.tools import MAX_CALLS
from specstream.types import Chunk, FinishReason, SamplingParams, Span, ToolCall, ToolCallDelta

__all__ = ["FOR_COUNTS_S", "OpenAIGeneration", "Patience"]

FOR_COUNTS_S = 1.0
"""What is waited for the counts of a reply that has its finish reason."""
_MAX_UNREAD = 64  # chunks; then nothing more is read from the socket, which holds the server back


_CHARS = 8  # characters of a token, at most, in any longer text
_CUT: dict[str, FinishReason] = {"length": "length", "content_filter": "content_filter"}
_BROKEN = ("abort", "error")  # finish reasons of replies that the server couldn't write


class Patience:
    """How long a server may say nothing: ``first_s`` before its first word, then ``between_s``."""

    def __init__(self, first_s: float, between_s: float) -> None:
        self.first_s, self.between_s = first_s, between_s


class OpenAIGeneration:
    """A reply under way: an async iterator of `Chunk`, one for each delta of the server.

    As with our own engine, the iteration ends after a chunk with a ``finish_reason`` or raises the typed
    error of the reply, after all chunks before it; cancelling an iteration that waits loses no chunk.
    A stream that ends without a finish reason is a failure.

    Args:
        url: The server, for error texts.
        start: Sends the request.
        params: Stop strings, the sentence that ends a loop, and a reply that goes on far beyond
            ``max_tokens`` are looked for here as well.
        patience: How long the server may be silent.
        fault: Makes a typed error of what the client raises.
        taken: Ids of calls in the conversation.
        most_calls: Further calls are passed over: some servers don't know that they may write only one.
    """

    def __init__(
        self,
        url: str,
        start: ReplyStart,
        params: SamplingParams,
        patience: Patience,
        fault: Callable[[Exception], SpecstreamError],
        taken: Iterable[str] = (),
        most_calls: int = MAX_CALLS,
    ) -> None:
        self._url, self._start, self._fault, self._patience = url, start, fault, patience
        self._stops = StopMatcher(params.stop)
        self._repeats = Repeats(params.max_repeats) if params.max_repeats else None
        self._arrived: deque[Chunk] = deque()
        self._changed = asyncio.Event()
        self._began = self._heard_at = anyio.current_time()
        self._written, self._read, self._ids = "", "", list[int]()
        self._joiner, self._thought_joiner = Joiner(), Joiner()
        self._chars = 0  # of everything that the server wrote, reasoning and calls included
        self._tokens = self._round = self._aside_end = 0
        self._most = params.max_tokens
        self._calls = ServerCalls(set(taken), most_calls)
        self._thought = Reasoning({}, stops=params.stop)
        self._deltas: list[ToolCallDelta] = []
        self._seen: list[ToolCallDelta] = []
        self._reasoning = ""
        self._first_ms = self._last_ms = 0.0
        self._finish: FinishReason | None = None
        self._counts = ServerCounts()
        self.error: SpecstreamError | None = None
        self._ended = False
        self._task = asyncio.create_task(self._run())

    # --- the consumer's side

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Chunk:
        while not self._arrived:
            if self._ended:
                raise StopAsyncIteration
            if self._task.done() and self.error is not None:
                self._ended = True
                raise self.error
            self._changed.clear()
            await self._changed.wait()
        chunk = self._arrived.popleft()
        self._changed.set()
        self._read += chunk.text
        self._seen += chunk.tool_calls
        self._ended = chunk.finish_reason is not None
        return chunk

    def cancel(self) -> None:
        """Close the stream; the iteration ends with a chunk marked ``cancelled``. Idempotent."""
        if not self._task.done():
            self._task.cancel()
            if self._finish is None and self.error is None:
                self._end("cancelled")

    async def aclose(self) -> None:
        """Cancel, and wait until the stream is closed."""
        self.cancel()
        await asyncio.wait({self._task})
        if not self._task.cancelled():
            self._task.exception()  # told to the consumer already

    def needed_by(self, moment: float, heard: bool = False) -> None:
        """Do nothing: another server can't be told."""

    @property
    def text(self) -> str:
        """The text that has come, read or not."""
        return self._written

    @property
    def text_read(self) -> str:
        """The text of the chunks that the iteration has returned."""
        return self._read

    @property
    def tool_calls(self) -> tuple[ToolCall, ...]:
        """The calls that have ended in the chunks that the iteration has returned."""
        return ToolCall.collect(self._seen)

    @property
    def report(self) -> Report:
        """How the reply went so far; counts of tokens and drafts as far as the server tells them."""
        counts = self._counts
        rounds = self._round if counts.rounds is None else counts.rounds
        return Report(
            text=self._written,
            token_ids=tuple(self._ids),
            finish_reason=self._finish,
            prompt_tokens=counts.prompt or 0,
            reused_tokens=counts.cached or 0,
            rounds=rounds,
            target_forwards=rounds,
            drafted=counts.drafted or 0,
            accepted=counts.accepted or 0,
            acceptance_by_position=(),
            ttft_ms=self._first_ms,
            total_ms=self._last_ms,
            draft_ms=0.0,
            verify_ms=0.0,
            proposer="server" if counts.drafted else "",
            reasoning=self._reasoning,
            tool_calls=ToolCall.collect(self._deltas),
            truncated_messages=self._start.left_out,
            looping=self._repeats.looping if self._repeats is not None else "",
            counted_tokens=counts.completion or self._tokens,
        )

    # --- the stream's side

    async def _run(self) -> None:
        try:
            parts = await self._within(self._start(), self._patience.first_s)
            try:
                await self._follow(parts)
            finally:
                with anyio.move_on_after(1.0, shield=True):
                    await parts.close()
                    with suppress(Exception):  # a closed stream ends, and so does what reads it
                        await anext(parts)
        except Exception as error:
            if self._finish is None:
                if held := self._rest():
                    self._put(held, None, tokens=0)
                self.error = self._fault(error)
        finally:
            self._last_ms = self._now_ms()
            self._changed.set()

    async def _follow(self, parts: Any) -> None:
        """Read parts up to the end of the stream, so that a count behind the last delta is seen."""
        reason: str | None = None
        while True:
            patience = self._patience.between_s if self._round else self._patience.first_s
            try:
                part = await self._within(anext(parts), FOR_COUNTS_S if reason else patience)
            except StopAsyncIteration:
                break
            except Exception:
                if reason is None:
                    raise
                break  # the reply is complete: only its counts are missing
            if said := error_in(part):
                raise EngineFailed(f"{self._url} ended the reply: {said}")
            if part is None:  # an event of "null"
                continue
            self._counts.read(part)
            for choice in part.choices or ():
                if self._finish is not None:
                    continue
                if reason is None and choice.finish_reason:
                    reason, self._heard_at = choice.finish_reason, anyio.current_time()
                self._take(choice)
            if self._stops.stopped or self._endless():
                self._end("length" if not self._stops.stopped else "stop")
                return  # nobody needs the rest: closing the stream stops the server
            while len(self._arrived) >= _MAX_UNREAD:
                self._changed.clear()
                await self._changed.wait()
                self._heard_at = anyio.current_time()  # meanwhile nobody listened
        if reason is None:
            raise EngineFailed(f"{self._url} ended the stream without a finish_reason")
        if reason in _BROKEN:
            raise EngineFailed(f"{self._url} ended the reply: {reason}")
        self._end(_CUT.get(reason, "stop"))

    def _endless(self) -> bool:
        """Whether the reply is a loop, or the server doesn't know where it should have ended."""
        if self._repeats is not None and self._repeats.looping:
            return True
        # A delta may be less than a token, or several, and a token has few characters.
        if self._calls.passed_over > _CHARS * self._most:
            return True
        return self._round > self._most and self._chars > _CHARS * self._most

    async def _within(self, work: Awaitable[Any], seconds: float) -> Any:
        """Wait until so long after the last word: parts without one may come all the time."""
        try:
            with anyio.fail_after(self._heard_at + seconds - anyio.current_time()):
                return await work
        except TimeoutError:
            what = "since its last word" if self._round else "before its first word"
            raise EngineError(f"{self._url} was silent for {seconds:g} s {what}") from None

    def _take(self, choice: Any) -> None:
        """Make a chunk of a delta, if there is anything in it."""
        delta, told = delta_of(choice), len(self._thought.text)
        content = self._joiner.add(text_in(delta))
        reasoning = self._thought_joiner.add(reasoning_in(delta))
        passed_over = self._calls.passed_over
        calls = self._calls.add(delta)
        if self._calls.passed_over > passed_over:  # the server writes, though nobody wants it
            self._heard_at = anyio.current_time()
        ids = tuple((choice.model_extra or {}).get("token_ids") or ())
        if not (content or reasoning or calls or ids):
            return
        if not self._round:
            self._first_ms = self._now_ms()
        content = self._thought.add(content)  # some servers leave it in the text, between tags
        reasoning += self._thought.text[told:]
        self._reasoning += reasoning
        self._put(self._stops.add(content), ids or None, reasoning=reasoning, calls=calls)

    def _put(
        self,
        text: str,
        ids: tuple[int, ...] | None,
        *,
        reasoning: str = "",
        calls: tuple[ToolCallDelta, ...] = (),
        finish: FinishReason | None = None,
        tokens: int = 1,
    ) -> None:
        count = len(ids) if ids is not None else tokens
        start, at = len(self._written), self._tokens
        self._written += text
        self._chars += len(text) + len(reasoning) + sum(len(one.arguments) for one in calls)
        self._heard_at = anyio.current_time()
        self._ids += ids or ()
        self._tokens += count
        if (reasoning or calls) and not text:
            self._aside_end = self._tokens
        self._deltas += calls
        if self._repeats is not None:
            self._repeats.read(self._written)
        self._arrived.append(
            Chunk(
                text,
                ids or (),
                Span(at, self._tokens),
                Span(start, len(self._written)),
                ends=(len(self._written),) * count,
                round=self._round,
                t_ms=self._now_ms(),
                finish_reason=finish,
                reasoning=reasoning,
                reasoning_end=self._aside_end,
                tool_calls=calls,
            )
        )
        self._round += 1
        self._changed.set()

    def _rest(self) -> str:
        """The text that was held back."""
        if self._stops.stopped:
            return ""
        text = self._thought.finish(self._joiner.finish())
        return self._stops.add(text) + self._stops.finish()

    def _end(self, reason: FinishReason) -> None:
        """Give the last chunk: text that was held back, and the ends of calls."""
        calls = self._calls.end(cut=reason in ("length", "cancelled", "content_filter"))
        if calls and reason == "stop":
            reason = "tool_calls"
        held = self._rest()
        self._finish = reason
        self._put(held, None, calls=calls, finish=reason, tokens=0)

    def _now_ms(self) -> float:
        return (anyio.current_time() - self._began) * 1e3
