"""A draft model that drafts while the target verifies (Mirror, arXiv 2510.13161; SSD, 2603.03251)."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor

import torch
from torch import Tensor

from specstream.drafting.calibration import calibrate
from specstream.drafting.candidate import EngineParts
from specstream.drafting.chain import Drafting
from specstream.drafting.checking import Explanation
from specstream.drafting.optional import StepTimes
from specstream.drafting.policy.costs import Costs
from specstream.drafting.proposal import Capabilities, Proposal, SpecRequest, Verdict
from specstream.drafting.proposers.draft_model import DraftModelProposer
from specstream.drafting.research.early_exit import exit_of
from specstream.drafting.research.mirroring import Ahead, MirrorCounts, MirrorRound, likely
from specstream.errors import ConfigError, VocabularyMismatch
from specstream.methods import DraftProposerConfig, MirrorProposerConfig
from specstream.model.heads.research.early_exit import EarlyExit

__all__ = ["MirrorProposer", "build", "one_thread"]


class MirrorProposer:
    """Drafts behind the likely outcomes of the target's pass, on a second thread while the pass runs.

    In the middle of the target's pass an early exit predicts how many drafted tokens will be accepted
    and which token follows them. The draft model drafts a chain behind each of the likeliest outcomes;
    if one of these outcomes comes true, its chain is the next proposal (completed by further draft steps
    if the pass ended before the chain did). Which chain is used depends on the verdict alone, so the
    tokens of a sampled chain come with the q that they were drawn from.

    From `midway` on the draft's caches belong to the second thread, until another method is called and
    has waited for the draft pass under way. Requests with logits processors are drafted for between
    passes only.

    Args:
        config: Settings.
        draft: The proposer of the draft model, with the limits of ``config``.
        leave: The early exit.
        eos_ids: Token ids that end a turn.
        pool: Runs one function at a time, see `one_thread`; shut down by `close`.
        costs: Times of plain steps, with which `explain` compares.

    Attributes:
        draft: As given.
        exit: The early exit.
        midway_depth: The layers before it.
        counts: How often outcomes were foretold, and what that gained.
        rounds: By slot, the round under way, from its proposal to its verdict.
        ready: By slot, the chain behind an outcome that came true.
    """

    name = "mirror"
    capabilities = Capabilities()

    def __init__(
        self,
        config: MirrorProposerConfig,
        draft: DraftModelProposer,
        leave: EarlyExit,
        eos_ids: frozenset[int],
        pool: Executor,
        costs: Costs,
    ) -> None:
        self._config, self.draft, self.exit, self._eos_ids = config, draft, leave, eos_ids
        self._pool, self._costs = pool, costs
        self.midway_depth = leave.layers
        self.counts = MirrorCounts()
        self.rounds: dict[int, MirrorRound] = {}
        self.ready: dict[int, Drafting] = {}
        self._stop = threading.Event()
        self._work: Future[None] | None = None

    def propose(self, requests: Sequence[SpecRequest], budget: Sequence[int]) -> list[Proposal]:
        """Propose up to ``num_tokens`` tokens for each request."""
        self._abandon()
        rounds = [self._begun(r, b) for r, b in zip(requests, budget, strict=True)]
        chains = [
            Drafting(Ahead(one.request, one.drafted), one.count - len(one.drafted)) for one in rounds
        ]
        self.draft.write([chain for chain in chains if chain.count > 0])
        for one, chain in zip(rounds, chains, strict=True):
            if chain.tokens:
                one.extend(chain)
            self.rounds[one.request.slot] = one
        return [one.proposal(torch.device("cpu"), self.name) for one in rounds]

    def _begun(self, request: SpecRequest, budget: int) -> MirrorRound:
        """A new round, which begins with the tokens that were drafted during the last pass, if any."""
        most = min(budget, self._config.num_tokens)
        found, chain = MirrorRound(request, most), self.ready.pop(request.slot, None)
        if chain is None or chain.request.id != request.id:
            return found
        if len(chain.request.token_ids) == len(request.token_ids):
            found.begin(chain)
            if found.drafted and found.drafted[-1] in self._eos_ids:
                found.count = len(found.drafted)
        return found

    def midway(self, requests: Sequence[SpecRequest], states: Sequence[Tensor]) -> None:
        """Start drafting on the second thread; see `MidwayProposer.midway`."""
        self._finish()
        told = list[tuple[MirrorRound, Tensor]]()
        for request, rows in zip(requests, states, strict=True):
            one = self.rounds.get(request.slot)
            if one is not None and one.request is request and request.params.plain_logits:
                told.append((one, rows))
        if told:
            self._stop.clear()
            self._work = self._pool.submit(self._look_ahead, told)

    @torch.inference_mode()
    def _look_ahead(self, told: Sequence[tuple[MirrorRound, Tensor]]) -> None:
        """Draft behind the likeliest outcomes, one of each request at a time, until told to stop."""
        logits = self.exit.logits(torch.cat([rows for _, rows in told])).float()
        sizes = [rows.shape[0] for _, rows in told]
        outcomes = list[tuple[MirrorRound, list[tuple[int, ...]]]]()
        for (one, _), rows in zip(told, logits.split_with_sizes(sizes), strict=True):
            probs = self._weighed(one, rows.log_softmax(-1))
            outcomes.append((one, likely(probs, one.drafted, self._config.branches)))
        for rank in range(self._config.branches):
            branches = list[tuple[MirrorRound, tuple[int, ...], Drafting]]()
            for one, found in outcomes:
                if self._stop.is_set():
                    return
                if rank < len(found):
                    branches.append((one, found[rank], self._branch(one, found[rank])))
            self.draft.write([chain for _, _, chain in branches])
            for one, outcome, chain in branches:
                one.written = chain.drafted
                one.branches[outcome] = chain

    def _weighed(self, one: MirrorRound, exit_log_p: Tensor) -> Tensor:
        """Predicted target distributions ``[K + 1, V]``: the normalised product of exit and draft.

        The draft model knows things that an exit from a middle layer doesn't, and it has to read its
        last drafted token anyway.
        """
        ahead, one.written = Ahead(one.request, one.drafted), []
        own = self.draft.reread(ahead, exit_log_p.shape[0])
        if own is None:
            return exit_log_p.exp()
        return (exit_log_p + own.float().log_softmax(-1)).softmax(-1)

    def _branch(self, one: MirrorRound, outcome: tuple[int, ...]) -> Drafting:
        """An empty chain behind an outcome, to which the draft's cache is rolled back."""
        ahead = Ahead(one.request, outcome)
        before = len(one.request.token_ids)
        self.draft.settle(one.request.slot, ahead.token_ids, one.written, before)
        one.written = []
        return Drafting(ahead, self._config.num_tokens, lambda _: not self._stop.is_set())

    def observe(self, requests: Sequence[SpecRequest], verdicts: Sequence[Verdict]) -> None:
        """Keep the branch that came true, if any, and roll the draft's cache back to valid rows."""
        self._finish()
        for request, verdict in zip(requests, verdicts, strict=True):
            one = self.rounds.pop(request.slot, None)
            if one is None:
                continue
            before, chain = len(request.token_ids), None
            if one.drafted:
                chain = one.branches.get(verdict.tokens)
                self.counts.add(one, verdict)
            text = [*request.token_ids, *verdict.tokens]
            if chain is not None and chain.tokens:
                self.ready[request.slot] = chain
                text += chain.drafted
            self.draft.settle(request.slot, text, one.written, before)

    def _finish(self) -> None:
        """Stop the second thread's work; returns when the draft pass under way has ended."""
        work, self._work = self._work, None
        if work is None:
            return
        self._stop.set()
        try:
            work.result()
        except Exception:
            for slot, one in self.rounds.items():  # their draft caches may be in any state
                one.branches, one.written = {}, []
                self.draft.release(slot)
            raise

    def _abandon(self) -> None:
        """Drop rounds that never got a verdict because their target pass failed."""
        self._finish()
        for slot, one in self.rounds.items():
            self.draft.settle(slot, one.request.token_ids, one.written)
        self.rounds = {}

    def release(self, slot: int) -> None:
        """Drop what is kept for the slot."""
        try:
            self._finish()
        finally:
            self.rounds.pop(slot, None)
            self.ready.pop(slot, None)
            self.draft.release(slot)

    def clock(self, times: StepTimes) -> None:
        """Add a step's times to the counts."""
        self.counts.clock(times, self._costs.plain(max(1, times.rows)))

    def explain(self, request_id: int | None = None) -> Explanation:
        """How often an outcome was predicted and what that gained; over all requests."""
        return self.counts.explain(self.name)

    def finish(self, request_id: int) -> None:
        """Do nothing: all state belongs to slots."""

    def close(self) -> None:
        """End the second thread."""
        try:
            self._finish()
        finally:
            self._pool.shutdown()


