"""The engine's step: schedule → propose → verify → commit → emit."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from specstream.config import EngineConfig
from specstream.engine.admission import Admission
from specstream.engine.judge import Judge
from specstream.engine.request import Request
from specstream.engine.scheduler import Scheduler
from specstream.engine.slots import Slots
from specstream.errors import EngineFailed, SpecstreamError
from specstream.model.runner import ForwardInput, ModelRunner
from specstream.spec.proposal import Proposal, Proposer, Verdict
from specstream.types import Chunk, FinishReason, Span

__all__ = ["EngineCore"]

_log = logging.getLogger("specstream.engine")


class EngineCore:
    """Serves requests step by step; everything here runs on one thread."""

    def __init__(
        self,
        config: EngineConfig,
        target: ModelRunner,
        tokenizer: PreTrainedTokenizerBase,
        proposer: Proposer,
        eos_ids: frozenset[int],
    ) -> None:
        self.target = target
        self.proposer = proposer
        self.scheduler: Scheduler[Request] = Scheduler(
            config.max_running, config.max_waiting, config.max_parked
        )
        self.admission = Admission(config, target, tokenizer, proposer, eos_ids)
        self._judge = Judge(config)
        # A fixed width is the width of every pass, the reading of the prompt included.
        self._prefill_chunk = target.fixed_width or config.prefill_chunk
        self._longest = target.fixed_width - 1 if target.fixed_width else target.context_length

    @property
    def slots(self) -> Slots:
        """The target's caches."""
        return self.admission.slots

    @torch.inference_mode()
    def step(self) -> bool:
        """Advance every request that can use it by one round; False when none could.

        A round is one target pass per request. An exception ends the requests of this step with a
        typed error and leaves the others, and the engine, as they were.
        """
        self._drop_cancelled()
        admitted = self.scheduler.admit()
        for request in admitted:
            self._guard([request], partial(self.admission.admit, request))
        batch = self.scheduler.schedule()
        for request in batch:
            self._guard([request], partial(self._prefill, request))
        ready = [r for r in batch if r.slot_state is not None and r.unread <= self._prefill_chunk]
        if ready:
            self._guard(ready, partial(self._round, ready))
        # A failed admission has left a place free: the next in line mustn't wait for other news.
        return bool(batch or admitted)

    def _round(self, ready: list[Request]) -> None:
        started = time.perf_counter()
        proposals = self._propose(ready)
        drafted = time.perf_counter()
        inputs = [self._input(r, p.tokens) for r, p in zip(ready, proposals, strict=True)]
        verdicts = self._judge(ready, proposals, self.target.forward(inputs))
        judged = time.perf_counter()
        self.proposer.observe(ready, verdicts)
        times = ((drafted - started) * 1e3, (judged - drafted) * 1e3)
        for request, proposal, verdict in zip(ready, proposals, verdicts, strict=True):
            self._guard([request], partial(self._commit, request, proposal, verdict, times))

    def _prefill(self, request: Request) -> None:
        """Read a chunk of a prompt that is longer than one."""
        if request.unread > self._prefill_chunk:
            self.target.forward([self._input(request, [], self._prefill_chunk)])
            request.stats.prefill_forwards += 1

    def _propose(self, batch: Sequence[Request]) -> list[Proposal]:
        # Round 0 drafts nothing: the first token is not kept waiting for the draft to read the
        # prompt. Later, a proposal longer than the room less one could never be used up.
        budget = [
            min(r.room - 1, self._longest) if r.stats.rounds and r.proposer != "off" else 0
            for r in batch
        ]
        wanted = [i for i, b in enumerate(budget) if b > 0]
        proposals = [Proposal.empty(self.target.device) for _ in batch]
        if not wanted:
            return proposals
        try:
            made = self.proposer.propose([batch[i] for i in wanted], [budget[i] for i in wanted])
        except Exception:
            # Proposals are a help, never a need: go on without, and let the proposer start afresh.
            _log.exception("the proposer broke; this round is decoded plainly")
            for i in wanted:
                self.proposer.release(batch[i].slot)
            return proposals
        for i, proposal in zip(wanted, made, strict=True):
            proposals[i] = proposal
        return proposals

    def _input(
        self, request: Request, proposed: Tensor | list[int], count: int | None = None
    ) -> ForwardInput:
        assert request.slot_state is not None
        at = request.slot_state.cache.length
        end = len(request.token_ids) if count is None else at + count
        ids = torch.tensor(request.token_ids[at:end], device=self.target.device)
        extra = torch.as_tensor(proposed, dtype=torch.int64, device=self.target.device)
        return ForwardInput(
            torch.cat([ids, extra]), request.slot_state.cache, keep=1 + extra.shape[0]
        )

    def _commit(
        self, request: Request, proposal: Proposal, verdict: Verdict, times: tuple[float, float]
    ) -> None:
        """Enter a verdict. What stands before a fault of the request's own is given out first."""
        assert request.slot_state is not None
        first, before, chars = request.generated, len(request.token_ids), len(request.text)
        stats = request.stats
        with request.lock:
            text, ends, broken = self._take(request, verdict)
            del request.token_ids[before + len(ends) :]  # a token that broke a criterion isn't kept
            kept = tuple(request.token_ids[before:])
            accepted = min(verdict.accepted, len(kept))
            request.slot_state.cache.rollback_to(before + accepted)
            request.text += text
            stats.count_round(proposal.length, accepted)
            stats.draft_ms += times[0]
            stats.verify_ms += times[1]
            request.ttft_ms = request.ttft_ms or (request.elapsed_ms() if kept else 0.0)
        if kept:
            chunk = Chunk(
                text=text,
                token_ids=kept,
                tokens=Span(first, first + len(kept)),
                chars=Span(chars, chars + len(text)),
                ends=tuple(ends),
                round=stats.rounds - 1,
                drafted=proposal.length,
                accepted=accepted,
                t_ms=request.elapsed_ms(),
                draft_ms=times[0],
                verify_ms=times[1],
                finish_reason=request.finish_reason,
            )
            self._emit(request, chunk)
        if broken is not None:
            self._fail(request, broken)

    @staticmethod
    def _take(request: Request, verdict: Verdict) -> tuple[str, list[int], Exception | None]:
        """Tokens one by one, so that a stop or a fault inside the block ends it there.

        Returns the text that became certain, the decoded length after each token, and the fault.
        """
        text, ends = "", list[int]()
        rows = (0, *(node + 1 for node in verdict.path))
        try:
            for row, token in zip(rows, verdict.tokens, strict=True):
                if row in request.faults:
                    raise request.faults[row]
                text += request.take(token)
                ends.append(len(request.decoded))
                if request.finish_reason is not None:
                    break
        except Exception as error:
            return text, ends, error
        return text, ends, None

    def _emit(self, request: Request, chunk: Chunk) -> None:
        if chunk.finish_reason is not None:
            self._retire(request)
        request.delivery.sent += 1
        request.delivery.put(chunk)

    def submit(self, request: Request) -> None:
        """Take a request in; a full waiting line ends it with EngineBusy."""
        self._drop_cancelled()
        self._guard([request], partial(self.scheduler.submit, request))

    def _drop_cancelled(self) -> None:
        for request in [*self.scheduler.running, *self.scheduler.waiting]:
            if request.delivery.cancelled:
                self._finish(request, "cancelled")

    def _finish(self, request: Request, reason: FinishReason) -> None:
        """End a request between rounds, giving out the text that was held back."""
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
            ),
        )

    def _retire(self, request: Request) -> None:
        request.ended_ms = request.elapsed_ms()
        self.scheduler.retire(request)
        self.admission.leave(request)

    def _guard(self, batch: Sequence[Request], work: Callable[[], None]) -> None:
        """Run ``work()``; if it raises, end the requests of ``batch`` with a typed error."""
        try:
            work()
        except Exception as error:
            for request in batch:
                if request.finish_reason is None and request.error is None:
                    self._fail(request, error)

    def _fail(self, request: Request, error: Exception) -> None:
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
        for request in [*self.scheduler.running, *self.scheduler.waiting]:
            self._finish(request, "cancelled")
