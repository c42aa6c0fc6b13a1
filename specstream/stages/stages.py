"""The stages of a voice turn: they add sample clocks, provenance, cancel and revoke to adapters."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import AsyncGenerator, Coroutine
from contextlib import aclosing
from copy import deepcopy
from dataclasses import replace
from functools import partial
from typing import Any, Generic, NoReturn, TypeVar, cast

from specstream.errors import AdapterFailed
from specstream.stages.contract import Inlet
from specstream.stages.interfaces import (
    AvatarScripter,
    AvatarTrack,
    PromptRewriter,
    RevocableStoryboard,
    SpeechSynthesizer,
    Storyboard,
)
from specstream.stages.limits import MarkCheck, check_rate, cues_of, marks_of, prompts_of
from specstream.stages.segment_stage import SegmentStage
from specstream.text.spoken import LINE_START, Reading, ReadingState, Readout
from specstream.types import (
    AvatarCue,
    Cancel,
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

__all__ = ["AvatarStage", "Copies", "PromptStage", "SegmentStage", "VoiceStage"]

_KEPT = 8  # copies: more than drafted phrases can be outstanding

T = TypeVar("T")


class Copies(Generic[T]):
    """Copies of a stage's state from before each of the latest phrases; none unless ``enabled``."""

    def __init__(self, *, enabled: bool) -> None:
        self.enabled = enabled
        self._kept: deque[tuple[int, T]] = deque(maxlen=_KEPT)

    def keep(self, start: int, state: T) -> None:
        """Copy the state before a phrase that begins at the offset ``start``."""
        if self.enabled:
            self._kept.append((start, deepcopy(state)))

    def back(self, revoke: Revoke, state: T) -> T:
        """The state from before the drafted phrases that are revoked; ``state`` if there were none."""
        while self._kept and self._kept[-1][0] >= revoke.from_char:
            _, kept = self._kept.pop()
            state = kept if revoke.drafted else state
        return state


_log = logging.getLogger("specstream.stages")


