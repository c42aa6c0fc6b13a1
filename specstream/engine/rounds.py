"""One round for a batch: propose → verify → commit, with the time of each."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

import torch
from torch import Tensor

from specstream.config import EngineConfig
from specstream.engine.prefill import Pace, Step, share_out
from specstream.engine.request import Request
from specstream.engine.stopwatch import Stopwatch
from specstream.engine.verifier import Verifier
from specstream.errors import ProposalError
from specstream.model.runner import ForwardInput, ModelRunner
from specstream.model.transfer import to_device
from specstream.speculation.checking import checked, marked
from specstream.speculation.proposal import (
    AdaptiveProposer,
    Proposal,
    Proposer,
    StateReader,
    States,
    StepTimes,
    Verdict,
)
from specstream.types import Chunk, Span

__all__ = ["Rounds"]

_log = logging.getLogger("specstream.engine")

_LONGEST_REST = 255  # rounds

_Guard = Callable[[Sequence[Request], Callable[[], None]], None]
T = TypeVar("T")


class Rounds:
    """Advances requests by one target pass.

    ``emit`` is given each request's chunk, ``fail`` a request whose own code broke, and ``guard`` runs
    what may only end the requests it is about.
    """

    def __init__(
        self,
        config: EngineConfig,
        target: ModelRunner,
        proposer: Proposer,
        *,
        emit: Callable[[Request, Chunk], None],
        fail: Callable[[Request, Exception], None],
        guard: _Guard,
    ) -> None:
        self._target = target
        self._proposer = proposer
        self._adaptive = proposer if isinstance(proposer, AdaptiveProposer) else None
        self._reader = proposer if isinstance(proposer, StateReader) else None
        self._judge = Verifier(config)
        self._pace = Pace()
        # A fixed width is the width of every pass, the reading of the prompt included.
        self._chunk = target.fixed_width or config.prefill_chunk
        self._emit, self._fail, self._guard = emit, fail, guard
        self._longest = target.fixed_width - 1 if target.fixed_width else target.context_length
        self._broken: set[type[Exception]] = set()
        # After the proposer broke: so many rounds without it, and how many of them are to come.
        self._rest = self._resting = 0

    def run(self, batch: Sequence[Request]) -> None:
        """One pass: a round for those who are ready, the next part of their prompts for the others.

        An exception ends those who take part.
        """
        started, watch = time.perf_counter(), Stopwatch(self._target.device)
        answering = [request for request in batch if request.stats.rounds]
        proposals = self._propose(answering)
        watch.mark()
        step = share_out(batch, self._chunk, self._budget(batch, proposals))
        taking_part = [*answering, *step.fresh, *(request for request, _ in step.reading)]
        self._guard(taking_part, partial(self._pass, answering, proposals, step, started, watch))

    def _budget(self, batch: Sequence[Request], proposals: Sequence[Proposal]) -> int:
        """Prompt tokens for this step: as many as come, unless someone is being answered meanwhile."""
        if proposals and self._target.fixed_width is None:
            return self._pace.budget(self._chunk, sum(proposal.length for proposal in proposals))
        return self._chunk * len(batch)

    def _pass(
        self,
        answering: Sequence[Request],
        proposals: Sequence[Proposal],
        step: Step,
        started: float,
        watch: Stopwatch,
    ) -> None:
        # Round 0 drafts nothing: the first token is not kept waiting for the draft to read the prompt.
        batch = [*answering, *step.fresh]
        proposals = [*proposals, *(Proposal.empty(self._target.device) for _ in step.fresh)]
        inputs = [self._input(r, p) for r, p in zip(batch, proposals, strict=True)]
        inputs += [self._input(request, None, count) for request, count in step.reading]
        starts = [item.cache.length for item in inputs]
        logits, states = self._forward(inputs)
        for request, _ in step.reading:
            request.stats.prefill_forwards += 1
        watch.mark()
        verdicts = self._judge(batch, proposals, logits[: len(batch)])
        watch.mark()
        if any(verdict.malformed for verdict in verdicts):
            self._complain(ProposalError("token ids or probs are out of range"))
        self.spare(partial(self._proposer.observe, batch, verdicts), None)
        if self._reader is not None:
            took_part = [*batch, *(request for request, _ in step.reading)]
            kept = _kept(starts, states, proposals, verdicts)
            self.spare(partial(self._reader.read, took_part, kept), None)
        draft_ms, verify_ms, sample_ms = watch.spans_ms()
        for request, proposal, verdict in zip(batch, proposals, verdicts, strict=True):
            request.stats.sample_ms += sample_ms
            commit = partial(self._commit, request, proposal, verdict, (draft_ms, verify_ms))
            self._guard([request], commit)
        tokens = sum(item.token_ids.shape[0] for item in inputs)
        read = tokens - len(answering) - sum(proposal.length for proposal in proposals)
        self._pace.observe(verify_ms, read, beside=bool(answering))
        if self._adaptive is not None:
            # The time of a pass that reads prompts says nothing about rounds to come: no rows are
            # told then. What became of the proposals is as true as ever.
            total_ms = (time.perf_counter() - started) * 1e3
            rows = 0 if read else len(batch)
            times = StepTimes(draft_ms, verify_ms, total_ms, rows, tokens)
            self.spare(partial(self._adaptive.clock, times), None)

    def _forward(self, inputs: Sequence[ForwardInput]) -> tuple[list[Tensor], list[Tensor]]:
        """Logits of each input and, for a proposer that reads them, its hidden states."""
        if self._reader is None:
            return self._target.forward(inputs), []
        depths = self._reader.capabilities.hidden_states
        both = self._target.forward_with_states(inputs, depths)
        return [logits for logits, _ in both], [states for _, states in both]

    def spare(self, work: Callable[[], T], instead: T) -> T:
        """What ``work()`` returns; ``instead`` if it raises.

        For all that a proposer does: proposals are a help, never a need, so whatever breaks in one
        costs speed and nothing else. An error that comes again and again is logged once.
        """
        try:
            return work()
        except Exception as error:
            self._complain(error)
            return instead

    def _complain(self, error: Exception) -> None:
        log = _log.debug if type(error) in self._broken else _log.error
        self._broken.add(type(error))
        traceback = None if isinstance(error, ProposalError) else error
        log("the proposer broke (%s); decoding goes on without its help", error, exc_info=traceback)

    def _propose(self, batch: Sequence[Request]) -> list[Proposal]:
        # A proposal longer than the room less one could never be used up.
        budget = [min(r.room - 1, self._longest) if r.proposer != "off" else 0 for r in batch]
        wanted = [i for i, b in enumerate(budget) if b > 0]
        device, vocab_size = self._target.device, self._target.vocab_size
        proposals = [Proposal.empty(device) for _ in batch]
        if self._resting:
            self._resting -= 1
            return proposals
        if not wanted:
            return proposals
        asked = [batch[i] for i in wanted]
        made = self.spare(partial(self._ask, asked, [budget[i] for i in wanted]), None)
        if made is None:
            for request in asked:  # let it start afresh, and wait longer each time
                self.spare(partial(self._proposer.release, request.slot), None)
            self._rest = self._resting = min(2 * self._rest + 1, _LONGEST_REST)
            return proposals
        self._rest, trees = 0, self._proposer.capabilities.trees
        for i, proposal in zip(wanted, made, strict=True):
            check = partial(checked, proposal, budget[i], vocab_size, device, trees=trees)
            proposals[i] = self.spare(check, proposals[i])
        return marked(proposals, vocab_size)

    def _ask(self, batch: Sequence[Request], budget: Sequence[int]) -> Sequence[Proposal]:
        made = self._proposer.propose(batch, budget)
        if len(made) != len(batch):
            raise ProposalError(f"{len(made)} proposals were made for {len(batch)} requests")
        return made

    def _input(
        self, request: Request, proposal: Proposal | None, count: int | None = None
    ) -> ForwardInput:
        assert request.slot_state is not None
        at = request.slot_state.cache.length
        end = len(request.token_ids) if count is None else at + count
        tokens, cache = (
            to_device(request.token_ids[at:end], self._target.device),
            request.slot_state.cache,
        )
        if proposal is None or not proposal.length:
            return ForwardInput(tokens, cache)
        tokens = torch.cat([tokens, proposal.tokens])
        return ForwardInput(tokens, cache, 1 + proposal.length, proposal.tree)

    def _commit(
        self, request: Request, proposal: Proposal, verdict: Verdict, times: tuple[float, float]
    ) -> None:
        """Enter a verdict. What stands before a fault of the request's own is given out first."""
        assert request.slot_state is not None
        began = time.perf_counter()
        first, before, chars = request.generated, len(request.token_ids), len(request.text)
        thought = len(request.reasoning.text)
        stats = request.stats
        with request.lock:
            text, ends, broken = self._take(request, verdict)
            del request.token_ids[before + len(ends) :]  # a token that broke a criterion isn't kept
            kept = tuple(request.token_ids[before:])
            accepted = min(verdict.accepted, len(kept))
            request.slot_state.cache.keep_path(before, verdict.path[:accepted])
            request.text += text
            stats.count_round(proposal.length, accepted, proposal.source if proposal.length else "")
            stats.draft_ms += times[0]
            stats.verify_ms += times[1]
            request.ttft_ms = request.ttft_ms or (request.elapsed_ms() if kept else 0.0)
        done = time.perf_counter()
        stats.rollback_ms += (done - began) * 1e3
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
                reasoning=request.reasoning.text[thought:],
                reasoning_end=request.reasoning.end,
            )
            self._emit(request, chunk)
            stats.emit_ms += (time.perf_counter() - done) * 1e3
        if broken is not None:
            self._fail(request, broken)

    @staticmethod
    def _take(request: Request, verdict: Verdict) -> tuple[str, list[int], Exception | None]:
        """Tokens one by one, so that a stop or a fault inside the block ends it there.

        Returns the text that became certain, the reply's length after each token, and the fault.
        """
        text, ends = "", list[int]()
        rows = (0, *(node + 1 for node in verdict.path))
        try:
            for row, token in zip(rows, verdict.tokens, strict=True):
                if row in request.faults:
                    raise request.faults[row]
                text += request.take(token)
                ends.append(len(request.replied))
                if request.finish_reason is not None:
                    break
        except Exception as error:
            return text, ends, error
        return text, ends, None


def _kept(
    starts: Sequence[int],
    states: Sequence[Tensor],
    proposals: Sequence[Proposal],
    verdicts: Sequence[Verdict],
) -> list[States]:
    """The states of the tokens that stay: all of a prompt's; of a round's those that were accepted."""
    found = [States(start, rows) for start, rows in zip(starts, states, strict=True)]
    for index, (proposal, verdict) in enumerate(zip(proposals, verdicts, strict=True)):
        if proposal.length:
            first = states[index].shape[0] - proposal.length
            rows = [*range(first), *(first + node for node in verdict.path)]
            found[index] = States(starts[index], states[index][rows])
    return found
