"""Compares what was captured with eager passes, and drops what differs."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import torch
from torch import Tensor

from specstream.model.decoder import Decoder
from specstream.model.forward import PLAIN, Extras, ForwardInput
from specstream.model.graphs.chains import Draws, GraphedChains
from specstream.model.graphs.passes import GraphedPasses
from specstream.model.kv.base import RowCache
from specstream.model.numerics import off_by, rounding
from specstream.model.tree import Tree

__all__ = ["drop_what_differs"]

_log = logging.getLogger("specstream.model")


def drop_what_differs(
    decoder: Decoder, passes: GraphedPasses, chains: GraphedChains | None
) -> None:
    """Compare captured passes and chains with eager passes; drop those that differ, with a warning."""
    allowed, dropped = rounding(decoder.weights.dtype), list[str]()
    for batch, width in passes.captured:
        off = _pass_is_off(decoder, passes, batch, width)
        if off > allowed:
            dropped.append(f"{batch} x {width} tokens by {off:.3g}")
            passes.drop((batch, width))
    for key in chains.captured if chains is not None else ():
        assert chains is not None
        off = _chain_is_off(decoder, chains, *key)
        if off > allowed:
            dropped.append(f"chain of {key[0]} ({key[1]}) by {off:.3g}")
            chains.drop(key)
    if dropped:
        _log.warning(
            "captured passes that differ from eager ones are not used: %s", ", ".join(dropped)
        )


@torch.inference_mode()
def _pass_is_off(decoder: Decoder, made: GraphedPasses, batch: int, width: int) -> float:
    """The largest difference of logits and states, relative to the largest value (at least 1).

    Sequences have different tokens and lengths, so that exchanged ones would be seen; one is shorter
    than the pass, and one place is left to the scratch slot where there is room for it.
    """
    count = batch - 1 if made.fitting(batch - 1, width) == (batch, width) and batch > 1 else batch
    shapes = [width] * count
    if count > 1:
        shapes[-1] = max(1, width - 1)
    trees: list[Tree | None] = [None] * count
    if width > 3 and made.trees:
        trees[0] = Tree((-1, -1, *range(width - 3)))
    pairs = [_begun(decoder, shape, number) for number, shape in enumerate(shapes)]

    def inputs(which: int) -> list[ForwardInput]:
        each = zip(pairs, trees, strict=True)
        return [ForwardInput(ids, side[which], ids.shape[0], tree) for (ids, side), tree in each]

    found = made(inputs(0), made.depths)
    if found is None:
        return torch.inf
    wanted = decoder(inputs(1), Extras(made.depths) if made.depths else PLAIN)
    # A further pass reads the cache rows that these wrote.
    more = [
        decoder([ForwardInput(tokens[:1], side[which]) for tokens, side in pairs]).logits
        for which in (0, 1)
    ]
    sides = [[*found.logits, *found.states, *more[0]], [*wanted.logits, *wanted.states, *more[1]]]
    return max(off_by(mine, theirs) for mine, theirs in zip(*sides, strict=True))


@torch.inference_mode()
def _chain_is_off(decoder: Decoder, chains: GraphedChains, batch: int, kind: str) -> float:
    """As `_pass_is_off` for a chain: checks its choices, their probabilities and the rows it wrote."""
    pairs = [_begun(decoder, 1 + number % 2, number) for number in range(batch)]
    tokens = [one for one, _ in pairs]
    draws = None
    if kind != "greedy":
        # So cold that the likeliest token is drawn whatever the noise: what is checked is the rest.
        mass = 0.9 if kind.endswith("top-p") else 1.0
        steps = range(chains.steps)
        noise = [[0.5] * batch for _ in steps], [[n + 1 for n in range(batch)] for _ in steps]
        keyed = kind.startswith("keyed")
        cold = [1e-2] * batch
        draws = Draws(cold, [mass] * batch, () if keyed else noise[0], noise[1] if keyed else ())
    written = chains(tokens, [side[0] for _, side in pairs], draws)
    if written is None:
        return torch.inf
    worst = 0.0
    for number, (read, side) in enumerate(pairs):
        chosen = written.tokens[:, number]
        text = torch.cat([read, chosen[:-1]])
        (rows,) = decoder([ForwardInput(text, side[1], chosen.shape[0])]).logits
        rows = rows[:, : chains.vocab_size].float()
        best, mine = rows.amax(-1, keepdim=True), rows.gather(1, chosen.unsqueeze(1))
        more = [decoder([ForwardInput(chosen[-1:], cache)]).logits[0] for cache in side]
        worst = max(worst, off_by(mine, best), off_by(more[0], more[1]))
        if kind == "greedy":
            # The logit that a confidence implies: log p plus the log-sum-exp of the eager logits.
            implied = written.confidences[:, number].log() + rows.logsumexp(-1)
            worst = max(worst, off_by(implied.unsqueeze(1), best))
    return worst


def _begun(decoder: Decoder, width: int, number: int) -> tuple[Tensor, Sequence[RowCache]]:
    """A trial sequence of its own length and tokens: ``width`` more tokens, and two equal caches."""
    before, vocab = 3 + number, decoder.weights.vocab_size
    tokens = torch.arange(before + width, device=decoder.weights.device)
    tokens = (tokens * 7 + 13 * number + 1) % vocab
    caches = [decoder.new_cache() for _ in range(2)]
    for cache in caches:
        decoder([ForwardInput(tokens[:before], cache)])
    return tokens[before:], caches
