"""One request's part of a batch that is verified."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from specstream.model.sampling import Uniforms
from specstream.speculation.proposal import Proposal
from specstream.types import SamplingParams

__all__ = ["Case"]


@dataclass(frozen=True, slots=True)
class Case:
    """One request's part of a batch.

    Attributes:
        proposal: A chain or tree of K tokens.
        logits: ``[K + 1, V]`` of the target, processors applied: row 0 after the committed tokens, row
            j + 1 after proposed token j on its path. V is the same for all cases of a batch.
        params: The sampling parameters.
        generator: The verifier's noise, independent of the draft's. A sampled case takes two uniforms,
            any other none.
        key: For exact match the seed, and the absolute position of the token that row 0 decides.
        predictions: Whether the verdict must have predictions.
    """

    proposal: Proposal
    logits: Tensor
    params: SamplingParams
    generator: torch.Generator | Uniforms
    key: tuple[int, int] | None = None
    predictions: bool = False

    @property
    def sampled(self) -> bool:
        """Whether a rule decides what is accepted, rather than agreement with the target's choices."""
        return not self.params.greedy and self.key is None
