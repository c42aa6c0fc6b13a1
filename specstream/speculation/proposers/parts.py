"""The models and heads that proposers are built from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from transformers import PreTrainedTokenizerBase

from specstream.errors import ConfigError
from specstream.model.heads.base import Head
from specstream.model.runner import ModelRunner
from specstream.model.vocabulary import Translation
from specstream.speculation.measured import FRESH, MeasuredTimes

__all__ = ["DraftWeights", "Parts"]


@dataclass(frozen=True, slots=True)
class DraftWeights:
    """Trained parameters that drafting adds to the target, and the bytes of their weights."""

    parameters: int = 0
    nbytes: int = 0


@dataclass(frozen=True, slots=True)
class Parts:
    """The models that an engine has loaded, as a method's ``build`` gets them.

    Attributes:
        target: The target model.
        eos_ids: Token ids that end a turn.
        tokenizer: The target's tokenizer.
        draft: The draft model; None: none was loaded.
        translation: Between the draft's vocabulary and the target's; None: they have one vocabulary.
        heads: Drafting heads by method.
        prefill_chunk: The most prompt tokens that one pass reads.
        acceptance: By method, the acceptance probability at each position, from the ``config.json`` of
            its draft model or head (see `told_acceptance`).
        times: Of passes, as far as an earlier start has measured them.
    """

    target: ModelRunner
    eos_ids: frozenset[int]
    tokenizer: PreTrainedTokenizerBase
    draft: ModelRunner | None = None
    translation: Translation | None = None
    heads: Mapping[str, Head] = field(default_factory=dict)
    prefill_chunk: int = 512
    acceptance: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    times: MeasuredTimes = FRESH

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

    def draft_model(self, kind: str) -> ModelRunner:
        """The draft model of a method.

        Raises:
            ConfigError: none was loaded.
        """
        if self.draft is None:
            raise ConfigError(f"--proposer {kind} needs a draft model: name it with --draft")
        return self.draft

    @property
    def draft_weights(self) -> DraftWeights:
        """The weights of the draft model and all heads."""
        heads = self.heads.values()
        count, size = sum(one.parameters for one in heads), sum(one.nbytes for one in heads)
        if self.draft is not None:
            weights = list(self.draft.model.parameters())
            count += sum(weight.numel() for weight in weights)
            size += sum(weight.nbytes for weight in weights)
        return DraftWeights(count, size)
