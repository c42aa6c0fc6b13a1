"""Passes of few tokens, captured once: no Python and no launches between their products."""

from __future__ import annotations

import logging

import torch
from torch import Tensor

from specstream.errors import ConfigError
from specstream.model.graphs.cudagraphs import GraphedPasses, capture_on_gpu
from specstream.model.graphs.inductor import InductorPasses
from specstream.model.graphs.passes import CompiledPasses
from specstream.model.graphs.progress import Progress
from specstream.model.graphs.store import PackageStore
from specstream.model.graphs.widths import DRAFT, TARGET, CapturePlan
from specstream.model.lean import LeanDecoder
from specstream.model.slab import SlabCache

__all__ = [
    "DRAFT",
    "TARGET",
    "CapturePlan",
    "CompiledPasses",
    "Progress",
    "compile_passes",
    "count_packages",
]

_log = logging.getLogger("specstream.model")

_BEFORE = 6  # tokens in front of a pass that is tried
_UNITS = 64  # of the dtype's rounding, of the largest logit: sums in another order, no other sums


def compile_passes(
    lean: LeanDecoder,
    plan: CapturePlan,
    vocab_size: int | None = None,
    store: PackageStore | None = None,
    progress: Progress | None = None,
) -> CompiledPasses:
    """Capture passes of a model, and try each.

    The first time this takes some ten seconds a pass on a CPU; the code is kept in ``store``.
    ``progress`` is told of each pass; what it raises then ends the capturing. What disagrees with the
    plain pass by more than rounding is left out, with a warning.

    Raises:
        ConfigError: there is no way to compile here.
    """
    device, vocab = lean.weights.device, vocab_size or lean.weights.vocab_size
    progress = progress or Progress(count_packages(lean, plan))
    made: CompiledPasses
    if device.type == "cpu":
        store = store or PackageStore()
        made = InductorPasses(lean.weights, lean.rotary, plan, vocab, store, progress)
    elif device.type == "cuda":
        made = GraphedPasses(lean.weights, lean.rotary, plan, vocab, capture_on_gpu(device))
        made.record_all(progress.check)  # not while somebody listens
    else:
        raise ConfigError(
            f"compile: passes can be captured on a CPU or a GPU, not on {device.type}"
        )
    allowed = _UNITS * torch.finfo(lean.weights.dtype).eps
    for width in made.widths:
        off = _pass_is_off(lean, made, width)
        if off > allowed:
            _log.warning("the compiled pass of %d tokens is off by %.3g: not used", width, off)
            made.drop(width)
    for width in made.chains:
        off = _chain_is_off(lean, made, width, vocab)
        if off > allowed:
            _log.warning("the compiled chain from %d tokens is off by %.3g: not used", width, off)
            made.drop_chain(width)
    return made


def count_packages(lean: LeanDecoder, plan: CapturePlan) -> int:
    """How many `compile_passes` will tell a `Progress` of."""
    on_cpu = lean.weights.device.type == "cpu"
    return InductorPasses.packages(len(lean.weights.layers), plan) if on_cpu else 0


@torch.inference_mode()
def _pass_is_off(lean: LeanDecoder, made: CompiledPasses, width: int) -> float:
    """The largest difference of logits, as a share of the largest logit (at least 1)."""
    tokens, caches = _begun(lean, width)
    found = made(tokens, caches[1])
    if found is None:
        return torch.inf
    wanted = lean.logits(lean(tokens, [caches[0]], [width]))
    # A second pass reads what the first one wrote.
    more = [lean.logits(lean(tokens[:1], [cache], [1])) for cache in caches]
    return _off(torch.cat([found, more[1]]), torch.cat([wanted, more[0]]))


@torch.inference_mode()
def _chain_is_off(lean: LeanDecoder, made: CompiledPasses, width: int, vocab: int) -> float:
    """The same for a chain: of its choices' logits to the best ones, and of what is read next."""
    tokens, caches = _begun(lean, width)
    chained = made.chain(tokens, caches[1])
    if chained is None:
        return torch.inf
    choices, confidences = chained
    read = torch.cat([tokens, choices[:-1]])
    logits = lean.logits(lean(read, [caches[0]], [read.shape[0]]))[width - 1 :, :vocab].float()
    chosen = logits.gather(1, choices.unsqueeze(1))
    # A probability tells the logit of its token, given the others.
    implied = confidences.log().unsqueeze(1) + logits.logsumexp(-1, keepdim=True)
    more = [lean.logits(lean(choices[-1:], [cache], [1])) for cache in caches]
    best = logits.amax(-1, keepdim=True)
    return max(_off(chosen, best), _off(implied, best), _off(more[1], more[0]))


def _begun(lean: LeanDecoder, width: int) -> tuple[Tensor, list[SlabCache]]:
    """Tokens to read, and two caches with the same few before them."""
    tokens = torch.arange(1, _BEFORE + width + 1, device=lean.weights.device)
    tokens %= lean.weights.vocab_size
    caches = [lean.new_cache() for _ in range(2)]
    for cache in caches:
        lean(tokens[:_BEFORE], [cache], [_BEFORE])
    return tokens[_BEFORE:], caches


def _off(found: Tensor, wanted: Tensor) -> float:
    off = (found.float() - wanted.float()).abs().amax() / wanted.float().abs().amax().clamp_min(1.0)
    return float(off.nan_to_num(torch.inf))
