"""Passes of few tokens, captured once on a GPU: a replay needs no Python and no launch per kernel."""

from __future__ import annotations

import logging
from collections.abc import Callable

import torch
from torch import Tensor

from specstream.errors import ConfigError
from specstream.model.agreement import off_by, rounding
from specstream.model.decoder import Decoder
from specstream.model.forward import ForwardInput
from specstream.model.graphs.cudagraphs import (
    DRAFT,
    TARGET,
    CapturePlan,
    GraphedPasses,
    capture_on_gpu,
)
from specstream.model.kv.base import RowCache

__all__ = ["DRAFT", "TARGET", "CapturePlan", "GraphedPasses", "compile_passes"]

_log = logging.getLogger("specstream.model")

_BEFORE = 6  # tokens in the cache before a trial pass


def compile_passes(
    decoder: Decoder,
    plan: CapturePlan,
    *,
    context_length: int,
    vocab_size: int | None = None,
    check: Callable[[], None] = lambda: None,
) -> GraphedPasses:
    """Capture passes of a model on a GPU, and compare each with the eager pass.

    A captured pass that differs by more than rounding is dropped, with a warning.

    Args:
        decoder: The model.
        plan: Widths and chains to capture.
        context_length: Rows that a sequence may have.
        vocab_size: A chain chooses from this many first tokens of the vocabulary. Default: all.
        check: Called before each capture; an exception that it raises ends the capturing.

    Raises:
        ConfigError: the device is not a GPU.
    """
    device, vocab = decoder.weights.device, vocab_size or decoder.weights.vocab_size
    if device.type != "cuda":
        raise ConfigError(f"compile: passes can be recorded on a GPU, not on {device.type}")
    made = GraphedPasses(decoder, plan, vocab, capture_on_gpu(device), context_length)
    made.record_all(check)  # now, not during a request
    _drop_what_differs(decoder, made, vocab)
    return made


def _drop_what_differs(decoder: Decoder, made: GraphedPasses, vocab: int) -> None:
    """Compare every captured pass with the eager one, and drop those that differ."""
    allowed = rounding(decoder.weights.dtype)
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
def _pass_is_off(decoder: Decoder, made: GraphedPasses, width: int, batch: int) -> float:
    """The largest difference of logits, relative to the largest logit (at least 1)."""
    tokens, caches = _begun(decoder, width, 1 + batch)
    found = made([ForwardInput(tokens, cache, width) for cache in caches[1:]])
    if found is None:
        return torch.inf
    (wanted,) = decoder([ForwardInput(tokens, caches[0], width)]).logits
    # A second pass reads the cache rows that the first one wrote.
    more = [decoder([ForwardInput(tokens[:1], cache)]).logits[0] for cache in caches]
    later = [off_by(logits, more[0]) for logits in more[1:]]
    return max([off_by(logits, wanted) for logits in found] + later)


@torch.inference_mode()
def _chain_is_off(decoder: Decoder, made: GraphedPasses, width: int, vocab: int) -> float:
    """As `_pass_is_off` for a chain: checks its choices, their probabilities and the rows it wrote."""
    tokens, caches = _begun(decoder, width, 2)
    chained = made.chain(tokens, caches[1])
    if chained is None:
        return torch.inf
    choices, confidences = chained
    read = torch.cat([tokens, choices[:-1]])
    (logits,) = decoder([ForwardInput(read, caches[0], choices.shape[0])]).logits
    logits = logits[:, :vocab].float()
    chosen = logits.gather(1, choices.unsqueeze(1))
    # The logit that each confidence implies: log p plus the log-sum-exp of the eager logits.
    implied = confidences.log().unsqueeze(1) + logits.logsumexp(-1, keepdim=True)
    more = [decoder([ForwardInput(choices[-1:], cache)]).logits[0] for cache in caches]
    best = logits.amax(-1, keepdim=True)
    return max(off_by(chosen, best), off_by(implied, best), off_by(more[1], more[0]))


def _begun(decoder: Decoder, width: int, count: int) -> tuple[Tensor, list[RowCache]]:
    """``width`` tokens for a trial pass, and ``count`` caches with the same few tokens before them."""
    tokens = torch.arange(1, _BEFORE + width + 1, device=decoder.weights.device)
    tokens %= decoder.weights.vocab_size
    caches = [decoder.new_cache() for _ in range(count)]
    for cache in caches:
        decoder([ForwardInput(tokens[:_BEFORE], cache)])
    return tokens[_BEFORE:], caches
