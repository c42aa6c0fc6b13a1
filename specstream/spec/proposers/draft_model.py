"""An independent draft model (Leviathan et al. 2023, Chen et al. 2023)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from specstream.config import DraftProposerConfig
from specstream.model.cache import KVCache
from specstream.model.runner import ForwardInput, ModelRunner
from specstream.model.sampling import probabilities
from specstream.spec.proposal import Capabilities, Proposal, SpecRequest, Verdict

__all__ = ["DraftModelProposer"]


@dataclass(slots=True)
class _Sequence:
    """The draft's own cache of one slot, and the tokens whose rows it holds."""

    cache: KVCache
    request_id: int
    rows: list[int] = field(default_factory=list)


class DraftModelProposer:
    """Lets a small model write ahead, with the target's temperature, top-k and top-p.

    Greedy requests get a deterministic draft; sampled ones the probabilities that each token was
    drawn from. Drafting ends early after an end-of-sequence token (which is kept, so the decision
    to stop doesn't bias what is proposed).
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
        self._eos_ids = eos_ids
        self._prefill_chunk = prefill_chunk
        self._sequences: dict[int, _Sequence] = {}

    def propose(self, requests: Sequence[SpecRequest], budget: Sequence[int]) -> list[Proposal]:
        """Up to ``num_tokens`` each, as far as the draft's own context goes."""
        return [
            self._one(r, min(b, self._config.num_tokens))
            for r, b in zip(requests, budget, strict=True)
        ]

    def _one(self, request: SpecRequest, count: int) -> Proposal:
        device = self._runner.device
        room = self._runner.context_length - len(request.token_ids)
        count = min(count, room)
        if count < 1:
            return Proposal.empty(device)
        state = self._synchronised(request)
        behind = request.token_ids[len(state.rows) :]
        if len(behind) > self._prefill_chunk:
            # Catch up a chunk a round, as the target does, so that nobody else waits for it.
            part = behind[: self._prefill_chunk]
            state.rows.extend(part)
            self._read(state.cache, torch.tensor(part, device=device))
            return Proposal.empty(device)
        unread = torch.tensor(behind, device=device)
        tokens: list[Tensor] = []
        probs: list[Tensor] = []
        state.rows.extend(behind)
        drafted: list[int] = []
        while True:
            logits = request.process(self._read(state.cache, unread)[0], drafted).unsqueeze(0)
            if bool(logits.isnan().any()):
                break  # damaged weights or overflow: no distribution that a token could be drawn from
            if request.params.greedy:
                token = logits.argmax(-1)
            else:
                row = probabilities(logits, request.params)
                token = request.draw(row, len(request.token_ids) + len(drafted))
                probs.append(row)
            tokens.append(token)
            drafted.append(int(token))
            if len(tokens) == count or drafted[-1] in self._eos_ids:
                break
            state.rows.append(drafted[-1])
            unread = token
        if not tokens:
            return Proposal.empty(device)
        return Proposal(torch.cat(tokens), torch.cat(probs) if probs else None)

    def _synchronised(self, request: SpecRequest) -> _Sequence:
        """The slot's cache, rolled back to what it has in common with the request's tokens.

        Within a request only the last round's rejected tail can differ, and `observe` took that
        back; a new request of the slot is compared from the start. At least the last token is left
        to read: its logits are what the draft begins with.
        """
        state = self._sequences.get(request.slot)
        if state is None:
            state = _Sequence(self._runner.new_cache(), request.id)
            self._sequences[request.slot] = state
        same = len(state.rows)
        if state.request_id != request.id:
            same = _common_prefix(state.rows, request.token_ids)
            state.request_id = request.id
        self._keep(state, min(same, state.cache.length, len(request.token_ids) - 1))
        return state

    def _read(self, cache: KVCache, tokens: Tensor) -> Tensor:
        """Append ``tokens``; logits ``[1, V]`` after the last one."""
        return self._runner.forward([ForwardInput(tokens, cache)])[0]

    def observe(self, requests: Sequence[SpecRequest], verdicts: Sequence[Verdict]) -> None:
        """Take back the rows of rejected tokens, before the commit."""
        for request, verdict in zip(requests, verdicts, strict=True):
            state = self._sequences.get(request.slot)
            if state is not None:
                standing = len(request.token_ids) + verdict.accepted
                self._keep(state, min(standing, len(state.rows), state.cache.length))

    @staticmethod
    def _keep(state: _Sequence, length: int) -> None:
        state.cache.rollback_to(length)
        del state.rows[length:]

    def release(self, slot: int) -> None:
        """Drop the slot's cache."""
        self._sequences.pop(slot, None)


def _common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    for index, (x, y) in enumerate(zip(a, b, strict=False)):
        if x != y:
            return index
    return min(len(a), len(b))
