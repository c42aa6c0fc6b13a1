"""Runs several sequences in one pass of a `Decoder`, with what is asked for beyond logits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

import torch
from torch import Tensor

from specstream.model.attention.base import Batch
from specstream.model.decoder import Decoder
from specstream.model.forward import PLAIN, Extras, ForwardInput, ForwardOutput, Taps
from specstream.model.kv.base import RowCache

__all__ = ["decoder_forward"]


def decoder_forward(
    decoder: Decoder,
    inputs: Sequence[ForwardInput],
    extras: Extras,
    fit: Callable[[Tensor], Tensor],
) -> ForwardOutput:
    """See `ModelRunner.forward`; ``fit`` brings logits to their width."""
    counts = [item.token_ids.shape[0] for item in inputs]
    keeps = [item.keep for item in inputs]
    tokens = torch.cat([item.token_ids for item in inputs])
    caches = [cast(RowCache, item.cache) for item in inputs]
    taps = None if extras is PLAIN else Taps(extras, counts)
    if extras.rider is not None:
        extras.rider.prepare(Batch(caches, counts, keeps))
    hidden = decoder(
        tokens,
        caches,
        counts,
        keeps,
        [item.tree for item in inputs],
        [item.entered for item in inputs],
        taps,
        stop=None if extras.logits else max(extras.depths),
    )
    states = [] if taps is None else taps.states
    if taps is not None and extras.rider is not None:
        extras.rider.run(taps.at(extras.rider.depth))
    if not extras.logits:
        return ForwardOutput(states=states)
    logits = fit(decoder.logits(hidden))
    return ForwardOutput(list(logits.split_with_sizes(keeps)), states)
