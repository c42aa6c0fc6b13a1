"""What every drafting head tells of itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from specstream.errors import ModelUnsupported
from specstream.model.kv.base import RowCache
from specstream.model.native.sampling import native_spread
from specstream.model.tree import Tree

__all__ = ["FeatureHead", "Head", "Level", "check_made_for", "spread"]


class Head(Protocol):
    """Trained weights that draft from a target's hidden states; made by its method's loader.

    Attributes:
        kind: The drafting method, a key of `specstream.speculation.proposers.KINDS`.
        parameters: Trained parameters; weights shared with the target don't count.
        nbytes: Size of the weights that it adds, in bytes; native code reads matrices of bfloat16 as
            eight bits, which is half of that.
    """

    kind: str
    parameters: int
    nbytes: int


class Level(NamedTuple):
    """What a pass of a `FeatureHead` gives for its kept rows.

    Attributes:
        logits: ``[kept, draft vocabulary]``.
        features: ``[kept, width]``: what stands for features at the next level.
        chances: ``[kept, most]``: log probabilities of the likeliest tokens, likeliest first.
        choices: ``[kept, most]``: these tokens, ids of the target.
    """

    logits: Tensor
    features: Tensor
    chances: Tensor
    choices: Tensor

    @classmethod
    def of(cls, logits: Tensor, features: Tensor, ids: Tensor | None, most: int) -> Level:
        """With the likeliest ``most`` tokens, or as many as there are."""
        best = logits.float().log_softmax(-1).topk(min(most, logits.shape[1]))
        return cls(
            logits, features, best.values, best.indices if ids is None else ids[best.indices]
        )


class FeatureHead(Head, Protocol):
    """A head of one decoder layer that reads a feature and the token after it, row by row.

    For deeper drafts what it returns takes the feature's place.

    Attributes:
        title: Its name in explanations.
        device: Of its tensors.
        dtype: Of its features.
        depths: After how many of the target's layers it reads hidden states.
        width: Size of a feature.
        ids: ``[draft vocabulary]`` the target's ids; None: they are the same.
    """

    title: str
    device: torch.device
    dtype: torch.dtype
    depths: tuple[int, ...]
    width: int
    ids: Tensor | None

    def new_cache(self) -> RowCache:
        """An empty cache of one sequence; row t is made of token t's feature and of token t + 1."""
        ...

    def fuse(self, states: Tensor) -> Tensor:
        """The target's hidden states ``[n, depths, hidden]`` to features ``[n, width]``."""
        ...

    def __call__(
        self,
        tokens: Tensor,
        features: Tensor,
        caches: Sequence[RowCache],
        counts: Sequence[int],
        keeps: Sequence[int],
        trees: Sequence[Tree | None] | None = None,
        most: int = 1,
    ) -> Level:
        """Append rows to each sequence; what the kept ones give.

        Args:
            tokens: ``[N]`` int64 ids of the target, the sequences' rows concatenated.
            features: ``[N, width]``: of the tokens before these; true ones, or returned ones.
            caches: One per sequence; each grows by its count.
            counts: Rows of each sequence, at least 1.
            keeps: Of how many last rows of each sequence results are returned.
            trees: Per sequence the tree that its last rows form, those of earlier passes included, or
                None for a chain.
            most: How many of the likeliest tokens are wanted.
        """
        ...


def check_made_for(title: str, *facts: tuple[str, int, int]) -> None:
    """Refuse a head of another target. What holds of both is no proof that it was made for this one.

    Args:
        title: The head.
        facts: What it reads, how much of it, and how much this target has.

    Raises:
        ModelUnsupported: the first fact that differs.
    """
    for what, made, found in facts:
        if made != found:
            raise ModelUnsupported(
                f"{title} was made for another target: it reads {what} {made}, and this target has "
                f"{found}; choose a head of this target"
            )


def spread(rows: Tensor, ids: Tensor | None, size: int, rest: float = -torch.inf) -> Tensor:
    """``[..., draft vocabulary]`` over the target's: ``[..., size]``, ``rest`` for all other tokens.

    Args:
        rows: Logits or probabilities.
        ids: The target's ids of what can be drafted; None: its first ones.
        size: Of the target's vocabulary.
        rest: Value of tokens that can't be drafted.
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
