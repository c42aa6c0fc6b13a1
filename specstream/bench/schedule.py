"""Which arm runs when: cells in turn over the domains, arms interleaved in every cell, a budget."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from specstream.bench.prompts import Prompt, PromptSet

__all__ = ["Budget", "Cell", "cells", "turned"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Cell:
    """One prompt, answered once by every arm. ``visit`` counts the cells of its domain."""

    prompt: Prompt
    repeat: int
    visit: int


def cells(prompts: PromptSet, repeats: int) -> Iterator[Cell]:
    """All cells: the domains take turns, and every prompt comes once before any comes again.

    So wherever the experiment is cut off, the domains are equally well measured.
    """
    visits: Counter[str] = Counter()
    by_domain = [prompts.of(domain) for domain in prompts.domains]
    for repeat in range(repeats):
        for row in range(max(map(len, by_domain), default=0)):
            for of_domain in by_domain:
                if row < len(of_domain):
                    prompt = of_domain[row]
                    yield Cell(prompt, repeat, visits[prompt.domain])
                    visits[prompt.domain] += 1


def turned(arms: Sequence[T], visit: int) -> list[T]:
    """The arms' order in a cell: there and back (ABBA), then from the next arm on.

    Whatever drifts slowly (clock, temperature, neighbours) then meets every arm alike, and none
    always runs in the wake of the same other.
    """
    shift = (visit // 2) % len(arms) if arms else 0
    order = [*arms[shift:], *arms[:shift]]
    return order[::-1] if visit % 2 else order


class Budget:
    """Seconds of wall time that may be used; None: as long as it takes."""

    def __init__(self, seconds: float | None, clock: Callable[[], float]) -> None:
        self._seconds = seconds
        self._clock = clock
        self._started = clock()

    @property
    def used(self) -> float:
        """Seconds since the start."""
        return self._clock() - self._started

    @property
    def left(self) -> float | None:
        """Seconds that may still be used; None: as many as it takes."""
        return None if self._seconds is None else self._seconds - self.used

    def allows(self, expected: float) -> bool:
        """Whether something that takes ``expected`` seconds still fits."""
        return self._seconds is None or self.used + expected <= self._seconds
