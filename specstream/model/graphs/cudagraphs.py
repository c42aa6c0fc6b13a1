"""Passes captured as CUDA graphs over a key-value pool: one launch for all kernels of a pass."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor

from specstream.model.attention.base import Batch
from specstream.model.attention.kernels import Ragged, flash
from specstream.model.attention.pooled import PooledAttention, PooledPlan, padded_rows
from specstream.model.decoder import Decoder
from specstream.model.forward import ForwardInput
from specstream.model.kv.base import RowCache
from specstream.model.kv.pooled import PooledCache
from specstream.model.transfer import to_device

__all__ = ["DRAFT", "TARGET", "Capture", "CapturePlan", "GraphedPasses", "capture_on_gpu"]

Capture = Callable[[Callable[[], None]], Callable[[], None]]
"""Captures work that always uses the same memory; returns the function that replays it."""

_BATCHES = (1, 2, 4, 8, 16, 32)
_PADDED_ROWS = 4096  # longest sequence with the padded kernel, whose graph always reads the maximum


@dataclass(frozen=True, slots=True)
class CapturePlan:
    """The passes of a model to capture."""

    widths: tuple[int, ...]  # numbers of tokens that a pass reads per sequence
    chain_widths: tuple[int, ...] = ()  # numbers of tokens that a greedy chain reads first
    chain_steps: int = 0  # number of tokens that a chain chooses


# Wider passes are rare, and with the library's matrix products as fast without a capture.
TARGET = CapturePlan((1, 2, 3, 4, 5, 6, 8))
# After a round one or two tokens are new to the draft: the bonus token and the last accepted one.
DRAFT = CapturePlan((1, 2, 3), chain_widths=(1, 2), chain_steps=4)


@dataclass(slots=True)
class _Graph:
    """A captured pass, with the tensors that keep its memory alive: the capture holds addresses only."""

    tokens: Tensor  # [batch * width] int64
    places: Tensor  # [2, batch] int64: first row of each slot, and its rows before the pass
    work: Callable[[], None] = lambda: None  # the captured function, which holds its tensors
    results: tuple[Tensor, ...] = ()  # valid until the next replay of any graph
    replay: Callable[[], None] = lambda: None


class GraphedPasses:
    """A model's captured passes (`__call__`) and chains of greedy steps (`chain`).

    There is one graph per number of sequences and width. A pass of a width that was not captured runs as
    the next wider one, with junk behind its tokens; smaller batches are filled up by a scratch slot.

    Args:
        decoder: The model; its attention is pooled.
        plan: The passes to capture.
        vocab_size: A chain chooses from this many first tokens of the vocabulary.
        capture: Captures a pass, see `capture_on_gpu`.
        longest: Rows up to which sequences are served.
        batches: Numbers of sequences to capture passes for, increasing.

    Attributes:
        widths: Captured numbers of tokens per sequence, increasing.
        chains: Captured numbers of tokens that a chain reads in its first step.
    """

    def __init__(
        self,
        decoder: Decoder,
        plan: CapturePlan,
        vocab_size: int,
        capture: Capture,
        longest: int,
        batches: tuple[int, ...] = _BATCHES,
    ) -> None:
        self._decoder, self._vocab_size, self._capture = decoder, vocab_size, capture
        self.widths, self.batches = tuple(sorted(plan.widths)), batches
        self.chains, self._steps = plan.chain_widths, plan.chain_steps
        self._attention = cast(PooledAttention, decoder.attention)
        if self._attention.kernel is not flash:
            longest = min(longest, _PADDED_ROWS)
        self._longest = min(longest, self._attention.pool.rows)
        self._scratch = PooledCache(self._attention.pool)
        self._scratch.reserve(max((*plan.widths, *plan.chain_widths)) + plan.chain_steps)
        self._graphs: dict[tuple[int, int, bool], _Graph] = {}

    def record_all(self, check: Callable[[], None]) -> None:
        """Capture every graph; ``check`` is called before each, and its exceptions end the capturing."""
        keys = [(batch, width, False) for batch in self.batches for width in self.widths]
        keys += [(1, width, True) for width in self.chains]
        with torch.inference_mode():
            for key in keys:
                check()
                self._graph(*key)

    def __call__(self, inputs: Sequence[ForwardInput]) -> list[Tensor] | None:
        """Append tokens to each sequence, all chains; return logits of the last, ``[keep, V]`` each.

        Returns None, with nothing done, if no captured pass fits.
        """
        caches = [cast(PooledCache, item.cache) for item in inputs]
        counts, keeps = [item.token_ids.shape[0] for item in inputs], [item.keep for item in inputs]
        width = next((width for width in self.widths if width >= max(counts)), 0)
        batch = next((batch for batch in self.batches if batch >= len(caches)), 0)
        longest = max(cache.length for cache in caches) + width
        if not width or not batch or longest > self._longest:
            return None
        graph = self._graph(batch, width, chain=False)
        tokens = torch.cat([item.token_ids for item in inputs])
        self._fill(graph, tokens, counts, caches, width, width)
        graph.replay()
        each = enumerate(zip(counts, keeps, strict=True))
        rows = [i * width + row for i, (n, keep) in each for row in range(n - keep, n)]
        # A copy: the next replay overwrites the results.
        kept = graph.results[0].index_select(0, to_device(rows, graph.tokens.device))
        Batch(caches, counts, keeps).append()
        return list(kept.split_with_sizes(keeps))

    def chain(self, tokens: Tensor, cache: RowCache) -> tuple[Tensor, Tensor] | None:
        """Append ``tokens [n]``, then greedy choices; return ``choices [steps], confidences [steps]``.

        A confidence is the probability of the chosen token. The cache grows by n rows and one for each
        choice but the last. Returns None, with nothing done, if no captured chain fits.
        """
        width = tokens.shape[0]
        end = cache.length + width + self._steps - 1
        if width not in self.chains or end > self._longest:
            return None
        graph = self._graph(1, width, chain=True)
        self._fill(graph, tokens, [width], [cache], width, width + self._steps - 1)
        graph.replay()
        cache.append_to(end)
        found, confidences = graph.results
        return found.clone(), confidences.clone()

    def drop(self, width: int) -> None:
        """Drop the captured passes of a width; the next wider ones then serve it."""
        self.widths = tuple(known for known in self.widths if known != width)

    def drop_chain(self, width: int) -> None:
        """Drop the captured chain that begins by reading ``width`` tokens."""
        self.chains = tuple(known for known in self.chains if known != width)

    def _fill(
        self,
        graph: _Graph,
        tokens: Tensor,
        counts: Sequence[int],
        caches: Sequence[RowCache],
        width: int,
        room: int,
    ) -> None:
        """Reserve ``room`` rows of each cache, and write a pass's inputs into the graph's memory.

        A sequence of fewer than ``width`` tokens repeats its last one.
        """
        pooled = cast("Sequence[PooledCache]", caches)
        for cache in pooled:
            cache.reserve(cache.length + room)
        batch = graph.places.shape[1]
        spare = batch - len(pooled)
        places = [
            [cache.slot.start for cache in pooled] + [self._scratch.slot.start] * spare,
            [cache.length for cache in pooled] + [0] * spare,
        ]
        picks = padded_rows(counts, width) + [[0] * width] * spare
        device = graph.tokens.device
        graph.places.copy_(to_device(places, device))
        torch.index_select(tokens, 0, to_device(picks, device).view(-1), out=graph.tokens)

    def _graph(self, batch: int, width: int, chain: bool) -> _Graph:
        key = batch, width, chain
        if key not in self._graphs:
            self._graphs[key] = self._record(*key)
        return self._graphs[key]

    def _record(self, batch: int, width: int, chain: bool) -> _Graph:
        device = self._decoder.weights.device
        cos, sin = self._decoder.rotary.upto(self._longest)
        places = to_device([[self._scratch.slot.start] * batch, [0] * batch], device)
        made = _Graph(torch.zeros(batch * width, dtype=torch.int64, device=device), places)

        def run(tokens: Tensor, before: Tensor, new: int) -> Tensor:
            """Hidden states of ``new`` tokens per sequence behind ``before [batch]`` rows."""
            starts = made.places[0]
            steps = torch.arange(new, device=device)
            positions = (before[:, None] + steps).view(-1)
            ragged = Ragged(
                torch.arange(0, (batch + 1) * new, new, dtype=torch.int32, device=device),
                F.pad(starts, (0, 1)).int(),
                (before + new).int(),
                new,
                self._longest,
            )
            plan = PooledPlan(
                self._attention, (starts[:, None] + before[:, None] + steps).view(-1), ragged
            )
            angles = (cos.index_select(0, positions), sin.index_select(0, positions))
            return self._decoder.run(tokens, angles[0][:, None], angles[1][:, None], plan)

        def one_pass() -> None:
            made.results = (self._decoder.logits(run(made.tokens, made.places[1], width)),)

        def greedy_steps() -> None:
            """Each step reads the token of the step before, without the host."""
            tokens, before = made.tokens, made.places[1]
            chosen, confidences = [], []
            for _ in range(self._steps):
                hidden = run(tokens, before, tokens.shape[0])
                logits = self._decoder.logits(hidden[-1:])[0].float()[: self._vocab_size]
                before = before + tokens.shape[0]
                top, token = logits.max(-1)
                chosen.append(token)
                confidences.append(torch.exp(logits - top).sum(-1).reciprocal())
                tokens = token.reshape(1)
            made.results = torch.stack(chosen), torch.stack(confidences)

        made.work = greedy_steps if chain else one_pass
        made.replay = self._capture(made.work)
        return made


def capture_on_gpu(device: torch.device) -> Capture:
    """Return a `Capture` by CUDA. All graphs share one memory pool, as only one runs at a time."""
    with torch.cuda.device(device):
        pool = torch.cuda.graph_pool_handle()
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]

    def capture(work: Callable[[], None]) -> Callable[[], None]:
        with torch.cuda.device(device):
            # Libraries initialise themselves in their first calls, which can't be captured.
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                for _ in range(2):
                    work()
            torch.cuda.current_stream().wait_stream(side)
            graph = torch.cuda.CUDAGraph()
            # Other threads may use the device meanwhile.
            mode = "thread_local"
            with torch.cuda.graph(graph, pool=pool, stream=side, capture_error_mode=mode):
                work()
        return graph.replay

    return capture
