"""Cuts a stream of audio into turns. Pure: no clock but the audio's own, no recogniser, no tasks."""

from __future__ import annotations

import math
from bisect import insort
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from specstream.listening.endings import silence_factor
from specstream.listening.events import ListenerSettings
from specstream.listening.interfaces import SpeechStarted, Transcript, TurnTrack, VoiceActivity

__all__ = ["Closed", "Heard", "LevelGate", "Opened", "Paused", "Step", "TurnAudio", "Turns", "level_of"]

_HOLD_MS = 700.0  # words end quietly: a voice counts as near for so long after its last loud sound
_TURN_HOLD_MS = 250.0  # the same by the open turn's own level: quiet parts of sentences last 220
_SYLLABLE_MS = 192.0  # over which a level is measured
_LOUD = 0.9  # quantile of a turn's levels that counts as the turn's
_FALLS_DB = 4.0  # by how much more a voice may fall within its turn than from turn to turn
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
    """Tells the user's voice from quieter ones by its level.

    The level is learned from turns in which words were understood, and within a turn from what was heard
    of it so far. So another voice that goes on behind the user's last word is silence in the first turn,
    too. Before the first turn every voice is near.

    Args:
        range_db: How much quieter than the user's turns, or than the open one, a voice may be.
    """

    def __init__(self, range_db: float) -> None:
        self._range_db = range_db
        self._own: float | None = None
        self._latest: float | None = None  # of a turn whose transcript isn't known yet
        self._others: float | None = None
        self._near_ms = 0.0  # when a sound was last as loud as the user,
        self._loud_ms = 0.0  # and as the open turn
        self._far_ms = 0.0
        self._kept_out = False
        self._levels: list[float] = []  # of the open turn, sorted
        self._newest = deque[float](maxlen=30)  # of them: about a second
        self._energies = deque[tuple[float, float, float]]()  # ends of blocks, lengths, energies
        self._level = _SILENT_DB

    @property
    def far_ms(self) -> float:
        """Since when no near voice is heard, where `near` said so."""
        return self._far_ms

    def near(self, level: float, now_ms: float) -> bool:
        """Take the next block's level; returns whether a voice in it is the user's."""
        self._measure(level, now_ms)
        least = self._least
        if least is not None and self._level >= least:
            self._near_ms = now_ms
        if self._level >= self._turn_db - self._range_db - _FALLS_DB:
            self._loud_ms = now_ms
        if least is not None and now_ms - self._near_ms > _HOLD_MS:
            self._far_ms = self._near_ms
            return False
        self._far_ms = self._loud_ms
        return now_ms - self._loud_ms <= _TURN_HOLD_MS

    def _measure(self, level: float, now_ms: float) -> None:
        """Set the level to the mean power of the last syllable, however the audio is cut."""
        before = self._energies[-1][0] if self._energies else now_ms
        ms = min(max(1.0, now_ms - before), _SYLLABLE_MS)
        self._energies.append((now_ms, ms, ms * 10 ** (level / 10)))
        while self._energies[0][0] <= now_ms - _SYLLABLE_MS:
            self._energies.popleft()
        _, lengths, energies = zip(*self._energies, strict=True)
        self._level = 10 * math.log10(sum(energies) / sum(lengths))

    @property
    def _least(self) -> float | None:
        """The level of the user's quietest sounds, as far as it is known."""
        own = self._latest if self._own is None else self._own
        bounds = [] if own is None else [own - self._range_db]
        bounds += [] if self._others is None else [self._others + _ABOVE_DB]
        return max(bounds, default=None)

    @property
    def _turn_db(self) -> float:
        """The level of the open turn so far."""
        return self._levels[int(_LOUD * (len(self._levels) - 1))] if self._levels else -math.inf

    def heard(self, *, near: bool, in_turn: bool) -> None:
        """Take note that a voice was heard in the last block."""
        self._kept_out = not near
        if in_turn and near:
            insort(self._levels, self._level)
            self._newest.append(self._level)

    def silent(self) -> None:
        """The voices have ended."""
        if self._kept_out and self._own is not None:
            self._own -= _YIELD_DB
        self._others, self._kept_out = None, False

    def end(self, *, others: bool = False) -> float | None:
        """A turn is over; returns its level. ``others``: the voices that go on are not the user's."""
        if not self._levels:
            return None
        level = self._turn_db
        if others:
            self._keep_out(max(self._newest))
        elif self._kept_out:  # what was too quiet for this turn begins none
            self._keep_out(level - self._range_db - _FALLS_DB - _ABOVE_DB)
        self._levels.clear()
        self._newest.clear()
        self._latest = level
        return level

    def _keep_out(self, level: float) -> None:
        """Voices up to this level, and a little more, are others' until they end."""
        self._others = max(level, level if self._others is None else self._others)
        self._near_ms = -math.inf

    def understood(self, level: float | None) -> None:
        """A turn of this level had words in it: so loud is the user. None: it had no words."""
        self._latest = None
        if level is not None:
            own = self._own
            self._own = level if own is None else own + _LEARN * (level - own)


