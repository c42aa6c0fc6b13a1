"""Early exits: logits from the states in the middle of a target.

An untrained exit applies the target's final norm and output head to these states. A trained exit first
adds a small MLP's output to them, then norms them with weights of its own; the output head is the
target's.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import torch.nn.functional as F
from torch import Tensor

from specstream.errors import ModelUnsupported
from specstream.model.heads.base import check_made_for, number, read_head_config
from specstream.model.heads.tensors import Placed, Tensors
from specstream.model.layers import rms_norm
from specstream.model.runner import ModelRunner

__all__ = ["MODEL_TYPE", "EarlyExit", "ExitWeights", "load"]

MODEL_TYPE = "specstream-early-exit"


class ExitWeights(NamedTuple):
    """A trained exit's tensors.

    Attributes:
        norm: ``[hidden]``, before the MLP.
        up: ``[width, hidden]``.
        down: ``[hidden, width]``.
        head_norm: ``[hidden]``, before the output head.
    """

    norm: Tensor
    up: Tensor
    down: Tensor
    head_norm: Tensor


class EarlyExit:
    """Predicts the target's next token from the states after its first layers; a `Head`.

    Args:
        target: The target model, which must run through `Decoder`.
        layers: After how many of its layers the exit is; at least 1, fewer than all.
        weights: A trained exit's tensors, in the target's dtype and on its device; None: the states go
            to the target's final norm and output head as they are.

    Raises:
        ModelUnsupported: the target can't be left there.
    """

    kind = "early-exit"
    depths: tuple[int, ...] = ()  # its own passes return the states

    def __init__(self, target: ModelRunner, layers: int, weights: ExitWeights | None = None) -> None:
        target.check_states((layers,))
        depth = len(target.decoder.weights.layers)
        if not 0 < layers < depth:
            raise ModelUnsupported(
                f"{type(target.model).__name__} has {depth} layers: an early exit is behind 1 to "
                f"{depth - 1} of them, not {layers}"
            )
        self.layers, self._decoder = layers, target.decoder
        self.parameters = sum(tensor.numel() for tensor in weights or ())
        self.nbytes = sum(tensor.nbytes for tensor in weights or ())
        self.trained = weights is not None
        if weights is not None:
            eps = self._decoder.weights.eps
            self._norm = rms_norm(weights.norm, eps)
            self._head_norm = rms_norm(weights.head_norm, eps)
            self._up = self._decoder.products(weights.up, None)
            self._down = self._decoder.products(weights.down, None)

    def logits(self, states: Tensor) -> Tensor:
        """Logits ``[n, V]`` of the states ``[n, hidden]`` after `layers` layers."""
        if not self.trained:
            return self._decoder.logits(self._decoder.normed(states))
        inner = F.silu(self._up(self._norm(states)))
        return self._decoder.logits(self._head_norm(states + self._down(inner)))


def load(folder: Path, target: ModelRunner) -> EarlyExit:
    """Load the trained exit of a folder.

    Raises:
        ModelBroken: its config or tensors are missing or malformed.
        ModelUnsupported: it was made for another target, or the target can't be left early.
    """
    config, sizes = read_head_config(folder), target.decoder.weights
    check_made_for(
        f"the early exit in {folder}",
        ("hidden states of size", config.get("hidden_size", 0), sizes.hidden),
        ("a vocabulary of", config.get("vocab_size", 0), sizes.vocab_size),
        ("states of so many layers:", config.get("num_hidden_layers", 0), len(sizes.layers)),
    )
    layers, width = number(config, "layers"), number(config, "width")
    take, hidden = Placed(Tensors.read(folder), sizes.embedding), sizes.hidden
    weights = ExitWeights(
        norm=take("norm.weight", hidden),
        up=take("up.weight", width, hidden),
        down=take("down.weight", hidden, width),
        head_norm=take("head_norm.weight", hidden),
    )
    return EarlyExit(target, layers, weights)
