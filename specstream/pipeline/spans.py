"""OpenTelemetry spans of turns, replies and phrases, where ``opentelemetry-api`` is installed.

A ``specstream.turn`` (of an `Agent`) holds a ``specstream.reply``, which holds a ``specstream.phrase``
for each phrase. A reply outside an agent belongs to the caller's current span. Texts are not recorded.
Without the package, or where no provider records, nothing is done.
"""

from __future__ import annotations

import importlib
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

from specstream.types import Cancel, Chunk, Phrase, Revoke, Speech

__all__ = ["ReplySpans", "turn_span"]

_Values = dict[str, Any]


@cache
def _api() -> Any:
    """``opentelemetry.trace``, or None."""
    try:
        return importlib.import_module("opentelemetry.trace")
    except ImportError:
        return None


@contextmanager
def turn_span(number: int) -> Iterator[_Values]:
    """Open the span of an agent's turn; entries of the yielded dictionary become its attributes."""
    values: _Values = {}
    if (api := _api()) is None:
        yield values
        return
    tracer = api.get_tracer("specstream")
    with tracer.start_as_current_span("specstream.turn") as span:
        span.set_attribute("specstream.turn.index", number)
        try:
            yield values
        finally:
            for name, value in values.items():
                span.set_attribute(f"specstream.turn.{name}", value)


class _PhraseSpan:
    """A phrase: from its first character to the last of its speech."""

    def __init__(self, phrase: Phrase, span: Any) -> None:
        self.start = phrase.chars.start
        self.span = span
        self.spoken = False
        self.samples = 0

    def end(self, **values: Any) -> None:
        """End the span, with these attributes."""
        for name, value in values.items():
            self.span.set_attribute(f"specstream.phrase.{name}", value)
        self.span.end(end_time=time.time_ns())


class ReplySpans:
    """The spans of one run of a pipeline."""

    def __init__(self, tracer: Any, span: Any, context: Any) -> None:
        self._tracer, self._span, self._context = tracer, span, context
        self._came: deque[tuple[int, int]] = deque()  # length of the text, and when that came
        self._phrases: dict[int, _PhraseSpan] = {}  # the open ones, by the phrase's number
        self._seen: set[str] = set()  # names of the events that were added
        self._counts = dict.fromkeys(("rounds", "drafted", "accepted"), 0)
        self._tokens, self._audio_ms = 0, 0.0
        self._reason: str | None = None

    @classmethod
    def open(cls) -> ReplySpans | None:
        """Begin the reply's span; return None where nobody records it."""
        if (api := _api()) is None:
            return None
        tracer = api.get_tracer("specstream")
        span = tracer.start_span("specstream.reply", start_time=time.time_ns())
        if not span.is_recording():
            return None
        return cls(tracer, span, api.set_span_in_context(span))

    def saw(self, item: object) -> None:
        """Take an item of the run's log as it is made."""
        match item:
            case Chunk():
                self._chunk(item)
            case Phrase():
                self._first("first phrase")
                self._phrase(item)
            case Speech():
                self._speech(item)
            case Revoke(from_char):
                for index, phrase in list(self._phrases.items()):
                    if phrase.start >= from_char:
                        self._phrases.pop(index).end(revoked=True)
            case Cancel(reason):
                self._reason = reason

    def _first(self, name: str) -> None:
        if name not in self._seen:
            self._seen.add(name)
            self._span.add_event(name, timestamp=time.time_ns())

    def _chunk(self, chunk: Chunk) -> None:
        if chunk.token_ids:
            self._first("first token")
            self._counts["rounds"] += 1
        self._counts["drafted"] += chunk.drafted
        self._counts["accepted"] += chunk.accepted
        self._tokens = max(self._tokens, chunk.tokens.end)
        if chunk.text:
            self._came.append((chunk.chars.end, time.time_ns()))
        if chunk.finish_reason is not None:
            self._span.set_attribute("gen_ai.response.finish_reasons", [chunk.finish_reason])

    def _phrase(self, phrase: Phrase) -> None:
        while len(self._came) > 1 and self._came[0][0] <= phrase.chars.start:
            self._came.popleft()
        now = time.time_ns()
        began = self._came[0][1] if self._came else now
        values = {
            "index": phrase.index,
            "reason": phrase.reason,
            "chars": list(phrase.chars),
            "tokens": list(phrase.tokens),
        }
        attributes = {f"specstream.phrase.{name}": value for name, value in values.items()}
        span = self._tracer.start_span(
            "specstream.phrase", context=self._context, attributes=attributes, start_time=began
        )
        span.add_event("cut", timestamp=now)
        if (before := self._phrases.pop(phrase.index, None)) is not None:
            before.end(revoked=True)
        self._phrases[phrase.index] = _PhraseSpan(phrase, span)

    def _speech(self, speech: Speech) -> None:
        phrase = self._phrases.get(speech.phrase)
        if speech.pcm:
            self._first("first speech")
            self._audio_ms = speech.samples.end * 1e3 / speech.sample_rate
        if phrase is None:
            return
        if speech.pcm and not phrase.spoken:
            phrase.spoken = True
            phrase.span.add_event("first speech", timestamp=time.time_ns())
        phrase.samples += speech.samples.length
        if speech.last:
            ms = phrase.samples * 1e3 / speech.sample_rate
            self._phrases.pop(speech.phrase).end(audio_ms=ms)

    def close(self, error: Exception | None) -> None:
        """End the reply's span, and those of phrases that nobody spoke."""
        for phrase in self._phrases.values():
            phrase.end()
        self._phrases.clear()
        span = self._span
        span.set_attribute("gen_ai.usage.output_tokens", self._tokens)
        for name, count in self._counts.items():
            span.set_attribute(f"specstream.reply.{name}", count)
        span.set_attribute("specstream.reply.audio_ms", self._audio_ms)
        if self._reason is not None:
            span.set_attribute("specstream.reply.cancelled", self._reason)
        if error is not None:
            span.record_exception(error)
            span.set_status(_api().Status(_api().StatusCode.ERROR, str(error)))
        span.end(end_time=time.time_ns())
