"""The interfaces of drafting heads, and helpers that several heads share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from specstream.model.attention.base import Batch
from specstream.model.kv.contiguous import ContiguousCache
from specstream.model.native.sampling import native_spread

__all__ = ["Context", "FeatureHead", "Head", "Level", "likeliest", "spread"]


class Head(Protocol):
    """Trained weights that draft from a target's hidden states, made by the loader of their method.

    Attributes:
        kind: The drafting method, a key of `specstream.speculation.proposers.KINDS`.
        parameters: Number of trained parameters, without weights that are shared with the target.
        nbytes: Bytes of the weights that the head adds, in the target's dtype. Native code keeps
            bfloat16 matrices as eight bits, in half of that.
        depths: After how many of the target's layers it reads hidden states.
    """

    kind: str
    parameters: int
    nbytes: int
    depths: tuple[int, ...]


@dataclass(slots=True)
class Context:
    """A head's cached rows of one sequence.

    Attributes:
        cache: Keys and values, one row for each token.
        start: Position of the first row's token.
    """

    cache: ContiguousCache
    start: int = 0

    @property
    def end(self) -> int:
        """The position after the last row."""
        return self.start + self.cache.length


class Level(NamedTuple):
    """Results of a pass of a `FeatureHead`, for its kept rows.

    Attributes:
        logits: ``[kept, draft vocabulary]``.
        features: ``[kept, width]``, which the next level reads in place of the target's features.
        chances: ``[kept, most]``: log probabilities of the likeliest tokens, likeliest first.
        choices: ``[kept, most]``: these tokens, as ids of the target.
    """

    logits: Tensor
    features: Tensor
    chances: Tensor
    choices: Tensor


class FeatureHead(Head, Protocol):
    """A head of one decoder layer; each of its rows reads a feature and the token after it.

    For deeper levels of a draft the features that the head returned are read in place of the target's.

    Attributes:
        title: Its name in explanations.
        device: Device of its tensors.
        dtype: Dtype of its features.
        width: Size of a feature.
        ids: ``[draft vocabulary]``: each draft token's id in the target; None: the ids are the same.
    """

    title: str
    device: torch.device
    dtype: torch.dtype
    width: int
    ids: Tensor | None

    def new_cache(self) -> ContiguousCache:
        """An empty cache of one sequence; row t is made from token t's feature and token t + 1."""
        ...

    def fuse(self, states: Tensor) -> Tensor:
        """Turn the target's hidden states ``[n, depths, hidden]`` into features ``[n, width]``."""
        ...

    def __call__(self, tokens: Tensor, features: Tensor, batch: Batch, most: int = 1) -> Level:
        """Append rows to each sequence, and return the results of the kept rows.

        Args:
            tokens: ``[N]`` int64 ids of the target, the sequences' rows concatenated.
            features: ``[N, width]``, of the token before each of these: from the target's states, or
                returned by the head.
            batch: The sequences' caches, each of which grows by its count. Results of the last rows are
                returned, as many as it keeps; trees include rows of earlier passes.
            most: How many of the likeliest tokens to return for each row.
        """
        ...


def likeliest(logits: Tensor, most: int, ids: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Log probabilities and ids of the likeliest ``most`` tokens, or as many as there are.

    Args:
        logits: ``[..., draft vocabulary]``.
        most: The last size of the results.
        ids: Each draft token's id in the target; None: the ids are the same.
    """
    best = logits.float().log_softmax(-1).topk(min(most, logits.shape[-1]))
    return best.values, best.indices if ids is None else ids[best.indices]


def spread(rows: Tensor, ids: Tensor | None, size: int, rest: float = -torch.inf) -> Tensor:
    """Spread ``rows [..., draft vocabulary]`` over the target's vocabulary: ``[..., size]``.

    Args:
        rows: Logits or probabilities.
        ids: Each draft token's id in the target; None: the target's first ids.
        size: Size of the target's vocabulary.
        rest: Value for tokens that can't be drafted.
    """
    if ids is None and rows.shape[-1] == size:
        return rows
    if ids is not None and (made := native_spread(rows, ids, size, rest)) is not None:
        return made
    wide = rows.new_full((*rows.shape[:-1], size), rest)
    if ids is None:
        wide[..., : rows.shape[-1]] = rows
    else:
        wide[..., ids] = rows
    return wide
