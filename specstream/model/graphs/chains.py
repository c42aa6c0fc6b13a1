"""Chains of draft steps captured as one graph: each reads the token that the one before chose."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from specstream.model.attention.kernels import Ragged
from specstream.model.attention.pooled import PlacedTokens, PooledAttention, PooledPlan
from specstream.model.decoder import Decoder
from specstream.model.graphs.capture import Capture, CapturePlan, FixedInputs, capture_all
from specstream.model.kv import PooledCache, RowCache
from specstream.model.numerics import to_device
from specstream.model.tokens.noise import gumbel_max_of_rows
from specstream.model.tokens.sampling import draw_at, nucleus

__all__ = ["DraftedChain", "Draws", "GraphedChains"]

Kind = Literal["greedy", "drawn", "drawn by top-p", "keyed", "keyed by top-p"]
_KINDS: tuple[Kind, ...] = ("greedy", "drawn", "drawn by top-p", "keyed", "keyed by top-p")


class DraftedChain(NamedTuple):
    """What a chain of steps chose for n sequences.

    Attributes:
        tokens: ``[steps, n]`` int64.
        confidences: ``[steps, n]``: the draft's probability of each.
        probs: ``[steps, n, V]`` float32, the rows that tokens were drawn from; None: greedy.
    """

    tokens: Tensor
    confidences: Tensor
    probs: Tensor | None = None


@dataclass(frozen=True, slots=True)
class Draws:
    """How the tokens of n sequences are drawn.

    Attributes:
        temperatures: Of each sequence.
        masses: Of each sequence, top-p.
        uniforms: For each step a number of each sequence, in [0, 1); empty if tokens are drawn by keys.
        keys: For each step a noise key of each sequence (`noise_key`); empty: drawn by ``uniforms``.
    """

    temperatures: Sequence[float]
    masses: Sequence[float]
    uniforms: Sequence[Sequence[float]] = ()
    keys: Sequence[Sequence[int]] = ()

    @property
    def kind(self) -> Kind:
        """Which captured chain draws so."""
        if all(mass >= 1.0 for mass in self.masses):
            return "keyed" if self.keys else "drawn"
        return "keyed by top-p" if self.keys else "drawn by top-p"


@dataclass(slots=True)
class _Graph:
    """A captured chain and its fixed memory."""

    inputs: FixedInputs
    places: Tensor  # [2, batch] int64: rows after the first pass; the token in it that is last
    shape: Tensor  # [2, batch] float32: inverse temperatures, top-p
    uniforms: Tensor  # [steps, batch] float64
    keys: Tensor  # [steps, batch] int64
    tokens: list[Tensor] = field(default_factory=list)
    confidences: list[Tensor] = field(default_factory=list)
    probs: list[Tensor] = field(default_factory=list)
    work: Callable[[], None] = lambda: None
    replay: Callable[[], None] = lambda: None


class GraphedChains:
    """A draft model's captured chains, one for each number of sequences and way to choose.

    Args:
        decoder: The draft; its attention is pooled.
        plan: How many steps to capture.
        vocab_size: Width of the target's logits: tokens beyond it aren't chosen.
        capture: See `capture_on_gpu`.
        longest: Rows up to which sequences are served.
        batches: Numbers of sequences, increasing.

    Attributes:
        missing: Why a chain could not be captured; "" if all were.
    """

    def __init__(
        self,
        decoder: Decoder,
        plan: CapturePlan,
        vocab_size: int,
        capture: Capture,
        longest: int,
        batches: Sequence[int],
    ) -> None:
        self._decoder, self.vocab_size, self._capture = decoder, vocab_size, capture
        self.steps, self._first, self._batches = plan.steps, plan.first, tuple(batches)
        self._attention = cast(PooledAttention, decoder.attention)
        self._longest = min(longest, self._attention.pool.rows)
        self._scratch = PooledCache(self._attention.pool)
        self._scratch.reserve(plan.first + plan.steps)
        self._graphs: dict[tuple[int, Kind], _Graph] = {}
        self.missing = ""

    @property
    def captured(self) -> list[tuple[int, Kind]]:
        """The captured chains, as (number of sequences, way to choose)."""
        return sorted(self._graphs)

    @torch.inference_mode()
    def record_all(self, check: Callable[[], None]) -> None:
        """Capture every chain that can be captured; see `capture_all` for ``check``."""
        keys = [(batch, kind) for batch in reversed(self._batches) for kind in _KINDS]
        self._graphs, self.missing = capture_all(keys, self._record, check)

    def drop(self, key: tuple[int, Kind]) -> None:
        """Drop a captured chain; single passes then do its work."""
        del self._graphs[key]

    def __call__(
        self, tokens: Sequence[Tensor], caches: Sequence[RowCache], draws: Draws | None = None
    ) -> DraftedChain | None:
        """Append ``tokens[i] [1 or 2]`` to each sequence, then the tokens that are chosen.

        Each cache grows by its tokens and one row for each chosen token but the last. ``draws`` None:
        the likeliest tokens are chosen. Returns None, with nothing done, if no captured chain fits.
        """
        counts = [one.shape[0] for one in tokens]
        kind: Kind = "greedy" if draws is None else draws.kind
        ends = [cache.length + n for cache, n in zip(caches, counts, strict=True)]
        sizes = [batch for batch, known in self._graphs if known == kind and batch >= len(caches)]
        room = self._first + self.steps - 1
        if not sizes or max(counts) > self._first or max(ends) + room > self._longest:
            return None
        graph, n = self._graphs[min(sizes), kind], len(caches)
        pooled = cast("Sequence[PooledCache]", caches)
        for cache in pooled:
            cache.reserve(cache.length + room)
        spare = [1] * (min(sizes) - n)
        last = [i * self._first + count - 1 for i, count in enumerate(counts)]
        places = [*ends, *spare, *last, *[0 for _ in spare]]
        joint = tokens[0] if n == 1 else torch.cat(list(tokens))
        graph.places.view(-1).copy_(graph.inputs.fill(joint, counts, pooled, [None] * n, places))
        if draws is not None:
            _fill(graph, draws, len(spare))
        graph.replay()
        for cache, end in zip(pooled, ends, strict=True):
            cache.append_to(end + self.steps - 1)
        probs = torch.stack(graph.probs)[:, :n] if graph.probs else None
        return DraftedChain(
            torch.stack(graph.tokens)[:, :n], torch.stack(graph.confidences)[:, :n], probs
        )

    def _record(self, key: tuple[int, Kind]) -> _Graph:
        batch, kind = key
        decoder, device, steps = self._decoder, self._decoder.weights.device, self.steps
        sizes = batch, self._first, self._longest
        fixed = FixedInputs(self._attention, self._scratch, *sizes, device)
        with torch.inference_mode(False):
            made = _Graph(
                fixed,
                torch.ones(2, batch, dtype=torch.int64, device=device),
                torch.ones(2, batch, dtype=torch.float32, device=device),
                torch.zeros(steps, batch, dtype=torch.float64, device=device),
                torch.zeros(steps, batch, dtype=torch.int64, device=device),
            )
        cos, sin = decoder.rotary.upto(self._longest)
        starts = torch.arange(batch + 1, dtype=torch.int32, device=device)

        def states(tokens: Tensor, placed: PlacedTokens) -> Tensor:
            turn, turned = (one.index_select(0, placed.positions)[:, None] for one in (cos, sin))
            return decoder.run(tokens, turn, turned, PooledPlan(self._attention, placed))

        def work() -> None:
            made.tokens, made.confidences, made.probs = [], [], []
            first, (ends, last) = fixed.placed(), made.places
            hidden = states(fixed.tokens, first).index_select(0, last)
            for step in range(steps):
                self._choose(made, kind, decoder.logits(hidden), step)
                if step + 1 < steps:
                    at, keys = ends + step, first.ragged.key_starts
                    seen = (at + 1).int()
                    ragged = Ragged(starts, keys, seen, seen, None, 1, self._longest)
                    placed = PlacedTokens(keys[:-1].long() + at, at, ragged)
                    hidden = states(made.tokens[-1], placed)

        made.work = work
        made.replay = self._capture(work)
        return made

    def _choose(self, made: _Graph, kind: Kind, logits: Tensor, step: int) -> None:
        """Choose each sequence's token from ``logits [batch, V]``."""
        rows = logits[:, : self.vocab_size].float()
        if kind == "greedy":
            top, token = rows.max(-1)
            confidence = torch.exp(rows - top.unsqueeze(-1)).sum(-1).reciprocal()
        else:
            probs = (rows * made.shape[0].unsqueeze(-1)).softmax(-1)
            if kind.endswith("top-p"):
                probs = nucleus(probs, made.shape[1].unsqueeze(-1))
            if kind.startswith("keyed"):
                token = gumbel_max_of_rows(probs, made.keys[step])
            else:
                token = draw_at(probs, made.uniforms[step])
            confidence = probs.gather(1, token.unsqueeze(1)).squeeze(1)
            missing = self.vocab_size - probs.shape[1]
            made.probs.append(F.pad(probs, (0, missing)) if missing > 0 else probs)
        made.tokens.append(token)
        made.confidences.append(confidence)


def _fill(graph: _Graph, draws: Draws, spare: int) -> None:
    """Upload how tokens are drawn; ``spare`` sequences of the graph are junk."""
    device, ones = graph.shape.device, [1.0] * spare
    inverse = [1.0 / temperature for temperature in draws.temperatures]
    shape = [*inverse, *ones, *draws.masses, *ones]
    graph.shape.view(-1).copy_(to_device(shape, device, torch.float32))
    if draws.keys:
        graph.keys.copy_(to_device([[*row, *[0] * spare] for row in draws.keys], device))
    else:
        rows = [[*row, *[0.5] * spare] for row in draws.uniforms]
        graph.uniforms.copy_(to_device(rows, device, torch.float64))
