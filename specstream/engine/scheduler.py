"""Who is served next. Knows no torch."""

from __future__ import annotations

from collections import deque
from typing import Generic, Protocol, TypeVar

from specstream.errors import EngineBusy

__all__ = ["Schedulable", "Scheduler"]


class _Delivery(Protocol):
    @property
    def parked(self) -> bool: ...


class Schedulable(Protocol):
    """What the scheduler looks at."""

    @property
    def delivery(self) -> _Delivery:
        """Whether the consumer is ready for more."""
        ...

    @property
    def session(self) -> str | None:
        """Requests of one session run one after another: they share a cache."""
        ...


R = TypeVar("R", bound=Schedulable)


class Scheduler(Generic[R]):
    """First come, first served, at most ``max_running`` side by side.

    A request whose consumer is behind is left out of the step and takes no place meanwhile; at most
    ``max_parked`` more may be under way because of that. One whose session is still busy lets others
    pass.
    """

    def __init__(self, max_running: int, max_waiting: int, max_parked: int = 0) -> None:
        self._max_running = max_running
        self._max_waiting = max_waiting
        self._max_parked = max_parked
        self.waiting: deque[R] = deque()
        self.running: list[R] = []

    def submit(self, request: R) -> None:
        """Put a request in line.

        Raises:
            EngineBusy: every place is taken and the line is full.
        """
        if len(self.waiting) >= self._max_waiting + self._free():
            raise EngineBusy(
                f"{len(self.running)} requests run and {len(self.waiting)} wait; try again later"
            )
        self.waiting.append(request)

    def admit(self) -> list[R]:
        """Move waiting requests to free places, oldest first; return those moved."""
        moved: list[R] = []
        busy = {r.session for r in self.running if r.session is not None}
        for request in list(self.waiting):
            if self._free() <= 0:
                break
            if request.session is not None and request.session in busy:
                continue
            self.waiting.remove(request)
            self.running.append(request)
            moved.append(request)
            if request.session is not None:
                busy.add(request.session)
        return moved

    def _free(self) -> int:
        active = sum(not request.delivery.parked for request in self.running)
        bound = self._max_running + self._max_parked - len(self.running)
        return min(self._max_running - active, bound)

    def schedule(self) -> list[R]:
        """The running requests that can use a step now."""
        return [request for request in self.running if not request.delivery.parked]

    def retire(self, request: R) -> None:
        """The request is over, wherever it was. Idempotent."""
        if request in self.running:
            self.running.remove(request)
        elif request in self.waiting:
            self.waiting.remove(request)
