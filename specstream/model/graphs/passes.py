"""Passes captured as CUDA graphs over a key-value pool: one launch for all kernels of a pass."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from specstream.model.attention.base import Batch
from specstream.model.attention.pooled import PooledAttention, PooledPlan
from specstream.model.decoder import Decoder
from specstream.model.forward import Extras, ForwardInput, ForwardOutput, Taps
from specstream.model.graphs.capture import Capture, CapturePlan, FixedInputs, capture_all
from specstream.model.kv import PooledCache

__all__ = ["GraphedPasses"]

PADDED_ROWS = 4096
"""Longest sequence with a kernel that always reads the maximum."""


@dataclass(slots=True)
class _Graph:
    """A captured pass, with the tensors that keep its memory alive: the capture holds addresses only."""

    inputs: FixedInputs
    logits: Tensor  # [batch * width, V]; valid until the next replay of any graph, as are the states
    states: Tensor | None = None  # [batch * width, depths, hidden]
    work: Callable[[], None] = lambda: None  # the captured function, which holds its tensors
    replay: Callable[[], None] = lambda: None


class GraphedPasses:
    """A model's captured passes of chains and trees.

    There is one graph per number of sequences and width. A pass of a width that was not captured runs as
    the next wider one, with junk behind its tokens; smaller batches are filled up by a scratch slot.

    Args:
        decoder: The model; its attention is pooled.
        plan: The passes to capture.
        capture: Captures a pass, see `capture_on_gpu`.
        longest: Rows up to which sequences are served.
        batches: Numbers of sequences to capture passes for, increasing.
        depths: Depths whose hidden states the captured passes also return.

    Attributes:
        missing: Why a pass could not be captured; "" if all were.
        longest: Rows up to which sequences are served.
        scratch: The slot that fills smaller batches up.
        graphs: The captured passes, by number of sequences and width.
    """

    def __init__(
        self,
        decoder: Decoder,
        plan: CapturePlan,
        capture: Capture,
        longest: int,
        batches: Sequence[int],
        depths: Sequence[int] = (),
    ) -> None:
        self._decoder, self._plan, self._capture = decoder, plan, capture
        self.batches, self.depths, self.missing = tuple(batches), tuple(depths), ""
        self._attention = cast(PooledAttention, decoder.attention)
        if not self._attention.by_length:
            longest = min(longest, PADDED_ROWS)
        self.longest = min(longest, self._attention.pool.rows)
        self.scratch = PooledCache(self._attention.pool)
        self.scratch.reserve(max((*plan.widths, *plan.wide)))
        self.graphs: dict[tuple[int, int], _Graph] = {}

    @property
    def trees(self) -> bool:
        """Whether captured passes take trees, too."""
        return self._attention.trees_with_chains

    @property
    def by_length(self) -> bool:
        """See `PooledAttention.by_length`."""
        return self._attention.by_length

    @property
    def captured(self) -> list[tuple[int, int]]:
        """The captured passes, as (number of sequences, tokens of each), the smallest first."""
        return sorted(self.graphs)

    @torch.inference_mode()
    def record_all(self, check: Callable[[], None]) -> None:
        """Capture every pass of the plan that can be captured; see `capture_all` for ``check``."""
        keys = self._plan.passes(self.batches)
        self.graphs, self.missing = capture_all(keys, self._record, check)

    def drop(self, key: tuple[int, int]) -> None:
        """Drop a captured pass; the next larger one then serves it."""
        del self.graphs[key]

    def __call__(
        self,
        inputs: Sequence[ForwardInput],
        depths: Sequence[int] = (),
        fit: Callable[[Tensor], Tensor] = lambda logits: logits,
    ) -> ForwardOutput | None:
        """Append tokens to each sequence, as `Decoder.__call__` does.

        Args:
            inputs: Chains and trees whose tokens all start at the first layer.
            depths: Depths to return hidden states at.
            fit: Applied to all logits.

        Returns:
            Logits and states; None, with nothing done, if no captured pass fits.
        """
        caches = [cast(PooledCache, item.cache) for item in inputs]
        counts, keeps = [item.token_ids.shape[0] for item in inputs], [item.keep for item in inputs]
        trees = [item.tree for item in inputs]
        key = self.fitting(len(inputs), max(counts))
        if key is None or not set(depths) <= set(self.depths):
            return None
        if any(trees) and not self.trees:
            return None
        if max(cache.length for cache in caches) + key[1] > self.longest:
            return None
        graph, width = self.graphs[key], key[1]
        for cache in caches:
            cache.reserve(cache.length + width)
        tokens = [item.token_ids for item in inputs]
        each = list(enumerate(zip(counts, keeps, strict=True)))
        kept = [i * width + row for i, (n, keep) in each for row in range(n - keep, n)]
        taken = [i * width + row for i, (n, _) in each for row in range(n)] if depths else []
        joint = tokens[0] if len(tokens) == 1 else torch.cat(tokens)
        rows = graph.inputs.fill(joint, counts, caches, trees, [*kept, *taken])
        graph.replay()
        # Copies: the next replay overwrites the results.
        logits = fit(graph.logits.index_select(0, rows[: len(kept)])).split_with_sizes(keeps)
        states = list[Tensor]()
        if depths and graph.states is not None:
            found = graph.states.index_select(0, rows[len(kept) :])
            if tuple(depths) != self.depths:
                found = torch.stack([found[:, self.depths.index(depth)] for depth in depths], 1)
            states = list(found.split_with_sizes(counts))
        Batch(caches, counts, keeps).append()
        return ForwardOutput(list(logits), states)

    def fitting(self, batch: int, width: int) -> tuple[int, int] | None:
        """The smallest captured pass that has room for so many sequences and tokens."""
        fits = [key for key in self.graphs if key[0] >= batch and key[1] >= width]
        return min(fits, key=lambda key: (key[0] * key[1], key), default=None)

    def _record(self, key: tuple[int, int]) -> _Graph:
        batch, width = key
        decoder, device = self._decoder, self._decoder.weights.device
        fixed = FixedInputs(self._attention, self.scratch, batch, width, self.longest, device)
        made = _Graph(fixed, fixed.tokens)
        cos, sin = decoder.rotary.upto(self.longest)

        def work() -> None:
            placed, counts = fixed.placed(), [width] * batch
            turn, turned = (one.index_select(0, placed.positions)[:, None] for one in (cos, sin))
            taps = Taps(Extras(self.depths), counts) if self.depths else None
            plan = PooledPlan(self._attention, placed)
            made.logits = decoder.logits(decoder.run(fixed.tokens, turn, turned, plan, taps=taps))
            made.states = None if taps is None else taps.joint

        made.work = work
        made.replay = self._capture(work)
        return made
