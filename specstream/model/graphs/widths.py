"""What is captured, and which captured width serves a pass of so many tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["DRAFT", "TARGET", "CapturePlan", "Widths"]


@dataclass(frozen=True, slots=True)
class CapturePlan:
    """Which of a model's passes are captured.

    Attributes:
        widths: Passes of so many tokens.
        chain_widths: Chains of greedy steps that begin by reading so many tokens.
        chain_steps: Tokens that a chain writes.
    """

    widths: tuple[int, ...]
    chain_widths: tuple[int, ...] = ()
    chain_steps: int = 0


# Wider passes are rare, and for them the library's matrix products are as fast.
TARGET = CapturePlan((1, 2, 3, 4, 5, 6, 8))
# After a round one or two tokens are new to the draft: the bonus token, and the last accepted one.
DRAFT = CapturePlan((1, 2, 3), chain_widths=(1, 2), chain_steps=4)


class Widths:
    """A set of widths; a pass takes the narrowest that is wide enough."""

    def __init__(self, widths: Sequence[int]) -> None:
        self._serve(set(widths))

    @property
    def known(self) -> tuple[int, ...]:
        """All of them, in order."""
        return self._known

    def of(self, count: int) -> int | None:
        """The width for ``count`` tokens; None: there is none."""
        return self._by_count.get(count)

    def drop(self, width: int) -> None:
        """Serve its passes by the next wider one."""
        self._serve(set(self._known) - {width})

    def _serve(self, widths: set[int]) -> None:
        self._known = tuple(sorted(widths))
        self._by_count = {
            count: next(w for w in self._known if w >= count)
            for count in range(1, max(widths, default=0) + 1)
        }