_BLOCK_MS = 32  # audio that the track is given at once
_LAG_MS = 500.0  # how long after the voice began a track may report it
_GOES_ON_MS = 250.0  # of voice behind such an end: a track may report the voice's own end late
_UNKNOWN = Transcript("")  # assumed until a pause's transcript is there: silence then decides alone


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
    """The speaker pauses: get a partial transcript, then call `Turns.said`.

    ``quiet_ms``: how much of the turn's last audio is the pause, though others may be heard in it.
    """

    quiet_ms: float = field(default=0.0, compare=False)


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
        self._step_ms = 0.0  # length of the last block
        self._voiced = self._speaking = False  # by the track; the user, by the track and the level
        self._cut: float | None = None  # when a turn was ended or forgotten in mid-speech
        self._ring = bytearray()  # the newest audio that belongs to no turn
        self._start: float | None = None  # of the open turn
        self._pause: float | None = None  # since when the open turn's voice is silent
        self._held = bytearray()  # the audio of the pause
        self._said: Transcript | None = None  # what was said up to the pause, once it is known
        self._language: str | None = None  # of that text
        self._sound: float | None = None  # how likely the pause is the end, by sound, once it is known

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
            self._step_ms = len(block.pcm) / 2 / self._per_ms
            if self._track is None:
                self._take_manually(block.pcm, steps)
            else:
                self._take(block, steps)
        return steps

    def said(self, said: Transcript, language: str | None = None) -> list[Step]:
        """Take the transcript up to the pause that was reported last; the turn may end by it.

        ``language`` is that of the text, a code; None: unknown.
        """
        if self._pause is not None:
            self._said, self._language = said, language
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
        """Take note that the turn with this level had words in it; None: it had none."""
        self._gate.understood(level)

    def clear(self) -> bool:
        """Forget all audio; returns whether a turn was open."""
        was_open = self._start is not None
        self._gate.end()
        self._gate.understood(None)
        self._reset()
        return was_open

    def _reset(self) -> None:
        self._start = self._pause = self._said = self._sound = None
        self._cut = self.now_ms if self._speaking else None
        self._held.clear()
        self._ring.clear()

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
                self._cut = None
                self._gate.silent()
        if self._voiced:
            since = self.now_ms - len(block.pcm) / 2 / self._per_ms if near else self._gate.far_ms
            if not near:  # the voice that goes on is another's
                self._cut = None
            elif self._cut is not None and self.now_ms - self._cut >= _GOES_ON_MS:
                since, self._cut, self._speaking = self._cut, None, self._start is not None
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
            self._pause, self._said, self._sound = max(at_ms, self._start), None, None
            steps.append(Paused(self.now_ms - self._pause))

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
            self._pause = self._said = self._sound = None

    def _end_if_silent(self, steps: list[Step]) -> None:
        if self._pause is None:
            return
        wait = self._settings.silence_ms
        if self._settings.by_words:
            known = _UNKNOWN if self._said is None else self._said
            factor = silence_factor(known, self._sound, self._language)
            wait *= self._settings.patience * factor
        if self.now_ms - self._pause >= wait - self._step_ms / 2:  # at the nearest block's end
            self._close(steps)

    def _close(self, steps: list[Step], *, others: bool = False) -> None:
        assert self._start is not None
        steps.append(Closed(self._start, self.now_ms, self._gate.end(others=others)))
        self._reset()

    def _bytes(self, ms: float) -> int:
        return 2 * round(ms * self._per_ms)
