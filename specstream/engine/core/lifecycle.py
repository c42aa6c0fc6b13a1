"""Requests from queueing to their last chunk, and how many prompt tokens a pass reads."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from specstream.config import EngineConfig
from specstream.engine.core.admission import Admission
from specstream.engine.core.commit import closing_chunk
from specstream.engine.core.proposing import Proposing
from specstream.engine.core.request import Request
from specstream.engine.core.scheduler import Scheduler
from specstream.errors import ConsumerStalled, EngineFailed, SpecstreamError
from specstream.types import Chunk

if TYPE_CHECKING:
    from specstream.training.learner import Learner

__all__ = ["Lifecycle", "PrefillBudget"]

_LEAST = 16  # prompt tokens of a pass; fewer would hardly amortise reading the weights
_FIRST_GUESS = 64  # prompt tokens of a pass, before its times are known
_WEIGHT = 0.2  # of a new sample in a moving average
_PATIENT_MS = 120.0  # what they may add where nobody notices; others' tokens stay within 190 ms
_SHARE = 1.25  # what prompt tokens and proposals may add to a step, in usual rounds' times


class PrefillBudget:
    """Learns how many prompt tokens take 1.25 times as long as a usual decoding round.

    A step that prefills so many tokens along with a round makes the gap between two chunks a little more
    than twice as long, which a listener can't hear. A larger budget makes longer gaps and hardly saves
    time; a smaller one keeps new requests waiting. Proposed tokens take as long as prompt tokens and
    are deducted, so that all steps take about equally long.
    """

    def __init__(self) -> None:
        self._round_ms: float | None = None
        self._token_ms: float | None = None
        self._mixed = False  # whether a pass was seen that decoded and prefilled

    def observe(self, ms: float, read: int, *, beside: bool) -> None:
        """Add a target pass of ``ms`` milliseconds.

        Args:
            ms: Its time.
            read: Prompt tokens that it read.
            beside: Whether it also decoded requests whose prompts had been read before.
        """
        if beside and read == 0:
            self._round_ms = _moved(self._round_ms, ms)
        elif self._round_ms is None or read < _LEAST:
            return
        elif beside and self._token_ms is not None:
            # Correct both estimates: while some prompt is always being read, no round is seen alone.
            error = _WEIGHT * (ms - self._round_ms - self._token_ms * read)
            self._round_ms = max(self._round_ms + error, 1e-3)
            self._token_ms = max(self._token_ms + error / read, 0.0)
            self._mixed = True
        elif not self._mixed:  # pure prefill: a poor estimate of what it adds to a round
            self._token_ms = _moved(self._token_ms, max(0.0, ms - self._round_ms) / read)

    def tokens(self, most: int, proposed: int, *, patient: bool = False) -> int:
        """Return the prompt tokens for a pass that verifies ``proposed`` tokens, at most ``most``.

        ``patient``: nobody notices a longer pass, since the listeners of all requests that are decoded
        have something to hear, or are waiting for their first sound like those whose prompts are read.
        """
        if self._round_ms is None or self._token_ms is None:
            return min(most, _FIRST_GUESS)
        ms = max(_SHARE * self._round_ms, _PATIENT_MS if patient else 0.0)
        if (most + proposed) * self._token_ms <= ms:
            return most
        return min(most, max(_LEAST, int(ms / self._token_ms) - proposed))


def _moved(old: float | None, new: float) -> float:
    return new if old is None else old + _WEIGHT * (new - old)


def _failed(error: BaseException, what: str = "the engine broke on this request") -> EngineFailed:
    wrapped = EngineFailed(f"{what}: {error!r}")
    wrapped.__cause__ = error
    return wrapped


_WHOLE = ("stop", "length", "tool_calls")  # finish reasons of replies that the learner may keep
_STALLED = (
    "the reply was ended: nobody read it for {:g} s while other requests waited. The chunks written "
    "before can still be read. Read each reply to its end, or leave its block (`async with`)"
)


class Lifecycle:
    """An engine's requests from `submit` to their last chunk or error. Belongs to the engine's thread.

    Args:
        config: The engine's settings.
        admission: Encodes prompts and takes slots.
        scheduler: Orders the requests.
        proposing: Is told when a request ends.
        learner: Keeps whole replies; None: nothing is learned.
    """

    def __init__(
        self,
        config: EngineConfig,
        admission: Admission,
        scheduler: Scheduler,
        proposing: Proposing,
        learner: Learner | None,
    ) -> None:
        self.config, self.admission, self.scheduler = config, admission, scheduler
        self.proposing, self.learner = proposing, learner

    def submit(self, request: Request) -> None:
        """Queue a request; if the queue is full it ends with `EngineBusy`."""
        if request.proposer == "own":  # reports name the proposer itself
            request.proposer = self.proposing.proposer.name
        self.drop_cancelled()
        try:
            self.scheduler.submit(request)
        except Exception as error:
            self.fail(request, error)

    def encoded(self, request: Request, error: BaseException | None) -> None:
        """Take note that encoding a prompt on another thread has ended, with ``error`` if it failed."""
        request.encoding = False
        if error is not None and not request.over:
            self.fail(request, error)

    def admit(self) -> bool:
        """Start waiting requests while slots and memory are free; False if no request left the queue.

        A request that can't be admitted ends with a typed error.
        """
        moved, self.scheduler.short = False, False
        while (request := self._next()) is not None:
            try:
                if not self.admission.admit(request):
                    self.scheduler.short = True
                    continue
                self.scheduler.start(request)
            except Exception as error:
                self.fail(request, error)
            moved = True
        return moved

    def _next(self) -> Request | None:
        """Return the next request to admit; stalled requests that block others are ended first."""
        while (request := self.scheduler.next()) is None:
            stalled = self.scheduler.stalled()
            if stalled is None:
                return None
            self.fail(stalled, ConsumerStalled(_STALLED.format(self.config.max_parked_s)))
            self.scheduler.short = False
        return request

    def deliver(self, request: Request, chunk: Chunk | None, error: BaseException | None) -> None:
        """Hand a round's chunk to the consumer, then the error that ends the request, if any."""
        if chunk is not None:
            began = time.perf_counter()
            if chunk.finish_reason is not None:
                self._retire(request)
            self._send(request, chunk)
            request.stats.emit_ms += (time.perf_counter() - began) * 1e3
        if error is not None:
            self.fail(request, error)

    def fail(self, request: Request, error: BaseException) -> None:
        """End a request with a typed error."""
        error = error if isinstance(error, SpecstreamError) else _failed(error)
        request.error, request.finish_reason = error, None
        self._retire(request)
        self._send(request, error)

    def drop_cancelled(self) -> None:
        """End the requests that their consumers have cancelled."""
        for request in [*self.scheduler.running, *self.scheduler.waiting]:
            if request.delivery.cancelled:
                self._cancel(request)

    def close(self, failure: BaseException | None = None) -> None:
        """End every request: as cancelled, or with what ended the engine. Close proposer and learner."""
        for request in [*self.scheduler.running, *self.scheduler.waiting]:
            try:
                if failure is None:
                    self._cancel(request)
                else:
                    self.fail(request, _failed(failure, "the engine has ended"))
            except BaseException as error:  # its reader, and the others, must still be told
                self._send(request, request.error or _failed(error))
        self.proposing.close()
        if self.learner is not None:
            self.learner.close()

    def _cancel(self, request: Request) -> None:
        self.deliver(request, closing_chunk(request, "cancelled"), None)

    def _send(self, request: Request, item: Chunk | SpecstreamError) -> None:
        request.delivery.sent += 1
        request.delivery.put(item)

    def _retire(self, request: Request) -> None:
        request.ended_ms = request.elapsed_ms()
        if request.proposer != "off":
            request.explanation = self.proposing.explain(request.id)
            self.proposing.finish(request.id)
        if self.learner is not None and request.learn and request.finish_reason in _WHOLE:
            self.learner.keep(request.token_ids, request.prompt_length)
        self.scheduler.retire(request)
        self.admission.leave(request)
