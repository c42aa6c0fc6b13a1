"""One reply of a server: its deltas become chunks with spans, its end a finish reason or an error."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from typing import Any, Self

import anyio

from specstream.engine.core.detokenizer import Repeats, StopMatcher
from specstream.errors import EngineError, EngineFailed, SpecstreamError
from specstream.metrics import Report
from specstream.tools import CallProblem, arguments_problem
from specstream.types import Chunk, FinishReason, SamplingParams, Span, ToolCall, ToolCallDelta

__all__ = ["FOR_COUNTS_S", "OpenAIGeneration", "Patience"]

FOR_COUNTS_S = 1.0
"""What is waited for the counts of a reply that has its finish reason."""
_MAX_UNREAD = 64  # chunks; then nothing more is read from the socket, which holds the server back


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
        start: Sends the request and returns its stream of parts.
        params: Stop strings, and the sentence that ends a loop, are looked for here as well.
        patience: How long the server may be silent.
        fault: Makes a typed error of what the client raises.
    """

    def __init__(
        self,
        url: str,
        start: Callable[[], Awaitable[AsyncIterator[Any]]],
        params: SamplingParams,
        patience: Patience,
        fault: Callable[[Exception], SpecstreamError],
    ) -> None:
        self._url, self._start, self._fault, self._patience = url, start, fault, patience
        self._stops = StopMatcher(params.stop)
        self._repeats = Repeats(params.max_repeats) if params.max_repeats else None
        self._arrived: deque[Chunk] = deque()
        self._changed = asyncio.Event()
        self._began = anyio.current_time()
        self._written, self._read, self._ids = "", "", list[int]()
        self._tokens = self._round = self._aside_end = 0
        self._calls: dict[int, dict[str, str]] = {}
        self._deltas: list[ToolCallDelta] = []
        self._seen: list[ToolCallDelta] = []
        self._reasoning = ""
        self._first_ms = self._last_ms = 0.0
        self._finish: FinishReason | None = None
        self._usage: dict[str, Any] = {}
        self._drafts: dict[str, int] = {}
        self.error: SpecstreamError | None = None
        self.left_out = 0  # messages that didn't fit (set by the engine)
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
        details = self._usage.get("prompt_tokens_details") or {}
        drafts = self._drafts
        rounds = drafts.get("rounds", self._round)
        return Report(
            text=self._written,
            token_ids=tuple(self._ids),
            finish_reason=self._finish,
            prompt_tokens=int(self._usage.get("prompt_tokens") or 0),
            reused_tokens=int(details.get("cached_tokens") or drafts.get("cached", 0)),
            rounds=rounds,
            target_forwards=rounds,
            drafted=drafts.get("drafted", 0),
            accepted=drafts.get("accepted", 0),
            acceptance_by_position=(),
            ttft_ms=self._first_ms,
            total_ms=self._last_ms,
            draft_ms=0.0,
            verify_ms=0.0,
            proposer="server" if drafts.get("drafted") else "",
            reasoning=self._reasoning,
            tool_calls=ToolCall.collect(self._deltas),
            truncated_messages=self.left_out,
            looping=self._repeats.looping if self._repeats is not None else "",
            counted_tokens=int(self._usage.get("completion_tokens") or self._tokens),
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
                if held := self._stops.finish():
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
            self._count(part)
            for choice in part.choices or ():
                if self._finish is not None:
                    continue
                reason = choice.finish_reason or reason
                self._take(choice)
            if self._stops.stopped or (self._repeats is not None and self._repeats.looping):
                self._end("length" if not self._stops.stopped else "stop")
                return  # nobody needs the rest: closing the stream stops the server
            while len(self._arrived) >= _MAX_UNREAD:
                self._changed.clear()
                await self._changed.wait()
        if reason is None:
            raise EngineFailed(f"{self._url} ended the stream without a finish_reason")
        self._end("length" if reason == "length" else "stop")

    async def _within(self, work: Awaitable[Any], seconds: float) -> Any:
        try:
            with anyio.fail_after(seconds):
                return await work
        except TimeoutError:
            what = "since its last word" if self._round else "before its first word"
            raise EngineError(f"{self._url} was silent for {seconds:g} s {what}") from None

    def _take(self, choice: Any) -> None:
        """Make a chunk of a delta, if there is anything in it."""
        delta = choice.delta
        extra = (delta.model_extra or {}) if delta is not None else {}
        content = (delta.content or "") if delta is not None else ""
        reasoning = extra.get("reasoning_content") or extra.get("reasoning") or ""
        calls = self._called(delta.tool_calls or ()) if delta is not None else ()
        ids = tuple((choice.model_extra or {}).get("token_ids") or ())
        if not (content or reasoning or calls or ids):
            return
        if not self._round:
            self._first_ms = self._now_ms()
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

    def _called(self, given: Any) -> tuple[ToolCallDelta, ...]:
        found = []
        for each in given:
            index = each.index if each.index is not None else len(self._calls)
            call = self._calls.setdefault(index, {"id": f"call_{index}", "name": "", "json": ""})
            function = each.function
            call["id"] = each.id or call["id"]
            name = (function.name or "") if function is not None else ""
            piece = (function.arguments or "") if function is not None else ""
            call["name"] += name if name != call["name"] else ""  # some repeat it
            call["json"] += piece
            found.append(ToolCallDelta(index, call["id"], call["name"], piece))
        return tuple(found)

    def _end(self, reason: FinishReason) -> None:
        """Give the last chunk: text that was held back, and the ends of calls."""
        cut = reason in ("length", "cancelled")
        ends = []
        for index, call in sorted(self._calls.items()):
            problem: CallProblem = "" if call["name"] else "no_name"
            problem = problem or arguments_problem(call["json"] or "{}")
            if problem and cut and index == max(self._calls):
                problem = "cut_off"
            ends.append(ToolCallDelta(index, call["id"], call["name"], "", True, problem))
        if ends and reason == "stop":
            reason = "tool_calls"
        held = "" if self._stops.stopped else self._stops.finish()
        self._finish = reason
        self._put(held, None, calls=tuple(ends), finish=reason, tokens=0)

    def _count(self, part: Any) -> None:
        """Take note of what a part tells of tokens and drafts."""
        if part.usage is not None:
            self._usage = part.usage.model_dump()
        extra = part.model_extra or {}
        if isinstance(timings := extra.get("timings"), dict):  # llama.cpp
            self._drafts["cached"] = int(timings.get("cache_n") or 0)
            if "draft_n" in timings:
                self._drafts["drafted"] = int(timings["draft_n"])
                self._drafts["accepted"] = int(timings.get("draft_n_accepted") or 0)
        metrics = extra.get("metrics")
        drafts = metrics.get("speculative_decoding") if isinstance(metrics, dict) else None
        if isinstance(drafts, dict):  # vLLM
            self._drafts |= {
                "rounds": int(drafts.get("num_spec_steps") or 0),
                "drafted": int(drafts.get("num_draft_tokens") or 0),
                "accepted": int(drafts.get("num_accepted_draft_tokens") or 0),
            }

    def _now_ms(self) -> float:
        return (anyio.current_time() - self._began) * 1e3
