"""Passes of few tokens, captured once on a GPU: a replay needs no Python and no launch per kernel."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from specstream.errors import ConfigError
from specstream.model.decoder import Decoder
from specstream.model.graphs.agreement import drop_what_differs
from specstream.model.graphs.capture import (
    DRAFT,
    TARGET,
    CapturePlan,
    batches_up_to,
    capture_on_gpu,
)
from specstream.model.graphs.chains import DraftedChain, Draws, GraphedChains
from specstream.model.graphs.passes import GraphedPasses

__all__ = [
    "DRAFT",
    "TARGET",
    "CapturePlan",
    "DraftedChain",
    "Draws",
    "Graphs",
    "batches_up_to",
    "compile_passes",
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
