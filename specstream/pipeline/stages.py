"""The stages of a voice turn: they give adapters clocks, provenance, cancel and revoke."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import replace
from functools import partial

import anyio

from specstream.errors import AdapterFailed
from specstream.pipeline.interfaces import (
    AvatarScripter,
    AvatarTrack,
    PromptRewriter,
    RevocableStoryboard,
    SpeechSynthesizer,
)
from specstream.pipeline.limits import check_rate
from specstream.pipeline.link import Inlet
from specstream.pipeline.segment import Segmenter
from specstream.pipeline.spoken import LINE_START, Place, Reading, Readout
from specstream.types import (
    AvatarCue,
    Cancel,
    Chunk,
    Control,
    Flush,
    Mark,
    Phrase,
    Revoke,
    ScenePrompt,
    Span,
    Speech,
    SpeechBuffer,
    Tag,
)

__all__ = ["AvatarStage", "PromptStage", "SegmentStage", "VoiceStage"]


class SegmentStage:
    """`Chunk` to `Phrase`. Text that has waited ``deadline_s`` for a boundary is spoken anyway."""

    name = "text"

    def __init__(
        self,
        make: Callable[[], Segmenter] = Segmenter,
        *,
        deadline_s: float = 0.7,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._make = make
        self._deadline_s = deadline_s
        self._clock = clock

    async def run(self, items: Inlet[Chunk]) -> AsyncGenerator[Phrase | Control, None]:
        """One turn."""
        segmenter = self._make()
        deadline: float | None = None
        while True:
            item: Chunk | Control | None = None
            try:
                left = None if deadline is None else max(0.0, deadline - self._clock())
                with anyio.move_on_after(left):
                    item = await anext(items)
            except StopAsyncIteration:
                break
            phrases: list[Phrase] = []
            if isinstance(item, Chunk):
                phrases = segmenter.add(item)
                if phrases or deadline is None:
                    deadline = self._clock() + self._deadline_s
                if not segmenter.pending:
                    deadline = None
            elif item is None:
                phrases = segmenter.flush()
                deadline = None  # what can't be spoken yet waits for more text, not for time
            elif isinstance(item, Flush):
                phrases = segmenter.flush()
            elif isinstance(item, Revoke):
                segmenter.revoke(item.from_char)
            for phrase in phrases:
                yield phrase
            if item is not None and not isinstance(item, Chunk):
                yield item
                if isinstance(item, Cancel):
                    return
        for phrase in segmenter.close():
            yield phrase


class VoiceStage:
    """`Phrase` to `Speech`: puts a voice's buffers on the turn's sample clock, tags among them.

    The voice is given each phrase as ``readout`` reads it, in the voice's own language unless
    ``readout`` names one; the marks are mapped back to the reply's characters.
    """

    name = "voice"

    def __init__(self, voice: SpeechSynthesizer, readout: Readout = Readout()) -> None:  # noqa: B008
        self._voice = voice
        self._readout = readout.for_language(voice.capabilities.language)
        self._rate = voice.capabilities.sample_rate
        check_rate(self._rate, f"voice {voice.capabilities.name!r}")

    async def aclose(self) -> None:
        """Release what the voice holds; idempotent."""
        await self._voice.aclose()

    async def run(self, items: Inlet[Phrase]) -> AsyncGenerator[Speech | Control, None]:
        """One turn; the sample clock starts at 0. A cancel stops a voice within a buffer."""
        clock, place = 0, LINE_START
        said: list[tuple[Phrase, int, Place]] = []  # phrases, and where each began
        async for item in items:
            if isinstance(item, Phrase):
                said.append((item, clock, place))
                reading = self._readout.read(item, place)
                place = reading.place
                async with aclosing(self._speak(item, reading, clock)) as pieces:
                    following = partial(anext, pieces, None)
                    while (piece := await items.unless_cancelled(following)) is not None:
                        clock = piece.samples.end
                        yield piece
                continue
            if isinstance(item, Revoke):
                while said and said[-1][0].chars.start >= item.from_char:
                    _, clock, place = said.pop()  # the next phrase takes the place of this audio
                if said and said[-1][0].chars.end > item.from_char:
                    kept = _until(item.from_char, said[-1][0])
                    place = self._readout.read(kept, said[-1][2]).place
            yield item

    async def _speak(
        self, phrase: Phrase, reading: Reading, clock: int
    ) -> AsyncGenerator[Speech, None]:
        origin = clock
        waiting = list(phrase.tags)
        where = (phrase.chars, phrase.tokens, phrase.index)
        async with aclosing(self._voice.synthesize(reading.phrase)) as buffers:
            async for buffer in buffers:
                if len(buffer.pcm) % 2:
                    name = self._voice.capabilities.name
                    raise AdapterFailed(f"voice {name!r} gave half a sample; PCM must be 16-bit")
                samples = Span(clock, clock + len(buffer.pcm) // 2)
                marks = _place(buffer, origin, waiting, reading)
                yield Speech(buffer.pcm, self._rate, samples, marks, *where)
                clock = samples.end
        marks = tuple(_tag_mark(tag, clock) for tag in waiting)
        yield Speech(b"", self._rate, Span(clock, clock), marks, *where, last=True)


def _until(char: int, phrase: Phrase) -> Phrase:
    """The phrase up to an offset of the reply."""
    chars = Span(phrase.chars.start, char)
    tags = tuple(tag for tag in phrase.tags if tag.chars.end <= char)
    return replace(phrase, text=phrase.text[: chars.length], chars=chars, tags=tags)


def _place(
    buffer: SpeechBuffer, origin: int, waiting: list[Tag], reading: Reading
) -> tuple[Mark, ...]:
    """The buffer's marks on the turn's clock and in the reply; a tag goes before the next word."""
    placed: list[Mark] = []
    for mark in buffer.marks:
        chars = reading.written(mark.chars)
        samples = Span(origin + mark.samples.start, origin + mark.samples.end)
        while mark.kind == "word" and waiting and waiting[0].chars.end <= chars.start:
            placed.append(_tag_mark(waiting.pop(0), samples.start))
        placed.append(Mark(mark.kind, mark.text, samples, chars))
    return tuple(placed)


def _tag_mark(tag: Tag, sample: int) -> Mark:
    return Mark("tag", tag.name, Span(sample, sample), tag.chars)


class AvatarStage:
    """`Speech` to `AvatarCue`.

    ``punctual``: the scripter says that a piece's cues are all there once it was given the piece, and
    that the mouth's cover it. Consumers may then put them before the piece (see `CuesFirst`).
    """

    name = "avatar"

    def __init__(self, scripter: AvatarScripter) -> None:
        self._scripter = scripter
        self.punctual = bool(getattr(scripter, "punctual", False))

    async def run(self, items: Inlet[Speech]) -> AsyncGenerator[AvatarCue | Control, None]:
        """One turn; the face is brought to rest when the speech ends or is cancelled.

        The first speech tells the sample rate; without speech there is nothing to bring to rest.
        A track is not told of a revoke: the speech that follows one starts at an earlier sample.
        """
        track: AvatarTrack | None = None
        async for item in items:
            if isinstance(item, Speech):
                track = track or self._scripter.open(item.sample_rate)
                for cue in track.add(item):
                    yield cue
                continue
            if isinstance(item, Cancel):
                for cue in track.close() if track is not None else ():
                    yield cue
                track = None
            yield item
        for cue in track.close() if track is not None else ():
            yield cue


class PromptStage:
    """`Phrase` to `ScenePrompt`."""

    name = "prompt"

    def __init__(self, rewriter: PromptRewriter) -> None:
        self._rewriter = rewriter

    async def run(self, items: Inlet[Phrase]) -> AsyncGenerator[ScenePrompt | Control, None]:
        """One turn; a rewriter that is slow to answer is dropped once the turn is cancelled.

        A revoke withdraws every shot whose span ends past its offset. What is left of a shot that
        began before it comes first, as a revision.
        """
        board = self._rewriter.open()
        read = 0  # characters of the reply that the board was given
        async for item in items:
            if isinstance(item, Phrase):
                read = max(read, item.chars.end)
                for prompt in await items.unless_cancelled(partial(board.add, item)) or ():
                    yield prompt
                continue
            if isinstance(item, Revoke) and isinstance(board, RevocableStoryboard):
                read = min(read, item.from_char)
                taking = partial(board.revoke, item.from_char)
                for prompt in await items.unless_cancelled(taking) or ():
                    yield prompt
            elif isinstance(item, Flush) or (isinstance(item, Revoke) and item.from_char < read):
                read = item.from_char if isinstance(item, Revoke) else read
                for prompt in await items.unless_cancelled(board.close) or ():
                    if prompt.span.end <= read:
                        yield prompt
                board = self._rewriter.open()
            yield item
        for prompt in await items.unless_cancelled(board.close) or ():
            yield prompt
        async for late in items:
            if isinstance(late, Cancel):  # it came while the board was closing
                yield late
