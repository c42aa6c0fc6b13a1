"""Chooses which waiting request starts next, which take part in a step, and how many share one."""

from __future__ import annotations

import logging
import math
import time
from collections import deque
from collections.abc import Callable

import psutil

from specstream.config import USUAL_PLACES, EngineConfig
from specstream.drafting.calibration import FRESH, MeasuredTimes, pass_ms
from specstream.engine.core.request import Request
from specstream.errors import EngineBusy
from specstream.model.runner import ModelRunner

__all__ = ["Scheduler", "choose_places", "free_bytes"]

_log = logging.getLogger("specstream.engine")

_MANY = 16
_TOKENS = 2048  # of a conversation, for which each place must have memory
_CLEAR = 1.33  # a ratio so many times off the limit is no matter of a noisy start
_SHARE = 0.5  # of the free memory that the places may take


def choose_places(target: ModelRunner, times: MeasuredTimes = FRESH) -> int:
    """Return the number of requests that share a pass: `_MANY`, or `USUAL_PLACES`.

    Many, if a pass over one token of each of sixteen sequences takes less time than four passes of four,
    and if half of the free memory holds their keys and values. Models whose sequences take a pass each
    gain nothing by more.
    """
    if not target.lean or target.fixed_width is not None:
        return USUAL_PLACES
    free = free_bytes(target)
    if _MANY * target.cache_bytes(_tokens(target)) > _SHARE * free:
        fit = int(_SHARE * free) // target.cache_bytes(_tokens(target))
        _log.info("%d requests share a pass: memory has room for %d", USUAL_PLACES, fit)
        return USUAL_PLACES
    counts = USUAL_PLACES, _MANY
    few_ms, many_ms = times.of("places", len(counts), lambda: pass_ms(target, counts))
    ratio = many_ms / few_ms
    if 1 / _CLEAR < ratio * USUAL_PLACES / _MANY < _CLEAR:
        times.forget("places")  # nothing corrects a wrong choice later, so a close one is measured again
    found = _MANY if ratio < _MANY / USUAL_PLACES else USUAL_PLACES
    words = "%d requests share a pass: one of %d takes %.1f times as long as one of %d"
    _log.info(words, found, _MANY, ratio, USUAL_PLACES)
    return found


def _tokens(target: ModelRunner) -> int:
    return min(_TOKENS, target.context_length)


def free_bytes(target: ModelRunner) -> int:
    """The memory left for keys and values."""
    pooled = target.free_cache_bytes
    return int(psutil.virtual_memory().available) if pooled is None else pooled


_SOON_S = 0.4  # of sound ahead: what a phrase takes that is almost there
_PHRASE_S = 0.8  # of sound ahead: what the next phrase takes where many are written at once
_ENOUGH_S = 1.5  # of sound ahead: in this time sixteen phrases are written and spoken


