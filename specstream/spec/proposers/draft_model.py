"""An independent draft model (Leviathan et al. 2023, Chen et al. 2023)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from specstream.config import DraftProposerConfig
from specstream.model.cache import KVCache
from specstream.model.runner import ForwardInput, ModelRunner
from specstream.model.sampling import probabilities
from specstream.spec.proposal import Capabilities, Proposal, SpecRequest, Verdict
from specstream.types import SamplingParams

__all__ = ["DraftModelProposer", "Drafting"]

_SHARPER = 0.85
"""The draft's temperature by the target's.

A small model spreads over what it can't tell apart. On the bundled pair 0.8 to 0.85 has the largest
overlap with the target's distribution, sum min(p, q), in every domain and at target temperatures from
0.8 to 1.3 (below that, all are alike): of blocks of four, 1 to 3 % more tokens stand than at the
target's own temperature. Any value is exact, for q is told as it was.
"""

_ROUND = (1, 2, 3, 5, 16, 32)
"""Widths of a pass that reads; beyond the last, its multiples.

What is read is filled up to one of them: on a CPU the products of every width are made ready when it is
first met, which takes several times as long as the pass itself.
"""

_LEAST = 64  # tokens that the draft reads at once, however few the target does: it is quick at that


@dataclass(slots=True)
class _Sequence:
    """The draft's own cache of one slot, and the tokens whose rows it holds for certain.

    Those are the request's from ``start`` on: of a long prompt the draft reads the end only. After a
    proposal the cache holds rows of proposed tokens, too; the verdict tells which stay.
    """

    cache: KVCache
    request_id: int
    start: int = 0
    rows: list[int] = field(default_factory=list)
    _law: tuple[SamplingParams, SamplingParams] | None = None  # a request's, and the draft's for it

    def sharpened(self, params: SamplingParams) -> SamplingParams:
        """What the draft draws by, for a request that samples by ``params``."""
        if self._law is None or self._law[0] is not params:
            self._law = params, replace(params, temperature=params.temperature * _SHARPER)
        return self._law[1]

    @property
    def end(self) -> int:
        """The request's tokens up to here are read, or skipped."""
        return self.start + len(self.rows)

    def keep(self, count: int) -> None:
        """Keep the first ``count`` rows."""
        self.cache.rollback_to(count)
        del self.rows[count:]


@dataclass(slots=True)
class Drafting:
    """One request's chain while it is being written.

    Attributes:
        request: Whose.
        count: At most so many tokens.
        go_on: Asked with the draft's probability of each token after that token was taken; False ends
            the chain. None: never asked, so that nothing waits for the device.
        confidences: Those probabilities, as far as they were asked for.
        read: Tokens that had to be read first, beyond the one or two of any round.
    """

    request: SpecRequest
    count: int
    go_on: Callable[[float], bool] | None = None
    confidences: list[float] = field(default_factory=list)
    read: int = 0
    tokens: list[Tensor] = field(default_factory=list)
    probs: list[Tensor] = field(default_factory=list)
    drafted: list[int] = field(default_factory=list)  # known where the chain is looked at
    state: _Sequence | None = None
    unread: Tensor | None = None  # what the next pass reads; None: the chain is complete
    junk: int = 0  # tokens at the end of ``unread`` that only fill it up

    def proposal(self, device: torch.device) -> Proposal:
        """What was written."""
        if not self.tokens:
            return Proposal.empty(device)
        probs = _joined(self.probs) if self.probs else None
        return Proposal(_joined(self.tokens), probs, source="draft")


