"""Several greedy steps of a draft as one graph: each step reads the token that the last one chose."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from specstream.model.graphs.static import Example, StaticPass, settled
from specstream.model.weights import DecoderWeights

__all__ = ["StaticChain", "best_token"]


def best_token(logits: Tensor) -> tuple[Tensor, Tensor]:
    """The likeliest token of ``logits [V]`` and its probability."""
    top, token = logits.max(-1)
    return token, torch.exp(logits - top).sum(-1).reciprocal()


class StaticChain(nn.Module):
    """A pass of ``width`` tokens, then ``steps - 1`` passes of the token chosen before.

    Only the first ``vocab_size`` tokens can be chosen.
    """

    def __init__(self, weights: DecoderWeights, width: int, steps: int, vocab_size: int) -> None:
        super().__init__()
        self.width, self._steps, self._vocab_size = width, steps, vocab_size
        self.title = f"a chain from {width} tokens, layers 1 to {len(weights.layers)}"
        self._pass = StaticPass(weights, width, 0, len(weights.layers), ends=True)

    @property
    def recipe(self) -> dict[str, object]:
        """See `StaticPass.recipe`."""
        steps = {"kind": "chain", "steps": self._steps, "vocab_size": self._vocab_size}
        return self._pass.recipe | steps

    def example(self) -> Example:
        """See `Example`."""
        return self._pass.example()

    def forward(
        self, x: Tensor, cos: Tensor, sin: Tensor, ruler: Tensor, *kv: Tensor
    ) -> tuple[Tensor, Tensor]:
        """As `StaticPass.forward`; returns ``tokens [steps]`` and ``confidences [steps]``.

        A token's confidence is its probability, in float32. The rows of all but the last token are
        written behind those of ``x``.
        """
        length, more = ruler.shape[0], self._steps - 1
        torch._check(length + more <= kv[0].shape[1])  # type: ignore[no-untyped-call]
        torch._check(length + more <= cos.shape[0])  # type: ignore[no-untyped-call]
        positions = torch.arange(length - self.width, length)
        tokens, confidences = [], []
        for step in range(self._steps):
            logits = self._pass.run(x, cos, sin, positions, length + step, kv)
            # Settled: an argmax fused with the computation of its input returns a wrong index.
            token, confidence = best_token(settled(logits[-1].float())[: self._vocab_size])
            tokens.append(token)
            confidences.append(confidence)
            x, positions = token.reshape(1), positions[-1:] + 1
        return torch.stack(tokens), torch.stack(confidences)
