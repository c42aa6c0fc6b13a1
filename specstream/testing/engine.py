"""A scripted engine: prepared replies behind the interface of `specstream.Engine`."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from itertools import accumulate
from typing import Any, Never

import anyio

from specstream.engine.core.detokenizer import StopMatcher
from specstream.engine.core.prompt import check_messages
from specstream.engine.protocol import EngineCapabilities
from specstream.engine.session import BaseSession
from specstream.errors import PromptError, SpecstreamError
from specstream.metrics import Report
from specstream.params import checked_params
from specstream.types import (
    Chunk,
    FinishReason,
    Manner,
    Message,
    RawPrompt,
    SamplingParams,
    Span,
    Tool,
    ToolCall,
    ToolCallDelta,
    Tools,
    Truncation,
)

__all__ = ["ScriptedEngine", "ScriptedGeneration", "ScriptedSession", "chunks_of"]

_PIECE = re.compile(r"\s*\S{1,6}|\s+")


def chunks_of(
    text: str,
    sizes: Iterable[int] = (),
    *,
    calls: Sequence[ToolCall] = (),
    finish_reason: FinishReason = "stop",
) -> list[Chunk]:
    """Cut ``text`` into tokens of at most six visible characters and lay them out as chunks.

    ``sizes`` gives the number of tokens of each chunk in turn; the remaining tokens get a chunk each.
    The chunks carry exact spans, and the last one the ``finish_reason``. ``calls`` come after the text,
    their arguments in pieces; the finish reason ``"stop"`` then becomes ``"tool_calls"``.
    """
    pieces = _PIECE.findall(text)
    ends = list(accumulate(map(len, pieces), initial=0))  # of what is written before each token
    chunks: list[Chunk] = []
    at, wanted = 0, iter(sizes)
    while at < len(pieces):
        to = min(at + max(1, next(wanted, 1)), len(pieces))
        chunks.append(
            Chunk(
                text=text[ends[at] : ends[to]],
                token_ids=tuple(range(at, to)),
                tokens=Span(at, to),
                chars=Span(ends[at], ends[to]),
                ends=tuple(ends[at + 1 : to + 1]),
                round=len(chunks),
                drafted=to - at - 1,
                accepted=to - at - 1,
                t_ms=10.0 * len(chunks),
            )
        )
        at = to
    after = Span(len(text), len(text))
    for index, call in enumerate(calls):
        for delta in _deltas(index, call):
            aside: dict[str, Any] = {"reasoning_end": at + 1, "tool_calls": (delta,)}
            chunks.append(Chunk("", (at,), Span(at, at + 1), after, round=len(chunks), **aside))
            at += 1
    if calls and finish_reason == "stop":
        finish_reason = "tool_calls"
    nothing = ("", (), Span(at, at), after)
    return [*chunks, Chunk(*nothing, round=len(chunks), finish_reason=finish_reason)]


def _at_most(chunks: Sequence[Chunk], tokens: int) -> Sequence[Chunk]:
    """The chunks whose tokens come among the first ``tokens``; the last one says if others follow."""
    kept = [chunk for chunk in chunks if chunk.tokens.end <= tokens]
    if len(kept) == len(chunks):
        return chunks
    at, char = (kept[-1].tokens.end, kept[-1].chars.end) if kept else (0, 0)
    spans = (Span(at, at), Span(char, char))
    return [*kept, Chunk("", (), *spans, round=len(kept), finish_reason="length")]


def _deltas(index: int, call: ToolCall) -> list[ToolCallDelta]:
    head = (index, call.id, call.name)
    pieces = [ToolCallDelta(*head, piece) for piece in _PIECE.findall(call.arguments)]
    return [ToolCallDelta(*head), *pieces, ToolCallDelta(*head, done=True, problem=call.problem)]


class ScriptedGeneration:
    """Stands in for `specstream.Generation`: yields prepared chunks, one per loop turn.

    If it is ``timed``, each chunk comes its ``t_ms`` after the request.

    Attributes:
        ahead: The chunks that were not read yet.
        needed: What `needed_by` was told.
    """

    error: SpecstreamError | None = None

    def __init__(
        self, chunks: Sequence[Chunk], gate: Callable[[], anyio.Event | None], *, timed: bool = False
    ) -> None:
        self.ahead = list(chunks)
        self._gate = gate
        self._began = anyio.current_time() if timed else None
        self._sent: list[Chunk] = []
        self._finish: FinishReason | None = None
        self._waiting = anyio.CancelScope()
        self.needed: list[tuple[float, bool]] = []

    def __aiter__(self) -> ScriptedGeneration:
        return self

    async def __anext__(self) -> Chunk:
        gate = self._gate()
        if self._finish is None:
            with anyio.CancelScope() as self._waiting:
                if gate is not None:
                    await gate.wait()
                if self._began is not None and self.ahead:
                    await anyio.sleep_until(self._began + self.ahead[0].t_ms / 1e3)
        await anyio.lowlevel.checkpoint()
        if self._finish is not None or not self.ahead:
            raise StopAsyncIteration
        chunk = self.ahead.pop(0)
        self._sent.append(chunk)
        self._finish = chunk.finish_reason
        return chunk

    def cancel(self) -> None:
        """End the stream; the report then says ``cancelled``."""
        self._finish = self._finish or "cancelled"
        self._waiting.cancel()

    def needed_by(self, moment: float, heard: bool = False) -> None:
        """See `specstream.Generation.needed_by`; changes nothing here."""
        self.needed.append((moment, heard))

    @property
    def text(self) -> str:
        """The text so far."""
        return "".join(chunk.text for chunk in self._sent)

    @property
    def tool_calls(self) -> tuple[ToolCall, ...]:
        """The calls that have ended so far."""
        return ToolCall.collect([delta for chunk in self._sent for delta in chunk.tool_calls])

    text_read = text  # nothing is written before it is read

    @property
    def report(self) -> Report:
        """The report so far."""
        ids = tuple(i for chunk in self._sent for i in chunk.token_ids)
        written = [chunk for chunk in self._sent if chunk.token_ids]
        rounds, timed = len(written), self._began is not None and written
        return Report(
            text=self.text,
            token_ids=ids,
            finish_reason=self._finish,
            prompt_tokens=1,
            reused_tokens=0,
            rounds=rounds,
            target_forwards=rounds,
            drafted=sum(chunk.drafted for chunk in self._sent),
            accepted=sum(chunk.accepted for chunk in self._sent),
            acceptance_by_position=(),
            ttft_ms=written[0].t_ms if timed else 1.0,
            total_ms=self._sent[-1].t_ms if timed else float(len(ids)),
            draft_ms=0.0,
            verify_ms=0.0,
            proposer="scripted",
            reasoning="".join(chunk.reasoning for chunk in self._sent),
            tool_calls=self.tool_calls,
        )


class ScriptedEngine:
    """Has the interface of `specstream.Engine` and answers with prepared texts, in turn.

    The last reply is repeated for all further requests. A text ends at ``max_tokens`` and before a stop
    string; chunks are given as they are. ``gate``, when given, returns an event that each chunk waits
    for (or None), so a test decides when the "model" writes. If ``timed``, each chunk comes its
    ``t_ms`` after the request.

    ``requests`` records the messages and parameters of each request, ``template_kwargs`` its variables
    for the chat template, ``references`` its reference, ``speculated`` whether it asked for speculation,
    ``learnt`` whether the draft may learn from it, ``truncations`` how it may be shortened, ``tools``
    its tools, which are refused unless the engine ``calls_tools``.
    """

    def __init__(
        self,
        replies: Sequence[str | Sequence[Chunk]],
        *,
        gate: Callable[[], anyio.Event | None] = lambda: None,
        calls_tools: bool = False,
        timed: bool = False,
    ) -> None:
        self._timed = timed
        self.no_tools = None if calls_tools else "the scripted engine calls no tools"
        self.places, self.slowed = 1, None
        self.capabilities = EngineCapabilities(
            rounds=True, token_ids=True, reference=True, raw_prompts=True
        )
        self.manner = Manner()
        self.tools: list[Tools | None] = []
        self._replies = list(replies)
        self._gate = gate
        self.requests: list[tuple[list[Message], SamplingParams]] = []
        self.template_kwargs: list[dict[str, Any]] = []
        self.speculated: list[bool | int] = []
        self.references: list[str] = []
        self.learnt: list[bool] = []
        self.truncations: list[Truncation | None] = []
        self.generations: list[ScriptedGeneration] = []
        self.trimmed: list[int] = []

    async def __aenter__(self) -> ScriptedEngine:
        return self

    async def __aexit__(self, *exc: object) -> None:
        return None

    @asynccontextmanager
    async def generate(
        self,
        messages: Sequence[Message] | RawPrompt | str,
        params: SamplingParams | None = None,
        *,
        reference: str = "",
        session: str | None = None,
        speculate: bool | int = True,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        tools: Tools | Sequence[Tool | Callable[..., Any]] | None = None,
        learn: bool = True,
        truncation: Truncation | None = None,
        **wrong: Never,
    ) -> AsyncGenerator[ScriptedGeneration, None]:
        """Give the next scripted reply."""
        params = checked_params(params, wrong)
        if isinstance(messages, RawPrompt) and messages.tokens:
            raise PromptError("a scripted engine has no tokenizer: give the prompt as a text")
        offered = Tools.of(tools)
        if offered is not None and self.no_tools is not None:
            raise PromptError(self.no_tools)
        self.tools.append(offered)
        self.template_kwargs.append(dict(chat_template_kwargs or {}))
        self.speculated.append(speculate)
        self.references.append(reference)
        self.learnt.append(learn)
        self.truncations.append(truncation)
        asked: list[Message] = (
            check_messages(messages) if isinstance(messages, RawPrompt | str) else list(messages)
        )
        self.requests.append((asked, params))
        reply = self._replies.pop(0) if len(self._replies) > 1 else self._replies[0]
        chunks = self._within(reply, params) if isinstance(reply, str) else reply
        generation = ScriptedGeneration(chunks, self._gate, timed=self._timed)
        self.generations.append(generation)
        try:
            yield generation
        finally:
            generation.cancel()

    def _within(self, reply: str, params: SamplingParams) -> Sequence[Chunk]:
        stops = StopMatcher(params.stop)
        text = stops.add(reply) + stops.finish()
        return _at_most(self._chunks(text), params.max_tokens)

    def _chunks(self, reply: str) -> Sequence[Chunk]:
        return chunks_of(reply)

    async def complete(
        self, messages: Sequence[Message], *, max_tokens: int = 256, reference: str = ""
    ) -> str:
        """Return the whole text of the next scripted reply."""
        params = SamplingParams(max_tokens=max_tokens)
        async with self.generate(messages, params, reference=reference) as generation:
            return "".join([chunk.text async for chunk in generation])

    def session(self, system: str | None = None) -> ScriptedSession:
        """A conversation with this engine."""
        return ScriptedSession(self, system)

    def forget(self, session: str) -> None:
        """Do nothing: no cache is kept."""

    def trim(self, session: str, tokens: int) -> None:
        """Record the number of tokens in ``trimmed``; no cache is kept."""
        self.trimmed.append(tokens)


class ScriptedSession(BaseSession[ScriptedGeneration]):
    """Stands in for `specstream.Session`; keeps the same history."""

    closed = False

    async def aclose(self) -> None:
        """End the conversation."""
        self.closed = True
