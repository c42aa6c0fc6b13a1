"""What a stage may give: limits of a turn, and checks of cues, prompts and marks of adapters."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from numbers import Real
from operator import index
from typing import Any, TypeVar

import anyio

from specstream.checks import check_ranges
from specstream.errors import AdapterFailed, SpecstreamError
from specstream.signals import LoopClock
from specstream.stages.contract import Link
from specstream.types import AvatarCue, Mark, ScenePrompt, Span, Speech

__all__ = [
    "MAX_MARKS",
    "MAX_RATE",
    "MIN_RATE",
    "ROUNDING_MS",
    "Limits",
    "MarkCheck",
    "Watch",
    "check_rate",
    "cues_of",
    "marks_of",
    "most_audio_s",
    "prompts_of",
]

MIN_RATE, MAX_RATE = 4000, 192_000
"""Range of a voice's sample rate."""
MAX_MARKS = 1024
"""Most marks of one piece of speech."""
_MAX_PIECE_S = 30  # seconds of audio in one piece of speech
# Limits of a turn: a base, and an addition for each character of its text.
_AUDIO_S, _AUDIO_S_PER_CHAR = 30, 5  # seconds; read aloud, a character takes a tenth of a second
_MARKS, _MARKS_PER_CHAR = 1000, 50
_ITEMS, _ITEMS_PER_CHAR = 10_000, 500


@dataclass(frozen=True, slots=True)
class Limits:
    """Seconds of a stage's own time; waiting for input or for its reader doesn't count.

    ``stall_s``: without giving or taking an item. ``work_s``: on the item that it took last, or on
    what it does after the end of its input.

    Raises:
        ConfigError: no time above 0, or more than a day.
    """

    stall_s: float = 60.0
    work_s: float = 600.0

    def __post_init__(self) -> None:
        check_ranges(self, stall_s=(0.01, 86_400), work_s=(0.01, 86_400))


def check_rate(rate: int, who: str) -> None:
    """Refuse a sample rate that no voice has.

    Raises:
        AdapterFailed: it is out of range, or no whole number.
    """
    if not isinstance(rate, int) or not MIN_RATE <= rate <= MAX_RATE:
        raise AdapterFailed(f"{who} claims {rate!r} Hz; from {MIN_RATE} to {MAX_RATE} are possible")


def most_audio_s(chars: int) -> int:
    """Most seconds of speech for a text of ``chars`` characters."""
    return _AUDIO_S + _AUDIO_S_PER_CHAR * chars


@dataclass(slots=True, eq=False)
class Watch:
    """Enforces the limits of one stage in one turn; cancels `scope` when its time is up."""

    name: str
    source: Link[object]
    limits: Limits
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    failure: SpecstreamError | None = None
    _since: float | None = None  # when the stage last gave or took an item; None: it isn't working
    _spent_s: float = 0.0  # on the item that it took last
    _taken: int = 0
    _items: int = 0
    _marks: int = 0
    _clock: LoopClock = field(default_factory=LoopClock)

    def work(self) -> float:
        """Start to count time, as the stage works; returns the event loop's time."""
        self._since = self._clock.now()
        return self._since

    def rest(self) -> float:
        """Stop counting time; returns the event loop's time.

        An item that the stage gave is being handed on, or the stage has ended.
        """
        moment = self._clock.now()
        if self._since is not None:
            self._spent_s += moment - self._since
        self._since = None
        return moment

    def look(self) -> None:
        """Stop the stage if its time is up; to be called at short intervals."""
        if self._since is None:
            return
        if self.source.starved or self.source.taken != self._taken:
            self._taken, self._spent_s = self.source.taken, 0.0
            self.work()
            return
        silent = self._clock.now() - self._since
        if silent >= self.limits.stall_s:
            why = f"has neither given nor taken anything for {self.limits.stall_s:g} s"
        elif self._spent_s + silent >= self.limits.work_s:
            why = f"has worked {self.limits.work_s:g} s on what it took last"
        else:
            return
        self.stop(AdapterFailed(f"stage {self.name!r} {why}; it was stopped"))

    def stop(self, failure: SpecstreamError) -> None:
        """End the stage with ``failure``."""
        self.failure = failure
        self.scope.cancel()

    def check(self, item: object, chars: int) -> None:
        """Count one item that the stage made of a text of ``chars`` characters.

        Raises:
            AdapterFailed: the stage has made more than a text of that length can justify.
        """
        self._items += 1
        excess = ""
        if self._items > _ITEMS + _ITEMS_PER_CHAR * chars:
            excess = f"{self._items} items"
        elif isinstance(item, Speech):
            rate, most_s = item.sample_rate, most_audio_s(chars)
            ends = (mark.samples.end for mark in item.marks)
            check_rate(rate, f"stage {self.name!r}")
            self._marks += len(item.marks)
            if len(item.marks) > MAX_MARKS:
                excess = f"{len(item.marks)} marks in one piece"
            elif self._marks > _MARKS + _MARKS_PER_CHAR * chars:
                excess = f"{self._marks} marks"
            elif item.samples.length > _MAX_PIECE_S * rate:
                excess = f"{item.samples.length} samples in one piece"
            elif (end := max(item.samples.end, *ends, 0)) > most_s * rate:
                excess = f"{end / rate:.0f} s of speech"
        if excess:
            raise AdapterFailed(f"stage {self.name!r} gave {excess} for {chars} characters of text")
        if isinstance(item, Speech):
            self._check_samples(item)

    def _check_samples(self, item: Speech) -> None:
        samples, pcm = item.samples.length, item.pcm
        if not isinstance(pcm, bytes) or len(pcm) != 2 * samples:
            told = f"{len(pcm)} bytes" if isinstance(pcm, bytes) else f"{pcm!r:.40}"
            raise AdapterFailed(
                f"stage {self.name!r} gave {told} as {samples} samples; pcm is bytes, two a sample"
            )


