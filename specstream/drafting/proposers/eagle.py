"""EAGLE: drafts by a head on the target's hidden states (arXiv 2401.15077, 2406.16858, 2503.01840)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice, pairwise
from typing import cast

import torch
from torch import Tensor

from specstream.drafting.calibration import CONTEXT
from specstream.drafting.candidate import EngineParts, Task, TaskProposal
from specstream.drafting.policy.records import Candidate, Offer
from specstream.drafting.proposal import Capabilities, SpecRequest
from specstream.drafting.proposers.eagle_drawn import DrawnTree
from specstream.drafting.proposers.eagle_growth import Chain, Told, TreeGrowth
from specstream.drafting.rows import RowProposer, StateRows
from specstream.methods import EagleProposerConfig
from specstream.model.attention.base import Batch
from specstream.model.heads.base import FeatureHead, Level, spread
from specstream.model.heads.eagle import EagleHead
from specstream.model.kv import RowCache
from specstream.model.numerics import to_device
from specstream.model.tokens.sampling import free_to_look

__all__ = ["EagleProposer", "build"]

# Rows that the head makes in one round even if the target's prefill chunk is smaller: one layer reads
# many rows in about the time of a few.
_MIN_CHUNK = 64
_BREADTH_WEIGHT = 0.1  # of the latest tree, in the moving average of nodes a level


class EagleProposer(RowProposer):
    """Drafts chains (``top_k`` 1) or dynamic trees with an EAGLE head; one head pass a level for all.

    Rows of drafted tokens are rolled back after each round; rows of accepted tokens are made anew from
    the target's own features. A row is made from a feature (fused hidden states of one token) and the
    token after it: after a rollback to an earlier turn the last remaining row may have been made with a
    token that was replaced since, which lowers acceptance at one position only. A prompt's rows are
    made when its request drafts for the first time, at most one chunk a round. On a GPU, trees and
    chains with a ``go_on`` rule make the host wait for the device at each level, drawn trees at each
    node.
    """

    _head: FeatureHead

    def __init__(
        self,
        config: EagleProposerConfig,
        head: FeatureHead,
        vocab_size: int,
        eos_ids: frozenset[int] = frozenset(),
        prefill_chunk: int = 512,
    ) -> None:
        self._config, self._head, self.name = config, head, head.kind
        self._vocab_size, self._eos_ids = vocab_size, eos_ids
        self._chunk, self.most = max(prefill_chunk, _MIN_CHUNK), config.depth
        self._tree = config.top_k > 1
        self._looks = head.device.type == "cpu" or self._tree
        self.sequences: dict[int, StateRows] = {}
        self._breadth = float(config.top_k)  # nodes a level, a moving average over trees
        self.capabilities = Capabilities(head.depths, trees=self._tree)
        self.candidate = Candidate(head.kind, head.title, stops=self._looks)

    def offer(self, request: SpecRequest, budget: int) -> Offer:
        """Offer up to ``depth`` levels, once the states of all tokens but the last were read."""
        found = self.known(request)
        if found is None:
            return Offer(0)
        levels = min(budget, self.most)
        nodes: Sequence[int] = ()
        if self._tree:
            sizes = (min(self._size(n), round(n * self._breadth)) for n in range(1, levels + 1))
            nodes = [max(n, size) for n, size in enumerate(sizes, 1)]
        return Offer(levels, behind=self.behind(min(found.unread, self._config.window)), nodes=nodes)

    def draft(self, tasks: Sequence[Task]) -> list[TaskProposal]:
        """Grow the tasks' chains or trees in lockstep."""
        growths = [self._growth(task) for task in tasks]
        passes, device = self.grow(growths), self._head.device
        made = [
            TaskProposal(one.proposal(device, self.name), one.confidences, passes, one.read)
            for one in growths
        ]
        for one in made:
            if one.confidences and self._tree:
                breadth = one.proposal.length / len(one.confidences)
                self._breadth += _BREADTH_WEIGHT * (breadth - self._breadth)
        return made

    @torch.inference_mode()
    def rehearse(self) -> None:
        """Draft one level behind `CONTEXT` rows of context, and wait for the device."""
        head, width = self._head, self._config.top_k
        cache = head.new_cache()
        cache.reserve(CONTEXT)
        cache.append_to(CONTEXT)
        tokens = torch.zeros(width, dtype=torch.int64, device=head.device)
        features = torch.zeros(width, head.width, dtype=head.dtype, device=head.device)
        head(tokens, features, Batch([cache], [width], [width]), width).chances[0, 0].item()

    @torch.inference_mode()
    def grow(self, growths: Sequence[Chain | TreeGrowth]) -> int:
        """Grow all chains and trees to their end; return the number of head passes."""
        kept = [(cache, cache.length) for cache in self._begin(growths)]
        passes = 0
        try:
            while active := [growth for growth in growths if growth.unread is not None]:
                passes += 1
                self._level(active, first=passes == 1)
                if passes == 1:
                    kept = [(cache, cache.length) for cache, _ in kept]
        finally:
            for cache, length in kept:
                cache.rollback_to(length)
        return passes

    def _level(self, active: Sequence[Chain | TreeGrowth], *, first: bool) -> None:
        """Run the head once over all unread tokens.

        The first ones are committed tokens, of which only the last row gives a draft.
        """
        tokens = [growth.unread for growth in active if growth.unread is not None]
        features = [growth.features for growth in active if growth.features is not None]
        caches = [self.sequences[growth.request.slot].cache for growth in active]
        counts = [unread.shape[0] for unread in tokens]
        keeps = [1] * len(counts) if first else counts
        trees = [growth.tree for growth in active]
        batch = Batch(caches, counts, keeps, trees if any(trees) else None)
        most = max(growth.choices for growth in active)
        level = self._head(torch.cat(tokens), torch.cat(features), batch, most)
        parts = zip(*(rows.split_with_sizes(keeps) for rows in level), strict=True)
        levels = [Level(*part) for part in parts]
        told: Sequence[Told | None] = [None] * len(levels)
        if self._looks or any(one.go_on is not None for one in active):
            told = _read(active, level, levels)
        for growth, part, mine in zip(active, levels, told, strict=True):
            growth.grow(part, mine)

    def _begin(self, growths: Sequence[Chain | TreeGrowth]) -> list[RowCache]:
        """Set the tokens that the first pass reads; return the caches of the growths that draft.

        A request with more rows to make than the chunk allows makes that many, and drafts nothing in
        this round.
        """
        left, caches = self._chunk, list[RowCache]()
        for growth in growths:
            request, found = growth.request, self.known(growth.request)
            if growth.count < 1 or found is None:
                continue
            found.trim(self._config.window)
            first, count = found.end, found.unread
            if count < 1:
                continue
            growth.read = self.behind(count)
            whole = count <= max(left, _MIN_CHUNK)
            if not whole:
                count = growth.read = left
            left = max(0, left - growth.read)
            if count < 1:
                continue
            features = self._head.fuse(found.take(count))
            tokens = to_device(request.token_ids[first + 1 : first + 1 + count], self._head.device)
            if whole:
                growth.unread, growth.features = tokens, features
                caches.append(found.cache)
            else:
                self._head(tokens, features, Batch([found.cache], [count], [1]))
        return caches

    def _growth(self, task: Task) -> Chain | TreeGrowth:
        base, ends = (task.request, task.count, task.go_on), self._eos_ids
        if not self._tree:
            return Chain(*base, ends, self._widened)
        kind = TreeGrowth if task.request.params.greedy else DrawnTree
        return kind(
            *base,
            ends=ends,
            ids=self._head.ids,
            widened=self._widened,
            top_k=self._config.top_k,
            size=self._size(task.count),
            least=task.least,
        )

    def _widened(self, rows: Tensor, rest: float) -> Tensor:
        return spread(rows, self._head.ids, self._vocab_size, rest)

    def _size(self, depth: int) -> int:
        """The most nodes of a tree of ``depth`` levels."""
        return min(self._config.nodes, self._config.top_k * depth)

    def bound(self, kept: StateRows) -> None:
        """Trim to the window, but seldom, because that copies states."""
        if kept.unread > 2 * self._config.window:
            kept.trim(self._config.window)


