"""Doubles for people who test what they build on specstream: no weights, no network, no torch."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import anyio

from specstream.metrics import Report
from specstream.types import Chunk, FinishReason, Message, SamplingParams, Span

__all__ = ["ScriptedEngine", "ScriptedGeneration", "ScriptedSession", "chunks_of"]

_PIECE = re.compile(r"\s*\S{1,6}|\s+")


def chunks_of(
    text: str, sizes: Iterable[int] = (), *, finish_reason: FinishReason = "stop"
) -> list[Chunk]:
    """Cut ``text`` into tokens of at most six visible characters and lay them out as chunks.

    ``sizes`` gives the number of tokens of each chunk in turn; the rest come one by one. The chunks
    carry exact spans, and the last one the ``finish_reason``.
    """
    pieces = _PIECE.findall(text)
    chunks: list[Chunk] = []
    at = start = 0
    wanted = iter(sizes)
    while at < len(pieces):
        count = max(1, next(wanted, 1))
        taken = pieces[at : at + count]
        ends, end = [], start
        for piece in taken:
            end += len(piece)
            ends.append(end)
        chunks.append(
            Chunk(
                text=text[start:end],
                token_ids=tuple(range(at, at + len(taken))),
                tokens=Span(at, at + len(taken)),
                chars=Span(start, end),
                ends=tuple(ends),
                round=len(chunks),
                drafted=len(taken) - 1,
                accepted=len(taken) - 1,
                t_ms=10.0 * len(chunks),
            )
        )
        at, start = at + len(taken), end
    last = chunks[-1] if chunks else Chunk("", (), Span(0, 0), Span(0, 0))
    final = Chunk(
        "", (), Span(at, at), Span(start, start), round=len(chunks), finish_reason=finish_reason
    )
    return [*chunks, final] if last.finish_reason is None else chunks


class ScriptedGeneration:
    """Stands in for `specstream.Generation`: yields prepared chunks, one per loop turn."""

    def __init__(self, chunks: Sequence[Chunk], gate: Callable[[], anyio.Event | None]) -> None:
        self._chunks = list(chunks)
        self._gate = gate
        self._sent: list[Chunk] = []
        self._finish: FinishReason | None = None
        self._waiting = anyio.CancelScope()

    def __aiter__(self) -> ScriptedGeneration:
        return self

    async def __anext__(self) -> Chunk:
        gate = self._gate()
        if gate is not None and self._finish is None:
            with anyio.CancelScope() as self._waiting:
                await gate.wait()
        await anyio.lowlevel.checkpoint()
        if self._finish is not None or not self._chunks:
            raise StopAsyncIteration
        chunk = self._chunks.pop(0)
        self._sent.append(chunk)
        self._finish = chunk.finish_reason
        return chunk

    def cancel(self) -> None:
        """End the stream; the report then says ``cancelled``."""
        self._finish = self._finish or "cancelled"
        self._waiting.cancel()

    @property
    def text(self) -> str:
        """The text so far."""
        return "".join(chunk.text for chunk in self._sent)

    @property
    def report(self) -> Report:
        """The report so far."""
        ids = tuple(i for chunk in self._sent for i in chunk.token_ids)
        drafted = sum(chunk.drafted for chunk in self._sent)
        accepted = sum(chunk.accepted for chunk in self._sent)
        rounds = sum(1 for chunk in self._sent if chunk.token_ids)
        return Report(
            text=self.text,
            token_ids=ids,
            finish_reason=self._finish,
            prompt_tokens=1,
            reused_tokens=0,
            rounds=rounds,
            target_forwards=rounds,
            drafted=drafted,
            accepted=accepted,
            acceptance_by_position=(),
            ttft_ms=1.0,
            total_ms=float(len(ids)),
            draft_ms=0.0,
            verify_ms=0.0,
            proposer="scripted",
            reasoning="".join(chunk.reasoning for chunk in self._sent),
        )


class ScriptedEngine:
    """Has the face of `specstream.Engine` and answers with prepared texts, in turn.

    The last reply repeats for ever. ``gate``, when given, returns an event that each chunk waits for
    (or None), so a test decides when the "model" writes. ``requests`` records what was asked,
    ``template_kwargs`` with which variables for the chat template.
    """

    def __init__(
        self,
        replies: Sequence[str | Sequence[Chunk]],
        *,
        gate: Callable[[], anyio.Event | None] = lambda: None,
    ) -> None:
        self._replies = list(replies)
        self._gate = gate
        self.requests: list[tuple[list[Message], SamplingParams]] = []
        self.template_kwargs: list[dict[str, Any]] = []
        self.generations: list[ScriptedGeneration] = []

    async def __aenter__(self) -> ScriptedEngine:
        return self

    async def __aexit__(self, *exc: object) -> None:
        return None

    @asynccontextmanager
    async def generate(
        self,
        messages: Sequence[Message] | str,
        params: SamplingParams | None = None,
        *,
        reference: str = "",
        chat_template_kwargs: Mapping[str, Any] | None = None,
        session: str | None = None,
        speculate: bool = True,
    ) -> AsyncGenerator[ScriptedGeneration, None]:
        """One scripted reply."""
        self.template_kwargs.append(dict(chat_template_kwargs or {}))
        asked: list[Message] = (
            [{"role": "user", "content": messages}] if isinstance(messages, str) else list(messages)
        )
        self.requests.append((asked, params or SamplingParams()))
        reply = self._replies.pop(0) if len(self._replies) > 1 else self._replies[0]
        chunks = chunks_of(reply) if isinstance(reply, str) else reply
        generation = ScriptedGeneration(chunks, self._gate)
        self.generations.append(generation)
        try:
            yield generation
        finally:
            generation.cancel()

    async def complete(
        self, messages: Sequence[Message], *, max_tokens: int = 256, reference: str = ""
    ) -> str:
        """The whole text of one scripted reply."""
        params = SamplingParams(max_tokens=max_tokens)
        async with self.generate(messages, params, reference=reference) as generation:
            async for _ in generation:
                pass
            return generation.text

    def session(self, system: str | None = None) -> ScriptedSession:
        """A conversation with this engine."""
        return ScriptedSession(self, system)


class ScriptedSession:
    """Stands in for `specstream.Session`."""

    def __init__(self, engine: ScriptedEngine, system: str | None = None) -> None:
        self._engine = engine
        self.messages: list[Message] = []
        if system is not None:
            self.messages.append({"role": "system", "content": system})
        self.closed = False

    @asynccontextmanager
    async def reply(
        self,
        messages: Sequence[Message],
        params: SamplingParams | None = None,
        *,
        reference: str = "",
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> AsyncGenerator[ScriptedGeneration, None]:
        """A reply to ``messages``."""
        async with self._engine.generate(
            messages, params, reference=reference, chat_template_kwargs=chat_template_kwargs
        ) as generation:
            yield generation

    @asynccontextmanager
    async def generate(
        self,
        text: str,
        params: SamplingParams | None = None,
        *,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> AsyncGenerator[ScriptedGeneration, None]:
        """Say ``text`` as the user; both turns are remembered, the reply as far as it was read.

        A turn that is refused is not.
        """
        said: Message = {"role": "user", "content": text}
        self.messages.append(said)
        generation: ScriptedGeneration | None = None
        try:
            async with self.reply(
                self.messages, params, chat_template_kwargs=chat_template_kwargs
            ) as generation:
                yield generation
        finally:
            if generation is None:
                self.messages.remove(said)
            elif generation.text:
                self.messages.append({"role": "assistant", "content": generation.text})

    async def aclose(self) -> None:
        """End the conversation."""
        self.closed = True

    async def __aenter__(self) -> ScriptedSession:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.aclose()
