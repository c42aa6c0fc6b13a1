"""Which captured width serves a pass of so many tokens."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["Widths"]


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
