"""The engine's configuration. Unknown keys raise an error; none is ignored."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError, field_validator, model_validator
from pydantic_core import ErrorDetails

from specstream.checks import meant, problem
from specstream.errors import ConfigError, PromptError
from specstream.methods import (
    PROPOSERS,
    AutoProposerConfig,
    OwnProposerConfig,
    ProposerConfig,
    StrictConfig,
    installed_proposers,
    settings_of,
)
from specstream.params import template_kwargs

__all__ = [
    "DEFAULT_DRAFT",
    "DEFAULT_TARGET",
    "EngineConfig",
    "LearningConfig",
    "bundled",
    "parse_config",
    "read_config",
]

_CONSENT = (
    "learning keeps the tokens of prompts and replies in memory and changes the draft's weights by "
    "them; if those whose words they are have agreed, say so with consent=true (--learn with-consent), "
    "else leave learning out"
)
_KINDS = ("auto", "draft", "eagle")


class LearningConfig(StrictConfig):
    """The draft learns from finished replies between replies; refused without ``consent=True``.

    What is kept: the token ids of the last prompts and replies, as far as ``max_replies`` and
    ``max_tokens`` allow, with the target's hidden states once they were read. They stay in this
    process's memory until newer ones push them out or the engine closes, and are never written to a
    file. Replies that were cancelled or failed, and requests with ``learn=False``, are not kept.

    A step is a pass of the target or of the draft over ``step_tokens`` tokens at most, one update of the
    draft's weights, or one copy of them. It begins only while no request can go on, so a request that
    arrives waits for one step at most. If a quarter of a round's steps take more than ``step_ms``
    milliseconds, the next round's passes are half as long, 64 tokens at least.
    """

    consent: bool = Field(default=False, validate_default=True)
    max_replies: int = Field(default=128, ge=8, le=65_536, description="replies that are kept")
    max_tokens: int = Field(
        default=32_768, ge=64, le=2**24, description="tokens that are kept, prompts included"
    )
    longest: int = Field(
        default=1024, ge=16, description="tokens of one prompt and reply, from their end"
    )
    every: int = Field(default=8, ge=4, description="new replies before the draft learns again")
    passes: int = Field(default=3, ge=1, le=64, description="passes over the replies in each round")
    lr: float = Field(default=5e-5, gt=0.0, lt=1e3, description="peak learning rate (AdamW)")
    step_tokens: int = Field(default=256, ge=64, le=8192, description="tokens of a step")
    step_ms: float = Field(default=250.0, gt=0.0, description="longer steps make the next shorter")
    out: str | None = Field(
        default=None, description="a new folder for the improved weights, written on closing"
    )

    @field_validator("consent", mode="before")
    @classmethod
    def _given(cls, value: Any) -> bool:
        if value is not True:
            raise ValueError(_CONSENT)
        return True

    @model_validator(mode="after")
    def _room(self) -> LearningConfig:
        if self.longest > self.max_tokens:
            raise ValueError(f"longest ({self.longest}) is more than max_tokens can hold")
        return self

    @staticmethod
    def refusal(*, kind: str, compiled: bool, reproducible: bool, quantised: bool) -> str | None:
        """Why an engine with this proposer and these modes can't learn; None if it may."""
        if kind not in _KINDS:
            return f"learning: proposer {kind} can't learn in service; {', '.join(_KINDS)} can"
        for wrong, what in (
            (compiled, "compile: captured passes hold the draft's weights as they were"),
            (reproducible, "mode='reproducible': its passes of one width give no hidden states"),
            (quantised, "draft_quantize: rounded weights can't follow small updates"),
        ):
            if wrong:
                return f"learning doesn't go with {what}; leave one of them out"
        return None


_BUNDLED = Path(__file__).parent / "data" / "models"
DEFAULT_TARGET = str(_BUNDLED / "target")
DEFAULT_DRAFT = str(_BUNDLED / "draft")


_NAMES = {"bundled-target": DEFAULT_TARGET, "bundled-draft": DEFAULT_DRAFT}

# Whether the device exists is known only once torch is loaded.
USUAL_PLACES = 4
"""Requests that share a pass where nothing says that more of them pay."""

_DEVICE = re.compile(r"auto|(cpu|cuda|mps|xpu|hpu|mtia|npu|xla)(:\d+)?")


Scheme = Literal["int8", "int4"]
"""Integer formats into which a model's weight matrices can be read; see `specstream.model.quantised`."""