def _read(growths: Sequence[Chain | TreeGrowth], level: Level, levels: Sequence[Level]) -> list[Told]:
    """What each growth has to know of its part of a level; on a device with one transfer for all."""
    if free_to_look(level.logits):
        both, stops = (level.chances.tolist(), level.choices.tolist()), [0]
        for part in levels:
            stops.append(stops[-1] + part.logits.shape[0])
        return [(both[0][a:b], both[1][a:b]) for a, b in pairwise(stops)]
    asked = [one for growth, part in zip(growths, levels, strict=True) for one in growth.ask(part)]
    flat = iter(torch.cat([one.double().reshape(-1) for one in asked]).tolist())
    lists = [[list(islice(flat, one.shape[1])) for _ in range(one.shape[0])] for one in asked]
    pairs = zip(lists[::2], lists[1::2], strict=True)
    return [(numbers, [list(map(int, row)) for row in ids]) for numbers, ids in pairs]


def build(config: EagleProposerConfig, parts: EngineParts) -> EagleProposer:
    """Build the proposer of the EAGLE head that was loaded.

    Raises:
        ConfigError: no head was loaded.
    """
    head = cast(EagleHead, parts.head("eagle"))
    size = parts.target.vocab_size
    return EagleProposer(config, head, size, parts.eos_ids, parts.prefill_chunk)
