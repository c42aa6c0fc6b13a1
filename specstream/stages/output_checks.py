"""Checks cues, prompts and marks that adapters give, before the pipeline and clients rely on them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import replace
from numbers import Real
from operator import index
from typing import Any, TypeVar

from specstream.errors import AdapterFailed
from specstream.stages.limits import most_audio_s
from specstream.types import AvatarCue, Mark, ScenePrompt, Span

__all__ = ["ROUNDING_MS", "MarkCheck", "cues_of", "marks_of", "prompts_of"]

ROUNDING_MS = 25
"""How far times may be off: voices round them to their model's frames, of up to 25 ms."""
_LONGEST_SOUND_S = 10  # a pause is a sound, too

_MARK_KINDS = ("word", "phoneme", "tag")

T = TypeVar("T", AvatarCue, Mark, ScenePrompt)


def cues_of(given: object) -> Iterator[AvatarCue]:
    """Yield an avatar's cues, their ranges as `Span`.

    Raises:
        AdapterFailed: something that is no cue, a time that is no number, a range that is no pair.
    """
    return _each(
        given, AvatarCue, ("t_ms", "duration_ms", "weight"), ("samples", "chars", "tokens")
    )


def prompts_of(given: object) -> Iterator[ScenePrompt]:
    """Yield a prompt adapter's shots, their ranges as `Span`; raises as `cues_of` does."""
    return _each(given, ScenePrompt, ("t_start_ms",), ("span", "tokens"))


def marks_of(given: object) -> Iterator[Mark]:
    """Yield a voice's marks, their ranges as `Span`.

    Raises:
        AdapterFailed: something that is no mark, an unknown kind, a text that is no ``str``, a range
            that is no pair.
    """
    for mark in _each(given, Mark, (), ("samples", "chars")):
        if mark.kind not in _MARK_KINDS:
            raise AdapterFailed(
                f"Mark.kind must be one of {', '.join(_MARK_KINDS)}, not {mark.kind!r:.80}"
            )
        if not isinstance(mark.text, str):
            raise AdapterFailed(f"Mark.text must be text, not {mark.text!r:.80}")
        yield mark


def _whole(span: Span) -> Span:
    """Return a pair of whole numbers of any kind as a `Span` of plain ones.

    Raises:
        TypeError, ValueError: it is no pair of whole numbers.
    """
    start, end = span
    return Span(index(start), index(end))


def _each(
    given: object, kind: type[T], numbers: Iterable[str], spans: Iterable[str]
) -> Iterator[T]:
    if not isinstance(given, Iterable) or isinstance(given, str | bytes):
        raise AdapterFailed(
            f"the adapter gave {type(given).__name__}, not a list of {kind.__name__}"
        )
    for item in given:
        if not isinstance(item, kind):
            raise AdapterFailed(f"the adapter gave {type(item).__name__}, not {kind.__name__}(...)")
        for name in numbers:
            value = getattr(item, name)
            if not isinstance(value, Real) or not math.isfinite(value):
                raise AdapterFailed(
                    f"{kind.__name__}.{name} must be a finite number, not {value!r:.80}"
                )
        yield _with_spans(item, spans)


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
            raise AdapterFailed(
                f"{what} must be a pair of whole numbers, not {span!r:.80}"
            ) from None
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