class EngineConfig(StrictConfig):
    """Which models an engine loads and how it runs them.

    ``target`` and ``draft``: a model folder, a GGUF file, a Hub id, or the name of a model that is in
    the package (``"bundled-target"``, ``"bundled-draft"``) or that ``specstream pull`` has brought, such
    as ``"smollm2"``. ``proposer``: the name of a method or of an installed package's proposer, a table
    or a class of its settings, or a proposer of your own (see `OwnProposerConfig`).

    Bad values raise pydantic's ``ValidationError`` here; `Engine.load` and `parse_config` raise
    `ConfigError`.

    ``dtype="auto"`` on a CPU keeps a checkpoint in bfloat16 if its ``config.json`` says that it is
    stored so and its passes are native (see ``compile``), and is float32 otherwise: in both cases the
    number of tokens in a forward pass doesn't change the greedy choice. On a GPU it is bfloat16, or
    float16 where that is missing. ``draft_dtype="auto"`` is the target's.
    ``device="auto"`` takes the GPU if there is one.

    ``quantize="int8"`` reads the target's matrices as eight-bit integers, ``"int4"`` as four-bit ones.
    That is faster, but the target is then another model: speculation preserves the distribution and
    the greedy text of the quantised model. On a GPU ``"int4"`` needs the package torchao, and ``"int8"``
    is refused, as it would be slower than bfloat16. ``draft_quantize``
    changes the proposals, never the text. A quantised target, however it was quantised, whose
    distributions depend on how many tokens share a pass is refused unless ``allow_width_dependent``
    asks for it: verified text then follows the model less closely.

    ``mode="default"`` keeps the target's distribution; ``rule`` is the acceptance rule for sampled
    requests without a seed; requests with a seed are verified by exact match (see
    `SamplingParams.seed`). ``mode="reproducible"`` makes a reply a fixed function of prompt, parameters
    and seed: the same tokens whatever the proposer, the draft length and the other requests. In native
    code (see ``compile``) it costs nothing. Elsewhere every pass of the target then has one fixed width
    over a KV cache of full capacity, which is slower; a smaller ``context_length`` makes it cheaper.

    ``model_defaults``: what transformers' ``generate`` applies to every reply because the model's
    ``generation_config`` asks for it (``repetition_penalty``, ``no_repeat_ngram_size``,
    ``suppress_tokens``, ``bad_words_ids``, ``min_length``, forced tokens …) is applied here too. A
    request's own ``repetition_penalty`` takes the place of the model's. Temperature and the like are
    never taken from there.

    ``compile``: on a CPU short passes of plain models of the Llama family run in native code, which a
    wheel brings or a C++ compiler makes at the first start (about ten seconds; kept in
    ``$SPECSTREAM_CACHE``, else the user's cache folder). True refuses to start without native code,
    False leaves all passes to torch.
    On a GPU short passes are captured as CUDA graphs when the engine starts, which takes some seconds,
    except in reproducible mode and where the draft learns; False leaves all passes eager.

    ``chat_template_kwargs`` are variables for the model's chat template, such as
    ``{"enable_thinking": False}``; a request's own win over them. ``reasoning="apart"`` separates a
    model's reasoning (``<think>…</think>`` and similar tags) from its reply; with ``"text"`` it is
    reply text like any other.
    """

    target: str = DEFAULT_TARGET
    draft: str | tuple[str, ...] | None = Field(
        default=None,
        description="draft models and heads; default: the bundled draft if it fits the target",
    )
    proposer: ProposerConfig = AutoProposerConfig()
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    draft_dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    quantize: Literal["none"] | Scheme = Field(
        default="none", description="how the target's matrices are read"
    )
    draft_quantize: Literal["none"] | Scheme = Field(
        default="none", description="how the draft's matrices are read"
    )
    allow_width_dependent: bool = Field(
        default=False,
        description="run a quantised target whose distribution depends on how many tokens share a pass",
    )
    device: str = "auto"
    threads: int | None = Field(
        default=None, ge=1, le=1024, description="CPU threads; default: all cores but one"
    )
    max_running: int | None = Field(
        default=None,
        ge=1,
        description="requests decoded side by side; default: 16 where a pass of 16 takes less time than "
        "four of 4 and memory holds their caches, else 4",
    )
    max_waiting: int = Field(default=64, ge=0, description="requests that may wait for a place")
    max_parked: int = Field(
        default=32,
        ge=0,
        description="further requests under way whose consumers don't read, or have enough to hear",
    )
    max_parked_s: float = Field(
        default=30.0,
        ge=0.0,
        allow_inf_nan=False,
        description="a request whose consumer reads nothing for this long while others wait ends with "
        "ConsumerStalled",
    )
    max_sessions: int = Field(default=16, ge=0, description="idle conversations whose cache is kept")
    share_prefixes: bool = Field(
        default=True,
        description="a conversation that begins like another takes over the keys and values of that "
        "beginning; without it nobody can tell by the time of a first token how others' prompts begin",
    )
    max_unread_chunks: int = Field(
        default=16, ge=1, description="chunks a consumer may leave unread before it is parked"
    )
    prefill_chunk: int = Field(default=512, ge=1, description="prompt tokens read in one pass")
    context_length: int | None = Field(
        default=None, ge=2, description="tokens of context, if fewer than the model could take"
    )
    model_defaults: bool = Field(
        default=True, description="penalties and bans of the model's generation_config hold"
    )
    rule: Literal["ratio", "block"] = "block"
    mode: Literal["default", "reproducible"] = "default"
    compile: bool | None = Field(
        default=None,
        description="native passes on a CPU (default: where they can be had), CUDA graphs on a GPU "
        "(default: yes)",
    )
    chat_template_kwargs: dict[str, Any] = Field(
        default={}, description="variables for the chat template"
    )
    reasoning: Literal["apart", "text"] = "apart"
    learning: LearningConfig | None = Field(
        default=None, description="the draft learns from replies while nobody waits"
    )

    @field_validator("target", mode="before")
    @classmethod
    def _target_name(cls, target: object) -> str:
        if isinstance(target, cls):
            raise ValueError("name the argument of a config: Engine.load(config=…)")
        if not isinstance(target, str | Path) or not str(target):
            hint = "give a loaded one as engine=" if hasattr(target, "generate") else ""
            hint = hint or "leave it out for the bundled one"
            raise ValueError(f"name one model, not {target!r:.80}; {hint}")
        return bundled(str(target))

    @field_validator("draft", mode="before")
    @classmethod
    def _draft_names(cls, draft: object) -> str | tuple[str, ...] | None:
        names = draft if isinstance(draft, list | tuple) else () if draft is None else (draft,)
        if not all(isinstance(name, str | Path) and str(name) for name in names):
            raise ValueError(
                "name a model or a head, or give a list of them; leave draft out for the default"
            )
        found = tuple(bundled(str(name)) for name in names)
        return found if isinstance(draft, list | tuple) else next(iter(found), None)

    @field_validator("proposer", mode="before")
    @classmethod
    def _method_by_name(cls, proposer: object) -> object:
        return settings_of(proposer)

    @field_validator("chat_template_kwargs", mode="before")
    @classmethod
    def _template_kwargs(cls, value: object) -> dict[str, Any]:
        try:
            return template_kwargs(value)
        except PromptError as error:
            raise ValueError(str(error).removeprefix("chat_template_kwargs: ")) from None

    @field_validator("device")
    @classmethod
    def _of_a_known_kind(cls, device: str) -> str:
        if not _DEVICE.fullmatch(device):
            raise ValueError(f"{device!r} is no device; say auto, cpu, cuda, cuda:1, mps or xpu")
        return device

    @property
    def drafts(self) -> tuple[str, ...]:
        """``draft`` as a tuple of names; empty if it is None."""
        return (self.draft,) if isinstance(self.draft, str) else self.draft or ()

    @property
    def places(self) -> int:
        """``max_running``, or a careful number while it isn't chosen."""
        return self.max_running or USUAL_PLACES

    @property
    def wants_draft(self) -> bool:
        """Whether the draft model is loaded."""
        if isinstance(self.proposer, AutoProposerConfig):
            return self.proposer.draft
        return self.proposer.loads in ("model", "both")

    @property
    def wants_heads(self) -> bool:
        """Whether drafting heads are loaded."""
        return self.proposer.loads in ("head", "both", "any")

    @model_validator(mode="after")
    def _can_learn(self) -> EngineConfig:
        if self.learning is not None:
            why = LearningConfig.refusal(
                kind=self.proposer.kind,
                compiled=self.compile is True,
                reproducible=self.mode == "reproducible",
                quantised=self.draft_quantize != "none",
            )
            if why is not None:
                raise ValueError(why)
        return self


