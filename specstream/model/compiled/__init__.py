"""Passes of few tokens, captured once: no Python and no launches between their products."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from specstream.errors import ConfigError
from specstream.model.compiled.cudagraphs import GraphedPasses, capture_on_gpu
from specstream.model.compiled.inductor import InductorPasses
from specstream.model.compiled.store import PackageStore
from specstream.model.lean import LeanDecoder
from specstream.model.slab import SlabCache

__all__ = ["DRAFT_WIDTHS", "TARGET_WIDTHS", "CompiledPasses", "compile_passes"]

_log = logging.getLogger("specstream.model")

# Tokens of a pass. Wider ones are rare, and for them the library's matrix products are as fast.
TARGET_WIDTHS = (1, 2, 3, 4, 5, 6, 8)
DRAFT_WIDTHS = (1, 2, 3)


class CompiledPasses(Protocol):
    """A model's passes for one sequence at a time, for the numbers of tokens ``widths``."""

    @property
    def widths(self) -> tuple[int, ...]:
        """Numbers of tokens that there is code for."""
        ...

    def __call__(self, tokens: Tensor, cache: SlabCache) -> Tensor | None:
        """Append ``tokens [n]`` to the sequence; logits ``[n, V]``, or None if it isn't for this."""
        ...

    def drop(self, width: int) -> None:
        """Do without a width."""
        ...


def compile_passes(
    lean: LeanDecoder, widths: Sequence[int], store: PackageStore | None = None
) -> CompiledPasses:
    """Capture the passes of a model for the given numbers of tokens, and try them.

    The first time this takes some ten seconds a width on a CPU; the code is kept in ``store``. A
    width that disagrees with the plain pass by more than rounding is left out, with a warning.

    Raises:
        ConfigError: there is no way to compile here.
    """
    device = lean.weights.device
    made: CompiledPasses
    if device.type == "cpu":
        made = InductorPasses(lean.weights, lean.rotary, widths, store or PackageStore())
    elif device.type == "cuda":
        made = GraphedPasses(lean.weights, lean.rotary, widths, capture_on_gpu())
    else:
        raise ConfigError(
            f"compile: passes can be captured on a CPU or a GPU, not on {device.type}"
        )
    for width in made.widths:
        off = _difference(lean, made, width)
        if off > 64 * torch.finfo(lean.weights.dtype).eps:
            _log.warning("the compiled pass of %d tokens is off by %.3g: not used", width, off)
            made.drop(width)
    return made


@torch.inference_mode()
def _difference(lean: LeanDecoder, made: CompiledPasses, width: int) -> float:
    """The largest difference of logits, as a share of the largest logit (at least 1)."""
    count, vocab = 6 + width, lean.weights.vocab_size
    tokens = torch.arange(1, count + 1, device=lean.weights.device) % vocab
    caches = [lean.new_cache() for _ in range(2)]
    for cache in caches:
        lean(tokens[:6], [cache], [6])
    wanted = lean.logits(lean(tokens[6:], [caches[0]], [width])).float()
    found = made(tokens[6:], caches[1])
    if found is None:
        return float("inf")
    # A second pass reads what the first one wrote.
    wanted = torch.cat([wanted, lean.logits(lean(tokens[:1], [caches[0]], [1])).float()])
    after = lean.logits(lean(tokens[:1], [caches[1]], [1]))
    found = torch.cat([found, after]).float()
    off = (found - wanted).abs().amax() / wanted.abs().amax().clamp_min(1.0)
    return float(off.nan_to_num(torch.inf))
