"""The engine's step: schedule, propose, run the target, verify, commit, emit."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import pairwise
from typing import TYPE_CHECKING

import torch
from transformers import PreTrainedTokenizerBase

from specstream.config import EngineConfig
from specstream.drafting.candidate import DraftWeights
from specstream.drafting.optional import StepTimes
from specstream.drafting.proposal import Proposal, Proposer, Verdict
from specstream.drafting.verify import Case, verify_batch
from specstream.engine.core.admission import Admission
from specstream.engine.core.commit import Logprobs, commit
from specstream.engine.core.lifecycle import Lifecycle, PrefillBudget
from specstream.engine.core.proposing import PassPart, Proposing, TargetPass, plan_step, previews
from specstream.engine.core.request import Request
from specstream.engine.core.scheduler import Scheduler
from specstream.engine.core.slots import Slots, free_memory
from specstream.errors import EngineBusy, SpecstreamError
from specstream.model.forward import ForwardInput
from specstream.model.numerics import to_device
from specstream.model.runner import ModelRunner
from specstream.types import TokenLogprob

if TYPE_CHECKING:
    from specstream.training.learner import Learner, LearningReport

__all__ = ["EngineCore", "Stopwatch"]


class Stopwatch:
    """Marks moments; on a GPU as events in the stream, since calls return before their work is done.

    Read the spans after a transfer from the device, which waits for the stream anyway.
    """

    def __init__(self, device: torch.device) -> None:
        self._on_gpu = device.type == "cuda"
        self._moments: list[float] = []
        self._events: list[torch.cuda.Event] = []
        self.mark()

    def mark(self) -> None:
        """Mark this moment."""
        if self._on_gpu:
            event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            event.record()
            self._events.append(event)
        else:
            self._moments.append(time.perf_counter())

    def spans_ms(self) -> list[float]:
        """Return the milliseconds between consecutive marks; on a GPU, wait for the last mark."""
        if self._on_gpu:
            self._events[-1].synchronize()
            return [start.elapsed_time(end) for start, end in pairwise(self._events)]
        return [(end - start) * 1e3 for start, end in pairwise(self._moments)]


_NO_MEMORY = (
    "the device ran out of memory in a pass of {} sequences; try again later, shorten the prompt, or "
    "lower max_running"
)


class EngineCore:
    """Serves requests step by step, all on one thread.

    Args:
        config: The settings.
        target: Runs the target's passes.
        tokenizer: Encodes prompts, decodes replies.
        proposer: Drafts.
        eos_ids: Tokens that end a reply.
        now: The scheduler's clock, in seconds.
        free_bytes: Asks for the memory that caches may take; by default the device is asked.
        learner: Learns from replies; None: nothing is learned.
        draft_weights: What drafts, for reports.

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
        *,
        learner: Learner | None = None,
        draft_weights: DraftWeights | None = None,
    ) -> None:
        self.config, self.target = config, target
        self.draft_weights = draft_weights or DraftWeights()
        self.proposing = Proposing(proposer, target)
        self.slots = Slots(
            target,
            config.max_sessions,
            lambda slot: self.proposing.release(slot),
            free_bytes or free_memory(target),
            shares=config.share_prefixes,
        )
        self.admission = Admission(config, target, tokenizer, self.slots, eos_ids)
        self.scheduler = Scheduler(config, now)
        self.requests = Lifecycle(config, self.admission, self.scheduler, self.proposing, learner)
        self.prefill = PrefillBudget()
        self.logprobs = Logprobs(tokenizer)

    def submit(self, request: Request) -> None:
        """Queue a request; if the queue is full it ends with `EngineBusy`."""
        self.requests.submit(request)

    def close(self, failure: BaseException | None = None) -> None:
        """End every request: as cancelled, or with what ended the engine. Close proposer and learner."""
        self.requests.close(failure)

    @property
    def learner(self) -> Learner | None:
        """Learns from replies while there is no other work; may be replaced."""
        return self.requests.learner

    @learner.setter
    def learner(self, learner: Learner | None) -> None:
        self.requests.learner = learner

    @property
    def learned(self) -> LearningReport | None:
        """What learning in service has done so far; None if this engine doesn't learn."""
        return None if self.learner is None else self.learner.report

    def step(self) -> bool:
        """Advance every request that isn't parked by one round; False if there was nothing to do.

        One target forward pass serves all requests: rounds, and the next part of prompts that are still
        being read. An exception ends the requests of the pass with a typed error and leaves the engine
        and all other requests as they were. Callers of many steps should enter `torch.inference_mode`
        once, since entering it for each step is slow.

        Raises:
            RuntimeError: a GPU has failed, and in this process it will not work again.
        """
        if not torch.is_inference_mode_enabled():
            with torch.inference_mode():
                return self.step()
        self.requests.drop_cancelled()
        admitted = self.requests.admit()
        ready = self.scheduler.ready()
        if not ready:
            return admitted

        began, watch = time.perf_counter(), Stopwatch(self.target.device)
        parts = list[PassPart]()
        try:
            proposals = self.proposing.propose([r.sequence for r in ready if r.stats.rounds])
            watch.mark()
            parts = self._plan(ready, proposals)
            self._show(parts)
            done = self._forward(parts)
            self._tell_prompts(done)
            watch.mark()
            verdicts, faults = self._verify(done)
            watch.mark()
            self.proposing.observe(done, verdicts)  # queues its device work before the host commits
            spans_ms = watch.spans_ms()
            results = zip(done.rounds, done.proposals, verdicts, faults, strict=True)
            for index, (part, proposal, verdict, broken) in enumerate(results):
                top, told = part.request.params.logprobs, tuple[TokenLogprob, ...]()
                if top is not None:
                    told = self.logprobs.of(done.logits[index], verdict, top)
                chunk, error = commit(part.request, proposal, verdict, broken, spans_ms, told)
                self.requests.deliver(part.request, chunk, error)
            self._learn(done, spans_ms, began)
        except Exception as error:
            for request in [part.request for part in parts] or ready:
                if not request.over:
                    self.requests.fail(request, error)
            if self.target.device.type == "cuda":
                torch.cuda.synchronize(self.target.device)
        return True

    def learn(self) -> bool:
        """Take one small step of learning in service; False if there is nothing to learn.

        To be called when no request can advance. Does nothing while a request waits for admission.
        """
        return self.learner is not None and not self.scheduler.waiting and self.learner.step()

    def _plan(self, ready: list[Request], proposals: list[Proposal]) -> list[PassPart]:
        """Decide which requests take a round, and how many prompt tokens the others read."""
        # A fixed width is the width of every pass, prefill included.
        chunk = self.target.fixed_width or self.config.prefill_chunk
        budget = chunk * len(ready)
        if proposals and self.target.fixed_width is None:
            proposed = sum(proposal.length for proposal in proposals)
            patient = self.scheduler.patient(ready)
            budget = self.prefill.tokens(chunk, proposed, patient=patient)
        empty = Proposal.empty(self.target.device)
        return plan_step(ready, proposals, chunk=chunk, budget=budget, empty=empty)

    def _show(self, parts: list[PassPart]) -> None:
        """Send previews of the proposals, before verification, to consumers that asked for them."""
        shown = [
            (part.request, part.proposal)
            for part in parts
            if part.request.delivery.previews and part.proposal is not None and part.proposed
        ]
        for (request, _), drafted in zip(shown, previews(shown), strict=True):
            if drafted is not None:
                request.delivery.put(drafted)

    def _forward(self, parts: list[PassPart]) -> TargetPass:
        """Run one target pass; if memory runs out, end the youngest request and repeat the pass."""
        while True:
            starts = [part.sequence.cache.length for part in parts]
            try:
                inputs = self._inputs(parts)
                made = self.target.forward(inputs, self.proposing.extras(parts))
            except torch.OutOfMemoryError:
                for part, start in zip(parts, starts, strict=True):
                    part.sequence.cache.rollback_to(start)
                youngest = max(parts, key=lambda part: part.request.id)
                # Raised without a cause, whose traceback would keep the pass's tensors alive.
                error = EngineBusy(_NO_MEMORY.format(len(parts)))
            else:
                return TargetPass(parts, starts, made.logits, made.states)
            self.requests.fail(youngest.request, error)
            parts = [part for part in parts if part is not youngest]
            if not parts:
                return TargetPass([], [], [], [])

    def _inputs(self, parts: list[PassPart]) -> list[ForwardInput]:
        """The inputs of a pass; its committed tokens are uploaded at once."""
        starts = [part.sequence.cache.length for part in parts]
        unread = [
            part.sequence.token_ids[at : at + part.tokens]
            for part, at in zip(parts, starts, strict=True)
        ]
        flat = to_device([token for tokens in unread for token in tokens], self.target.device)
        rows = list[torch.Tensor]()
        for part, tokens in zip(parts, flat.split_with_sizes(list(map(len, unread))), strict=True):
            rows.append(tokens)
            if part.proposal is not None and part.proposal.length:
                rows.append(part.proposal.tokens)
        joint = torch.cat(rows) if len(rows) > 1 else flat
        counts = [len(tokens) + part.proposed for part, tokens in zip(parts, unread, strict=True)]
        each = zip(parts, starts, joint.split_with_sizes(counts), strict=True)
        return [_input(*one) for one in each]

    def _verify(self, done: TargetPass) -> tuple[list[Verdict], list[dict[int, SpecstreamError]]]:
        """Apply each request's logits processors, then its acceptance rule; exact match for keyed noise.

        Returns the verdict on each round of a pass and, for each round, the errors of broken rows of
        logits that the accepted path reaches.
        """
        processed, cases = [], []
        # `logits` also has entries of pure prefill, after those of the rounds.
        for part, logits, drafted in zip(done.rounds, done.logits, done.proposals, strict=False):
            sequence, noise = part.sequence, part.sequence.noise
            key = (noise.seed, len(sequence.token_ids)) if noise.keyed else None
            rows = sequence.process_rows(logits, drafted)
            predictions = self.proposing.predictions
            case = Case(drafted, rows.rows, sequence.params, noise.verifier, key, predictions)
            cases.append(case)
            processed.append(rows)
        verdicts = verify_batch(cases, rule=self.config.rule)
        faults = []
        for verdict, rows in zip(verdicts, processed, strict=True):
            reached = [row for row in verdict.broken if row == 0 or row - 1 in verdict.path]
            faults.append({row: rows.fault(row) for row in reached})
        return verdicts, faults

    def _tell_prompts(self, done: TargetPass) -> None:
        """Note the log probabilities of prompts that were read, for requests that ask."""
        for index, (part, start) in enumerate(zip(done.parts, done.starts, strict=True)):
            if _foretells_prompt(part, start):
                top, rows = part.request.params.prompt_logprobs, done.logits[index]
                assert top is not None
                found = self.logprobs.of_prompt(rows, part.sequence.token_ids, start, top)
                with part.request.lock:
                    part.request.prompt_logprobs += found
                done.logits[index] = rows[-1:]

    def _learn(self, done: TargetPass, spans_ms: list[float], began: float) -> None:
        """Count prefill passes; tell the prefill budget and an adaptive proposer what the step took."""
        for part in done.parts[len(done.rounds) :]:
            part.request.stats.prefill_forwards += 1
        decoding = sum(part.request.stats.rounds > 1 for part in done.rounds)
        committed = sum(part.tokens for part in done.parts)
        read = committed - decoding
        draft_ms, verify_ms, _ = spans_ms
        self.prefill.observe(verify_ms, read, beside=decoding > 0)
        # A pass that also prefills is no sample of a round's cost, so that it is reported with 0 rows.
        rows = 0 if read else len(done.rounds)
        tokens = committed + sum(proposal.length for proposal in done.proposals)
        total_ms = (time.perf_counter() - began) * 1e3
        self.proposing.clock(StepTimes(draft_ms, verify_ms, total_ms, rows, tokens))

    @property
    def proposer(self) -> Proposer:
        """The proposer; may be replaced between two requests."""
        return self.proposing.proposer

    @proposer.setter
    def proposer(self, proposer: Proposer) -> None:
        self.proposing.close()
        self.proposing = self.requests.proposing = Proposing(proposer, self.target)


def _foretells_prompt(part: PassPart, start: int) -> bool:
    """Whether the rows of a part tell how likely tokens of its prompt are, and somebody asks."""
    asked = part.request.params.prompt_logprobs is not None
    return asked and start < part.sequence.prompt_length


def _input(part: PassPart, start: int, tokens: torch.Tensor) -> ForwardInput:
    """One sequence's input: its unread tokens from ``start`` on, then the proposed ones."""
    sequence, proposal = part.sequence, part.proposal
    if _foretells_prompt(part, start):
        return ForwardInput(tokens, sequence.cache, len(tokens))
    if proposal is None or not proposal.length:
        return ForwardInput(tokens, sequence.cache)
    entered = proposal.entered
    if entered is not None and not entered.fits(start, tokens.shape[0]):
        entered = None
    return ForwardInput(tokens, sequence.cache, 1 + proposal.length, proposal.tree, entered)
