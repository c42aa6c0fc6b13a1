"""OpenTelemetry spans of turns, replies and phrases, through the API's own classes."""

from collections.abc import AsyncGenerator
from typing import Any

import pytest

from specstream import Agent
from specstream.errors import EngineFailed
from specstream.stages import spans
from specstream.stages.pipeline import Pipeline
from specstream.stages.stages import SegmentStage
from specstream.testing import ScriptedEngine, ScriptedVoice, chunks_of, run_virtual
from specstream.types import Chunk


class Recorded:
    """Spans of a provider that keeps them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        trace = pytest.importorskip("opentelemetry.trace")
        kept: list[Any] = []
        self.spans = kept

        class Span(trace.NonRecordingSpan):  # type: ignore[misc, name-defined]
            def __init__(self, name: str, parent: Any, start: Any, values: Any) -> None:
                context = trace.SpanContext(1, len(kept) + 1, False)
                super().__init__(context)
                self.name, self.parent, self.start, self.stop = name, parent, start, 0
                self.values, self.failed = dict(values or {}), None
                self.events: list[str] = []
                kept.append(self)

            def is_recording(self) -> bool:
                return not self.stop

            def set_attribute(self, key: str, value: Any) -> None:
                assert not self.stop
                self.values[key] = value

            def add_event(self, name: str, attributes: Any = None, timestamp: Any = None) -> None:
                assert not self.stop
                self.events.append(name)

            def set_status(self, status: Any, description: Any = None) -> None:
                self.failed = status

            def end(self, end_time: int | None = None) -> None:
                assert not self.stop, "a span ends once"
                self.stop = end_time or 1

        class Tracer(trace.NoOpTracer):  # type: ignore[misc, name-defined]
            def start_span(self, name: str, context: Any = None, **options: Any) -> Any:
                parent = trace.get_current_span(context)
                return Span(name, parent, options.get("start_time"), options.get("attributes"))

            def start_as_current_span(self, name: str, **options: Any) -> Any:
                span = self.start_span(name)
                return trace.use_span(span, end_on_exit=True)

        spans.tracing.cache_clear()
        monkeypatch.setattr(trace, "get_tracer", lambda name: Tracer())

    def named(self, name: str) -> list[Any]:
        return [span for span in self.spans if span.name == f"specstream.{name}"]


def test_a_turn_holds_its_reply_and_that_its_phrases(monkeypatch: pytest.MonkeyPatch) -> None:
    recorded = Recorded(monkeypatch)

    async def work() -> None:
        engine = ScriptedEngine(["One two three. Four five."])
        async with Agent(engine=engine, voice=ScriptedVoice()) as agent:
            await agent.say("Hi")
            agent.finish()
            async for _ in agent:
                pass

    run_virtual(work())
    [turn], [reply] = recorded.named("turn"), recorded.named("reply")
    phrases = recorded.named("phrase")
    assert reply.parent is turn and len(phrases) == 2
    assert all(phrase.parent is reply for phrase in phrases)
    assert all(span.stop for span in recorded.spans)
    assert turn.values["specstream.turn.complete"] is True
    assert turn.values["specstream.turn.heard_ms"] == 1250
    assert reply.events == ["first token", "first phrase", "first speech"]
    assert reply.values["specstream.reply.audio_ms"] == 1250
    assert reply.values["gen_ai.response.finish_reasons"] == ["stop"]
    assert phrases[0].values["specstream.phrase.audio_ms"] == 750
    assert phrases[1].values["specstream.phrase.chars"] == [15, 25]
    assert [phrase.events for phrase in phrases] == [["cut", "first speech"]] * 2
    assert reply.start <= phrases[0].start <= phrases[0].stop <= reply.stop


def test_a_reply_that_breaks_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    recorded = Recorded(monkeypatch)

    async def chunks() -> AsyncGenerator[Chunk, None]:
        for chunk in chunks_of("One two three. Four five.")[:4]:
            yield chunk
        raise EngineFailed("it broke")

    async def work() -> None:
        async with Pipeline([], head=SegmentStage()).run(chunks()) as run:
            async for _ in run:
                pass

    with pytest.raises(EngineFailed):
        run_virtual(work())
    [reply] = recorded.named("reply")
    assert reply.failed is not None and "it broke" in reply.failed.description
    assert all(span.stop for span in recorded.spans)


def test_without_a_recorder_nothing_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    assert spans.ReplySpans.open() is None
    monkeypatch.setattr(spans, "tracing", lambda: None)
    assert spans.ReplySpans.open() is None
    with spans.turn_span(0) as values:
        values["complete"] = True