ROUNDING_MS = 25
"""How far times may be off: voices round them to their model's frames, of up to 25 ms."""
_LONGEST_SOUND_S = 10  # a pause is a sound, too

_KINDS: dict[type, tuple[str, ...]] = {
    AvatarCue: ("viseme", "gesture", "emotion"),
    Mark: ("word", "phoneme", "tag"),
}
_SHOT_TEXTS = ("shot_id", "subject", "action", "setting", "camera", "style", "prompt", "negative")

T = TypeVar("T", AvatarCue, Mark, ScenePrompt)


def cues_of(given: object) -> Iterator[AvatarCue]:
    """Yield an avatar's cues, their ranges as `Span`.

    Raises:
        AdapterFailed: something that is no cue, an unknown kind, a text that is none, a weight that is
            no number, a time that is none or negative, a range that is no pair or runs backwards.
    """
    for cue in _each(given, AvatarCue, ("name", "sound"), ("samples", "chars", "tokens")):
        for name in ("t_ms", "duration_ms", "weight"):
            _check_number(f"AvatarCue.{name}", value := getattr(cue, name))
            if value < 0 and name != "weight":
                raise AdapterFailed(f"AvatarCue.{name} can't be negative, as {value!r:.80} is")
        if not isinstance(cue.weights, dict):
            raise AdapterFailed(f"AvatarCue.weights must be a dict, not {cue.weights!r:.80}")
        for shape, weight in cue.weights.items():
            _check_text("AvatarCue.weights", shape)
            _check_number(f"AvatarCue.weights[{shape!r:.80}]", weight)
        yield cue


def prompts_of(given: object) -> Iterator[ScenePrompt]:
    """Yield a prompt adapter's shots, their ranges as `Span`; raises as `cues_of` does."""
    for shot in _each(given, ScenePrompt, _SHOT_TEXTS, ("span", "tokens")):
        _check_number("ScenePrompt.t_start_ms", shot.t_start_ms)
        if not isinstance(shot.rev, int):
            raise AdapterFailed(f"ScenePrompt.rev must be a whole number, not {shot.rev!r:.80}")
        if shot.supersedes is not None:
            _check_text("ScenePrompt.supersedes", shot.supersedes)
        yield shot


def marks_of(given: object) -> Iterator[Mark]:
    """Yield a voice's marks, their ranges as `Span`.

    Raises:
        AdapterFailed: something that is no mark, an unknown kind, a text that is none, a range that is
            no pair.
    """
    return _each(given, Mark, ("text",), ("samples", "chars"))


def _check_number(what: str, value: object) -> None:
    if not isinstance(value, Real) or not math.isfinite(value):
        raise AdapterFailed(f"{what} must be a finite number, not {value!r:.80}")


def _check_text(what: str, value: object) -> None:
    if not isinstance(value, str):
        raise AdapterFailed(f"{what} must be text, not {value!r:.80}")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise AdapterFailed(f"{what} has half a character: {value!r:.80}") from None


def _whole(span: Span) -> Span:
    """Return a pair of whole numbers of any kind as a `Span` of plain ones.

    Raises:
        TypeError, ValueError: it is no pair of whole numbers.
    """
    start, end = span
    return Span(index(start), index(end))


