"""Passes of few tokens, captured once on a GPU: a replay needs no Python and no launch per kernel."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from specstream.errors import ConfigError
from specstream.model.decoder import Decoder
from specstream.model.forward import PLAIN, Extras, ForwardInput
from specstream.model.graphs.capture import DRAFT, TARGET, CapturePlan, batches_up_to, capture_on_gpu
from specstream.model.graphs.chains import DraftedChain, Draws, GraphedChains
from specstream.model.graphs.passes import GraphedPasses
from specstream.model.kv import RowCache
from specstream.model.numerics import off_by, rounding
from specstream.model.tree import Tree

__all__ = [
    "DRAFT",
    "TARGET",
    "CapturePlan",
    "DraftedChain",
    "Draws",
    "Graphs",
    "batches_up_to",
    "compile_passes",
    "drop_what_differs",
]

_log = logging.getLogger("specstream.model")


@dataclass(frozen=True, slots=True)
class Graphs:
    """A model's captured passes and, for a draft, its captured chains.

    Attributes:
        passes: The passes.
        chains: The chains; None: the plan has none.
        nbytes: Memory that the captures took.
    """

    passes: GraphedPasses
    chains: GraphedChains | None
    nbytes: int

    @property
    def summary(self) -> str:
        """One line about what was captured, and what was left out and why."""
        count = len(self.passes.captured)
        words = f"{count} captured passes"
        if self.chains is not None:
            words += f" and {len(self.chains.captured)} chains"
        words += f", {self.nbytes / 2**20:.0f} MiB"
        missing = self.passes.missing or (self.chains.missing if self.chains else "")
        return words + (f"; the others run eagerly: {missing}" if missing else "")


def compile_passes(
    decoder: Decoder,
    plan: CapturePlan,
    *,
    context_length: int,
    most: int,
    vocab_size: int | None = None,
    depths: Sequence[int] = (),
    check: Callable[[], None] = lambda: None,
) -> Graphs:
    """Capture passes of a model on a GPU, and compare each with the eager pass.

    What can't be captured, and what differs by more than rounding, is left out with one warning.

    Args:
        decoder: The model.
        plan: Widths and chains to capture.
        context_length: Rows that a sequence may have.
        most: The most sequences that share a pass.
        vocab_size: A chain chooses from this many first tokens of the vocabulary. Default: all.
        depths: Depths whose hidden states the captured passes return, too.
        check: Called before each capture; an exception that it raises ends the capturing.

    Raises:
        ConfigError: the device is not a GPU.
    """
    device, vocab = decoder.weights.device, vocab_size or decoder.weights.vocab_size
    if device.type != "cuda":
        raise ConfigError(f"compile: passes can be recorded on a GPU, not on {device.type}")
    capture, batches = capture_on_gpu(device), batches_up_to(most)
    before, _ = torch.cuda.mem_get_info(device)
    passes = GraphedPasses(decoder, plan, capture, context_length, batches, depths)
    passes.record_all(check)  # now, not during a request
    chains = None
    # With a kernel that reads as many rows as the longest sequence may have, each step would.
    if plan.steps and passes.by_length:
        chains = GraphedChains(decoder, plan, vocab, capture, context_length, batches)
        chains.record_all(check)
    drop_what_differs(decoder, passes, chains)
    after, _ = torch.cuda.mem_get_info(device)
    made = Graphs(passes, chains, max(0, before - after))
    missing = passes.missing or (chains is not None and chains.missing)
    (_log.warning if missing else _log.info)("%s", made.summary)
    return made


def drop_what_differs(decoder: Decoder, passes: GraphedPasses, chains: GraphedChains | None) -> None:
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
        _log.warning("captured passes that differ from eager ones are not used: %s", ", ".join(dropped))


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
