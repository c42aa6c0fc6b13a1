"""The drafting methods and their settings, one class a method. Loads no torch."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import EntryPoint, entry_points
from typing import Annotated, Any, ClassVar, Literal, Self, get_args

from pydantic import BaseModel, ConfigDict, Field, field_serializer, model_validator

__all__ = [
    "PROPOSERS",
    "AutoProposerConfig",
    "BlockProposerConfig",
    "DraftProposerConfig",
    "EagleProposerConfig",
    "EarlyExitProposerConfig",
    "LookaheadProposerConfig",
    "MedusaProposerConfig",
    "Method",
    "MirrorProposerConfig",
    "MtpProposerConfig",
    "OffProposerConfig",
    "OwnProposerConfig",
    "ProposerConfig",
    "StreamingProposerConfig",
    "StrictConfig",
    "SuffixProposerConfig",
    "installed_proposers",
    "lacking",
    "settings_of",
]


Loads = Literal["nothing", "model", "head", "both", "any"]

# Settings that several methods have, each with a default of its own.
_Window = Annotated[int, Field(ge=8, description="prompt tokens that the draft reads, at most")]
_Rows = Annotated[
    int, Field(ge=8, description="most of the last tokens that the head reads when it starts")
]
_Vocabulary = Annotated[
    Literal["auto", "retokenised", "intersection"],
    Field(description="how a draft with another tokenizer drafts"),
]
_Least = Annotated[
    float,
    Field(
        ge=0.0,
        le=1.0,
        description="a draft is cut after the token at which its probability falls below this",
    ),
]


class StrictConfig(BaseModel):
    """Frozen values whose unknown keys are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Method(StrictConfig):
    """The settings of one method.

    Attributes:
        loads: The weights that the method drafts with: none, a draft model, a head on the target's
            hidden states, both, or ("any") whatever is loaded.
    """

    loads: ClassVar[Loads] = "nothing"


class _Lookup(Method):
    min_match: int = Field(default=1, ge=1, le=16, description="shortest suffix looked up")
    store: Literal["conversation", "engine"] = Field(
        default="conversation", description="whose past replies are drafted from"
    )
    store_tokens: int = Field(
        default=16384, ge=0, le=2**24, description="tokens of past replies that are kept, at most"
    )


class BlockProposerConfig(Method):
    """A head that drafts a block of tokens in one pass (DFlash, arXiv 2602.06036)."""

    loads: ClassVar[Loads] = "head"
    kind: Literal["block"] = "block"
    num_tokens: int = Field(default=15, ge=1, le=32, description="tokens proposed a round, at most")
    min_confidence: _Least = 0.1


class DraftProposerConfig(Method):
    """An independent, smaller language model (Leviathan et al. 2023).

    Where its tokenizer isn't the target's, ``vocabulary`` says how it drafts: ``"retokenised"`` (its
    greedy text in the target's tokens), ``"intersection"`` (drawn among the tokens that both
    vocabularies have), or ``"auto"``: one of the two, by the number of common tokens and by whether the
    request is greedy (Timor et al. 2025).
    """

    loads: ClassVar[Loads] = "model"
    kind: Literal["draft"] = "draft"
    num_tokens: int = Field(default=4, ge=1, le=32, description="tokens proposed a round")
    window: _Window = 256
    vocabulary: _Vocabulary = "auto"


class EagleProposerConfig(Method):
    """An EAGLE-3 head on the target's hidden states (Li et al. 2025), with trees as in EAGLE-2."""

    loads: ClassVar[Loads] = "head"
    kind: Literal["eagle"] = "eagle"
    depth: int = Field(default=4, ge=1, le=16, description="levels of a tree, tokens of a chain")
    top_k: int = Field(
        default=1, ge=1, le=16, description="alternatives after a token, paths a level; 1: a chain"
    )
    nodes: int = Field(default=12, ge=1, le=64, description="tokens of a tree, at most")
    window: _Rows = 1024


class EarlyExitProposerConfig(Method):
    """The target's first layers draft, the others verify (LayerSkip, arXiv 2404.16710).

    The drafting layers' hidden states go through a trained exit if the drafts have one, else through
    the target's own final norm and LM head.
    """

    loads: ClassVar[Loads] = "head"
    kind: Literal["early-exit"] = "early-exit"
    num_tokens: int = Field(default=3, ge=1, le=32, description="tokens proposed a round")
    layers: int | None = Field(
        default=None,
        ge=1,
        description="layers that draft; default: the trained exit's, else a quarter of the target's",
    )