def _each(given: object, kind: type[T], texts: Iterable[str], spans: Iterable[str]) -> Iterator[T]:
    if not isinstance(given, Iterable) or isinstance(given, str | bytes):
        raise AdapterFailed(f"the adapter gave {type(given).__name__}, not a list of {kind.__name__}")
    for item in given:
        if not isinstance(item, kind):
            raise AdapterFailed(f"the adapter gave {type(item).__name__}, not {kind.__name__}(...)")
        for name in texts:
            _check_text(f"{kind.__name__}.{name}", getattr(item, name))
        kinds = _KINDS.get(kind)
        if kinds is not None and (named := getattr(item, "kind", None)) not in kinds:
            raise AdapterFailed(
                f"{kind.__name__}.kind must be one of {', '.join(kinds)}, not {named!r:.80}"
            )
        checked = _with_spans(item, spans)
        for name in spans if kind is not Mark else ():  # `MarkCheck` knows more of theirs
            if not 0 <= (span := getattr(checked, name)).start <= span.end:
                told = f"{kind.__name__}.{name} can't be {_range(span)}"
                raise AdapterFailed(f"{told}: a range begins at 0 or later and doesn't run backwards")
        yield checked


def _with_spans(item: T, names: Iterable[str]) -> T:
    changed: dict[str, Any] = {}
    for name in names:
        span = getattr(item, name)
        if type(span) is Span and type(span[0]) is int and type(span[1]) is int:
            continue
        try:
            changed[name] = _whole(span)
        except (TypeError, ValueError):
            what = f"{type(item).__name__}.{name}"
            raise AdapterFailed(f"{what} must be a pair of whole numbers, not {span!r:.80}") from None
    return replace(item, **changed) if changed else item


class MarkCheck:
    """The marks of one phrase, piece by piece; constant work for each mark.

    Marks may come early, with the audio before the one that they lie in, or late. So whether a mark
    ends behind the phrase's audio is known at the phrase's end; before that, it may not lie behind the
    longest audio that such a text can have.

    Words may go back in the text: of "£5 million", a voice says the first word last.

    Args:
        chars: Where the phrase lies in the text that the marks refer to.
        begin: The phrase's first sample, on the marks' clock.
        rate: Samples a second.
    """

    def __init__(self, chars: Span, begin: int, rate: int) -> None:
        self._chars = chars
        self._begin = begin
        self._rounding = rate * ROUNDING_MS // 1000
        self._limit = begin + int(most_audio_s(chars.length) * rate)
        self._longest_sound = _LONGEST_SOUND_S * rate
        self._latest: dict[str, Mark] = {}  # of each kind, by where it begins
        self._furthest: Mark | None = None

    def fault(self, marks: Iterable[Mark]) -> str:
        """Take the next marks; return what is wrong with the first that is wrong, or nothing."""
        for mark in marks:
            (first, end), samples = mark.chars, mark.samples
            if not self._chars.start <= first <= end <= self._chars.end:
                where = f"characters {first} to {end} in a phrase of {_range(self._chars)}"
                return f"{_named(mark)} covers {where}"
            if not self._begin <= samples.start <= samples.end:
                since = f"in a phrase that begins at {self._begin}"
                return f"{_named(mark)} covers samples {_range(samples)} {since}"
            sound = mark.kind == "phoneme" and samples.length > self._longest_sound
            if sound or samples.end > self._limit:
                return f"{_named(mark)} covers samples {_range(samples)}, longer than such a text takes"
            latest = self._latest.get(mark.kind, mark)
            if samples.start < latest.samples.start - self._rounding:
                before = f"{_named(latest)} at {latest.samples.start}"
                return f"{_named(mark)} at sample {samples.start} came after {before}"
            if samples.start >= latest.samples.start:
                self._latest[mark.kind] = mark
            if self._furthest is None or samples.end > self._furthest.samples.end:
                self._furthest = mark
        return ""

    def end_fault(self, end: int) -> str:
        """The phrase's audio ends at the sample ``end``: return what is wrong, or nothing."""
        mark = self._furthest
        if mark is None or mark.samples.end <= end + self._rounding:
            return ""
        audio = f"the phrase's audio ends at {end}"
        return f"{_named(mark)} covers samples {_range(mark.samples)}, but {audio}"


def _range(span: Span) -> str:
    return f"{span.start} to {span.end}"


def _named(mark: Mark) -> str:
    return f"the {mark.kind} mark {mark.text!r:.40}"
