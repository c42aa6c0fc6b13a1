"""What a proposer is made of, besides its settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from transformers import PreTrainedTokenizerBase

from specstream.errors import ConfigError
from specstream.model.heads.base import Head
from specstream.model.runner import ModelRunner
from specstream.model.vocabulary import Translation

__all__ = ["Parts"]


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
    """

    target: ModelRunner
    eos_ids: frozenset[int]
    tokenizer: PreTrainedTokenizerBase
    draft: ModelRunner | None = None
    translation: Translation | None = None
    heads: Mapping[str, Head] = field(default_factory=dict)
    prefill_chunk: int = 512

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
