"""Deterministic adapters that count what they do and can be told to stall or to break."""

from __future__ import annotations

import asyncio
import math
import re
import struct
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Sequence
from typing import Any

import anyio
import anyio.lowlevel

from specstream.stages.contract import Inlet
from specstream.stages.interfaces import MarkCapabilities, VoiceCapabilities
from specstream.stages.pipeline import Run, Stage
from specstream.types import AvatarCue, Mark, Phrase, ScenePrompt, Span, Speech, SpeechBuffer, Tag

RATE = 8000
BUFFER = 400  # samples


async def cancelled(
    work: Coroutine[Any, Any, None], begun: asyncio.Event, steps: int
) -> asyncio.Task[None]:
    """A task that was cancelled by asyncio so many steps of the loop after ``begun``, and has ended."""
    task = asyncio.create_task(work)
    await begun.wait()
    for _ in range(steps):
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    return task


class Script:
    """What an adapter shall do at its n-th piece of work, and what it has done."""

    def __init__(self, *, stall_at: int | None = None, break_at: int | None = None) -> None:
        self.stall_at = stall_at
        self.break_at = break_at
        self.error: Exception = RuntimeError("out of paint")
        self.stalled = anyio.Event()
        self.made = 0
        self.running = 0
        self.closed = 0
        self.watched: dict[int, anyio.Event] = {}

    async def step(self) -> None:
        await anyio.lowlevel.checkpoint()
        if self.made == self.stall_at:
            self.stalled.set()
            await anyio.sleep_forever()
        if self.made == self.break_at:
            raise self.error
        self.made += 1
        if self.made in self.watched:
            self.watched[self.made].set()

    def when_made(self, count: int) -> anyio.Event:
        return self.watched.setdefault(count, anyio.Event())


class ToneVoice:
    """A tone a word: its pitch and length follow from the letters; a phoneme a letter pair."""

    def __init__(self, script: Script | None = None) -> None:
        self.script = script or Script()

    @property
    def capabilities(self) -> VoiceCapabilities:
        return VoiceCapabilities("tone", RATE, True, True, words=True, phonemes=True)

    async def synthesize(self, phrase: Phrase) -> AsyncGenerator[SpeechBuffer, None]:
        self.script.running += 1
        try:
            at = 0
            for word in re.finditer(r"\S+", phrase.spoken):
                chars = Span(phrase.chars.start + word.start(), phrase.chars.start + word.end())
                span = Span(at, at + 150 * (word.end() - word.start()) + 7)
                phonemes = [
                    Mark("phoneme", word[0][i : i + 2], Span(at + 150 * i, at + 150 * i + 300), chars)
                    for i in range(0, len(word[0]) - 1, 2)
                ]
                marks = (*phonemes, Mark("word", word[0], span, chars))
                pitch = 100 + sum(word[0].encode()) % 300
                for start in range(span.start, span.end, BUFFER):
                    await self.script.step()
                    end = min(start + BUFFER, span.end)
                    done = tuple(m for m in marks if start < m.samples.end <= end)
                    yield SpeechBuffer(tone(pitch, start, end), done)
                at = span.end
        finally:
            self.script.running -= 1

    async def aclose(self) -> None:
        self.script.closed += 1


class BitMark:
    """A mark that sets the lowest bit of every sample, and holds ``held`` samples back."""

    def __init__(self, held: int = 0) -> None:
        self.held = held
        self.opened = self.closed = 0
        self.capabilities = MarkCapabilities("bit", held * 1e3 / RATE, deterministic=True)

    def open(self, sample_rate: int) -> BitTrack:
        self.opened += 1
        return BitTrack(self.held)

    async def aclose(self) -> None:
        self.closed += 1


class BitTrack:
    def __init__(self, held: int) -> None:
        self._held, self._waiting = held, b""

    async def add(self, pcm: bytes) -> bytes:
        waiting = self._waiting + pcm
        ready = max(0, len(waiting) - 2 * self._held)
        self._waiting = waiting[ready:]
        return marked_bits(waiting[:ready])

    async def close(self) -> bytes:
        rest, self._waiting = self._waiting, b""
        return marked_bits(rest)


def marked_bits(pcm: bytes) -> bytes:
    return bytes(byte if at % 2 else byte | 1 for at, byte in enumerate(pcm))


def tone(pitch: int, start: int, end: int) -> bytes:
    wave = (round(9000 * math.sin(2 * math.pi * pitch * i / RATE)) for i in range(start, end))
    return struct.pack(f"<{end - start}h", *wave)


