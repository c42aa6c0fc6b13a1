"""Cuts a stream of audio into turns. Pure: no clock but the audio's own, no recogniser, no tasks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from specstream.listening.endings import silence_factor
from specstream.listening.gate import LevelGate, level_of
from specstream.listening.settings import ListenerSettings
from specstream.pipeline.listening_interfaces import SpeechStarted, TurnTrack, VoiceActivity

__all__ = ["Audio", "Closed", "Heard", "Opened", "Paused", "Step", "Turns"]

_BLOCK_MS = 32  # audio that the track is given at once
_LAG_MS = 500.0  # how long after the voice began a track may report it
_UNKNOWN = ""  # text assumed until a pause's transcript is there: silence then decides alone


@dataclass(frozen=True, slots=True)
class Opened:
    """A turn began: the voice at ``at_ms``, its audio (with some before the voice) at ``start_ms``."""

    at_ms: float
    start_ms: float


@dataclass(frozen=True, slots=True)
class Audio:
    """The turn's next audio."""

    pcm: bytes


@dataclass(frozen=True, slots=True)
class Paused:
    """The speaker pauses: get a partial transcript, then call `Turns.said`."""


@dataclass(frozen=True, slots=True)
class Closed:
    """The turn is over, its audio from ``start_ms`` to ``end_ms``; ``level``: see `LevelGate.end`."""

    start_ms: float
    end_ms: float
    level: float | None = field(default=None, compare=False)


Step = Opened | Audio | Paused | Closed


class Heard(NamedTuple):
    """A block of audio, the beginnings and ends of voices in it, and its level in dBFS."""

    pcm: bytes
    voice: Sequence[VoiceActivity]
    level: float