class VoiceStage:
    """`Phrase` to `Speech`: puts a voice's buffers on the turn's sample clock, tags among them.

    The voice is given each phrase as ``readout`` reads it, in the voice's own language unless
    ``readout`` names one; the marks are mapped back to the reply's characters.

    Attributes:
        takes_drafts: Whether it may be given phrases that are drafted only: if the voice streams,
            since one that can't be stopped would hold up the phrase that is spoken instead.
    """

    name = "voice"

    def __init__(self, voice: SpeechSynthesizer, readout: Readout = Readout()) -> None:  # noqa: B008
        self._voice = voice
        facts = getattr(voice, "capabilities", None)
        if not all(hasattr(facts, fact) for fact in ("name", "sample_rate", "streaming", "language")):
            raise AdapterFailed(
                f"the capabilities of {voice!r:.80} must be VoiceCapabilities(...), not "
                f"{type(facts).__name__}; a name becomes a voice by load_adapter('voice', NAME)"
            )
        facts = voice.capabilities
        self._readout = readout.for_language(facts.language)
        self._rate = facts.sample_rate
        self.takes_drafts = facts.streaming
        self._told_silence = False  # once is enough
        check_rate(self._rate, f"voice {voice.capabilities.name!r}")

    async def aclose(self) -> None:
        """Release what the voice holds; idempotent."""
        await self._voice.aclose()

    async def run(self, items: Inlet[Phrase]) -> AsyncGenerator[Speech | Control, None]:
        """Run one turn; the sample clock starts at 0.

        A cancel stops a voice within a buffer, and so does the revoke of a drafted phrase.
        """
        clock, place = 0, LINE_START
        said: list[tuple[Phrase, int, ReadingState]] = []  # phrases, and where each began
        async for item in items:
            if isinstance(item, Phrase):
                end = item.chars.end
                if items.unwanted(end):
                    continue
                said.append((item, clock, place))
                reading = self._readout.read(item, place)
                place = reading.place
                async with aclosing(self._speak(item, reading, clock)) as pieces:
                    following = partial(anext, pieces, None)
                    while (piece := await items.unless_cancelled(following, end)) is not None:
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

    def _buffers(self, phrase: Phrase) -> AsyncGenerator[SpeechBuffer, None]:
        buffers: Any = self._voice.synthesize(phrase)
        if not hasattr(buffers, "__anext__") or not hasattr(buffers, "aclose"):
            if isinstance(buffers, Coroutine):
                buffers.close()  # else Python warns that nobody awaited it
            self._refuse(
                f"{type(buffers).__name__} instead of buffers; synthesize must be an async generator "
                "(async def, with yield)"
            )
        return cast(AsyncGenerator[SpeechBuffer, None], buffers)

    def _pcm(self, buffer: SpeechBuffer) -> bytes:
        if not isinstance(buffer, SpeechBuffer):
            self._refuse(f"{type(buffer).__name__}; it must yield SpeechBuffer(pcm)")
        if not isinstance(buffer.pcm, bytes | bytearray | memoryview):
            self._refuse(f"{type(buffer.pcm).__name__} as PCM; it must be bytes")
        pcm = bytes(buffer.pcm)  # a voice may fill its buffer anew; a view may count other items
        if len(pcm) % 2:
            self._refuse("half a sample; PCM must be 16-bit")
        return pcm

    def _marks(self, buffer: SpeechBuffer, check: MarkCheck) -> tuple[Mark, ...]:
        """The buffer's marks with plain numbers, once it is certain that they fit the phrase."""
        try:
            marks = tuple(marks_of(buffer.marks))
        except AdapterFailed as error:
            self._refuse(f"wrong marks: {error}")
        if fault := check.fault(marks):
            self._refuse(f"a wrong mark: {fault}")
        return marks

    def _refuse(self, what: str) -> NoReturn:
        raise AdapterFailed(f"voice {self._voice.capabilities.name!r} gave {what}")

    async def _speak(self, phrase: Phrase, reading: Reading, clock: int) -> AsyncGenerator[Speech, None]:
        origin = clock
        waiting = list(phrase.tags)
        where = (phrase.chars, phrase.tokens, phrase.index)
        check = MarkCheck(reading.phrase.chars, 0, self._rate)
        async with aclosing(self._buffers(reading.phrase)) as buffers:
            async for buffer in buffers:
                pcm = self._pcm(buffer)
                samples = Span(clock, clock + len(pcm) // 2)
                marks = _place(self._marks(buffer, check), origin, waiting, reading)
                yield Speech(pcm, self._rate, samples, marks, *where)
                clock = samples.end
        if fault := check.end_fault(clock - origin):
            self._refuse(f"a wrong mark: {fault}")
        said = reading.phrase.spoken.strip()
        if clock == origin and any(map(str.isalpha, said)) and not self._told_silence:
            self._told_silence = True
            name = self._voice.capabilities.name
            _log.warning("voice %r gave no audio for %r; no more warnings follow", name, said[:60])
        marks = tuple(_tag_mark(tag, clock) for tag in waiting)
        yield Speech(b"", self._rate, Span(clock, clock), marks, *where, last=True)


def _check_opens(adapter: object, noun: str) -> None:
    if not callable(getattr(adapter, "open", None)):
        raise AdapterFailed(f"{adapter!r:.80} is not {noun}: it has no method open")


def _until(char: int, phrase: Phrase) -> Phrase:
    """Return the phrase up to an offset of the reply."""
    chars = Span(phrase.chars.start, char)
    tags = tuple(tag for tag in phrase.tags if tag.chars.end <= char)
    return replace(phrase, text=phrase.text[: chars.length], chars=chars, tags=tags)


def _place(
    marks: tuple[Mark, ...], origin: int, waiting: list[Tag], reading: Reading
) -> tuple[Mark, ...]:
    """Map a buffer's marks to the turn's clock and the reply; a tag goes before the word behind it."""
    placed: list[Mark] = []
    for mark in marks:
        chars = reading.written(mark.chars)
        samples = Span(origin + mark.samples.start, origin + mark.samples.end)
        while mark.kind == "word" and waiting and waiting[0].chars.end <= chars.end:
            placed.append(_tag_mark(waiting.pop(0), samples.start))
        placed.append(Mark(mark.kind, mark.text, samples, chars))
    return tuple(placed)


def _tag_mark(tag: Tag, sample: int) -> Mark:
    return Mark("tag", tag.name, Span(sample, sample), tag.chars)


class AvatarStage:
    """`Speech` to `AvatarCue`.

    Attributes:
        punctual: Whether a piece's cues are all there once it was given the piece, and the mouth's cover
            it. Consumers may then put them before the piece (see `CuesFirst`).
        takes_drafts: Whether it may be given speech that is drafted only: if the scripter's tracks can
            be copied (see `AvatarScripter`).
    """

    name = "avatar"

    def __init__(self, scripter: AvatarScripter) -> None:
        _check_opens(scripter, "an avatar scripter")
        self._scripter = scripter
        self.punctual = bool(getattr(scripter, "punctual", False))
        self.takes_drafts = bool(getattr(scripter, "copies", False))

    async def run(self, items: Inlet[Speech]) -> AsyncGenerator[AvatarCue | Control, None]:
        """Run one turn; the face is brought to rest when the speech ends or is cancelled.

        The first speech tells the sample rate; without speech there is nothing to bring to rest.
        A track is not told of a revoke of released speech: the next speech starts at an earlier sample.
        If only drafted speech is revoked, the stage goes on with a copy of the track from before it.
        """
        track: AvatarTrack | None = None
        copies = Copies[AvatarTrack | None](enabled=items.drafted and self.takes_drafts)
        begun = False  # whether a phrase is under way
        async for item in items:
            made: object = ()
            if isinstance(item, Speech):
                if not begun:
                    copies.keep(item.chars.start, track)
                begun = not item.last
                track = track or self._scripter.open(item.sample_rate)
                made = track.add(item)
            elif isinstance(item, Revoke):
                track, begun = copies.back(item, track), False
            elif isinstance(item, Cancel) and track is not None:
                made, track = track.close(), None
            for cue in cues_of(made):
                yield cue
            if not isinstance(item, Speech):
                yield item
        for cue in cues_of(track.close() if track is not None else ()):
            yield cue


class PromptStage:
    """`Phrase` to `ScenePrompt`.

    Attributes:
        takes_drafts: Whether it may be given phrases that are drafted only: if the rewriter's boards
            can be copied (see `PromptRewriter`).
    """

    name = "prompt"

    def __init__(self, rewriter: PromptRewriter) -> None:
        _check_opens(rewriter, "a prompt rewriter")
        self._rewriter = rewriter
        self.takes_drafts = bool(getattr(rewriter, "copies", False))

    async def run(self, items: Inlet[Phrase]) -> AsyncGenerator[ScenePrompt | Control, None]:
        """Run one turn; a rewriter that is slow to answer is dropped once the turn is cancelled.

        A revoke withdraws every shot whose span ends past its offset. What is left of a shot that
        began before it comes first, as a revision. If only a drafted phrase is revoked, the stage goes
        on with a copy of the board from before it.
        """
        board = self._rewriter.open()
        copies = Copies[Storyboard](enabled=items.drafted and self.takes_drafts)
        read = 0  # characters of the reply that the board was given
        async for item in items:
            if isinstance(item, Phrase):
                copies.keep(item.chars.start, board)
                read = max(read, item.chars.end)
                adding = partial(board.add, item)
                for prompt in prompts_of(await items.unless_cancelled(adding, item.chars.end) or ()):
                    yield prompt
                continue
            if isinstance(item, Revoke):
                board = copies.back(item, board)
            if isinstance(item, Revoke) and item.drafted and copies.enabled:
                read = min(read, item.from_char)
            elif isinstance(item, Revoke) and isinstance(board, RevocableStoryboard):
                read = min(read, item.from_char)
                taking = partial(board.revoke, item.from_char)
                for prompt in prompts_of(await items.unless_cancelled(taking) or ()):
                    yield prompt
            elif isinstance(item, Flush) or (isinstance(item, Revoke) and item.from_char < read):
                read = item.from_char if isinstance(item, Revoke) else read
                for prompt in prompts_of(await items.unless_cancelled(board.close) or ()):
                    if prompt.span.end <= read:
                        yield prompt
                board = self._rewriter.open()
            yield item
        for prompt in prompts_of(await items.unless_cancelled(board.close) or ()):
            yield prompt
        async for late in items:
            if isinstance(late, Cancel):  # it came while the board was closing
                yield late
