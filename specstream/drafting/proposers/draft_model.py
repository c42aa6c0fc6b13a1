"""An independent draft model (Leviathan et al. 2023, Chen et al. 2023)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from specstream.drafting.candidate import Task, TaskProposal, TaskProposer
from specstream.drafting.chain import Drafting, DraftSequence, choose_rows, proposals
from specstream.drafting.noise import draws_of
from specstream.drafting.policy.acceptance import stop_of
from specstream.drafting.policy.records import Candidate, Offer
from specstream.drafting.proposal import Capabilities, SpecRequest, Verdict
from specstream.drafting.vocabularies import IntersectionRunner
from specstream.methods import DraftProposerConfig
from specstream.model.forward import ForwardInput
from specstream.model.kv import common_prefix
from specstream.model.numerics import to_device
from specstream.model.runner import ModelRunner
from specstream.model.tokens.spelling import StopRule

__all__ = ["DraftModelProposer"]

# Prompt tokens that the draft reads in one round. A small model reads many tokens in about the time of a
# few, so the first bound holds even if the target's own prefill chunk is smaller.
_MIN_CHUNK = 64
_SHARED_CHUNK = 192  # at most this many, over all requests, where several wait for the step to end
_GPU_CHUNK = 4096  # the same on a GPU, which reads so many in the time of a few passes
_SHARPER = 0.85
"""Factor from the target's sampling temperature to the draft's.

