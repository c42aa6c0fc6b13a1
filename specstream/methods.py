"""The drafting methods and their settings, one class a method. Loads no torch."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

__all__ = [
    "PROPOSERS",
    "AutoProposerConfig",
    "DraftProposerConfig",
    "EarlyExitProposerConfig",
    "Method",
    "MirrorProposerConfig",
    "NgramProposerConfig",
    "OffProposerConfig",
    "ProposerConfig",
    "Strict",
]


Loads = Literal["nothing", "model", "head", "both", "any"]


class Strict(BaseModel):
    """Frozen values whose unknown keys are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Method(Strict):
    """The settings of one method.

    Attributes:
        loads: What it drafts with: nothing, a draft model, a head on the target's hidden states, both,
            or whatever is there.
    """

    loads: ClassVar[Loads] = "nothing"


class DraftProposerConfig(Method):
    """An independent, smaller language model with the target's tokenizer (Leviathan et al. 2023)."""

    loads: ClassVar[Loads] = "model"
    kind: Literal["draft"] = "draft"
    num_tokens: int = Field(default=4, ge=1, le=32, description="tokens proposed a round")
    window: int = Field(
        default=256, ge=8, description="prompt tokens that the draft reads, at most"
    )


class EarlyExitProposerConfig(Method):
    """The target's first layers draft, the others verify (LayerSkip, arXiv 2404.16710).

    With a trained exit among the drafts, or without any: then through the target's own norm and head.
    """

    loads: ClassVar[Loads] = "head"
    kind: Literal["early-exit"] = "early-exit"
    num_tokens: int = Field(default=3, ge=1, le=32, description="tokens proposed a round")
    layers: int | None = Field(
        default=None,
        ge=1,
        description="layers that draft; default: the trained exit's, else a quarter of the target's",
    )


class MirrorProposerConfig(Method):
    """A draft model that drafts while the target verifies (Mirror, arXiv 2510.13161).

    Halfway through its pass the target tells which outcomes are likely; a second CPU thread drafts what
    follows them.
    """

    loads: ClassVar[Loads] = "both"
    kind: Literal["mirror"] = "mirror"
    num_tokens: int = Field(default=4, ge=1, le=32, description="tokens proposed a round")
    window: int = Field(
        default=256, ge=8, description="prompt tokens that the draft reads, at most"
    )
    branches: int = Field(default=2, ge=1, le=16, description="outcomes drafted for, at most")
    layers: int | None = Field(
        default=None,
        ge=1,
        description="the target's layers behind which outcomes are foretold; default: the trained "
        "exit's, else half of the target's",
    )


class _Lookup(Method):
    max_ngram: int
    min_ngram: int

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.min_ngram > self.max_ngram:
            raise ValueError("min_ngram can't be more than max_ngram")
        return self


class NgramProposerConfig(_Lookup):
    """Prompt lookup: proposes what followed the same n-gram earlier in the context (Saxena 2023)."""

    kind: Literal["ngram"] = "ngram"
    num_tokens: int = Field(default=8, ge=1, le=32, description="tokens proposed a round, at most")
    max_ngram: int = Field(default=4, ge=1, le=16, description="longest suffix looked for")
    min_ngram: int = Field(default=2, ge=1, le=16, description="shortest suffix looked for")


class OffProposerConfig(Method):
    """Plain decoding, one token a pass."""

    kind: Literal["off"] = "off"


class AutoProposerConfig(_Lookup):
    """Chooses each round, per request, by measured costs and acceptance: draft, lookup or no proposer.

    ``objective="speed"`` maximises the expected tokens per second; ``"first_phrase"`` first minimises
    the expected time to the first speakable phrase, then goes on as for speed.
    """

    loads: ClassVar[Loads] = "any"
    kind: Literal["auto"] = "auto"
    objective: Literal["speed", "first_phrase"] = "speed"
    max_tokens: int = Field(default=16, ge=1, le=32, description="tokens proposed a round, at most")
    max_ngram: int = Field(default=8, ge=1, le=16, description="longest suffix looked up")
    min_ngram: int = Field(default=1, ge=1, le=16, description="shortest suffix looked up")
    draft: bool = Field(default=True, description="whether the draft model may be used")
    window: int = Field(
        default=256, ge=8, description="prompt tokens that the draft reads, at most"
    )


ProposerConfig = Annotated[
    AutoProposerConfig
    | DraftProposerConfig
    | EarlyExitProposerConfig
    | MirrorProposerConfig
    | NgramProposerConfig
    | OffProposerConfig,
    Field(discriminator="kind"),
]
PROPOSERS = (
    AutoProposerConfig,
    DraftProposerConfig,
    EarlyExitProposerConfig,
    MirrorProposerConfig,
    NgramProposerConfig,
    OffProposerConfig,
)
