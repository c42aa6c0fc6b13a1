"""Life cycle of requests: queueing, admission, delivery of chunks, cancellation and failure."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from transformers import PreTrainedTokenizerBase

from specstream.config import EngineConfig
from specstream.engine.admission import Admission
from specstream.engine.commit import closing_chunk
from specstream.engine.prefill import PrefillBudget
from specstream.engine.proposing import Proposing
from specstream.engine.request import Request
from specstream.engine.scheduler import Scheduler
from specstream.engine.slots import Slots, free_memory
from specstream.errors import ConsumerStalled, EngineFailed, SpecstreamError
from specstream.model.runner import ModelRunner
from specstream.speculation.proposal import Proposer
from specstream.speculation.proposers.parts import DraftWeights
from specstream.types import Chunk

if TYPE_CHECKING:
    from specstream.learning.learner import Learner, LearningReport

__all__ = ["Lifecycle"]

_WHOLE = ("stop", "length", "tool_calls")  # finish reasons of replies that the learner may keep
_STALLED = (
    "the reply was ended: nobody read it for {:g} s while other requests waited. The chunks written "
    "before can still be read. Read each reply to its end, or leave its block (`async with`)"
)


class Lifecycle:
    """The parts of an engine, and its requests from `submit` to their last chunk or error.

    Belongs to the engine's thread.

    Raises:
        ModelUnsupported: see `Proposing`.
    """

    def __init__(
        self,
        config: EngineConfig,
        target: ModelRunner,
        tokenizer: PreTrainedTokenizerBase,
        proposer: Proposer,
        eos_ids: frozenset[int],
        now: Callable[[], float] = time.monotonic,
        free_bytes: Callable[[], int] | None = None,
    ) -> None:
        self.config, self.target = config, target
        self.proposing = Proposing(proposer, target)
        free_bytes = free_bytes or free_memory(target)
        self.slots = Slots(
            target,
            config.max_sessions,
            lambda slot: self.proposing.release(slot),
            free_bytes,
            shares=config.share_prefixes,
        )
        self.admission = Admission(config, target, tokenizer, self.slots, eos_ids)
        self.scheduler = Scheduler(config, now)
        self.prefill = PrefillBudget()
        self.learner: Learner | None = None  # set by `build_engine`
        self.draft_weights = DraftWeights()  # for reports; set by `build_engine`

    @property
    def learned(self) -> LearningReport | None:
        """What learning in service has done so far; None if this engine doesn't learn."""
        return None if self.learner is None else self.learner.report

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
        if not isinstance(error, SpecstreamError):
            wrapped = EngineFailed(f"the engine broke on this request: {error!r}")
            wrapped.__cause__ = error
            error = wrapped
        request.error, request.finish_reason = error, None
        self._retire(request)
        self._send(request, error)

    def drop_cancelled(self) -> None:
        """End the requests that their consumers have cancelled."""
        for request in [*self.scheduler.running, *self.scheduler.waiting]:
            if request.delivery.cancelled:
                self._cancel(request)

    def close(self) -> None:
        """End every request as cancelled, then close proposer and learner."""
        for request in [*self.scheduler.running, *self.scheduler.waiting]:
            self._cancel(request)
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
