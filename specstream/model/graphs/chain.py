"""Several greedy steps of a draft as one graph: each feeds its choice to the next."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from specstream.model.graphs.static import Multiply, StaticPass, settled
from specstream.model.weights import DecoderWeights

__all__ = ["StaticChain"]


class StaticChain(nn.Module):
    """A pass of ``width`` tokens, then ``steps - 1`` passes of the one token chosen before.

    Only the first ``vocab_size`` tokens can be chosen.
    """

    def __init__(
        self,
        weights: DecoderWeights,
        width: int,
        steps: int,
        vocab_size: int,
        multiply: Multiply,
    ) -> None:
        super().__init__()
        self.width, self.steps = width, steps
        self._vocab_size = vocab_size
        self._pass = StaticPass(weights, width, 0, len(weights.layers), multiply)

    def forward(
        self, x: Tensor, cos: Tensor, sin: Tensor, ruler: Tensor, *kv: Tensor
    ) -> tuple[Tensor, Tensor]:
        """As `StaticPass.forward`; returns ``tokens [steps]`` and ``confidences [steps]``.

        A token's confidence is its probability, in float32. The rows of all but the last token are
        written behind those of ``x``.
        """
        length, more = ruler.shape[0], self.steps - 1
        torch._check(length + more <= kv[0].shape[1])  # type: ignore[no-untyped-call]
        torch._check(length + more <= cos.shape[0])  # type: ignore[no-untyped-call]
        positions = torch.arange(length - self.width, length, device=ruler.device)
        return self.run(
            x, cos, sin, positions, lambda j: torch.arange(length + j, device=ruler.device), kv
        )

    def run(
        self,
        x: Tensor,
        cos: Tensor,
        sin: Tensor,
        positions: Tensor,
        columns: Callable[[int], Tensor],
        kv: tuple[Tensor, ...],
    ) -> tuple[Tensor, Tensor]:
        """As `StaticPass.run`; ``columns(j)`` are those that step j looks at."""
        tokens, confidences = [], []
        for step in range(self.steps):
            logits = self._pass.run(x, cos, sin, positions, columns(step), kv)
            # Settled: searched while they are computed, the place of the largest comes out wrong.
            last = settled(logits[-1].float())[: self._vocab_size]
            top, token = last.max(-1)
            tokens.append(token)
            confidences.append(torch.exp(last - top).sum(-1).reciprocal())
            x, positions = token.reshape(1), positions[-1:] + 1
        return torch.stack(tokens), torch.stack(confidences)
