"""Cuts a stream of audio into turns. Pure: no clock but the audio's own, no recogniser, no tasks."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from specstream.listening.endings import silence_factor
from specstream.listening.events import ListenerSettings
from specstream.listening.interfaces import SpeechStarted, TurnTrack, VoiceActivity

__all__ = [
    "Closed",
    "Heard",
    "LevelGate",
    "Opened",
    "Paused",
    "Step",
    "TurnAudio",
    "Turns",
    "level_of",
]

_HOLD_MS = 700.0  # words end quietly: a voice counts as near for so long after its last loud sound
_SMOOTH = 6  # blocks of 32 ms over which a level is measured: a syllable
_ABOVE_DB = 3.0  # of voices that were no turn, for a voice that is one
_LEARN = 0.3  # weight of a new turn's level
_YIELD_DB = 1.0  # for every voice that was kept out: the user may have moved away
_SILENT_DB = -100.0


def level_of(pcm: bytes) -> float:
    """The level of s16 mono audio in dBFS (mean power; a full-scale square wave has 0)."""
    samples = np.frombuffer(pcm, dtype="<i2").astype(np.float64)
    power = float(np.mean(samples * samples)) / 32768.0**2 if len(samples) else 0.0
    return 10 * math.log10(max(power, 10 ** (_SILENT_DB / 10)))


class LevelGate:
    """Learns the user's level from turns in which words were understood, and keeps quieter voices out.

    Before the first such turn every voice is near.

    Args:
        range_db: How much quieter than the user's turns a voice may be.
    """

    def __init__(self, range_db: float) -> None:
        self._range_db = range_db
        self._own: float | None = None
        self._others: float | None = None
        self._near_ms = 0.0
        self._kept_out = False
        self._levels: list[float] = []  # of the open turn
        self._powers = deque[float](maxlen=_SMOOTH)

    @property
    def near_ms(self) -> float:
        """When the last near sound was."""
        return self._near_ms

    def near(self, level: float, now_ms: float) -> bool:
        """Take the next block's level; returns whether a voice in it is the user's."""
        self._powers.append(10 ** (level / 10))
        level = self._level
        if self._own is None and self._others is None:
            return True
        own = _SILENT_DB if self._own is None else self._own - self._range_db
        others = _SILENT_DB if self._others is None else self._others + _ABOVE_DB
        if level >= max(own, others):
            self._near_ms = now_ms
        return now_ms - self._near_ms <= _HOLD_MS

    @property
    def _level(self) -> float:
        return 10 * math.log10(sum(self._powers) / len(self._powers))

    def heard(self, *, near: bool, in_turn: bool) -> None:
        """Take note that a voice was heard in the last block."""
        self._kept_out = not near
        if in_turn and near:
            self._levels.append(self._level)

    def silent(self) -> None:
        """The voices have ended."""
        if self._kept_out and self._own is not None:
            self._own -= _YIELD_DB
        self._others, self._kept_out = None, False

    def end(self, *, others: bool = False) -> float | None:
        """A turn is over; returns its level. ``others``: the voices that go on are not the user's."""
        levels, self._levels = self._levels, []
        if not levels:
            return None
        if others:
            self._others = float(np.max(levels[-30:]))  # the last second
            self._near_ms = -math.inf
        return float(np.quantile(levels, 0.9))

    def understood(self, level: float | None) -> None:
        """A turn of this level had words in it: so loud is the user."""
        if level is not None:
            own = self._own
            self._own = level if own is None else own + _LEARN * (level - own)


_BLOCK_MS = 32  # audio that the track is given at once
_LAG_MS = 500.0  # how long after the voice began a track may report it
_UNKNOWN = ""  # text assumed until a pause's transcript is there: silence then decides alone


@dataclass(frozen=True, slots=True)
class Opened:
    """A turn began: the voice at ``at_ms``, its audio (with some before the voice) at ``start_ms``."""

    at_ms: float
    start_ms: float


@dataclass(frozen=True, slots=True)
class TurnAudio:
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


Step = Opened | TurnAudio | Paused | Closed


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
        self._language: str | None = None  # of that text
        self._sound: float | None = (
            None  # how likely the pause is the end, by sound, once it is known
        )

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

    def said(self, text: str, language: str | None = None) -> list[Step]:
        """Take the transcript up to the pause that was reported last; the turn may end by it.

        ``language`` is that of the text, a code; None: unknown.
        """
        if self._pause is not None:
            self._text, self._language = text, language
        steps: list[Step] = []
        self._end_if_silent(steps)
        return steps

    def judged(self, sound: float) -> list[Step]:
        """Take the probability, by sound, that the pause which was reported last is the turn's end."""
        if self._pause is not None:
            self._sound = sound
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
        self._start = self._pause = self._text = self._sound = None
        self._gate.end()
        self._held.clear()
        self._ring.clear()
        return was_open

    def _take_manually(self, block: bytes, steps: list[Step]) -> None:
        if self._start is None:
            self._start = self.now_ms - len(block) / 2 / self._per_ms
            steps.append(Opened(self._start, self._start))
        steps.append(TurnAudio(block))

    def _take(self, block: Heard, steps: list[Step]) -> None:
        if self._start is None:
            self._ring += block.pcm
            keep = self._bytes(self._settings.prefix_ms + _LAG_MS)
            del self._ring[: max(0, len(self._ring) - keep)]
        elif self._pause is None:
            steps.append(TurnAudio(block.pcm))
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
            self._pause, self._text, self._sound = max(at_ms, self._start), None, None
            steps.append(Paused())

    def _voice(self, at_ms: float, steps: list[Step]) -> None:
        if self._start is None:
            oldest = self.now_ms - len(self._ring) / 2 / self._per_ms
            start = max(oldest, at_ms - self._settings.prefix_ms)
            begin = len(self._ring) - self._bytes(self.now_ms - start)
            self._start = start
            steps += [Opened(at_ms, start), TurnAudio(bytes(self._ring[max(0, begin) :]))]
            self._ring.clear()
        elif self._pause is not None:
            if self._held:
                steps.append(TurnAudio(bytes(self._held)))
            self._held.clear()
            self._pause = self._text = self._sound = None

    def _end_if_silent(self, steps: list[Step]) -> None:
        if self._pause is None:
            return
        wait = self._settings.silence_ms
        if self._settings.by_words:
            known = _UNKNOWN if self._text is None else self._text
            factor = silence_factor(known, self._sound, self._language)
            wait *= self._settings.patience * factor
        if self.now_ms - self._pause >= wait:
            self._close(steps)

    def _close(self, steps: list[Step], *, others: bool = False) -> None:
        assert self._start is not None
        steps.append(Closed(self._start, self.now_ms, self._gate.end(others=others)))
        self.clear()

    def _bytes(self, ms: float) -> int:
        return 2 * round(ms * self._per_ms)
