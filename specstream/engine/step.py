"""The engine's step: schedule, propose, verify, commit, emit."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from specstream.config import EngineConfig
from specstream.engine.admission import Admission
from specstream.engine.commit import commit
from specstream.engine.lifecycle import Lifecycle
from specstream.engine.prefill import Part, PrefillBudget, plan_step
from specstream.engine.proposing import Proposing
from specstream.engine.request import Request
from specstream.engine.scheduler import Scheduler
from specstream.engine.sequence import Sequence
from specstream.engine.slots import Slots, free_memory
from specstream.engine.stopwatch import Stopwatch
from specstream.engine.verifier import verify
from specstream.errors import EngineBusy
from specstream.model.runner import ForwardInput, ModelRunner
from specstream.model.transfer import to_device
from specstream.model.tree_check import check_trees
from specstream.speculation.policy.records import Explanation
from specstream.speculation.proposal import Proposal, Proposer, StepTimes

__all__ = ["EngineCore"]

_NO_MEMORY = (
    "the device ran out of memory in a pass of {} sequences; try again later, shorten the prompt, or "
    "lower max_running"
)


class EngineCore:
    """Serves requests step by step, all on one thread.

    Raises:
        ModelUnsupported: the proposer makes trees that the target can't verify, or needs hidden states
            that the target can't give.
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
        if proposer.capabilities.trees:
            check_trees(target)
        if proposer.capabilities.hidden_states:
            target.check_states(proposer.capabilities.hidden_states)
        self.target = target
        self.slots = Slots(
            target,
            config.max_sessions,
            lambda slot: self.proposing.release(slot),
            free_bytes or free_memory(target.device),
        )
        self.admission = Admission(config, target, tokenizer, self.slots, eos_ids)
        self.proposing = Proposing(proposer, target)
        self.requests = Lifecycle(config, self.admission, self.proposing, now)
        self._rule = config.rule
        self._prefill = PrefillBudget()
        # A fixed width is the width of every pass, prefill included.
        self._chunk = target.fixed_width or config.prefill_chunk

    def step(self) -> bool:
        """Advance every request that can use it by one round; False when none could.

        One pass of the target serves them all: rounds, and the next part of prompts that are still
        being read. An exception ends the requests of the pass with a typed error and leaves the engine
        and all others as they were. For many steps be in `torch.inference_mode`: entering it is slow.
        """
        if not torch.is_inference_mode_enabled():
            with torch.inference_mode():
                return self.step()
        requests, proposing = self.requests, self.proposing
        requests.drop_cancelled()
        admitted = requests.admit()
        ready = requests.scheduler.ready()
        if not ready:
            return admitted

        began, watch = time.perf_counter(), Stopwatch(self.target.device)
        decoding = [request.running[0] for request in ready if request.stats.rounds]
        proposals = proposing.propose(decoding)
        watch.mark()
        parts = self._plan(ready, proposals)
        try:
            run = self._forward(parts)
            watch.mark()
            sequences, offered = run.sequences, run.proposals
            verdicts, faults = verify(sequences, offered, run.logits, self._rule)
            watch.mark()
            # The proposer's own device work is queued before the host commits.
            proposing.observe(sequences, verdicts)
            proposing.read(
                [part.sequence for part in run.parts], run.starts, run.states, offered, verdicts
            )
            spans = watch.spans_ms()
            for part, verdict, broken in zip(run.rounds, verdicts, faults, strict=True):
                chunk, error = commit(part.request, part.offered, verdict, broken, spans)
                requests.deliver(part.request, chunk, error)
            self._learn(run, spans, began)
        except Exception as error:
            requests.fail_all([part.request for part in parts], error)
        return True

    def _plan(self, ready: list[Request], proposals: list[Proposal]) -> list[Part]:
        """Who takes a round and who reads how much of its prompt."""
        budget = self._chunk * len(ready)
        if proposals and self.target.fixed_width is None:
            proposed = sum(proposal.length for proposal in proposals)
            budget = self._prefill.tokens(self._chunk, proposed)
        empty = Proposal.empty(self.target.device)
        return plan_step(ready, proposals, chunk=self._chunk, budget=budget, empty=empty)

    def _forward(self, parts: list[Part]) -> _Pass:
        """One target pass. If memory runs out, the youngest request ends and the pass is repeated."""
        while True:
            starts = [part.sequence.cache.length for part in parts]
            try:
                logits, states = self._run([self._input(part) for part in parts])
            except torch.OutOfMemoryError:
                for part, start in zip(parts, starts, strict=True):
                    part.sequence.cache.rollback_to(start)
                youngest = max(parts, key=lambda part: part.request.id)
                # Without a cause: its traceback would keep the pass's tensors alive.
                error = EngineBusy(_NO_MEMORY.format(len(parts)))
            else:
                return _Pass(parts, starts, logits, states)
            self.requests.fail(youngest.request, error)
            parts = [part for part in parts if part is not youngest]
            if not parts:
                return _Pass([], [], [], [])

    def _run(self, inputs: list[ForwardInput]) -> tuple[list[Tensor], list[Tensor]]:
        """Logits of each input and, for a proposer that reads them, its hidden states."""
        if not self.proposing.depths:
            return self.target.forward(inputs), []
        both = self.target.forward_with_states(inputs, self.proposing.depths)
        return [logits for logits, _ in both], [states for _, states in both]

    def _input(self, part: Part) -> ForwardInput:
        sequence, proposal = part.sequence, part.offered
        at = sequence.cache.length
        tokens = to_device(sequence.token_ids[at : at + part.tokens], self.target.device)
        if not proposal.length:
            return ForwardInput(tokens, sequence.cache)
        tokens = torch.cat([tokens, proposal.tokens])
        return ForwardInput(tokens, sequence.cache, 1 + proposal.length, proposal.tree)

    def _learn(self, run: _Pass, spans_ms: list[float], began: float) -> None:
        """Count prefill passes; tell the prefill budget and an adaptive proposer what the step took."""
        for part in run.parts[len(run.rounds) :]:
            part.request.stats.prefill_forwards += 1
        decoding = sum(part.request.stats.rounds > 1 for part in run.rounds)
        committed = sum(part.tokens for part in run.parts)
        read = committed - decoding
        draft_ms, verify_ms, _ = spans_ms
        self._prefill.observe(verify_ms, read, beside=decoding > 0)
        # A pass that reads prompts is no sample of a round's cost: no rows are reported then.
        rows = 0 if read else len(run.rounds)
        tokens = committed + sum(proposal.length for proposal in run.proposals)
        total_ms = (time.perf_counter() - began) * 1e3
        self.proposing.clock(StepTimes(draft_ms, verify_ms, total_ms, rows, tokens))

    def submit(self, request: Request) -> None:
        """Take a request in; a full waiting line ends it with EngineBusy."""
        self.requests.submit(request)

    def patience(self) -> float | None:
        """After a step that advanced nobody: seconds until the next may; None: only after news."""
        return self.requests.scheduler.patience()

    def explain(self) -> Explanation | None:
        """Why requests are served as they are at present; None where that is fixed, or not known."""
        return self.proposing.explain()

    def close(self) -> None:
        """End every request as cancelled."""
        self.requests.close()

    @property
    def scheduler(self) -> Scheduler:
        """The line of requests."""
        return self.requests.scheduler

    @property
    def proposer(self) -> Proposer:
        """The proposer; may be replaced between two requests."""
        return self.proposing.proposer

    @proposer.setter
    def proposer(self, proposer: Proposer) -> None:
        self.proposing = self.requests.proposing = Proposing(proposer, self.target)


class _Pass(NamedTuple):
    """A target pass: its parts, and the first position, logits and hidden states of each."""

    parts: list[Part]
    starts: list[int]
    logits: list[Tensor]
    states: list[Tensor]

    @property
    def rounds(self) -> list[Part]:
        """The parts that take a round; these come first."""
        return [part for part in self.parts if part.proposal is not None]

    @property
    def sequences(self) -> list[Sequence]:
        """The sequences of the rounds."""
        return [part.sequence for part in self.rounds]

    @property
    def proposals(self) -> list[Proposal]:
        """The proposals of the rounds."""
        return [part.offered for part in self.rounds]
