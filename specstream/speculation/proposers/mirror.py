"""A draft model that drafts while the target verifies (Mirror, arXiv 2510.13161; SSD, 2603.03251)."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor

import torch
from torch import Tensor

from specstream.errors import ConfigError, VocabularyMismatch
from specstream.methods import DraftProposerConfig, MirrorProposerConfig
from specstream.model.heads.early_exit import EarlyExit
from specstream.speculation.explanation import Explanation
from specstream.speculation.optional import StepTimes
from specstream.speculation.proposal import Capabilities, Proposal, SpecRequest, Verdict
from specstream.speculation.proposers.draft_model import DraftModelProposer
from specstream.speculation.proposers.drafting import Drafting
from specstream.speculation.proposers.early_exit import exit_of
from specstream.speculation.proposers.mirroring import Ahead, Branch, MirrorCounts, Round, likely
from specstream.speculation.proposers.parts import Parts

__all__ = ["MirrorProposer", "build", "one_thread"]


class MirrorProposer:
    """Drafts on a second thread what follows the likely outcomes of the pass under way.

    In the middle of the target's pass an exit tells how many drafted tokens will probably be accepted
    and which token follows them. For the likeliest outcomes the draft model writes on; if one comes
    true, its tokens are the next proposal (after more steps where the pass ended before the chain).
    Which outcome that is depends on the verdict alone, so a sampled branch comes with its true q.

    The draft's caches belong to the second thread between `midway` and whatever is called next, which
    waits for the draft pass under way. Requests with logits processors are drafted for as usual.

    Args:
        config: Settings.
        draft: The draft model; its own limits are those of ``config``.
        leave: The exit.
        eos_ids: Ids that end a turn.
        pool: Runs one function at a time, see `one_thread`; shut down by `close`.
    """

    name = "mirror"
    capabilities = Capabilities(own_cache=True)

    def __init__(
        self,
        config: MirrorProposerConfig,
        draft: DraftModelProposer,
        leave: EarlyExit,
        eos_ids: frozenset[int],
        pool: Executor,
    ) -> None:
        self._config, self._draft, self._exit, self._eos_ids = config, draft, leave, eos_ids
        self._pool = pool
        self.midway_depth = leave.layers
        self.counts = MirrorCounts()
        self._rounds: dict[int, Round] = {}  # by slot, until the verdict
        self._ready: dict[int, Branch] = {}  # by slot, after it
        self._stop = threading.Event()
        self._work: Future[None] | None = None

    def propose(self, requests: Sequence[SpecRequest], budget: Sequence[int]) -> list[Proposal]:
        """Up to ``num_tokens`` each."""
        self._abandon()
        rounds = [self._begun(r, b) for r, b in zip(requests, budget, strict=True)]
        chains = [
            Drafting(Ahead(one.request, one.drafted), one.count - len(one.drafted))
            for one in rounds
        ]
        self._draft.write([chain for chain in chains if chain.count > 0])
        for one, chain in zip(rounds, chains, strict=True):
            if chain.tokens:
                one.extend(chain)
            self._rounds[one.request.slot] = one
        return [one.proposal(self.name) for one in rounds]

    def _begun(self, request: SpecRequest, budget: int) -> Round:
        """A round, with what was drafted for it during the last one."""
        most = min(budget, self._config.num_tokens)
        found, branch = Round(request, most), self._ready.pop(request.slot, None)
        if (
            branch is None
            or branch.request_id != request.id
            or branch.end != len(request.token_ids)
        ):
            return found
        found.take(branch.chain)
        if found.drafted and found.drafted[-1] in self._eos_ids:
            found.count = len(found.drafted)
        return found

    def midway(self, requests: Sequence[SpecRequest], states: Sequence[Tensor]) -> None:
        """Set the second thread to work."""
        self._finish()
        told = list[tuple[Round, Tensor]]()
        for request, rows in zip(requests, states, strict=True):
            one = self._rounds.get(request.slot)
            if one is not None and one.request is request and request.params.plain_logits:
                told.append((one, rows))
        if told:
            self._stop.clear()
            self._work = self._pool.submit(self._look_ahead, told)

    @torch.inference_mode()
    def _look_ahead(self, told: Sequence[tuple[Round, Tensor]]) -> None:
        """Draft for the likeliest outcomes, one of each request in step, until there is no time left."""
        logits = self._exit.logits(torch.cat([rows for _, rows in told])).float()
        sizes = [rows.shape[0] for _, rows in told]
        outcomes = list[tuple[Round, list[tuple[int, int]]]]()
        for (one, _), rows in zip(told, logits.split_with_sizes(sizes), strict=True):
            probs = self._weighed(one, rows.log_softmax(-1))
            outcomes.append((one, likely(probs, one.drafted, self._config.branches)))
        for rank in range(self._config.branches):
            branches = list[tuple[Round, Branch]]()
            for one, found in outcomes:
                if self._stop.is_set():
                    return
                if rank < len(found):
                    branches.append((one, self._branch(one, *found[rank])))
            self._draft.write([branch.chain for _, branch in branches])
            for one, branch in branches:
                one.written = branch.chain.drafted
                one.branches.append(branch)

    def _weighed(self, one: Round, exit_log_p: Tensor) -> Tensor:
        """What the target will say, ``[K + 1, V]``: the product of what exit and draft expect.

        The draft knows what an exit far below the top doesn't, and has to read its last token anyway.
        """
        ahead, one.written = Ahead(one.request, one.drafted), []
        own = self._draft.reread(ahead, exit_log_p.shape[0])
        if own is None:
            return exit_log_p.exp()
        return (exit_log_p + own.float().log_softmax(-1)).softmax(-1)

    def _branch(self, one: Round, accepted: int, token: int) -> Branch:
        """What is to be drafted if so many tokens are accepted and ``token`` follows."""
        ahead = Ahead(one.request, [*one.drafted[:accepted], token])
        before = len(one.request.token_ids)
        self._draft.settle(one.request.slot, ahead.token_ids, one.written, before)
        one.written = []
        chain = Drafting(ahead, self._config.num_tokens, lambda _: not self._stop.is_set())
        return Branch(one.request.id, len(ahead.token_ids), (*ahead.more,), chain)

    def observe(self, requests: Sequence[SpecRequest], verdicts: Sequence[Verdict]) -> None:
        """Keep the branch that came true, if any, and the draft's rows as far as they are right."""
        self._finish()
        for request, verdict in zip(requests, verdicts, strict=True):
            one = self._rounds.pop(request.slot, None)
            if one is None:
                continue
            before, true = len(request.token_ids), None
            if one.drafted:
                true = next((b for b in one.branches if b.tokens == verdict.tokens), None)
                self.counts.add(one, verdict, true)
            text = [*request.token_ids, *verdict.tokens]
            if true is not None and true.chain.tokens:
                self._ready[request.slot] = true
                text += true.chain.drafted
            self._draft.settle(request.slot, text, one.written, before)

    def _finish(self) -> None:
        """End what the second thread does, after the draft pass under way."""
        work, self._work = self._work, None
        if work is None:
            return
        self._stop.set()
        try:
            work.result()
        except Exception:
            for slot, one in self._rounds.items():  # their caches may be in any state
                one.branches, one.written = [], []
                self._draft.release(slot)
            raise

    def _abandon(self) -> None:
        """Rounds without a verdict: their pass has failed."""
        self._finish()
        for slot, one in self._rounds.items():
            self._draft.settle(slot, one.request.token_ids, one.written)
        self._rounds = {}

    def release(self, slot: int) -> None:
        """Drop what is kept for the slot."""
        try:
            self._finish()
        finally:
            self._rounds.pop(slot, None)
            self._ready.pop(slot, None)
            self._draft.release(slot)

    def clock(self, times: StepTimes) -> None:
        """Count what rounds take."""
        self.counts.clock(times)

    def explain(self, request_id: int | None = None) -> Explanation:
        """How often the outcome was foretold, and what was gained; over all requests."""
        return self.counts.explain(self.name)

    def finish(self, request_id: int) -> None:
        """Nothing is kept by request."""

    def close(self) -> None:
        """End the second thread."""
        try:
            self._finish()
        finally:
            self._pool.shutdown()