class LookaheadProposerConfig(Method):
    """Lookahead decoding: the target's own guesses at later tokens give n-grams (Fu et al. 2024)."""

    kind: Literal["lookahead"] = "lookahead"
    window: int = Field(default=5, ge=1, le=32, description="positions that are guessed at once")
    ngram: int = Field(default=4, ge=3, le=16, description="tokens of an n-gram")
    branches: int = Field(default=5, ge=1, le=32, description="n-grams tried a round, at most")

    @model_validator(mode="after")
    def _fits(self) -> Self:
        nodes = (self.window + self.branches) * (self.ngram - 1)
        if nodes > 64:
            raise ValueError(f"(window + branches) * (ngram - 1) is {nodes}; a pass takes 64 at most")
        return self


class MedusaProposerConfig(Method):
    """Medusa heads on the last hidden state (Cai et al. 2024); trees of the likeliest paths.

    Verification is exact. The paper's typical acceptance, which changes what is written, is refused.
    """

    loads: ClassVar[Loads] = "head"
    kind: Literal["medusa"] = "medusa"
    depth: int = Field(default=4, ge=1, le=32, description="levels of a tree, tokens of a chain")
    top_k: int = Field(default=4, ge=1, le=16, description="alternatives after a token; 1: a chain")
    nodes: int = Field(default=8, ge=1, le=64, description="tokens of a tree, at most")

    @model_validator(mode="before")
    @classmethod
    def _exact(cls, given: object) -> object:
        lossy = {"lossy", "typical_acceptance", "posterior_threshold", "posterior_alpha"}
        if isinstance(given, dict) and (found := sorted(lossy & given.keys())):
            raise ValueError(
                f"{found[0]}: typical acceptance changes the distribution of the text, and is not "
                "offered; leave it out"
            )
        return given


class MirrorProposerConfig(Method):
    """A draft model that drafts while the target verifies (Mirror, arXiv 2510.13161).

    After some of the target's layers, an exit predicts which outcomes of the verification are likely;
    a second CPU thread drafts the tokens that follow them.
    """

    loads: ClassVar[Loads] = "both"
    kind: Literal["mirror"] = "mirror"
    num_tokens: int = Field(default=4, ge=1, le=32, description="tokens proposed a round")
    window: _Window = 256
    branches: int = Field(default=2, ge=1, le=16, description="outcomes drafted for, at most")
    layers: int | None = Field(
        default=None,
        ge=1,
        description="the target's layers after which outcomes are predicted; default: the trained "
        "exit's, else half of the target's",
    )


class MtpProposerConfig(Method):
    """The multi-token prediction module in the target's own folder (DeepSeek-V3, arXiv 2412.19437)."""

    kind: Literal["mtp"] = "mtp"
    num_tokens: int = Field(default=2, ge=1, le=16, description="tokens proposed a round, at most")
    window: _Rows = 1024


class OffProposerConfig(Method):
    """Plain decoding, one token a pass."""

    kind: Literal["off"] = "off"


class StreamingProposerConfig(Method):
    """The pass that verifies a proposal drafts the next (Speculative Streaming, arXiv 2402.11131)."""

    loads: ClassVar[Loads] = "head"
    kind: Literal["streaming"] = "streaming"
    num_tokens: int = Field(default=16, ge=1, le=32, description="tokens proposed a round, at most")
    min_confidence: _Least = 0.1
    prune_below: float = Field(
        default=0.0,
        ge=0.0,
        le=1.0,
        description="drafted tokens that an early exit finds less likely than this get no streams",
    )


class SuffixProposerConfig(_Lookup):
    """Suffix lookup: drafts what followed the same tokens before (Oliaro et al. 2024).

    It searches the prompt, the reply so far, the request's reference and past replies.
    """

    kind: Literal["suffix"] = "suffix"
    num_tokens: int = Field(default=16, ge=1, le=32, description="tokens proposed a round, at most")
    min_score: float = Field(
        default=0.15, ge=0, le=1, description="drafting ends where acceptance is less likely"
    )


