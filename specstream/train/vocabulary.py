"""The tokens that a head can draft, and the target's distribution over them."""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = ["DraftVocabulary", "frequent_tokens", "pruned_size"]

_LARGE, _PRUNED = 16384, 8192  # by default, a vocabulary above the first is pruned to the second
_SLICE = 512  # rows of the target's logits over the whole vocabulary that are in memory at once


def pruned_size(given: MutableMapping[str, Any], size: int) -> int:
    """Take the setting ``vocabulary`` out of ``given``: how many of ``size`` tokens are kept; 0: all."""
    kept: int = given.pop("vocabulary", _PRUNED if size > _LARGE else 0)
    return kept % size


def frequent_tokens(counts: Tensor, most: int) -> Tensor:
    """Return the ids of the ``most`` most frequent tokens, ascending; ties go to the lowest ids.

    Args:
        counts: ``[V]``: how often each token was seen.
        most: How many ids to return.
    """
    return counts.argsort(descending=True, stable=True)[:most].sort().values


class DraftVocabulary:
    """All tokens of the target, or some.

    Args:
        head: ``[V, hidden]``: the target's output head.
        ids: Ids of the tokens that can be drafted, ascending; None: all.
        prune: How many tokens can be drafted once `choose` has selected them; 0: all of ``ids``.

    Attributes:
        ids: ``[n]``: ids of the tokens that can be drafted.
        pruned: Whether these are only some of the target's tokens.
        chooses: Whether `choose` must be called before the first step; see `ChoosesTokens`.
        rows: ``[n, hidden]`` float32: their rows of the head.
    """

    def __init__(self, head: Tensor, ids: Tensor | None = None, prune: int = 0) -> None:
        self._head = self.rows = head.detach().float()
        every = torch.arange(head.shape[0], device=head.device)
        self.chooses, self.ids = prune > 0, every
        if prune:
            ids = every[:prune]  # a placeholder until `choose`
        self.pruned = ids is not None
        if ids is not None:
            self._take(ids)

    def choose(self, counts: Tensor) -> None:
        """Take the most frequent tokens; ``counts [V]``: how often each is in the replies."""
        if self.pruned:
            self._take(frequent_tokens(counts, len(self.ids)))

    def _take(self, ids: Tensor) -> None:
        self.ids = ids.to(self._head.device)
        self.rows = self._head[self.ids]

    @torch.no_grad()
    def log_p(self, final: Tensor, wanted: Tensor, *, exact: bool) -> tuple[Tensor, Tensor]:
        """Return the target's log probabilities ``[n, tokens]`` at the n places that are wanted.

        Also returns ``[b, t]``: for each place of ``wanted``, its row in them.

        Args:
            final: ``[b, t, hidden]``: inputs of the output head.
            wanted: ``[b, t]`` bool.
            exact: False: the probabilities are normalised over the tokens that can be drafted, since
                logits of the others would cost more than the head that is trained.
        """
        parts = [self.rows.new_zeros(0, self.rows.shape[0])]
        for some in torch.split(final[wanted].float(), _SLICE):
            if exact and self.pruned:
                parts.append(F.linear(some, self._head).log_softmax(-1)[:, self.ids])
            else:
                parts.append(F.linear(some, self.rows).log_softmax(-1))
        return torch.cat(parts), wanted.flatten().cumsum(0).view(wanted.shape) - 1
