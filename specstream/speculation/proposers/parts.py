"""What a proposer is made of, besides its settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from transformers import PreTrainedTokenizerBase

from specstream.errors import ConfigError
from specstream.model.heads.base import Head
from specstream.model.runner import ModelRunner
from specstream.model.vocabulary import Translation

__all__ = ["DraftWeights", "Parts"]


@dataclass(frozen=True, slots=True)
class DraftWeights:
    """What drafting adds to the target: trained parameters, and bytes of memory for weights."""

    parameters: int = 0
    nbytes: int = 0


@dataclass(frozen=True, slots=True)
class Parts:
    """The models that an engine has loaded.

    Attributes:
        target: The target.
        eos_ids: Ids that end a turn.
        tokenizer: The target's.
        draft: The draft model; None: there is none.
        translation: Between the draft's vocabulary and the target's; None: they are one.
        heads: Drafting heads by method.
        prefill_chunk: Tokens that one pass reads at most.
        acceptance: By method, what its folder says of its acceptance by position.
    """

    target: ModelRunner
    eos_ids: frozenset[int]
    tokenizer: PreTrainedTokenizerBase
    draft: ModelRunner | None = None
    translation: Translation | None = None
    heads: Mapping[str, Head] = field(default_factory=dict)
    prefill_chunk: int = 512
    acceptance: Mapping[str, tuple[float, ...]] = field(default_factory=dict)

    def head(self, kind: str) -> Head:
        """The head of a method.

        Raises:
            ConfigError: none was loaded.
        """
        found = self.heads.get(kind)
        if found is None:
            raise ConfigError(
                f"--proposer {kind} needs a head that was trained for the target: name its folder with "
                f"--draft (specstream train {kind} makes one)"
            )
        return found

    @property
    def draft_weights(self) -> DraftWeights:
        """Of the draft model and all heads."""
        heads = self.heads.values()
        count, size = sum(one.parameters for one in heads), sum(one.nbytes for one in heads)
        if self.draft is not None:
            weights = list(self.draft.model.parameters())
            count += sum(weight.numel() for weight in weights)
            size += sum(weight.nbytes for weight in weights)
        return DraftWeights(count, size)
