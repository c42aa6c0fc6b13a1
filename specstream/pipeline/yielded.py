"""Checks what an avatar or a prompt adapter gives, before the pipeline and its clients rely on it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import replace
from numbers import Real
from operator import index
from typing import Any, TypeVar

from specstream.errors import AdapterFailed
from specstream.types import AvatarCue, ScenePrompt, Span

__all__ = ["cues_of", "prompts_of", "whole"]

T = TypeVar("T", AvatarCue, ScenePrompt)


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


def whole(span: Span) -> Span:
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
            changed[name] = whole(span)
        except (TypeError, ValueError):
            what = f"{type(item).__name__}.{name}"
            raise AdapterFailed(
                f"{what} must be a pair of whole numbers, not {span!r:.80}"
            ) from None
    return replace(item, **changed) if changed else item
