"""The engine's step: schedule, read prompts, run a round; and how requests come and go."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial

import torch
from transformers import PreTrainedTokenizerBase

from specstream.config import EngineConfig
from specstream.engine.admission import Admission
from specstream.engine.request import Request
from specstream.engine.rounds import Rounds
from specstream.engine.scheduler import Scheduler
from specstream.engine.slots import Slots
from specstream.errors import ConsumerStalled, EngineBusy, EngineFailed, SpecstreamError
from specstream.model.runner import ModelRunner
from specstream.model.tree_check import check_trees
from specstream.speculation.explanation import Explanation
from specstream.speculation.proposal import AdaptiveProposer, Proposer
from specstream.types import Chunk, FinishReason, Span

__all__ = ["EngineCore"]

_STALLED = (
    "nobody read this reply for {:g} s while others waited: what was written before can be read, the "
    "rest is not written; read each reply, or leave its block"
)


class EngineCore:
    """Serves requests step by step; everything here runs on one thread."""

    def __init__(
        self,
        config: EngineConfig,
        target: ModelRunner,
        tokenizer: PreTrainedTokenizerBase,
        proposer: Proposer,
        eos_ids: frozenset[int],
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """Put the parts together.

        Raises:
            ModelUnsupported: the proposer makes trees that the target can't judge, or needs hidden
                states that it can't give.
        """
        if proposer.capabilities.trees:
            check_trees(target)
        if proposer.capabilities.hidden_states:
            target.check_states(proposer.capabilities.hidden_states)
        self.target = target
        self.proposer = proposer
        self.scheduler: Scheduler[Request] = Scheduler(
            config.max_running, config.max_waiting, config.max_parked, config.max_parked_s, now
        )
        self._aside: list[Request] = []
        self._max_aside = config.max_waiting + config.max_running
        self._max_parked_s = config.max_parked_s
        self.admission = Admission(config, target, tokenizer, proposer, eos_ids)
        self._adaptive = proposer if isinstance(proposer, AdaptiveProposer) else None
        self._rounds = Rounds(
            config, target, proposer, emit=self._emit, fail=self._fail, guard=self._guard
        )

    @property
    def slots(self) -> Slots:
        """The target's caches."""
        return self.admission.slots

    def step(self) -> bool:
        """Advance every request that can use it by one round; False when none could.

        One pass of the target serves them all: those that are being answered, and the next part of
        prompts that are still being read. An exception ends the requests of this step with a typed
        error and leaves the others, and the engine, as they were.

        A thread that makes many steps does well to be in `torch.inference_mode` for all of them:
        entering it takes as long as many a part of a round.
        """
        if not torch.is_inference_mode_enabled():
            with torch.inference_mode():
                return self.step()
        self._drop_cancelled()
        admitted = self.scheduler.admit()
        while (request := self.scheduler.in_the_way()) is not None:
            self._fail(request, ConsumerStalled(_STALLED.format(self._max_parked_s)))
            admitted += self.scheduler.admit()
        for request in admitted:
            self._guard([request], partial(self.admission.admit, request))
        batch = [r for r in self.scheduler.schedule() if r.slot_state is not None]
        if batch:
            self._guard(batch, partial(self._rounds.run, batch))
        # A failed admission has left a place free: the next in line mustn't wait for other news.
        return bool(batch or admitted)

    def patience(self) -> float | None:
        """After a step that advanced nobody: seconds until the next may; None: after news only."""
        return self.scheduler.patience()

    def _emit(self, request: Request, chunk: Chunk) -> None:
        if chunk.finish_reason is not None:
            self._retire(request)
        request.delivery.sent += 1
        request.delivery.put(chunk)

    def explain(self) -> Explanation | None:
        """Why requests are served as they are at present; None where that is fixed, or not known."""
        return self._rounds.spare(self._adaptive.explain, None) if self._adaptive else None

    def submit(self, request: Request) -> None:
        """Take a request in; a full waiting line ends it with EngineBusy."""
        self._drop_cancelled()
        self._guard([request], partial(self.scheduler.submit, request))

    def set_aside(self, request: Request) -> bool:
        """Keep a request until `take_back`; False where too many are (it ends with EngineBusy)."""
        self._drop_cancelled()
        if len(self._aside) >= self._max_aside:
            busy = f"{len(self._aside)} long prompts are being encoded; try again later"
            self._fail(request, EngineBusy(busy))
            return False
        self._aside.append(request)
        return True

    def has_aside(self, session: str | None) -> bool:
        """Whether a request of this conversation is set aside."""
        return session is not None and any(r.session == session for r in self._aside)

    def take_back(self, request: Request, error: BaseException | None) -> None:
        """Put a request that was set aside in line, or end it with ``error``."""
        if request not in self._aside:
            return  # cancelled meanwhile
        self._aside.remove(request)
        if error is not None:
            self._fail(request, error)
        else:
            self.submit(request)

    def _all(self) -> list[Request]:
        return [*self.scheduler.running, *self.scheduler.waiting, *self._aside]

    def _drop_cancelled(self) -> None:
        for request in self._all():
            if request.delivery.cancelled:
                self._finish(request, "cancelled")

    def _finish(self, request: Request, reason: FinishReason) -> None:
        """End a request between rounds, giving out the text that was held back."""
        thought = len(request.reasoning.text)
        text = request.flush_text() if request.slot_state is not None else ""
        request.finish_reason = reason
        at, chars = request.generated, len(request.text)
        request.text += text
        spans = Span(at, at), Span(chars, chars + len(text))
        self._emit(
            request,
            Chunk(
                text,
                (),
                *spans,
                round=request.stats.rounds,
                t_ms=request.elapsed_ms(),
                finish_reason=reason,
                reasoning=request.reasoning.text[thought:],
                reasoning_end=request.reasoning.end,
            ),
        )

    def _retire(self, request: Request) -> None:
        request.ended_ms = request.elapsed_ms()
        if self._adaptive is not None and request.proposer != "off":
            explain, finish = self._adaptive.explain, self._adaptive.finish
            request.explanation = self._rounds.spare(partial(explain, request.id), None)
            self._rounds.spare(partial(finish, request.id), None)
        self.scheduler.retire(request)
        if request in self._aside:
            self._aside.remove(request)
        self.admission.leave(request)

    def _guard(self, batch: Sequence[Request], work: Callable[[], None]) -> None:
        """Run ``work()``; if it raises, end the requests of ``batch`` with a typed error."""
        try:
            work()
        except Exception as error:
            for request in batch:
                if request.finish_reason is None and request.error is None:
                    self._fail(request, error)

    def _fail(self, request: Request, error: BaseException) -> None:
        if not isinstance(error, SpecstreamError):
            wrapped = EngineFailed(f"the engine broke on this request: {error!r}")
            wrapped.__cause__ = error
            error = wrapped
        request.error = error
        self._retire(request)
        request.delivery.sent += 1
        request.delivery.put(error)

    def close(self) -> None:
        """End every request as cancelled."""
        for request in self._all():
            self._finish(request, "cancelled")
