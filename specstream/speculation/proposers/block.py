"""Block-parallel drafting (DFlash, arXiv 2602.06036): one pass of a small head drafts a whole block."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

import torch

from specstream.methods import BlockProposerConfig
from specstream.model.heads.block import BlockHead, Context
from specstream.speculation.optional import States
from specstream.speculation.policy.records import Candidate, Offer
from specstream.speculation.proposal import Capabilities, Proposal, SpecRequest
from specstream.speculation.proposers.candidate import Drafted, Task, TaskProposer
from specstream.speculation.proposers.marginals import stop_below, take_chain
from specstream.speculation.proposers.parts import Parts

__all__ = ["BlockProposer", "build"]

_REHEARSED = 128  # rows of the context in a rehearsal


class BlockProposer(TaskProposer):
    """Drafts the tokens after the last one all at once, each from a distribution of its own.

    A token is drawn without regard to those before it in its block, so its q is the block's marginal.
    The chain is cut where its likelihood falls below ``min_confidence``: known, on a CPU, at no cost.
    """

    name = "block"

    def __init__(self, config: BlockProposerConfig, head: BlockHead) -> None:
        self._config, self._head = config, head
        self.most = min(config.num_tokens, head.shape.block_size - 1)
        self._looks = head.device.type == "cpu"
        self._contexts: dict[int, Context] = {}
        self.candidate = Candidate("block", "the block draft", passes="one", stops=self._looks)
        self.capabilities = Capabilities(hidden_states=head.depths, own_cache=True)

    def go_on(self) -> Callable[[float], bool] | None:
        """See `TaskProposer.go_on`: until the chain falls below ``min_confidence``."""
        return stop_below(self._config.min_confidence)

    def offer(self, request: SpecRequest, budget: int) -> Offer:
        """As many tokens as a block has, once the request's text was read."""
        return Offer(0 if self._context(request) is None else min(budget, self.most))

    def draft(self, tasks: Sequence[Task]) -> list[Drafted]:
        """One pass for all tasks."""
        ready = [(task, self._context(task.request)) for task in tasks]
        known = [(task, one) for task, one in ready if one is not None and task.count > 0]
        found: dict[int, Drafted] = {}
        if known:
            keeps = [min(task.count, self.most) for task, _ in known]
            anchors = [task.request.token_ids[-1] for task, _ in known]
            logits = self._head.block([one for _, one in known], anchors, keeps)
            for (task, _), rows in zip(known, logits.split_with_sizes(keeps), strict=True):
                made = take_chain(task, rows, looks=self._looks, source=self.name)
                found[task.request.id] = made
        empty = Drafted(Proposal.empty(self._head.device))
        return [found.get(task.request.id, empty) for task in tasks]

    def _context(self, request: SpecRequest) -> Context | None:
        """The rows of all tokens but the last; None: some were not read."""
        found = self._contexts.get(request.slot)
        return found if found is not None and found.end == len(request.token_ids) - 1 else None

    def read(self, requests: Sequence[SpecRequest], states: Sequence[States]) -> None:
        """Append to the slots' contexts. A context that doesn't reach the states begins anew there."""
        contexts = [self._continued(r.slot, s.start) for r, s in zip(requests, states, strict=True)]
        self._head.read(contexts, [s.states for s in states])

    def _continued(self, slot: int, start: int) -> Context:
        found = self._contexts.get(slot)
        if found is None or not found.first <= start <= found.end:
            found = self._contexts[slot] = self._head.new_context()
            found.first = start
        found.cache.rollback_to(start - found.first)
        return found

    def release(self, slot: int) -> None:
        """Drop the slot's context."""
        self._contexts.pop(slot, None)

    @torch.inference_mode()
    def rehearse(self) -> None:
        """One block behind a context of typical length."""
        head = self._head
        context = head.new_context()
        context.cache.reserve(_REHEARSED)
        context.cache.append_to(_REHEARSED)
        head.block([context], [head.shape.mask_token_id], [self.most])[0, 0].item()


def build(config: BlockProposerConfig, parts: Parts) -> BlockProposer:
    """The block head that was loaded.

    Raises:
        ConfigError: none was loaded.
    """
    return BlockProposer(config, cast(BlockHead, parts.head("block")))
