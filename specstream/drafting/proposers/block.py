"""Block-parallel drafting (DFlash, arXiv 2602.06036): one pass of a small head drafts a whole block."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch

from specstream.drafting.calibration import CONTEXT
from specstream.drafting.candidate import EngineParts, Task, TaskProposal
from specstream.drafting.policy.records import Candidate, Offer
from specstream.drafting.proposal import Capabilities, SpecRequest
from specstream.drafting.rows import RowProposer, StateRows, draft_ready, take_chain
from specstream.methods import BlockProposerConfig
from specstream.model.heads.base import Context
from specstream.model.heads.block import BlockHead

__all__ = ["TOGETHER", "BlockProposer", "build"]

TOGETHER = 1024
"""So many kept states get rows even if nothing is drafted."""


class BlockProposer(RowProposer):
    """Drafts a block of tokens after the last committed one in a single pass of the head.

    Each token is drawn regardless of the others in its block, so its q is the marginal at its position.
    The chain is cut where its probability falls below ``min_confidence`` (checking that is free on a
    CPU).
    """

    name = "block"
    _head: BlockHead

    def __init__(self, config: BlockProposerConfig, head: BlockHead) -> None:
        self._config, self._head = config, head
        self.most = min(config.num_tokens, head.shape.block_size - 1)
        self.least = config.min_confidence
        self._looks = head.device.type == "cpu"
        self.sequences: dict[int, StateRows] = {}
        self.candidate = Candidate("block", "the block draft", passes="one", stops=self._looks)
        self.capabilities = Capabilities(hidden_states=head.depths)

    def offer(self, request: SpecRequest, budget: int) -> Offer:
        """Offer as many tokens as a block has, once the states of all tokens but the last were read."""
        found = self.known(request)
        if found is None:
            return Offer(0)
        return Offer(min(budget, self.most), behind=self.behind(found.unread))

    def draft(self, tasks: Sequence[Task]) -> list[TaskProposal]:
        """Draft the blocks of all tasks in one pass of the head."""
        return draft_ready(tasks, self.known, self._blocks, self._head.device)

    def _blocks(self, known: Sequence[tuple[Task, StateRows]]) -> list[TaskProposal]:
        keeps = [min(task.count, self.most) for task, _ in known]
        anchors = [task.request.token_ids[-1] for task, _ in known]
        behind = [self.behind(one.unread) for _, one in known]
        slots = [one for _, one in known]
        self._enter(slots)
        each = self._head.block(slots, anchors, keeps).split_with_sizes(keeps)
        made = list[TaskProposal]()
        for (task, _), rows, read in zip(known, each, behind, strict=True):
            chain = take_chain(task, rows, looks=self._looks, source=self.name)
            made.append(chain._replace(read=read))
        return made

    def bound(self, kept: StateRows) -> None:
        """Make rows from many states at once."""
        if kept.unread >= TOGETHER:
            self._enter([kept])

    def _enter(self, slots: Sequence[StateRows]) -> None:
        """Make rows from the slots' kept states; a slot begins anew if that fails."""
        waiting = [one for one in slots if one.unread]
        if waiting:
            self._head.read(waiting, [one.take(one.unread) for one in waiting])

    @torch.inference_mode()
    def rehearse(self) -> None:
        """Draft one block behind `CONTEXT` rows of context, and wait for the device."""
        head = self._head
        context = Context(head.new_cache())
        context.cache.reserve(CONTEXT)
        context.cache.append_to(CONTEXT)
        head.block([context], [head.shape.mask_token_id], [self.most])[0, 0].item()


def build(config: BlockProposerConfig, parts: EngineParts) -> BlockProposer:
    """Build the proposer of the block head that was loaded.

    Raises:
        ConfigError: none was loaded.
    """
    return BlockProposer(config, cast(BlockHead, parts.head("block")))