def bundled(name: str) -> str:
    """The folder of ``bundled-target`` or ``bundled-draft``; any other name is returned unchanged."""
    return _NAMES.get(name, name)


def parse_config(values: dict[str, Any]) -> EngineConfig:
    """Validate plain data.

    Raises:
        ConfigError: names every key that is unknown or out of range.
    """
    try:
        return EngineConfig.model_validate(values)
    except ValidationError as error:
        parts = [f"{'.'.join(map(str, e['loc'])) or 'config'}: {_problem(e)}" for e in error.errors()]
        raise ConfigError("; ".join(parts)) from None


def _problem(error: ErrorDetails) -> str:
    """Describe one validation error, with a suggestion where a key or a method is misspelled."""
    methods = {kind.model_fields["kind"].default: kind for kind in PROPOSERS}
    if error["type"] == "union_tag_invalid":
        named, known = error["ctx"]["tag"], sorted([*methods, *installed_proposers()])
        return f"{named} is no method ({', '.join(known)}){meant(named, known)}"
    tables: dict[Any, type[StrictConfig]] = {
        "learning": LearningConfig,
        "own": OwnProposerConfig,
        **methods,
    }
    table = next((tables[part] for part in error["loc"][:-1] if part in tables), EngineConfig)
    return problem(error, table.model_fields)


def read_config(path: str | Path, what: str = "config") -> dict[str, Any]:
    """Read a TOML file into plain data, not validated yet; ``what`` names the kind of file in errors.

    Raises:
        ConfigError: the file can't be read or isn't TOML.
    """
    try:
        with open(path, "rb") as file:
            return tomllib.load(file)
    except OSError as error:
        raise ConfigError(f"can't read the {what} file {path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from None
