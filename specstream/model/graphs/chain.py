"""Several greedy steps of a draft as one graph: each step reads the token that the last one chose."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from specstream.model.graphs.static import LENGTH, Example, StaticPass, causal, fits, settled
from specstream.model.weights import DecoderWeights

__all__ = ["StaticChain", "greedy_steps"]

_POSITIONS, _LENGTH = 64, 40  # of the example; the values don't matter


def greedy_steps(
    tokens: Tensor, steps: int, logits_after: Callable[[Tensor, int], Tensor]
) -> tuple[Tensor, Tensor]:
    """Choose ``tokens [steps]``, each the likeliest after those before, and their probabilities.

    ``logits_after(tokens [n], step)`` reads n tokens and returns the last one's logits, ``[V]`` float32:
    first of ``tokens``, then of each choice but the last.
    """
    chosen, confidences = [], []
    for step in range(steps):
        logits = logits_after(tokens, step)
        top, token = logits.max(-1)
        chosen.append(token)
        confidences.append(torch.exp(logits - top).sum(-1).reciprocal())
        tokens = token.reshape(1)
    return torch.stack(chosen), torch.stack(confidences)


class StaticChain(nn.Module):
    """A pass of ``width`` tokens, then ``steps - 1`` passes of the token chosen before.

    Only the first ``vocab_size`` tokens can be chosen.
    """

    def __init__(self, weights: DecoderWeights, width: int, steps: int, vocab_size: int) -> None:
        super().__init__()
        self.width, self._steps, self._vocab_size = width, steps, vocab_size
        self.title = f"a chain from {width} tokens, layers 1 to {len(weights.layers)}"
        self._sizes = weights
        self._pass = StaticPass(weights, width, 0, len(weights.layers), ends=True)

    @property
    def recipe(self) -> dict[str, object]:
        """See `StaticPass.recipe`."""
        steps = {"kind": "chain", "steps": self._steps, "vocab_size": self._vocab_size}
        return self._pass.recipe | steps

    def example(self) -> Example:
        """See `Example`."""
        (x, _, _, _, *rows), (*_, capacities) = self._pass.example()
        table = torch.zeros(_POSITIONS, self._sizes.head_dim, dtype=self._sizes.dtype)
        positions = {0: torch.export.Dim("positions", min=16, max=2**24)}
        shapes: tuple[Any, ...] = ({}, positions, positions, {0: LENGTH}, capacities)
        return (x, table, table.clone(), torch.empty(_LENGTH, dtype=torch.uint8), *rows), shapes

    def forward(
        self, x: Tensor, cos: Tensor, sin: Tensor, ruler: Tensor, *kv: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Append ``x [W]`` and go on: ``tokens [steps]`` and ``confidences [steps]``.

        A token's confidence is its probability, in float32. The rows of all but the last token are
        written behind those of ``x``.

        Args:
            x: See `StaticPass.forward`.
            cos: ``[positions, head_dim]``, of all positions; ``sin`` likewise.
            sin: See ``cos``.
            ruler: ``[n]``, n the sequence's length after ``x``: only its length is used, which makes n a
                size and not a value.
            kv: See `StaticPass.forward`.
        """
        length = ruler.shape[0]
        fits(length + self._steps - 1, kv)
        torch._check(length + self._steps - 1 <= cos.shape[0])  # type: ignore[no-untyped-call]

        def logits_after(tokens: Tensor, step: int) -> Tensor:
            width, end = tokens.shape[0], length + step
            here = torch.arange(end - width, end)
            mask = causal(width, end, self._sizes.dtype)
            logits, _ = self._pass.run(tokens, cos[here], sin[here], mask, kv)
            # Settled: an argmax fused with the computation of its input returns a wrong index.
            return settled(logits[-1].float())[: self._vocab_size]

        return greedy_steps(x, self._steps, logits_after)