def one_thread() -> Executor:
    """Make a pool of one thread on which torch computes without further threads.

    torch keeps its number of threads per thread, but a thread that torch sees for the first time
    inherits the number that was set last, by whichever thread: so the caller's is set again here.
    """
    pool, threads = ThreadPoolExecutor(1, "specstream-mirror"), torch.get_num_threads()
    pool.submit(_compute_alone).result()
    torch.set_num_threads(threads)
    return pool


def _compute_alone() -> None:
    torch.get_num_threads()  # the first call makes this thread inherit a number, which is then replaced
    torch.set_num_threads(1)


def build(config: MirrorProposerConfig, parts: EngineParts) -> MirrorProposer:
    """Build the proposer from the draft model and an exit of the target.

    Raises:
        ConfigError: no draft model was loaded, or the models aren't on a CPU; see also `exit_of`.
        VocabularyMismatch: the draft has another tokenizer.
        ModelUnsupported: the target runs through its own forward, or in reproducible mode.
    """
    runner = parts.draft_model("mirror")
    if parts.translation is not None:
        raise VocabularyMismatch(
            "--proposer mirror needs a draft with the target's tokenizer, and a row for each token; "
            "--proposer draft takes any tokenizer"
        )
    if parts.target.device.type != "cpu":
        raise ConfigError(
            f"--proposer mirror drafts on a second CPU thread, and the models are on "
            f"{parts.target.device}; choose --proposer draft there"
        )
    leave = exit_of(parts, config.layers, share=0.5)
    settings = DraftProposerConfig(num_tokens=config.num_tokens, window=config.window)
    draft = DraftModelProposer(settings, runner, parts.eos_ids, parts.prefill_chunk)
    costs = calibrate(parts.target, None, times=parts.times)
    return MirrorProposer(config, draft, leave, parts.eos_ids, one_thread(), costs)
