"""The drafting methods and their settings, one class a method. Loads no torch."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

__all__ = [
    "PROPOSERS",
    "AutoProposerConfig",
    "DraftProposerConfig",
    "Method",
    "NgramProposerConfig",
    "OffProposerConfig",
    "ProposerConfig",
    "Strict",
]


Loads = Literal["nothing", "model", "head", "any"]
Vocabulary = Literal["auto", "retokenised", "intersection"]


class Strict(BaseModel):
    """Frozen values whose unknown keys are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Method(Strict):
    """The settings of one method.

    Attributes:
        loads: What it drafts with: nothing, a draft model, a head on the target's hidden states, or
            whatever is there.
    """

    loads: ClassVar[Loads] = "nothing"


class DraftProposerConfig(Method):
    """An independent, smaller language model (Leviathan et al. 2023).

    Where its tokenizer isn't the target's, ``vocabulary`` says how it drafts: ``"retokenised"`` (its
    greedy text in the target's tokens), ``"intersection"`` (drawn among the tokens that both have), or
    ``"auto"``: by how many those are, and by whether the request is greedy (Timor et al. 2025).
    """

    loads: ClassVar[Loads] = "model"
    kind: Literal["draft"] = "draft"
    num_tokens: int = Field(default=4, ge=1, le=32, description="tokens proposed a round")
    window: int = Field(
        default=256, ge=8, description="prompt tokens that the draft reads, at most"
    )
    vocabulary: Vocabulary = Field(
        default="auto", description="how a draft with another tokenizer drafts"
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
    vocabulary: Vocabulary = Field(
        default="auto", description="how a draft with another tokenizer drafts"
    )


ProposerConfig = Annotated[
    AutoProposerConfig | DraftProposerConfig | NgramProposerConfig | OffProposerConfig,
    Field(discriminator="kind"),
]
PROPOSERS = (AutoProposerConfig, DraftProposerConfig, NgramProposerConfig, OffProposerConfig)
