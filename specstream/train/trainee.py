"""The seam between the trainer and what it trains: one file a method implements `Trainee`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

from torch import Tensor, nn

__all__ = ["Batch", "ChoosesTokens", "Losses", "Trainee", "Unrolls"]


@dataclass(frozen=True, slots=True)
class Batch:
    """Sequences of a prompt and the target's reply, padded on the right, on one device.

    Attributes:
        token_ids: ``[B, T]`` int64.
        replies: ``[B, T]`` bool: True where the token belongs to a reply. Losses are taken where the
            token to predict does.
        present: ``[B, T]`` bool: False for padding.
        states: ``[B, T, depths, hidden]`` in the target's dtype: its hidden states after the layers of
            `Trainee.depths` (see `Extras.depths`); no depths: ``[B, T, 0, hidden]``.
        final: ``[B, T, hidden]``: the input of the target's output head, its final norm applied. The
            target's logits for the token after position t are ``head(final[:, t])``.
    """

    token_ids: Tensor
    replies: Tensor
    present: Tensor
    states: Tensor
    final: Tensor


@dataclass(frozen=True, slots=True)
class Losses:
    """What a trainee made of a batch.

    Attributes:
        loss: ``[]`` float32, with gradients: a mean over the tokens that count.
        accepted: By draft position, sums over tokens of the probability that a sampled draft token is
            accepted, sum min(p, q) (Leviathan et al. 2023, corollary 3.6), given that all before were.
        counted: By draft position, how many tokens that is over; or their weights, where it depends on
            the tokens before how likely it is that the position is reached.
    """

    loss: Tensor
    accepted: Sequence[float]
    counted: Sequence[float]


class Trainee(Protocol):
    """A draft or a head in training.

    Attributes:
        kind: The drafting method.
        depths: The target's layers whose hidden states it learns from; () for none.
        module: Its trainable weights. The target's weights are no part of it.
    """

    kind: str
    depths: tuple[int, ...]
    module: nn.Module

    def losses(self, batch: Batch, *, acceptance: float) -> Losses:
        """Forward pass and loss.

        Args:
            batch: The sequences.
            acceptance: From 0 to 1: the weight of the acceptance-maximising (LK) loss against the KL
                divergence; the trainer raises it during the training.
        """
        ...

    def save(self, folder: Path, card: Mapping[str, str]) -> None:
        """Write a Hugging Face folder that ``--draft`` loads: config.json, model.safetensors, README.md.

        Args:
            folder: An existing, empty folder.
            card: Facts for the card: title to text.
        """
        ...


@runtime_checkable
class ChoosesTokens(Protocol):
    """A trainee that drafts some of the target's tokens only, and learns from the replies which.

    Attributes:
        chooses: Whether it does.
    """

    chooses: bool

    def choose(self, counts: Tensor) -> None:
        """Take the most frequent tokens; called once, before the first step.

        Args:
            counts: ``[V]`` int64: how often each token is in the replies to learn from.
        """
        ...


@runtime_checkable
class Unrolls(Protocol):
    """A trainee that drafts several steps on its own tokens, fewer of them at first."""

    def unroll(self, done: float) -> None:
        """Called before each training step: ``done``, from 0 to 1, of the training is behind."""
        ...