class AutoProposerConfig(_Lookup):
    """Chooses each round, per request, by measured costs and acceptance: draft, lookup or nothing."""

    loads: ClassVar[Loads] = "any"
    kind: Literal["auto"] = "auto"
    max_tokens: int = Field(default=16, ge=1, le=32, description="tokens proposed a round, at most")
    draft: bool = Field(default=True, description="whether the draft model may be used")
    top_k: int = Field(
        default=3,
        ge=1,
        le=16,
        description="alternatives after a token that an EAGLE head drafts; 1: a chain",
    )
    methods: tuple[Literal["lookahead"], ...] = Field(
        default=(), description="methods without weights that may be used, beyond lookup"
    )
    window: _Window = 256
    vocabulary: _Vocabulary = "auto"


class OwnProposerConfig(Method):
    """A proposer that isn't specstream's: an object, a function, or an installed package's by name.

    Attributes:
        made: The proposer, which then serves this engine only; or a function (or class) that is called
            with a `ProposerContext` when the engine is built and returns one.
        name: The name of an entry point in the group ``specstream.proposer``, which is such a function.
        options: Its keyword arguments.
    """

    kind: Literal["own"] = "own"
    made: Any = Field(default=None, repr=False)
    name: str = ""
    options: dict[str, Any] = {}

    @model_validator(mode="after")
    def _is_one(self) -> Self:
        if (self.made is None) == (not self.name):
            raise ValueError("give the proposer itself (made) or the name of an installed one")
        if self.made is not None and not callable(self.made) and (missing := lacking(self.made)):
            raise ValueError(f"{type(self.made).__name__} is no proposer: it lacks {missing}")
        return self

    @property
    def makes(self) -> bool:
        """Whether every engine gets a proposer of its own."""
        return self.made is None or isinstance(self.made, type) or bool(lacking(self.made))

    @field_serializer("made", when_used="json")
    def _told(self, made: object) -> str | None:
        return None if made is None else f"{made!r:.200}"


ProposerConfig = Annotated[
    AutoProposerConfig
    | BlockProposerConfig
    | DraftProposerConfig
    | EagleProposerConfig
    | EarlyExitProposerConfig
    | LookaheadProposerConfig
    | MedusaProposerConfig
    | MirrorProposerConfig
    | MtpProposerConfig
    | OffProposerConfig
    | OwnProposerConfig
    | StreamingProposerConfig
    | SuffixProposerConfig,
    Field(discriminator="kind"),
]
PROPOSERS: tuple[type[Method], ...] = tuple(
    one for one in get_args(get_args(ProposerConfig)[0]) if one is not OwnProposerConfig
)
"""specstream's own methods."""
_BUNDLED = frozenset(one.model_fields["kind"].default for one in PROPOSERS)
_CALLED = ("propose", "observe", "release")


def installed_proposers() -> dict[str, EntryPoint]:
    """The proposers of installed packages by name: the entry points of ``specstream.proposer``.

    A name of one of specstream's own methods isn't among them: that method keeps it.
    """
    found = entry_points(group="specstream.proposer")
    return {point.name: point for point in found if point.name not in {*_BUNDLED, "own"}}


def lacking(proposer: object) -> str:
    """The methods of a proposer that an object doesn't have, in words; empty if it has them all."""
    missing = [name for name in _CALLED if not callable(getattr(proposer, name, None))]
    return _listed(missing)


def _listed(names: Sequence[str]) -> str:
    return " and ".join(filter(None, [", ".join(names[:-1]), *names[-1:]]))


def settings_of(proposer: object) -> object:
    """The settings that a user's words for a proposer stand for: a name, a table, or the thing itself.

    Raises:
        ValueError: it is none of these.
    """
    if isinstance(proposer, Method):
        return proposer
    if isinstance(proposer, str):
        proposer = {"kind": proposer}
    if isinstance(proposer, dict):
        kind = proposer.get("kind")
        if not isinstance(kind, str) or kind in {*_BUNDLED, "own"}:
            return proposer
        if kind not in installed_proposers():
            return proposer  # refused with a list of what there is
        options = {key: value for key, value in proposer.items() if key != "kind"}
        return OwnProposerConfig(name=kind, options=options)
    if callable(proposer) or any(hasattr(proposer, name) for name in _CALLED):
        return OwnProposerConfig(made=proposer)
    raise ValueError(
        "a proposer is a method's name, a table of its settings, a function that makes one, or an "
        f"object with {_listed(_CALLED)}; {type(proposer).__name__} is none of these"
    )
