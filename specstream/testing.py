"""Doubles for people who test what they build on specstream: no weights, no network, no torch."""

from __future__ import annotations

import math
import re
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from itertools import accumulate
from typing import Any, Never

import anyio

from specstream.conversation import Conversation
from specstream.errors import SpecstreamError
from specstream.metrics import Report
from specstream.params import checked_params
from specstream.pipeline.listening_interfaces import (
    HeardWord,
    RecognizerCapabilities,
    SpeechStarted,
    SpeechStopped,
    Transcript,
    TurnCapabilities,
    VoiceActivity,
)
from specstream.types import Chunk, FinishReason, Message, SamplingParams, Span

__all__ = [
    "ScriptedEngine",
    "ScriptedGeneration",
    "ScriptedRecognizer",
    "ScriptedSession",
    "ScriptedTurnDetector",
    "chunks_of",
]

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
        ends = list(accumulate(map(len, taken), initial=start))[1:]
        end = ends[-1]
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
    nothing = ("", (), Span(at, at), Span(start, start))
    return [*chunks, Chunk(*nothing, round=len(chunks), finish_reason=finish_reason)]


class ScriptedGeneration:
    """Stands in for `specstream.Generation`: yields prepared chunks, one per loop turn."""

    error: SpecstreamError | None = None

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

    text_read = text  # nothing is written before it is read

    @property
    def report(self) -> Report:
        """The report so far."""
        ids = tuple(i for chunk in self._sent for i in chunk.token_ids)
        rounds = sum(1 for chunk in self._sent if chunk.token_ids)
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
            ttft_ms=1.0,
            total_ms=float(len(ids)),
            draft_ms=0.0,
            verify_ms=0.0,
            proposer="scripted",
            reasoning="".join(chunk.reasoning for chunk in self._sent),
        )


