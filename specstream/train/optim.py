"""Optimisers, and the schedules of learning rate and acceptance loss."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from specstream.train.muon import Muon

__all__ = ["Optimizers", "acceptance_weight", "rate"]

_DEFAULT_LR = {"muon": 4e-3, "adamw": 2e-3}
_CLIP = 1.0  # largest norm of all gradients together


def rate(done: float, step: int) -> float:
    """Return the learning rate's factor: 30 steps of warm-up, constant, from half on falling to .02."""
    warm = min(1.0, (step + 1) / 30)
    return warm * (1.0 if done < 0.5 else max(0.02, 2.0 * (1.0 - done)))


def acceptance_weight(done: float) -> float:
    """Return the weight of the acceptance loss: 0 up to .3 of the training, then rising to .7."""
    return min(0.7, max(0.0, (done - 0.3) * 1.5))


class Optimizers:
    """Muon (Jordan et al. 2024) for matrices and AdamW for the rest, or AdamW for all.

    Args:
        module: The module whose trainable parameters are optimised.
        kind: ``"muon"`` or ``"auto"``: both; ``"adamw"``: AdamW alone.
        lr: Peak learning rate; None: the optimiser's default.
    """

    def __init__(self, module: nn.Module, kind: str, lr: float | None) -> None:
        kind = "adamw" if kind == "adamw" else "muon"
        self._lr = _DEFAULT_LR[kind] if lr is None else lr
        named = [(n, p) for n, p in module.named_parameters() if p.requires_grad]
        self._parameters = [p for _, p in named]
        matrices = [p for n, p in named if kind == "muon" and _is_matrix(n, p)]
        chosen = {id(p) for p in matrices}
        rest = [p for p in self._parameters if id(p) not in chosen]
        self._each: list[torch.optim.Optimizer] = []
        if matrices:
            self._each.append(Muon(matrices, lr=self._lr))
        if rest:
            self._each.append(
                torch.optim.AdamW(rest, lr=self._lr, betas=(0.9, 0.95), weight_decay=0.0)
            )

    def step(self, factor: float) -> None:
        """Clip the gradients, take one step at ``factor`` times the peak rate, clear the gradients."""
        nn.utils.clip_grad_norm_(self._parameters, _CLIP)
        for one in self._each:
            for group in one.param_groups:
                group["lr"] = self._lr * factor
            one.step()
            one.zero_grad(set_to_none=True)

    def state(self) -> dict[str, Any]:
        """Return the state of all optimisers, for a checkpoint."""
        return {str(i): one.state_dict() for i, one in enumerate(self._each)}

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore what `state` returned."""
        for i, one in enumerate(self._each):
            one.load_state_dict(state[str(i)])


def _is_matrix(name: str, parameter: Tensor) -> bool:
    """Whether Muon applies: to matrices, except embeddings and output heads (tables of vectors)."""
    return parameter.ndim == 2 and not any(part in name for part in ("embed", "head"))
