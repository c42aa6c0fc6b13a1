"""Passes of few tokens, recorded once on a GPU: no Python and no launches between their products."""

from __future__ import annotations

import logging
from collections.abc import Callable

import torch
from torch import Tensor

from specstream.errors import ConfigError
from specstream.model.decoder import Decoder
from specstream.model.graphs.cudagraphs import GraphedPasses, capture_on_gpu
from specstream.model.graphs.passes import DRAFT, TARGET, CapturePlan, CompiledPasses
from specstream.model.kv.base import RowCache

__all__ = [
    "DRAFT",
    "TARGET",
    "CapturePlan",
    "CompiledPasses",
    "compile_passes",
]

_log = logging.getLogger("specstream.model")

_BEFORE = 6  # tokens before a pass that is tried
_UNITS = 64  # of the dtype's rounding, of the largest logit: the same sums in another order


def compile_passes(
    decoder: Decoder,
    plan: CapturePlan,
    *,
    context_length: int,
    vocab_size: int | None = None,
    check: Callable[[], None] = lambda: None,
) -> CompiledPasses:
    """Capture passes of a model on a GPU, and try each.

    What differs from the eager pass by more than rounding is dropped, with a warning.

    Args:
        decoder: The model.
        plan: Widths and chains to capture.
        context_length: Rows that a sequence may have.
        vocab_size: Tokens that a chain may choose from. Default: all.
        check: Called before each recording; what it raises ends the capturing.

    Raises:
        ConfigError: another device.
    """
    device, vocab = decoder.weights.device, vocab_size or decoder.weights.vocab_size
    if device.type != "cuda":
        raise ConfigError(f"compile: passes can be recorded on a GPU, not on {device.type}")
    made = GraphedPasses(decoder, plan, vocab, capture_on_gpu(device), context_length)
    made.record_all(check)  # now, not during a request
    _drop_what_differs(decoder, made, vocab)
    return made


def _drop_what_differs(decoder: Decoder, made: CompiledPasses, vocab: int) -> None:
    """Compare every captured pass with the eager one, and drop those that are off."""
    allowed = _UNITS * torch.finfo(decoder.weights.dtype).eps
    for width in made.widths:
        off = max(_pass_is_off(decoder, made, width, batch) for batch in made.batches)
        if off > allowed:
            _log.warning("the compiled pass of %d tokens is off by %.3g: not used", width, off)
            made.drop(width)
    for width in made.chains:
        off = _chain_is_off(decoder, made, width, vocab)
        if off > allowed:
            _log.warning("the compiled chain from %d tokens is off by %.3g: not used", width, off)
            made.drop_chain(width)


@torch.inference_mode()
def _pass_is_off(decoder: Decoder, made: CompiledPasses, width: int, batch: int) -> float:
    """The largest difference of logits, as a share of the largest logit (at least 1)."""
    tokens, caches = _begun(decoder, width, 1 + batch)
    found = made([tokens] * batch, caches[1:], [width] * batch)
    if found is None:
        return torch.inf
    wanted = decoder.logits(decoder(tokens, caches[:1], [width]))
    # A second pass reads what the first one wrote.
    more = [decoder.logits(decoder(tokens[:1], [cache], [1])) for cache in caches]
    later = [_off(logits, more[0]) for logits in more[1:]]
    return max([_off(logits, wanted) for logits in found] + later)


@torch.inference_mode()
def _chain_is_off(decoder: Decoder, made: CompiledPasses, width: int, vocab: int) -> float:
    """The same for a chain: of its choices' logits to the best ones, and of what is read next."""
    tokens, caches = _begun(decoder, width, 2)
    chained = made.chain(tokens, caches[1])
    if chained is None:
        return torch.inf
    choices, confidences = chained
    read = torch.cat([tokens, choices[:-1]])
    logits = decoder.logits(decoder(read, caches[:1], [read.shape[0]]))[width - 1 :, :vocab].float()
    chosen = logits.gather(1, choices.unsqueeze(1))
    # A probability implies the logit of its token, given the other logits.
    implied = confidences.log().unsqueeze(1) + logits.logsumexp(-1, keepdim=True)
    more = [decoder.logits(decoder(choices[-1:], [cache], [1])) for cache in caches]
    best = logits.amax(-1, keepdim=True)
    return max(_off(chosen, best), _off(implied, best), _off(more[1], more[0]))


def _begun(decoder: Decoder, width: int, count: int) -> tuple[Tensor, list[RowCache]]:
    """Tokens to read, and caches with the same few tokens before them."""
    tokens = torch.arange(1, _BEFORE + width + 1, device=decoder.weights.device)
    tokens %= decoder.weights.vocab_size
    caches = [decoder.new_cache() for _ in range(count)]
    for cache in caches:
        decoder(tokens[:_BEFORE], [cache], [_BEFORE])
    return tokens[_BEFORE:], caches


def _off(found: Tensor, wanted: Tensor) -> float:
    off = (found.float() - wanted.float()).abs().amax() / wanted.float().abs().amax().clamp_min(1.0)
    return float(off.nan_to_num(torch.inf))