class ScriptedEngine:
    """Has the interface of `specstream.Engine` and answers with prepared texts, in turn.

    The last reply repeats for ever. ``gate``, when given, returns an event that each chunk waits for
    (or None), so a test decides when the "model" writes. ``requests`` records the messages and
    parameters of each request, ``template_kwargs`` its variables for the chat template.
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
        self.trimmed: list[int] = []

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
        session: str | None = None,
        speculate: bool = True,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        **wrong: Never,
    ) -> AsyncGenerator[ScriptedGeneration, None]:
        """One scripted reply."""
        params = checked_params(params, wrong)
        self.template_kwargs.append(dict(chat_template_kwargs or {}))
        asked: list[Message] = (
            [{"role": "user", "content": messages}] if isinstance(messages, str) else list(messages)
        )
        self.requests.append((asked, params))
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
            return "".join([chunk.text async for chunk in generation])

    def session(self, system: str | None = None) -> ScriptedSession:
        """A conversation with this engine."""
        return ScriptedSession(self, system)

    def forget(self, session: str) -> None:
        """Nothing is kept."""

    def trim(self, session: str, tokens: int) -> None:
        """Nothing is kept; ``trimmed`` records the number of tokens."""
        self.trimmed.append(tokens)


class ScriptedSession(Conversation[ScriptedGeneration]):
    """Stands in for `specstream.Session`; keeps the same history."""

    closed = False

    async def aclose(self) -> None:
        """End the conversation."""
        self.closed = True


class ScriptedTurnDetector:
    """A `TurnDetector` for which any sample but 0 is a voice.

    A start is reported at once, a pause after ``stop_ms`` of zeros. ``error`` is raised at every
    piece of audio once it is set.
    """

    capabilities = TurnCapabilities("scripted", (16_000, 8_000))

    def __init__(self, *, stop_ms: float = 96.0) -> None:
        self._stop_ms = stop_ms
        self.error: Exception | None = None
        self.thresholds: list[float] = []

    def open(self, sample_rate: int, *, threshold: float = 0.5) -> _ScriptedTrack:
        """Begin a stream; ``thresholds`` records what was asked for."""
        self.thresholds.append(threshold)
        return _ScriptedTrack(self, sample_rate / 1000, self._stop_ms)


class _ScriptedTrack:
    def __init__(self, detector: ScriptedTurnDetector, per_ms: float, stop_ms: float) -> None:
        self._detector, self._per_ms, self._stop_ms = detector, per_ms, stop_ms
        self._now = self._voice_until = 0.0
        self._speaking = False

    def add(self, pcm: bytes) -> Sequence[VoiceActivity]:
        if self._detector.error is not None:
            raise self._detector.error
        began = self._now
        self._now += len(pcm) / 2 / self._per_ms
        if any(pcm):
            self._voice_until = self._now
            if not self._speaking:
                self._speaking = True
                return (SpeechStarted(began),)
        elif self._speaking and self._now - self._voice_until >= self._stop_ms:
            self._speaking = False
            return (SpeechStopped(self._voice_until),)
        return ()


class ScriptedRecognizer:
    """A `Recognizer` that hears prepared texts, one a turn; the last one repeats for ever.

    A partial transcript has a word for every ``word_ms`` of audio. A text that is an exception is
    raised instead. Every question takes ``takes_s`` seconds of the event loop's clock; with infinity
    none is ever answered. ``audio`` records what each turn's stream was given, ``asked`` how many
    questions it had to work for, ``languages`` the languages asked for; ``open_streams`` counts those
    that were not closed.
    """

    capabilities = RecognizerCapabilities("scripted", (16_000,), ("en",), words=True)

    def __init__(
        self,
        texts: Sequence[str | Exception],
        *,
        takes_s: float = 0.0,
        word_ms: float = 250.0,
    ) -> None:
        self._texts = list(texts)
        self.takes_s, self.word_ms = takes_s, word_ms
        self.audio: list[bytearray] = []
        self.asked: list[int] = []
        self.languages: list[str | None] = []
        self.open_streams = 0
        self.closed = False

    def open(self, sample_rate: int, *, language: str | None = None) -> _ScriptedStream:
        """Begin a turn with the next text."""
        text = self._texts.pop(0) if len(self._texts) > 1 else self._texts[0]
        self.audio.append(bytearray())
        self.asked.append(0)
        self.languages.append(language)
        self.open_streams += 1
        return _ScriptedStream(self, len(self.audio) - 1, text, sample_rate / 1000)

    async def aclose(self) -> None:
        """Nothing is held."""
        self.closed = True


class _ScriptedStream:
    def __init__(
        self, owner: ScriptedRecognizer, turn: int, text: str | Exception, per_ms: float
    ) -> None:
        self._owner, self._turn, self._text, self._per_ms = owner, turn, text, per_ms
        self._known: tuple[int, Transcript] = (0, Transcript(""))
        self._open = True

    def add(self, pcm: bytes) -> None:
        self._owner.audio[self._turn] += pcm

    async def partial(self) -> Transcript:
        length = len(self._owner.audio[self._turn])
        if length != self._known[0]:
            self._owner.asked[self._turn] += 1
            await (
                anyio.sleep_forever()
                if math.isinf(self._owner.takes_s)
                else anyio.sleep(self._owner.takes_s)
            )
            if isinstance(self._text, Exception):
                raise self._text
            words = int(length / 2 / self._per_ms / self._owner.word_ms)
            self._known = (length, self._transcript(self._text.split()[:words]))
        return self._known[1]

    async def finish(self) -> Transcript:
        await self.partial()
        assert isinstance(self._text, str)
        return self._transcript(self._text.split())

    async def aclose(self) -> None:
        self._owner.open_streams -= self._open
        self._open = False

    def _transcript(self, words: Sequence[str]) -> Transcript:
        each = self._owner.word_ms
        heard = (HeardWord(word, i * each, (i + 1) * each) for i, word in enumerate(words))
        return Transcript(" ".join(words), tuple(heard), "en")