def one_thread() -> Executor:
    """A thread for the draft, whose products run on that thread alone; the caller's are as before.

    torch's number of threads belongs to each thread, but the latest is inherited by those that torch
    sees for the first time: hence set again here.
    """
    pool, threads = ThreadPoolExecutor(1, "specstream-mirror"), torch.get_num_threads()
    pool.submit(_compute_alone).result()
    torch.set_num_threads(threads)
    return pool


def _compute_alone() -> None:
    torch.get_num_threads()  # the first question gives a thread the number that it inherits
    torch.set_num_threads(1)


def build(config: MirrorProposerConfig, parts: Parts) -> MirrorProposer:
    """The draft model beside the target.

    Raises:
        ConfigError: no draft model, or no CPU; see `exit_of`.
        VocabularyMismatch: the draft has another tokenizer.
        ModelUnsupported: the target runs through its own forward, or in reproducible mode.
    """
    if parts.draft is None:
        raise ConfigError("--proposer mirror needs a draft model: name it with --draft")
    if parts.translation is not None:
        raise VocabularyMismatch(
            "--proposer mirror needs a draft with the target's tokenizer, as the target's early exit "
            "names the tokens that the draft goes on from; --proposer draft takes any tokenizer"
        )
    if parts.target.device.type != "cpu":
        raise ConfigError(
            f"--proposer mirror drafts on a second CPU thread, and the models are on "
            f"{parts.target.device}; choose --proposer draft there"
        )
    leave = exit_of(parts, config.layers, share=0.5)
    settings = DraftProposerConfig(num_tokens=config.num_tokens, window=config.window)
    draft = DraftModelProposer(settings, parts.draft, parts.eos_ids, parts.prefill_chunk)
    return MirrorProposer(config, draft, leave, parts.eos_ids, one_thread())