A small model spreads its probability over tokens that it can't tell apart. On the bundled pair a factor
of 0.8 to 0.85 gives the largest overlap with the target's distribution, sum min(p, q), in every domain
and at target temperatures from 0.8 to 1.3 (at lower temperatures the factor makes no difference): of
blocks of four drafted tokens, 1 to 3 % more are accepted than without it. Any factor keeps the output
exact, because the verifier gets the q that the tokens were really drawn from.
"""


class DraftModelProposer(TaskProposer):
    """Drafts chains with a small model, at a slightly lower temperature than the target's.

    Greedy requests get a deterministic draft; sampled ones the probabilities that each token was
    drawn from, with the request's top-k and top-p. Several requests draft in lockstep: one draft pass
    serves them all.

    The host reads a chain's tokens while it is written where that costs nothing (on a CPU), where
    processors need the tokens, or where ``go_on`` needs their probabilities. The chain then ends early
    after an end-of-sequence token or when ``go_on`` returns False. The last token is kept in any case,
    so stopping doesn't bias what is proposed.

    The target may have more token ids than the draft has rows. A request with such a token gets no draft
    until the draft's window is past the token.

    Attributes:
        runner: The draft model.
        window: How many tokens of a longer text the draft reads.
        prefill_chunk: The most tokens that the draft reads in one round before it drafts.
        sequences: By slot, the draft's cache, and the tokens whose rows it holds.
        looks: Whether the host reads a chain's tokens while it is written.
    """

    name = "draft"
    capabilities = Capabilities()

    def __init__(
        self,
        config: DraftProposerConfig,
        runner: ModelRunner | IntersectionRunner,
        eos_ids: frozenset[int],
        prefill_chunk: int = 512,
    ) -> None:
        self.most, self.runner = config.num_tokens, runner
        # At most half of the draft's context: the window moves only when the context is full, and then
        # there must be room to go on.
        self.window = min(config.window, max(1, runner.context_length // 2))
        self._eos_ids = eos_ids
        self.prefill_chunk = max(prefill_chunk, _MIN_CHUNK)
        self.sequences: dict[int, DraftSequence] = {}
        self.looks = runner.device.type == "cpu"
        self._fewer = runner.model_vocab_size < runner.vocab_size
        self.candidate = Candidate("draft", "the draft model", stops=self.looks)

    def offer(self, request: SpecRequest, budget: int) -> Offer:
        """Offer up to ``budget`` tokens, once the draft has read the tokens that it lags behind."""
        unread = self._unread(request)
        if not self._reads(request.token_ids[-unread:]):
            return Offer(0)
        return Offer(budget, behind=max(0, unread - 2))

    def draft(self, tasks: Sequence[Task]) -> list[TaskProposal]:
        """Draft the tasks' chains in lockstep."""
        chains = [Drafting(task.request, task.count, task.go_on) for task in tasks]
        passes = self.write(chains)
        each = zip(chains, proposals(chains, self.runner.device), strict=True)
        return [TaskProposal(made, chain.confidences, passes, chain.read) for chain, made in each]

    def write(self, chains: Sequence[Drafting]) -> int:
        """Write the chains in lockstep; return the number of draft passes."""
        left = self.prefill_chunk
        if len(chains) > 1:
            left = min(left, _SHARED_CHUNK) if self.looks else _GPU_CHUNK
        begun = list[tuple[Drafting, list[int]]]()
        for chain in chains:
            behind = self._begin(chain, left)
            left = max(0, left - chain.read)
            if behind:
                begun.append((chain, behind))
        if begun:  # one upload for all
            whole = self._ids([token for _, behind in begun for token in behind])
            parts = whole.split_with_sizes([len(behind) for _, behind in begun])
            for (chain, _), part in zip(begun, parts, strict=True):
                chain.unread = part
        passes = 0
        while active := [chain for chain in chains if chain.unread is not None]:
            steps, served = self._write_at_once(active)
            passes += steps
            if rest := [chain for chain in active if id(chain) not in served]:
                passes += 1
                self._write_one(rest)
        return passes

    def _write_one(self, chains: Sequence[Drafting]) -> None:
        """Run one pass, and choose one token of each chain."""
        inputs = [
            ForwardInput(chain.unread, chain.state.cache)
            for chain in chains
            if chain.unread is not None and chain.state is not None
        ]
        rows = self.runner.forward(inputs).logits
        # Processors may choose a token that the draft has no row for: the chain ends with that one.
        risky = [self._fewer and not chain.params.plain_logits for chain in chains]
        usual = [i for i, one in enumerate(risky) if not one]
        choose_rows([chains[i] for i in usual], [rows[i] for i in usual], looks=self.looks)
        for index, chain in enumerate(chains):
            if risky[index]:
                chain.choose(rows[index], looks=True)
                if not self._reads(chain.drafted[-1:]):
                    chain.unread = None

    def _write_at_once(self, active: Sequence[Drafting]) -> tuple[int, set[int]]:
        """Take several steps in one call of the runner, where it can.

        Each token still passes through `Drafting.take`. Steps after the one that ends the chain leave
        rows in the cache behind the valid ones, which `observe` rolls back.

        Returns:
            The number of steps, and the chains (by `id`) that took them.
        """
        if not self.runner.captured_steps:
            steps = self._write_natively(active[0]) if len(active) == 1 else 0
            return steps, {id(active[0])} if steps else set()
        groups = dict[tuple[bool, bool], list[Drafting]]()
        for chain in active:
            if chain.count - chain.size > 1 and chain.params.plain_logits:
                noise = getattr(chain.request, "noise", None)
                kind = chain.params.greedy, getattr(noise, "keyed", False)
                groups.setdefault(kind, []).append(chain)
        steps, served = 0, set[int]()
        for (greedy, _), chains in groups.items():
            if made := self._write_captured(chains, greedy):
                steps += made
                served.update(id(chain) for chain in chains)
        return steps, served

    def _write_captured(self, chains: Sequence[Drafting], greedy: bool) -> int:
        """Replay a captured chain of steps for all chains; return its steps, 0 if there is none."""
        captured, draws = self.runner.captured_steps, None
        if not greedy:
            places = [len(chain.request.token_ids) + chain.size for chain in chains]
            params = [chain.params for chain in chains]
            draws = draws_of([chain.request for chain in chains], params, places, captured)
            if draws is None:
                return 0
        tokens = [chain.unread for chain in chains if chain.unread is not None]
        caches = [chain.state.cache for chain in chains if chain.state is not None]
        found = self.runner.chains(tokens, caches, draws)
        if found is None:
            return 0
        told = None
        if self.looks or any(chain.go_on is not None for chain in chains):
            both = torch.stack([found.tokens.double(), found.confidences.double()])
            told = both.transpose(1, 2).tolist()  # one transfer for all
        for number, chain in enumerate(chains):
            mine = None if told is None else ([int(i) for i in told[0][number]], told[1][number])
            probs = None if found.probs is None else found.probs[:, number]
            chain.take_all(found.tokens[:, number], mine, probs)
        return captured

    def _write_natively(self, chain: Drafting) -> int:
        """Take several greedy steps in native code; return their number, 0 if it can't."""
        params, room = chain.request.params, chain.count - chain.size
        if room < 2 or not (params.greedy and params.plain_logits):
            return 0
        assert chain.unread is not None and chain.state is not None
        stop = StopRule() if chain.go_on is None else stop_of(chain.go_on)
        if stop is not None:
            stop = stop._replace(ends=tuple(self._eos_ids))
        found = self.runner.chain(chain.unread, chain.state.cache, room, stop)
        if found is None:
            return 0
        chain.take_each(*found, looks=self.looks)
        return found[0].shape[0]

    def _unread(self, request: SpecRequest) -> int:
        """How many tokens the draft has to read before it can draft."""
        state, length = self._sequence(request), len(request.token_ids)
        known = state.end if state is not None and self._start(state, length) == state.start else 0
        return min(length - known, self.window)

    def _reads(self, tokens: Sequence[int]) -> bool:
        """Whether the draft has a row for each of the tokens."""
        return max(tokens, default=0) < self.runner.model_vocab_size

    def _begin(self, chain: Drafting, most: int) -> list[int]:
        """Prepare the slot's cache, and return the committed tokens that the first draft pass reads.

        If more than ``most`` tokens have to be read first, ``most`` of them are read now and nothing is
        drafted in this round. A request with little to read (less than `_MIN_CHUNK`) drafts even if
        other requests' prompts have used ``most`` up.
        """
        request = chain.request
        if chain.count < 1:
            return []
        chain.state, chain.ends = self._synchronised(request), self._eos_ids
        state = chain.state
        if not chain.params.greedy:
            chain.params = state.cooled(chain.params, _SHARPER)
        length = len(request.token_ids) - state.start
        chain.count = min(chain.count, self.runner.context_length - length)
        if chain.count < 1:
            return []
        behind = request.token_ids[state.end :]
        if not self._reads(behind):
            chain.count = 0
            return []
        chain.read = max(0, len(behind) - 2)
        if chain.read > most and chain.read >= min(_MIN_CHUNK, self.prefill_chunk):
            # Read one chunk a round, as the target does, so that other requests needn't wait for it.
            chain.read = most
            if part := behind[:most]:
                self.runner.forward([ForwardInput(self._ids(part), state.cache)])
                state.rows.extend(part)
            return []
        state.rows.extend(behind)
        return behind

    def _sequence(self, request: SpecRequest) -> DraftSequence | None:
        """The slot's cache, if any, rolled back to its common prefix with the request's tokens.

        Only a new request needs the comparison: within one request only rows of drafted tokens can be
        wrong, and `observe` rolls those back.
        """
        state = self.sequences.get(request.slot)
        if state is not None and state.request_id != request.id:
            state.keep(common_prefix(state.rows, request.token_ids[state.start :]))
            state.request_id = request.id
        return state

    def _start(self, state: DraftSequence, length: int) -> int:
        """The position at which the draft's context begins for ``length`` tokens.

        That is where it began before, or one window before the end of the tokens.
        """
        held = length - state.start
        full = held >= self.runner.context_length
        far = held - len(state.rows) > self.window
        # The prompt has lost its oldest part since: too few of its tokens are behind ``start``.
        short = state.start > 0 and held < max(1, self.window // 2)
        return max(0, length - self.window) if full or far or short else state.start

    def _synchronised(self, request: SpecRequest) -> DraftSequence:
        """The slot's cache, made if need be and rolled back to its common prefix with the request.

        At least the last token is left to read: the first drafted token is chosen from its logits.
        """
        state = self._sequence(request)
        if state is None:
            state = DraftSequence(self.runner.new_cache(), request.id)
            self.sequences[request.slot] = state
        length = len(request.token_ids)
        start = self._start(state, length)
        if start != state.start:
            state.keep(0)
            state.start = start
        state.keep(length - start - 1)
        return state

    def _ids(self, tokens: Sequence[int]) -> Tensor:
        return to_device(tokens, self.runner.device)

    def observe(self, requests: Sequence[SpecRequest], verdicts: Sequence[Verdict]) -> None:
        """Keep the rows of accepted tokens and roll back the others; called before the commit."""
        for request, verdict in zip(requests, verdicts, strict=True):
            state = self.sequences.get(request.slot)
            if state is None or state.request_id != request.id:
                continue
            if state.end != len(request.token_ids):
                continue  # nothing was drafted for it in this round
            state.rows.extend(verdict.tokens[: verdict.accepted])
            state.keep(len(state.rows))

    def reread(self, request: SpecRequest, count: int) -> Tensor | None:
        """Read a request's last ``count`` tokens into the cache; return their logits ``[count, V]``.

        None if too little of the request is in the cache for that, or a token has no row.
        """
        state, length = self._sequence(request), len(request.token_ids)
        if state is None or self._start(state, length) != state.start:
            return None
        before = min(len(state.rows), state.cache.length, length - state.start - count)
        if before < 0 or length - state.start - before > self.window:
            return None
        state.keep(before)
        unread = request.token_ids[state.end :]
        if not self._reads(unread):
            return None
        item = ForwardInput(self._ids(unread), state.cache, count)
        (logits,) = self.runner.forward([item]).logits
        state.rows.extend(unread)
        return logits

    def settle(self, slot: int, tokens: Sequence[int], chain: Sequence[int], sure: int = 0) -> None:
        """Roll the slot's cache back to its common prefix with ``tokens``; used in place of `observe`.

        Args:
            slot: The slot whose cache is rolled back.
            tokens: A request's tokens, or those that it would have after an outcome.
            chain: The tokens that `write` drafted last; their rows are behind those that it read.
            sure: The number of first tokens that are known to agree and aren't compared.
        """
        state = self.sequences.get(slot)
        if state is None:
            return
        state.rows.extend(chain)
        first = min(max(0, sure - state.start), len(state.rows))
        state.keep(first + common_prefix(state.rows[first:], tokens[state.start + first :]))

    def release(self, slot: int) -> None:
        """Drop the slot's cache."""
        self.sequences.pop(slot, None)
