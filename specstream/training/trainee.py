"""What is trained: the interface of a head, and decoder layers as trainable modules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

from torch import Tensor, nn
from transformers.activations import ACT2FN

from specstream.model.heads.base import LayerShape

__all__ = ["ChoosesTokens", "Losses", "Mlp", "Trainee", "TrainingBatch", "Unrolls", "projections"]


@dataclass(frozen=True, slots=True)
class TrainingBatch:
    """Sequences of a prompt and the target's reply, padded on the right, on one device.

    Attributes:
        token_ids: ``[B, T]`` int64.
        replies: ``[B, T]`` bool: True where the token belongs to a reply, False for padding. Losses are
            taken on the prediction of these tokens.
        tokens: Number of tokens, padding not counted.
        states: ``[B, T, depths, hidden]`` in the target's dtype: its hidden states after the layers of
            `Trainee.depths` (see `Extras.depths`); ``[B, T, 0, hidden]`` if there are none.
        final: ``[B, T, hidden]``: the input of the target's output head, its final norm applied. The
            target's logits for the token after position t are ``head(final[:, t])``.
    """

    token_ids: Tensor
    replies: Tensor
    tokens: int
    states: Tensor
    final: Tensor


@dataclass(frozen=True, slots=True)
class Losses:
    """The loss and acceptance of a trainee on a batch.

    Attributes:
        loss: ``[]`` float32, with gradients: a mean over the tokens that count.
        accepted: By draft position, the sum over tokens of the probability that a sampled draft token
            is accepted given that all before were: sum min(p, q) (Leviathan et al. 2023, corollary 3.6).
        counted: By draft position, the number of these tokens; or the sum of their weights, if a token
            is weighted by the probability that its position is reached.
    """

    loss: Tensor
    accepted: Sequence[float]
    counted: Sequence[float]


class Trainee(Protocol):
    """A draft or a head in training.

    Attributes:
        depths: The depths (numbers of target layers) whose hidden states it reads; () for none.
        module: The trainable weights, without weights of the target.
    """

    depths: tuple[int, ...]
    module: nn.Module

    def losses(self, batch: TrainingBatch, *, acceptance: float) -> Losses:
        """Run the forward pass and compute loss and acceptance.

        Args:
            batch: The sequences.
            acceptance: Weight, from 0 to 1, of the acceptance-maximising (LK) loss; the rest goes to the
                KL divergence. The trainer raises the weight during the training.
        """
        ...

    def save(self, folder: Path, card: Mapping[str, str]) -> None:
        """Write a Hugging Face folder that ``--draft`` loads: config.json, model.safetensors, README.md.

        Args:
            folder: An existing, empty folder.
            card: Facts for the model card, title to text.
        """
        ...


@runtime_checkable
class ChoosesTokens(Protocol):
    """A trainee that can restrict drafting to the most frequent tokens of the replies.

    Attributes:
        chooses: Whether this trainee does, so that `choose` must be called.
    """

    chooses: bool

    def choose(self, counts: Tensor) -> None:
        """Choose the tokens that can be drafted; called once, before the first step.

        Args:
            counts: ``[V]`` int64: how often each token is in the replies to learn from.
        """
        ...


@runtime_checkable
class Unrolls(Protocol):
    """A head trained on several draft steps; the number grows during training."""

    def unroll(self, done: float) -> None:
        """Set the number of steps; called before each training step with the part that is done."""
        ...


def projections(sizes: LayerShape, wide: int = 1) -> dict[str, nn.Module]:
    """Make the four matrices of attention; the output matrix has no bias.

    Args:
        sizes: Sizes of the layer.
        wide: Width of the input of queries, keys and values, in multiples of the hidden size.
    """
    s = sizes
    rows, kv_rows, entry = s.heads * s.head_dim, s.kv_heads * s.head_dim, wide * s.hidden
    return {
        "q_proj": nn.Linear(entry, rows, bias=s.bias),
        "k_proj": nn.Linear(entry, kv_rows, bias=s.bias),
        "v_proj": nn.Linear(entry, kv_rows, bias=s.bias),
        "o_proj": nn.Linear(rows, s.hidden, bias=False),
    }


class Mlp(nn.Module):
    """The layer's gated MLP, with the activation of its config."""

    def __init__(self, sizes: LayerShape) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(sizes.hidden, sizes.intermediate, bias=False)
        self.up_proj = nn.Linear(sizes.hidden, sizes.intermediate, bias=False)
        self.down_proj = nn.Linear(sizes.intermediate, sizes.hidden, bias=False)
        self._activation = ACT2FN[sizes.activation]

    def forward(self, x: Tensor) -> Tensor:
        """Map states ``[..., hidden]`` to the layer's second addend, of the same shape."""
        result: Tensor = self.down_proj(self._activation(self.gate_proj(x)) * self.up_proj(x))
        return result
