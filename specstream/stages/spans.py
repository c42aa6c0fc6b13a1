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
from dataclasses import dataclass
from functools import cache
from typing import Any

from specstream.types import Cancel, Chunk, Phrase, Revoke, Speech

__all__ = ["ReplySpans", "tracing", "turn_span"]

_Values = dict[str, Any]


@cache
def tracing() -> Any:
    """``opentelemetry.trace``, or None."""
    try:
        return importlib.import_module("opentelemetry.trace")
    except ImportError:
        return None


@contextmanager
def turn_span(number: int) -> Iterator[_Values]:
    """Open the span of an agent's turn; entries of the yielded dictionary become its attributes."""
    values: _Values = {}
    if (api := tracing()) is None:
        yield values
        return
    values["index"] = number
    with api.get_tracer("specstream").start_as_current_span("specstream.turn") as span:
        try:
            yield values
        finally:
            _set(span, "specstream.turn", values)


@dataclass(slots=True)
class _PhraseSpan:
    """A phrase: from its first character to the last of its speech."""

    start: int  # offset in the reply
    span: Any
    samples: int = 0

    def end(self, **values: Any) -> None:
        """End the span, with these attributes."""
        _set(self.span, "specstream.phrase", values)
        self.span.end(end_time=time.time_ns())


def _set(span: Any, prefix: str, values: _Values) -> None:
    for name, value in values.items():
        span.set_attribute(f"{prefix}.{name}", value)


class ReplySpans:
    """The spans of one run of a pipeline."""

    def __init__(self, tracer: Any, span: Any, context: Any) -> None:
        self._tracer, self._span, self._context = tracer, span, context
        self._came: deque[tuple[int, int]] = deque()  # length of the text, and when that came
        self._phrases: dict[int, _PhraseSpan] = {}  # the open ones, by the phrase's number
        self._seen: set[str] = set()  # names of the events that were added
        self._tokens = 0
        self._values: _Values = {"rounds": 0, "drafted": 0, "accepted": 0, "audio_ms": 0.0}

    @classmethod
    def open(cls) -> ReplySpans | None:
        """Begin the reply's span; return None where nobody records it."""
        if (api := tracing()) is None:
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
                self._values["cancelled"] = reason

    def _first(self, name: str) -> None:
        if name not in self._seen:
            self._seen.add(name)
            self._span.add_event(name, timestamp=time.time_ns())

    def _chunk(self, chunk: Chunk) -> None:
        if chunk.token_ids:
            self._first("first token")
            self._values["rounds"] += 1
        self._values["drafted"] += chunk.drafted
        self._values["accepted"] += chunk.accepted
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
        values: _Values = {"index": phrase.index, "reason": phrase.reason}
        values |= {"chars": list(phrase.chars), "tokens": list(phrase.tokens)}
        attributes = {f"specstream.phrase.{name}": value for name, value in values.items()}
        span = self._tracer.start_span(
            "specstream.phrase", context=self._context, attributes=attributes, start_time=began
        )
        span.add_event("cut", timestamp=now)
        if (before := self._phrases.pop(phrase.index, None)) is not None:
            before.end(revoked=True)
        self._phrases[phrase.index] = _PhraseSpan(phrase.chars.start, span)

    def _speech(self, speech: Speech) -> None:
        phrase = self._phrases.get(speech.phrase)
        if speech.pcm:
            self._first("first speech")
            self._values["audio_ms"] = speech.samples.end * 1e3 / speech.sample_rate
        if phrase is None:
            return
        if speech.pcm and not phrase.samples:
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
        _set(span, "specstream.reply", self._values)
        if error is not None:
            span.record_exception(error)
            span.set_status(tracing().Status(tracing().StatusCode.ERROR, str(error)))
        span.end(end_time=time.time_ns())
