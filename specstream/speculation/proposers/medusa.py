"""Medusa: heads on the last hidden state draft several tokens at once (arXiv 2401.10774)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor

from specstream.methods import MedusaProposerConfig
from specstream.model.heads.base import likeliest
from specstream.model.heads.medusa import MedusaHead
from specstream.speculation.optional import States
from specstream.speculation.policy.records import Candidate, Offer
from specstream.speculation.proposal import Capabilities, SpecRequest
from specstream.speculation.proposers.candidate import Drafted, Task, TaskProposer
from specstream.speculation.proposers.marginals import draft_ready, take_chain
from specstream.speculation.proposers.medusa_tree import TreeShape, grow_all
from specstream.speculation.proposers.parts import Parts

__all__ = ["MedusaProposer", "build"]


class MedusaProposer(TaskProposer):
    """Drafts chains (``top_k`` 1) or trees from the heads' marginals; one head pass a round for all.

    A head doesn't know which tokens were drafted before its own, so a tree consists of the paths whose
    product of the heads' probabilities is largest. A tree's nodes are deterministic. Trees are grown on
    the host, which waits for the device once a round.
    """

    name = "medusa"

    def __init__(
        self,
        config: MedusaProposerConfig,
        head: MedusaHead,
        eos_ids: frozenset[int] = frozenset(),
    ) -> None:
        self._config, self._head, self._eos_ids = config, head, eos_ids
        self.most = min(config.depth, head.heads)
        self._tree = config.top_k > 1
        self._looks = head.device.type == "cpu"
        # By slot the state from which the last token was predicted, ``[hidden]``, before the target's
        # final norm, and the number of tokens before that last token.
        self._lasts: dict[int, tuple[Tensor, int]] = {}
        self.capabilities = Capabilities(head.depths, trees=self._tree)
        self.candidate = Candidate("medusa", "the Medusa heads", passes="one")

    def offer(self, request: SpecRequest, budget: int) -> Offer:
        """Offer as many levels as there are heads, once the last token's state was read."""
        if self._state(request) is None:
            return Offer(0)
        levels = min(budget, self.most)
        nodes = [self._size(level) for level in range(1, levels + 1)] if self._tree else ()
        return Offer(levels, nodes=nodes)

    @torch.inference_mode()
    def draft(self, tasks: Sequence[Task]) -> list[Drafted]:
        """Run the heads once for all tasks, then make each one's chain or tree."""
        return draft_ready(tasks, self._state, self._chains_or_trees, self._head.device)

    def _chains_or_trees(self, known: Sequence[tuple[Task, Tensor]]) -> list[Drafted]:
        deepest = min(self.most, max(task.count for task, _ in known))
        normed = self._head.normed(torch.stack([state for _, state in known]))
        each = [
            (task, rows[: task.count])
            for (task, _), rows in zip(known, self._head(normed, deepest).unbind(1), strict=True)
        ]
        if not self._tree:
            return [
                take_chain(task, self._head.whole(rows), looks=self._looks, source=self.name)
                for task, rows in each
            ]
        shape = TreeShape(self._config.top_k, self._size, self._eos_ids)
        requests = [(task.request, rows) for task, rows in each]
        return [Drafted(tree, (), 1) for tree in grow_all(requests, self._head, shape)]

    def _state(self, request: SpecRequest) -> Tensor | None:
        state, end = self._lasts.get(request.slot, (None, 0))
        return state if end == len(request.token_ids) - 1 else None

    def _size(self, depth: int) -> int:
        """The most nodes of a tree of ``depth`` levels."""
        return min(self._config.nodes, self._config.top_k * depth)

    @torch.inference_mode()
    def rehearse(self) -> None:
        """Run the heads once for one request, and wait for the device."""
        head = self._head
        state = torch.zeros(1, head.shape.hidden, dtype=head.dtype, device=head.device)
        likeliest(head(head.normed(state), self.most), self._config.top_k)[0].tolist()

    def read(self, requests: Sequence[SpecRequest], states: Sequence[States]) -> None:
        """Keep a copy of each request's last state: a view would keep the whole pass's states alive."""
        for request, one in zip(requests, states, strict=True):
            count = one.states.shape[0]
            if count:
                self._lasts[request.slot] = one.states[-1, 0].clone(), one.start + count

    def release(self, slot: int) -> None:
        """Drop the slot's state."""
        self._lasts.pop(slot, None)


def build(config: MedusaProposerConfig, parts: Parts) -> MedusaProposer:
    """Build the proposer of the Medusa heads that were loaded.

    Raises:
        ConfigError: none were loaded.
    """
    return MedusaProposer(config, cast(MedusaHead, parts.head("medusa")), parts.eos_ids)