class Scheduler:
    """First come, first started; at most `EngineConfig.places` requests in a step, most urgent first.

    A parked request (back-pressure: its consumer has too many unread chunks) takes no part in steps and
    doesn't count as running. One whose listener has much to hear doesn't count either, and leaves the
    steps to listeners who have heard nothing yet or are about to hear silence (see `Delivery`). At most
    ``max_parked`` requests exceed ``max_running``. If a parked request keeps others from starting and
    its consumer reads nothing for ``max_parked_s``, it is `stalled`. A waiting request whose session is
    busy, or whose prompt is still being encoded, is overtaken.

    The bounds are those of ``config``; ``now`` is a clock in seconds. ``short`` is set by the caller
    while the oldest waiting request waits for memory: no request starts meanwhile.
    """

    def __init__(self, config: EngineConfig, now: Callable[[], float] = time.monotonic) -> None:
        self._config = config
        self._now = now
        self._parked: dict[Request, tuple[int, float]] = {}  # chunks read, and since when no more
        self.short = False
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []

    def submit(self, request: Request) -> None:
        """Queue a request.

        Raises:
            EngineBusy: ``max_running`` requests run and the queue is full.
        """
        if len(self.waiting) >= self._config.max_waiting + self._free():
            raise EngineBusy(
                f"{len(self.running)} requests run and {len(self.waiting)} wait; try again later"
            )
        self.waiting.append(request)

    def next(self) -> Request | None:
        """Return the oldest waiting request that can start now, if any."""
        self._watch()
        if self._free() <= 0:
            return None
        busy = {r.session for r in self.running if r.session is not None}
        for request in self.waiting:
            if not request.encoding and request.session not in busy:
                return request
            if request.session is not None:
                busy.add(request.session)  # turns of a conversation stay in order
        return None

    def start(self, request: Request) -> None:
        """Move a waiting request to the running ones."""
        self.waiting.remove(request)
        self.running.append(request)

    def ready(self) -> list[Request]:
        """The running requests that take part in the next step, most urgent first.

        Those whose listeners have much to hear leave the step to the others while one of these is
        needed soon. Requests that nobody listens to take part in every step. There is always one if
        any request could use the step: what listeners need later doesn't wake the engine.
        """
        able = [request for request in self.running if not request.delivery.parked]
        soon = sorted((r for r in able if not self._ahead(r)), key=self._urgency)
        if not any(map(self._pressed, able)):
            soon += [request for request in able if self._ahead(request)]
        return soon[: self._config.places]

    def retire(self, request: Request) -> None:
        """Remove an ended request, running or waiting. Idempotent."""
        self._parked.pop(request, None)
        if request in self.running:
            self.running.remove(request)
        elif request in self.waiting:
            self.waiting.remove(request)

    def _pressed(self, request: Request) -> bool:
        """Whether the listener is about to hear silence, or has heard nothing and not much is coming.

        Never of one who is `_ahead`: else nobody would take part in the step.
        """
        delivery = request.delivery
        if (moment := delivery.needed_by) is None or self._ahead(request):
            return False
        return not delivery.heard or moment - self._now() < _SOON_S

    def patient(self, ready: list[Request]) -> bool:
        """Whether no listener of these requests notices a longer step: none is about to hear silence.

        Those who have heard nothing yet wait anyway.
        """
        soon = self._now() + _SOON_S
        each = [request.delivery for request in ready]
        return all(d.needed_by is not None and (not d.heard or d.needed_by > soon) for d in each)

    def _ahead(self, request: Request) -> bool:
        """Whether the listener has so much to hear that others go first."""
        moment = request.delivery.needed_by
        return moment is not None and moment - self._now() > _ENOUGH_S

    def _urgency(self, request: Request) -> tuple[float, float]:
        """The order in which places of a step are given: by when a listener hears silence.

        Silence inside a reply is worse than a later beginning, so one who has heard nothing is never
        more urgent than one whose next phrase has to be written now.
        """
        delivery = request.delivery
        if (moment := delivery.needed_by) is None:
            return -math.inf, 0.0
        return moment if delivery.heard else max(moment, self._now() + _PHRASE_S), moment

    def _active(self, request: Request) -> bool:
        return not (request.delivery.parked or self._ahead(request))

    def _free(self) -> int:
        active = sum(map(self._active, self.running))
        bound = self._config.places + self._config.max_parked - len(self.running)
        return 0 if self.short else min(self._config.places - active, bound)

    def _watch(self) -> None:
        """Record for each parked request since when its consumer has read nothing."""
        now, before = self._now(), self._parked
        self._parked = {}
        for request in self.running:
            if request.delivery.parked:
                read, since = before.get(request, (-1, now))
                unread = read == request.delivery.read
                self._parked[request] = (request.delivery.read, since if unread else now)

    def _blocking(self) -> Request | None:
        """Return, of the parked requests that block another, the one longest without a read."""
        wanted = {request.session for request in self.waiting if not request.encoding}
        if not wanted or not self._parked:
            return None
        active = sum(map(self._active, self.running))
        full = self._free() <= 0 and active < self._config.places  # by parked ones
        busy = {request.session for request in self.running}
        placeless = full and bool(wanted - busy or None in wanted)
        wanted.discard(None)
        found = [r for r in self._parked if placeless or r.session in wanted]
        return min(found, key=lambda request: self._parked[request][1], default=None)

    def stalled(self) -> Request | None:
        """Return a request that has been parked too long and keeps another from starting, if any."""
        request = self._blocking()
        if request is None or request.delivery.read != self._parked[request][0]:
            return None
        late = self._now() - self._parked[request][1] >= self._config.max_parked_s
        return request if late else None

    def patience(self) -> float | None:
        """Return the seconds until a request may be `stalled`; None if none can be."""
        request = self._blocking()
        if request is None:
            return None
        return max(0.0, self._parked[request][1] + self._config.max_parked_s - self._now())
