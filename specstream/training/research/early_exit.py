"""Trains an early exit of a target: an adapter between an inner layer and the output head."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase

from specstream.model.heads.research.early_exit import MODEL_TYPE
from specstream.model.runner import ModelRunner
from specstream.training.files import read_written, write_head
from specstream.training.loss import distance, joined, layers_of, settings_of, whole
from specstream.training.options import TrainOptions
from specstream.training.trainee import Losses, TrainingBatch

__all__ = ["EarlyExitTrainee", "ExitModule", "trainee"]

_MOST_WIDTH = 1 << 16


def trainee(
    target: ModelRunner, tokenizer: PreTrainedTokenizerBase, options: TrainOptions
) -> EarlyExitTrainee:
    """Make a new exit, or load the one of ``options.init``.

    Settings: ``layers`` (default: half of the target's) and ``width``, see `EarlyExitTrainee`.

    Raises:
        ConfigError: an invalid setting.
        ModelError: the target gives no hidden states there, or ``options.init`` doesn't fit.
    """
    count = layers_of(target, "an early exit")
    known = {"layers": whole(1, count - 1), "width": whole(1, _MOST_WIDTH)}
    given = settings_of(options, known)
    if (before := read_written(options, target)) is None:
        return EarlyExitTrainee(target, given.get("layers", count // 2), given.get("width"))
    made = EarlyExitTrainee(target, before.config["layers"], before.config["width"])
    before.into(made.module)
    return made


class ExitModule(nn.Module):
    """Maps hidden states of a depth to inputs of the output head, with the arithmetic of `EarlyExit`.

    As ``down`` is initialised with zeros, it begins as the final norm alone.

    Args:
        hidden: Size of the states.
        width: Inner size of the adapter, between its two matrices.
        final_norm: ``[hidden]``, the weight of the target's final norm.
        eps: Epsilon of the norms.
    """

    def __init__(self, hidden: int, width: int, final_norm: Tensor, eps: float) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(hidden, eps=eps)
        self.up = nn.Linear(hidden, width, bias=False)
        self.down = nn.Linear(width, hidden, bias=False)
        self.head_norm = nn.RMSNorm(hidden, eps=eps)
        with torch.no_grad():
            self.down.weight.zero_()
            self.head_norm.weight.copy_(final_norm)

    def forward(self, states: Tensor) -> Tensor:
        """Map states ``[..., hidden]`` to inputs of the output head, of the same shape."""
        inner = self.down(F.silu(self.up(self.norm(states))))
        found: Tensor = self.head_norm(states + inner)
        return found


class EarlyExitTrainee:
    """An early exit after some layers of a target; a `Trainee`.

    Args:
        target: The target, whose output head is used and not trained.
        layers: The number of target layers before the exit; at least 1, fewer than all.
        width: Inner size of the adapter. Default: two thirds of the hidden size.
    """

    def __init__(self, target: ModelRunner, layers: int, width: int | None = None) -> None:
        sizes = target.decoder.weights
        self.layers, self.depths = layers, (layers,)
        self._head = sizes.head.detach().float()
        width = width or 2 * sizes.hidden // 3
        self._config = {
            "model_type": MODEL_TYPE,
            "layers": layers,
            "width": width,
            "hidden_size": sizes.hidden,
            "num_hidden_layers": len(sizes.layers),
            "vocab_size": sizes.vocab_size,
        }
        norm = sizes.norm.detach().float()
        made = ExitModule(sizes.hidden, width, norm, sizes.eps)
        self._dtype, self.module = sizes.dtype, made.to(sizes.device)

    def losses(self, batch: TrainingBatch, *, acceptance: float) -> Losses:
        """See `Trainee.losses`. All draft positions have the same acceptance, so one is counted."""
        counts = batch.replies[:, 1:]
        logits = F.linear(self.module(batch.states[:, :-1, 0][counts].float()), self._head)
        with torch.no_grad():
            wanted = F.linear(batch.final[:, :-1][counts].float(), self._head).log_softmax(-1)
        return joined([distance(logits, wanted, acceptance)], 1.0)

    def save(self, folder: Path, card: Mapping[str, str]) -> None:
        """See `Trainee.save`."""
        title = f"An early exit behind {self.layers} layers, for specstream"
        write_head(folder, title, self.module, self._config, card, dtype=self._dtype)