class Face:
    """A cue a phoneme, each held back until the next one is known."""

    def __init__(self, script: Script | None = None) -> None:
        self.script = script or Script()

    def open(self, sample_rate: int) -> FaceTrack:
        return FaceTrack(sample_rate, self.script)


class FaceTrack:
    def __init__(self, rate: int, script: Script) -> None:
        self._rate = rate
        self._script = script
        self._held: AvatarCue | None = None
        self._end = 0

    def add(self, speech: Speech) -> Sequence[AvatarCue]:
        if self._script.made == self._script.break_at:
            raise self._script.error
        self._script.made += 1
        self._end = speech.samples.end
        out = []
        for mark in speech.marks:
            if mark.kind == "word":
                continue
            if self._held is not None:
                out.append(self._held)
            kind, length = ("gesture", 9) if mark.kind == "tag" else ("viseme", mark.samples.length)
            self._held = AvatarCue(
                kind,  # type: ignore[arg-type]
                mark.text,
                mark.samples.start / self._rate * 1e3 / 3,
                length / 3.0,
                1 / (1 + length),
                mark.samples,
                mark.chars,
                speech.tokens,
                {"jawOpen": len(speech.pcm) / 777, "mouthClose": 0.1 + 0.2},
            )
        return out

    def close(self) -> Sequence[AvatarCue]:
        held, self._held = self._held, None
        end, none = Span(self._end, self._end), Span(0, 0)
        rest = AvatarCue("viseme", "sil", self._end / self._rate * 1e3, 0.0, 0.0, end, none, none)
        return [rest] if held is None else [held, rest]


class Board:
    """A shot a phrase, given when the next phrase begins."""

    def __init__(self, script: Script | None = None) -> None:
        self.script = script or Script()
        self.shots = 0

    def open(self) -> BoardTurn:
        return BoardTurn(self)


class BoardTurn:
    def __init__(self, board: Board) -> None:
        self._board = board
        self._held: Phrase | None = None

    async def add(self, phrase: Phrase) -> Sequence[ScenePrompt]:
        await self._board.script.step()
        shots = self._shot()
        self._held = phrase
        return shots

    async def close(self) -> Sequence[ScenePrompt]:
        await self._board.script.step()
        return self._shot()

    def _shot(self) -> list[ScenePrompt]:
        held, self._held = self._held, None
        if held is None:
            return []
        self._board.shots += 1
        words = held.spoken.split() or ["nothing"]
        return [
            ScenePrompt(
                f"shot-{self._board.shots}",
                0,
                held.t_ms / 7,
                held.chars,
                held.tokens,
                subject=words[0],
                action=words[-1],
                setting="ein Café „à la carte“",
                camera="35 mm",
                style="ink\n\twash",
                prompt=held.text,
                negative="",
            )
        ]


class Relay:
    """A head that passes on phrases which were cut already."""

    name = "text"

    async def run(self, items: Inlet[Any]) -> AsyncGenerator[Any, None]:
        async for item in items:
            yield item


def phrases_of(text: str, *, count: int | None = None) -> list[Phrase]:
    """Cut at full stops; ``[tags]`` are tags; a token is four characters."""
    found = []
    for index, match in enumerate(re.finditer(r"[^.]+\.?\s*", text)):
        chars = Span(*match.span())
        tags = tuple(
            Tag(m[1], Span(chars.start + m.start(), chars.start + m.end()))
            for m in re.finditer(r"\[(\w+)\]", match[0])
        )
        tokens = Span(chars.start // 4, chars.end // 4 + 1)
        found.append(Phrase(match[0], chars, tokens, index, tags, 10.0 * index / 3))
    return found[:count]


async def stream(
    items: Iterable[Any], made: Callable[[Any], None] = lambda item: None
) -> AsyncGenerator[Any, None]:
    for item in items:
        await anyio.lowlevel.checkpoint()
        made(item)
        yield item


async def events_by_source(run: Run) -> dict[str, list[Any]]:
    """Read the run to its end. What one stage gave is in order; stages interleave as they like."""
    found: dict[str, list[Any]] = {}
    last = -1
    async for event in run:
        assert event.seq == last + 1
        last = event.seq
        found.setdefault(event.source, []).append(event.item)
    return found


async def feed(stage: Stage[Any, Any], items: Iterable[Any]) -> list[Any]:
    """What one stage makes of ``items``."""
    from specstream.stages.contract import Link

    link: Link[Any] = Link(1024)
    for item in items:
        await link.send(item)
    link.close()
    return [output async for output in stage.run(link)]