class Turns:
    """Turns of one stream of s16 mono audio with ``rate`` samples a second.

    Times are milliseconds from the stream's first sample. In a pause audio is held back, so that a
    recogniser's work on the turn so far stays valid if the pause turns out to be the end.

    Args:
        track: Detects the voice. None: a turn lasts from its first audio to `commit`.
        rate: Samples a second.
        settings: How turns are cut.
    """

    def __init__(self, track: TurnTrack | None, rate: int, settings: ListenerSettings) -> None:
        self._track = track
        self._per_ms = rate / 1000
        self._block = 2 * (rate * _BLOCK_MS // 1000)
        self._settings = settings
        self._gate = LevelGate(settings.range_db)
        self._taken = 0  # samples
        self._voiced = self._speaking = False  # by the track; the user, by the track and the level
        self._ring = bytearray()  # the newest audio that belongs to no turn
        self._start: float | None = None  # of the open turn
        self._pause: float | None = None  # since when the open turn's voice is silent
        self._held = bytearray()  # the audio of the pause
        self._text: str | None = None  # what was said up to the pause, once it is known

    @property
    def now_ms(self) -> float:
        """The end of the audio so far, in milliseconds."""
        return self._taken / self._per_ms

    @property
    def held_ms(self) -> float:
        """Milliseconds of the open turn's audio; 0 if there is none."""
        return 0.0 if self._start is None else self.now_ms - self._start

    def detect(self, pcm: bytes) -> list[Heard]:
        """Let the track hear the next audio; returns it in blocks with what was heard, for `add`.

        Another thread may call this, for one piece of audio at a time.
        """
        blocks = [pcm[at : at + self._block] for at in range(0, len(pcm), self._block)]
        if self._track is None:
            return [Heard(block, (), 0.0) for block in blocks]
        return [Heard(block, self._track.add(block), level_of(block)) for block in blocks]

    def add(self, heard: list[Heard]) -> list[Step]:
        """Take the next audio; return what happens by it, in order."""
        steps: list[Step] = []
        for block in heard:
            self._taken += len(block.pcm) // 2
            if self._track is None:
                self._take_manually(block.pcm, steps)
            else:
                self._take(block, steps)
        return steps

    def said(self, text: str) -> list[Step]:
        """Take the transcript up to the pause that was reported last; the turn may end by it."""
        if self._pause is not None:
            self._text = text
        steps: list[Step] = []
        self._end_if_silent(steps)
        return steps

    def commit(self, *, others: bool = False) -> list[Step]:
        """End the open turn now; without one, nothing happens.

        ``others``: the voices that are heard are not the user's; the next turn must be louder.
        """
        steps: list[Step] = []
        if self._start is not None:
            self._close(steps, others=others)
        return steps

    def understood(self, level: float | None) -> None:
        """Take note that the turn with this level had words in it."""
        self._gate.understood(level)

    def clear(self) -> bool:
        """Forget all audio; returns whether a turn was open."""
        was_open = self._start is not None
        self._start = self._pause = self._text = None
        self._gate.end()
        self._held.clear()
        self._ring.clear()
        return was_open

    def _take_manually(self, block: bytes, steps: list[Step]) -> None:
        if self._start is None:
            self._start = self.now_ms - len(block) / 2 / self._per_ms
            steps.append(Opened(self._start, self._start))
        steps.append(Audio(block))

    def _take(self, block: Heard, steps: list[Step]) -> None:
        if self._start is None:
            self._ring += block.pcm
            keep = self._bytes(self._settings.prefix_ms + _LAG_MS)
            del self._ring[: max(0, len(self._ring) - keep)]
        elif self._pause is None:
            steps.append(Audio(block.pcm))
        else:
            self._held += block.pcm
        near = self._gate.near(block.level, self.now_ms)
        for event in block.voice:
            self._voiced = isinstance(event, SpeechStarted)
            self._follow(self._voiced and near, event.at_ms, steps)
            if not self._voiced:
                self._gate.silent()
        if self._voiced:
            since = self.now_ms - len(block.pcm) / 2 / self._per_ms if near else self._gate.near_ms
            self._follow(near, since, steps)
            self._gate.heard(near=near, in_turn=self._start is not None)
        self._end_if_silent(steps)
        if self.held_ms >= self._settings.max_turn_s * 1e3:
            speaking = self._pause is None
            self._close(steps)
            if speaking:  # the voice goes on, so the audio goes on as another turn
                self._start = self.now_ms
                steps.append(Opened(self._start, self._start))

    def _follow(self, speaking: bool, at_ms: float, steps: list[Step]) -> None:
        """Note whether the user speaks since ``at_ms``."""
        if speaking == self._speaking:
            return
        self._speaking = speaking
        if speaking:
            self._voice(at_ms, steps)
        elif self._start is not None and self._pause is None:
            self._pause, self._text = max(at_ms, self._start), None
            steps.append(Paused())

    def _voice(self, at_ms: float, steps: list[Step]) -> None:
        if self._start is None:
            oldest = self.now_ms - len(self._ring) / 2 / self._per_ms
            start = max(oldest, at_ms - self._settings.prefix_ms)
            begin = len(self._ring) - self._bytes(self.now_ms - start)
            self._start = start
            steps += [Opened(at_ms, start), Audio(bytes(self._ring[max(0, begin) :]))]
            self._ring.clear()
        elif self._pause is not None:
            if self._held:
                steps.append(Audio(bytes(self._held)))
            self._held.clear()
            self._pause = self._text = None

    def _end_if_silent(self, steps: list[Step]) -> None:
        if self._pause is None:
            return
        wait = self._settings.silence_ms
        if self._settings.by_words:
            known = _UNKNOWN if self._text is None else self._text
            wait *= self._settings.patience * silence_factor(known)
        if self.now_ms - self._pause >= wait:
            self._close(steps)

    def _close(self, steps: list[Step], *, others: bool = False) -> None:
        assert self._start is not None
        steps.append(Closed(self._start, self.now_ms, self._gate.end(others=others)))
        self.clear()

    def _bytes(self, ms: float) -> int:
        return 2 * round(ms * self._per_ms)
