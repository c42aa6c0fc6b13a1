"""Puts a mark into a voice's speech, and holds the mark to what it promises."""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from typing import Any, NoReturn

from specstream.errors import AdapterFailed, AdapterUnavailable, SpecstreamError
from specstream.stages.contract import Inlet, Stage
from specstream.stages.interfaces import AudioMark, MarkTrack
from specstream.types import Cancel, Control, Phrase, Span, Speech

__all__ = ["MAX_DELAY_MS", "MarkedStage", "marked"]

MAX_DELAY_MS = 1000.0
"""Most audio that a mark may hold back."""


def marked(stage: Stage[Any, Any], mark: Any) -> MarkedStage:
    """Return the stage of a voice whose speech is marked.

    Raises:
        AdapterUnavailable: ``mark`` is no `AudioMark`.
        AdapterFailed: its capabilities are no `MarkCapabilities`, or its delay is out of range.
    """
    if isinstance(mark, type):
        raise AdapterUnavailable(
            f"{mark!r} is a class, no mark: give an object of it, as in {mark.__name__}()"
        )
    if missing := [name for name in ("capabilities", "open", "aclose") if not hasattr(mark, name)]:
        raise AdapterUnavailable(f"{mark!r:.80} is no mark: it lacks {' and '.join(missing)}")
    return MarkedStage(stage, mark)


class MarkedStage:
    """The stage of a voice, and a mark that all of its speech goes through before anybody gets it.

    Each phrase has a track of its own. So nothing of a phrase that was revoked or interrupted shows in
    the next one, and speech of drafted text is marked like any other: once, before it is held back.
    Characters, tokens and marks of words stay as the voice gave them. A piece covers the samples that
    the mark gave for it; a phrase, the same samples as before.

    Attributes:
        name: That of the voice's stage.
        takes_drafts: Likewise.
    """

    def __init__(self, stage: Stage[Any, Any], mark: AudioMark) -> None:
        facts = mark.capabilities
        if not all(hasattr(facts, fact) for fact in ("name", "delay_ms")):
            raise AdapterFailed(
                f"the capabilities of {mark!r:.80} must be MarkCapabilities(...), not "
                f"{type(facts).__name__}"
            )
        delay: object = facts.delay_ms
        if not isinstance(delay, int | float) or not 0 <= delay <= MAX_DELAY_MS:
            raise AdapterFailed(
                f"mark {facts.name!r} claims a delay of {delay!r} ms; 0 to {MAX_DELAY_MS:g} are possible"
            )
        self._stage = stage
        self._mark = mark
        self.name = stage.name
        self.takes_drafts = bool(getattr(stage, "takes_drafts", False))

    async def aclose(self) -> None:
        """Release what the voice and the mark hold; idempotent."""
        try:
            if hasattr(self._stage, "aclose"):
                await self._stage.aclose()
        finally:
            await self._mark.aclose()

    async def run(self, items: Inlet[Phrase]) -> AsyncGenerator[Speech | Control, None]:
        """Run one turn.

        Raises:
            AdapterFailed: the mark broke, or gave more, fewer or later samples than it promises.
        """
        track: _PhraseMark | None = None
        async with aclosing(self._stage.run(items)) as made:
            async for item in made:
                ends = not isinstance(item, Speech) or (track and track.phrase != item.phrase)
                if track is not None and ends:  # the voice was stopped within a phrase
                    if not isinstance(item, Cancel) and (rest := await track.rest()) is not None:
                        yield rest
                    track = None
                if not isinstance(item, Speech):
                    yield item
                    continue
                if track is None:
                    track = _PhraseMark(self._mark, item)
                end = item.chars.end
                piece = await items.unless_cancelled(partial(track.add, item), end)
                if piece is not None:
                    yield piece
                if piece is None or item.last:
                    track = None
            if track is not None and (rest := await track.rest()) is not None:
                yield rest


class _PhraseMark:
    """The mark of one phrase under way, and the count of its samples."""

    def __init__(self, mark: AudioMark, first: Speech) -> None:
        self._name = mark.capabilities.name
        self._most = math.ceil(first.sample_rate * mark.capabilities.delay_ms / 1e3)
        self._given, self._taken = first.samples.start, first.samples.start
        self._last = first
        self.phrase = first.phrase
        try:
            self._track: MarkTrack = mark.open(first.sample_rate)
        except SpecstreamError:
            raise
        except Exception as error:
            raise self._broke(error) from error

    async def add(self, speech: Speech) -> Speech:
        """Return the piece with the samples that the mark gives for it; the last one, with all."""
        self._given += len(speech.pcm) // 2
        self._last = speech
        pcm = await self._of(partial(self._track.add, speech.pcm)) if speech.pcm else b""
        late = self._given - self._taken - len(pcm) // 2
        if late > self._most:
            self._refuse(f"held back {late} samples, and promises at most {self._most}")
        if speech.last:
            pcm += await self._left(len(pcm) // 2)
        return self._piece(speech, pcm)

    async def rest(self) -> Speech | None:
        """End a phrase whose last piece never came: a piece of what was held back, if anything was."""
        pcm = await self._left(0)
        return self._piece(replace(self._last, marks=()), pcm) if pcm else None

    async def _left(self, taken: int) -> bytes:
        pcm = await self._of(self._track.close, taken)
        late = self._given - self._taken - taken - len(pcm) // 2
        if late:
            self._refuse(f"kept {late} samples of a phrase")
        return pcm

    async def _of(self, work: Callable[[], Awaitable[bytes]], taken: int = 0) -> bytes:
        """What the mark gives, once it is certain that it was given that many samples."""
        try:
            pcm = await work()
        except SpecstreamError:
            raise
        except Exception as error:
            raise self._broke(error) from error
        if not isinstance(pcm, bytes | bytearray | memoryview):
            self._refuse(f"gave {type(pcm).__name__} as PCM; it must be bytes")
        pcm = bytes(pcm)
        if len(pcm) % 2:
            self._refuse("gave half a sample; PCM must be 16-bit")
        more = self._taken + taken + len(pcm) // 2 - self._given
        if more > 0:
            self._refuse(f"gave {more} samples more than it was given")
        return pcm

    def _piece(self, speech: Speech, pcm: bytes) -> Speech:
        start, self._taken = self._taken, self._taken + len(pcm) // 2
        return replace(speech, pcm=pcm, samples=Span(start, self._taken))

    def _broke(self, error: Exception) -> AdapterFailed:
        return AdapterFailed(f"mark {self._name!r} broke: {type(error).__name__}: {error}")

    def _refuse(self, what: str) -> NoReturn:
        raise AdapterFailed(f"mark {self._name!r} {what}")
