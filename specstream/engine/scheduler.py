"""Who is served next. Knows no torch."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from specstream.errors import EngineBusy

__all__ = ["Schedulable", "Scheduler"]


class _Delivery(Protocol):
    read: int

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
    ``max_parked`` more may be under way because of that, so those who read nothing could keep all
    others out: after ``max_parked_s`` they are `in_the_way`. One whose session is still busy lets
    others pass.

    ``now`` is a clock in seconds.
    """

    def __init__(
        self,
        max_running: int,
        max_waiting: int,
        max_parked: int = 0,
        max_parked_s: float = math.inf,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._max_running = max_running
        self._max_waiting = max_waiting
        self._max_parked = max_parked
        self._max_parked_s = max_parked_s
        self._now = now
        self._parked: dict[R, tuple[int, float]] = {}  # what each had read, and since when
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
        self._watch()
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

    def _watch(self) -> None:
        """Note since when the parked ones have read nothing."""
        now, before = self._now(), self._parked
        self._parked = {}
        for request in self.running:
            if request.delivery.parked:
                read, since = before.get(request, (-1, now))
                fresh = read != request.delivery.read
                self._parked[request] = (request.delivery.read, now if fresh else since)

    def _blocking(self) -> list[R]:
        """The parked ones that keep someone from being served, the longest unread first."""
        if not self.waiting or not self._parked:
            return []
        active = len(self.running) - len(self._parked)
        full = self._free() <= 0 and active < self._max_running  # and not because others are served
        busy = {request.session for request in self.running}
        wanted = {request.session for request in self.waiting}
        placeless = full and bool(wanted - busy or None in wanted)
        wanted.discard(None)
        found = [r for r in self._parked if placeless or r.session in wanted]
        return sorted(found, key=lambda request: self._parked[request][1])

    def in_the_way(self) -> R | None:
        """One that was parked too long and keeps another from being served; to be ended."""
        for request in self._blocking()[:1]:
            late = self._now() - self._parked[request][1] >= self._max_parked_s
            if late and request.delivery.read == self._parked[request][0]:
                return request
        return None

    def patience(self) -> float | None:
        """Seconds until one may be `in_the_way`; None: only news can change anything."""
        for request in self._blocking()[:1]:
            return max(0.0, self._parked[request][1] + self._max_parked_s - self._now())
        return None

    def schedule(self) -> list[R]:
        """The running requests that can use a step now."""
        return [request for request in self.running if not request.delivery.parked]

    def retire(self, request: R) -> None:
        """The request is over, wherever it was. Idempotent."""
        self._parked.pop(request, None)
        if request in self.running:
            self.running.remove(request)
        elif request in self.waiting:
            self.waiting.remove(request)
