"""Block-parallel drafting (DFlash, arXiv 2602.06036): one pass of a small head drafts a whole block."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import cast

import torch
from torch import Tensor

from specstream.methods import BlockProposerConfig
from specstream.model.heads.block import BlockHead, Context
from specstream.speculation.optional import States
from specstream.speculation.policy.records import Candidate, Offer
from specstream.speculation.proposal import Capabilities, Proposal, SpecRequest
from specstream.speculation.proposers.candidate import Drafted, Task, TaskProposer
from specstream.speculation.proposers.marginals import stop_below, take_chain
from specstream.speculation.proposers.parts import Parts

__all__ = ["BlockProposer", "build"]

_REHEARSED = 128  # context rows behind which `BlockProposer.rehearse` drafts
_TOGETHER = 1024  # kept states from which rows are made even if nothing is drafted


@dataclass(slots=True)
class _Slot:
    """A slot's context rows, and the target's hidden states that have no rows yet.

    Rows are made only when a block is drafted: in many rounds another method drafts, and making many
    rows at once costs little more than making one.

    Attributes:
        context: The rows.
        unread: The number of states without a row.
        states: Those states, ``[n, depths, hidden]`` each.
    """

    context: Context
    unread: int = 0
    states: list[Tensor] = field(default_factory=list)

    @property
    def end(self) -> int:
        """The position after the last state."""
        return self.context.end + self.unread


class BlockProposer(TaskProposer):
    """Drafts a block of tokens after the last committed one in a single pass of the head.

    Each token is drawn regardless of the others in its block, so its q is the marginal at its position.
    The chain is cut where its probability falls below ``min_confidence`` (checking that is free on a
    CPU).
    """

    name = "block"

    def __init__(self, config: BlockProposerConfig, head: BlockHead) -> None:
        self._config, self._head = config, head
        self.most = min(config.num_tokens, head.shape.block_size - 1)
        self._looks = head.device.type == "cpu"
        self._slots: dict[int, _Slot] = {}
        self.candidate = Candidate("block", "the block draft", passes="one", stops=self._looks)
        self.capabilities = Capabilities(hidden_states=head.depths, own_cache=True)

    def go_on(self) -> Callable[[float], bool] | None:
        """See `TaskProposer.go_on`: end the chain once it is less likely than ``min_confidence``."""
        return stop_below(self._config.min_confidence)

    def offer(self, request: SpecRequest, budget: int) -> Offer:
        """Offer as many tokens as a block has, once the states of all tokens but the last were read."""
        found = self._known(request)
        if found is None:
            return Offer(0)
        return Offer(min(budget, self.most), behind=self._behind(found))

    def draft(self, tasks: Sequence[Task]) -> list[Drafted]:
        """Draft the blocks of all tasks in one pass of the head."""
        ready = [(task, self._known(task.request)) for task in tasks]
        known = [(task, one) for task, one in ready if one is not None and task.count > 0]
        found: dict[int, Drafted] = {}
        if known:
            keeps = [min(task.count, self.most) for task, _ in known]
            anchors = [task.request.token_ids[-1] for task, _ in known]
            caught_up = [self._behind(one) for _, one in known]
            self._enter([one for _, one in known])
            logits = self._head.block([one.context for _, one in known], anchors, keeps)
            parts = logits.split_with_sizes(keeps)
            for (task, _), rows, read in zip(known, parts, caught_up, strict=True):
                made = take_chain(task, rows, looks=self._looks, source=self.name)
                found[task.request.id] = made._replace(read=read)
        empty = Drafted(Proposal.empty(self._head.device))
        return [found.get(task.request.id, empty) for task in tasks]

    def _behind(self, slot: _Slot) -> int:
        """How many tokens lack rows, beyond those that a round drafted by this head leaves anyway."""
        return max(0, slot.unread - self.most - 1)

    def _known(self, request: SpecRequest) -> _Slot | None:
        """The request's slot; None unless the states of all its tokens but the last were read."""
        found = self._slots.get(request.slot)
        return found if found is not None and found.end == len(request.token_ids) - 1 else None

    def read(self, requests: Sequence[SpecRequest], states: Sequence[States]) -> None:
        """Keep the states of committed tokens; after a gap, the context begins anew at the states."""
        long = list[_Slot]()
        for request, one in zip(requests, states, strict=True):
            found = self._continued(request.slot, one.start)
            found.states.append(one.states.clone())  # a view would keep the whole pass's alive
            found.unread += one.states.shape[0]
            if found.unread >= _TOGETHER:
                long.append(found)
        self._enter(long)

    def _enter(self, slots: Sequence[_Slot]) -> None:
        """Make rows from the slots' kept states."""
        waiting = [one for one in slots if one.unread]
        states = [torch.cat(one.states) for one in waiting]
        for one in waiting:  # cleared first, so that a slot begins anew if making its rows fails
            one.states, one.unread = [], 0
        if waiting:
            self._head.read([one.context for one in waiting], states)

    def _continued(self, slot: int, start: int) -> _Slot:
        """The slot with its rows before position ``start``; empty if they don't reach that far."""
        found = self._slots.get(slot)
        if found is None or not found.context.first <= start <= found.end:
            found = self._slots[slot] = _Slot(self._head.new_context())
            found.context.first = start
        if start < found.end:
            self._enter([found])
            found.context.cache.rollback_to(start - found.context.first)
        return found

    def release(self, slot: int) -> None:
        """Drop the slot's context and kept states."""
        self._slots.pop(slot, None)

    @torch.inference_mode()
    def rehearse(self) -> None:
        """Draft one block behind `_REHEARSED` rows of context, and wait for the device."""
        head = self._head
        context = head.new_context()
        context.cache.reserve(_REHEARSED)
        context.cache.append_to(_REHEARSED)
        head.block([context], [head.shape.mask_token_id], [self.most])[0, 0].item()


def build(config: BlockProposerConfig, parts: Parts) -> BlockProposer:
    """Build the proposer of the block head that was loaded.

    Raises:
        ConfigError: none was loaded.
    """
    return BlockProposer(config, cast(BlockHead, parts.head("block")))
