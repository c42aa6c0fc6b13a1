"""Stages, and the events that a pipeline makes of what they yield.

A stage turns one stream into another. Controls (`Flush`, `Revoke`, `Cancel`) travel in the same
stream as the items, in order; every stage passes them on once it has acted on them.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Protocol, TypeVar

from specstream.errors import AdapterFailed, SpecstreamError
from specstream.pipeline.link import Inlet
from specstream.types import Control

__all__ = ["Event", "Stage", "StageFailed", "as_failure"]

In = TypeVar("In")
Out_co = TypeVar("Out_co", covariant=True)


class Stage(Protocol[In, Out_co]):
    """Turns a stream of ``In`` into a stream of ``Out``.

    ``run`` is called once a turn. It must yield every control that it receives, after acting on it:
    on ``Revoke`` it drops what it holds of text past that offset, on ``Flush`` it first yields what it
    holds unfinished, on ``Cancel`` it yields only what brings a consumer to rest. It ends when ``items``
    ends. Closing the generator early releases whatever the turn held.

    A stage with a true attribute ``takes_drafts`` may also be given items made of drafted text. What
    it makes of them is held until their text is verified; if it is revoked (``Revoke.drafted``), the
    stage must go on as if it had never been given them.
    """

    @property
    def name(self) -> str:
        """The ``source`` of the stage's events."""

    def run(self, items: Inlet[In]) -> AsyncGenerator[Out_co | Control, None]:
        """Run one turn."""


@dataclass(frozen=True, slots=True)
class StageFailed:
    """A stage raised or was stopped. Its branch ends here; the text and the other branches go on."""

    error: SpecstreamError


@dataclass(frozen=True, slots=True)
class Event:
    """One entry of the turn's ordered, numbered log.

    ``source`` is the stage that made ``item`` (``"engine"`` for the chunks themselves). ``t_ms``
    counts from the start of the run.
    """

    seq: int
    t_ms: float
    source: str
    item: object


def as_failure(who: str, error: BaseException) -> SpecstreamError:
    """Return the typed error for a part that broke; a foreign exception is kept as the cause."""
    if isinstance(error, SpecstreamError):
        return error
    failure = AdapterFailed(f"{who} broke: {type(error).__name__}: {error}")
    failure.__cause__ = error
    return failure