class DraftModelProposer:
    """Lets a small model write ahead, a little cooler than the target, with its top-k and top-p.

    Greedy requests get a deterministic draft; sampled ones the probabilities that each token was
    drawn from. Several requests draft in step, so that one pass of the draft serves them all.

    A chain is looked at while it is written where that costs nothing (on a CPU), where processors
    need its tokens, or where ``go_on`` asks; it then ends early after an end-of-sequence token or
    when ``go_on`` says so. The last token is kept in any case, so the decision doesn't bias what is
    proposed.
    """

    name = "draft"
    capabilities = Capabilities(own_cache=True)

    def __init__(
        self,
        config: DraftProposerConfig,
        runner: ModelRunner,
        eos_ids: frozenset[int],
        prefill_chunk: int = 512,
    ) -> None:
        self._config = config
        self._runner = runner
        # Room enough to go on from there: the window moves on when the draft's context is full.
        self._window = min(config.window, max(1, runner.context_length // 2))
        self._eos_ids = eos_ids
        self._prefill_chunk = max(prefill_chunk, _LEAST)
        self._sequences: dict[int, _Sequence] = {}
        self._looks = runner.device.type == "cpu"

    def propose(self, requests: Sequence[SpecRequest], budget: Sequence[int]) -> list[Proposal]:
        """Up to ``num_tokens`` each, as far as the draft's own context goes."""
        limit = self._config.num_tokens
        chains = [Drafting(r, min(b, limit)) for r, b in zip(requests, budget, strict=True)]
        self.write(chains)
        return [chain.proposal(self._runner.device) for chain in chains]

    def write(self, chains: Sequence[Drafting]) -> int:
        """Write the chains, in step; the number of the draft's passes."""
        for chain in chains:
            self._begin(chain)
        passes = 0
        while active := [chain for chain in chains if chain.unread is not None]:
            inputs = [
                ForwardInput(chain.unread, chain.state.cache, keep=chain.junk + 1)
                for chain in active
                if chain.unread is not None and chain.state is not None
            ]
            passes += 1
            for chain, logits in zip(active, self._runner.forward(inputs), strict=True):
                if chain.junk and chain.state is not None:
                    chain.state.cache.rollback_to(len(chain.state.rows))
                    logits, chain.junk = logits[:1], 0
                self._choose(chain, logits)
        return passes

    def behind(self, request: SpecRequest) -> int:
        """Tokens that the draft has to read first, beyond the one or two of any round."""
        state, unread = self._sequence(request), len(request.token_ids)
        if state is not None and self._start(state, unread) == state.start:
            unread -= state.end
        return max(0, min(unread, self._window) - 2)

    def _begin(self, chain: Drafting) -> None:
        """Bring the slot's cache up to the committed tokens, all but what the first pass reads."""
        request = chain.request
        if chain.count < 1:
            return
        chain.state = state = self._synchronised(request)
        length = len(request.token_ids) - state.start
        chain.count = min(chain.count, self._runner.context_length - length)
        if chain.count < 1:
            return
        behind = request.token_ids[state.end :]
        if len(behind) > self._prefill_chunk:
            # Catch up a chunk a round, as the target does, so that nobody else waits for it.
            part = behind[: self._prefill_chunk]
            self._runner.forward([ForwardInput(self._ids(part), state.cache)])
            state.rows.extend(part)
            chain.read = len(part)
            return
        chain.read = max(0, len(behind) - 2)
        state.rows.extend(behind)
        width = min(_round(len(behind)), max(self._window, len(behind)))
        chain.junk = min(width - len(behind), self._runner.context_length - length)
        chain.unread = self._ids(behind + [0] * chain.junk)

    def _choose(self, chain: Drafting, logits: Tensor) -> None:
        """Take the next token from the draft's row ``[1, V]``; decide whether the chain goes on."""
        request, params, probs = chain.request, chain.request.params, None
        plain = params.plain_logits
        row = logits if plain else request.process(logits[0], chain.drafted).unsqueeze(0)
        if not params.greedy:
            assert chain.state is not None
            probs = probabilities(row, chain.state.sharpened(params))
            token = request.draw(probs, len(request.token_ids) + len(chain.tokens))
        elif chain.go_on is None:
            top, token = row.max(-1)
        else:
            top, token = row.float().softmax(-1).max(-1)
        chain.unread = None
        ended = False
        if self._looks or chain.go_on is not None or not plain:
            drawn = int(token)
            confidence = float(top if probs is None else probs[0, drawn])
            if confidence != confidence:
                return  # damaged weights or overflow: no distribution that a token could be drawn from
            chain.drafted.append(drawn)
            ended = drawn in self._eos_ids
            if chain.go_on is not None:
                chain.confidences.append(confidence)
                ended = not chain.go_on(confidence) or ended
        chain.tokens.append(token)
        if probs is not None:
            chain.probs.append(probs)
        if not ended and len(chain.tokens) < chain.count:
            chain.unread = token

    def _sequence(self, request: SpecRequest) -> _Sequence | None:
        """The slot's cache, if there is one, without rows of an earlier request that aren't this one's.

        Within a request nothing but the tail can differ, and that is taken back by `observe`.
        """
        state = self._sequences.get(request.slot)
        if state is not None and state.request_id != request.id:
            same = _common_prefix(state.rows, request.token_ids[state.start :])
            state.keep(min(same, state.cache.length))
            state.request_id = request.id
        return state

    def _start(self, state: _Sequence, length: int) -> int:
        """Where the context begins for ``length`` tokens: where it did, or a window before their end."""
        held = length - state.start
        full = held >= self._runner.context_length
        far = held - len(state.rows) > self._window
        # The prompt has lost its beginning: from the old place on there would be little left to know.
        short = state.start > 0 and held < max(1, self._window // 2)
        return max(0, length - self._window) if full or far or short else state.start

    def _synchronised(self, request: SpecRequest) -> _Sequence:
        """The slot's cache, rolled back to what it has in common with the request's tokens.

        At least the last token is left to read: its logits are what the draft begins with.
        """
        state = self._sequence(request)
        if state is None:
            state = _Sequence(self._runner.new_cache(), request.id)
            self._sequences[request.slot] = state
        length = len(request.token_ids)
        start = self._start(state, length)
        if start != state.start:
            state.keep(0)
            state.start = start
        state.keep(min(len(state.rows), state.cache.length, length - start - 1))
        return state

    def _ids(self, tokens: Sequence[int]) -> Tensor:
        return torch.tensor(tokens, dtype=torch.int64, device=self._runner.device)

    def observe(self, requests: Sequence[SpecRequest], verdicts: Sequence[Verdict]) -> None:
        """Keep the rows of accepted tokens, take back the others; called before the commit."""
        for request, verdict in zip(requests, verdicts, strict=True):
            state = self._sequences.get(request.slot)
            if state is None or state.request_id != request.id:
                continue
            if state.end != len(request.token_ids):
                continue  # it wrote nothing this round
            state.rows.extend(verdict.tokens[: verdict.accepted])
            state.keep(min(len(state.rows), state.cache.length))

    def release(self, slot: int) -> None:
        """Drop the slot's cache."""
        self._sequences.pop(slot, None)


def _round(count: int) -> int:
    """The next width that a pass is given."""
    for width in _ROUND:
        if count <= width:
            return width
    return -(-count // _ROUND[-1]) * _ROUND[-1]


def _joined(parts: Sequence[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(list(parts))


def _common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    for index, (x, y) in enumerate(zip(a, b, strict=False)):
        if x != y:
            return index
    return min(len(a), len(b))
