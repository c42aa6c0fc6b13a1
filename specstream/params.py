"""How a reply is sampled and when it ends: the parameters of one request, checked when made."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Literal

from specstream.errors import PromptError, SamplingError

__all__ = ["Grammar", "SamplingParams", "checked_params", "template_kwargs"]

_LONGEST_KWARGS = 65_536  # characters of JSON
# What would change how a prompt is made, not what the template writes.
_NOT_VARIABLES = frozenset(
    "add_generation_prompt chat_template continue_final_message conversation conversations max_length "
    "messages padding processor_kwargs return_assistant_tokens_mask return_dict return_tensors "
    "sanitize_control_tokens self tokenize tokenizer_kwargs truncation".split()
)


@dataclass(frozen=True, slots=True)
class Grammar:
    """What a reply must look like: a JSON schema, a regular expression or a Lark grammar.

    ``text`` is the schema as JSON text, a regular expression in Rust's syntax, or a grammar in
    llguidance's dialect of Lark. White space in JSON is limited to one space after a comma or colon.
    A reply that runs into ``max_tokens`` stops half-way through its grammar.

    Raises:
        SamplingError: an unknown kind, or no text.
    """

    kind: Literal["json_schema", "regex", "lark"]
    text: str

    def __post_init__(self) -> None:
        if self.kind not in ("json_schema", "regex", "lark"):
            raise SamplingError(f"a grammar is json_schema, regex or lark, not {self.kind!r}")
        if not isinstance(self.text, str) or not self.text.strip():
            raise SamplingError(f"the {self.kind} grammar must be a text that is not empty")


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How the next token is drawn from the target's distribution, and when the reply ends.

    The logits go through, in this order: repetition penalty (prompt and reply; Keskar et al. 2019),
    frequency and presence penalties (reply only; as in the OpenAI API), ``logit_bias``,
    ``bad_words``, ``min_tokens``, ``grammar``, ``processors``; then, unless greedy, temperature,
    top-k, top-p (Holtzman et al. 2020), min-p (Nguyen et al. 2024), typical-p (Meister et al. 2022).
    Each drafted position is judged with the tokens before it as context, so all of them hold exactly
    under speculation. Defaults are off.

    Attributes:
        temperature: 0 is greedy; what follows it in the order above then has no effect.
        seed: Repeats a sampled reply: same prompt, parameters and seed, same text, whatever is
            drafted and whoever else is served, as far as passes of different widths round alike (as
            for greedy text: practically always in float32, not in bfloat16; in any dtype with
            ``mode="reproducible"``). Sampled drafts are then accepted a little less often. None:
            another text each time.
        max_tokens: Longest reply, reasoning and end-of-sequence token included.
        min_tokens: The reply can't end by itself before it has this many tokens: the model's own end
            and ``stop_token_ids`` can't be drawn, and stop strings completed earlier count as text.
        stop: Strings that end the reply; not part of its text. They are not looked for in reasoning.
        stop_token_ids: Tokens that end the reply, besides the model's own. Part of its text.
        stop_when: Each is called with the reply's token ids and text (as the model wrote it, its
            reasoning included) after every single token, once and in order; True ends the reply there.
        bad_words: Texts that are not written: the last token of each, as it is tokenised alone and
            after a space, is ruled out where the others precede it.
        grammar: The shape of the reply from its first token on, so it leaves no room for reasoning;
            needs the extra ``grammar``.
        processors: Transformers-style ``f(input_ids [1, n], scores [1, V]) -> scores [1, V]``. They
            must depend on their arguments only: a rejected draft is judged too.

    Raises:
        SamplingError: a value is out of range.
    """

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int | None = None
    max_tokens: int = 256
    stop: tuple[str, ...] = ()
    min_p: float = 0.0
    typical_p: float = 1.0
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    bad_words: tuple[str, ...] = ()
    min_tokens: int = 0
    stop_token_ids: tuple[int, ...] = ()
    stop_when: tuple[Callable[[list[int], str], bool], ...] = ()
    grammar: Grammar | None = None
    processors: tuple[Callable[..., Any], ...] = ()

    def __post_init__(self) -> None:
        for name, low, high in _RANGES:
            value = getattr(self, name)
            if not _is_number(value):
                raise SamplingError(f"{name} must be a number, not {value!r}")
            if not low <= value <= high:  # also refuses NaN
                raise SamplingError(f"{name} must be between {low} and {high}, not {value}")
        for name in ("top_k", "max_tokens", "min_tokens", "seed"):
            value = getattr(self, name)
            if value is not None and not _is_whole(value):
                raise SamplingError(f"{name} must be a whole number, not {value!r}")
        if self.top_p == 0 or self.typical_p == 0:
            raise SamplingError("top_p and typical_p must be above 0")
        if self.min_tokens > self.max_tokens:
            raise SamplingError("min_tokens can't be more than max_tokens")
        if self.seed is not None and not 0 <= self.seed < 2**63:
            raise SamplingError(f"seed must be between 0 and 2**63 - 1, not {self.seed}")
        for name, holds, of_what in _TUPLES:
            value = getattr(self, name)
            if (
                isinstance(value, str)
                or not isinstance(value, Sequence)
                or not all(map(holds, value))
            ):
                raise SamplingError(f"{name} must be a tuple of {of_what}, not {value!r}")
        bias = self.logit_bias
        if not isinstance(bias, Mapping) or not all(map(_is_whole, bias)):
            raise SamplingError("logit_bias must map token ids to numbers")
        if not all(_is_number(b) and -1e9 <= b <= 1e9 for b in bias.values()):
            raise SamplingError("logit_bias values must be numbers between -1e9 and 1e9")
        if self.grammar is not None and not isinstance(self.grammar, Grammar):
            raise SamplingError(f"grammar must be a Grammar, not {self.grammar!r}")

    @property
    def greedy(self) -> bool:
        """Whether the most likely token is always taken."""
        return self.temperature == 0.0

    @property
    def plain_logits(self) -> bool:
        """Whether the logits are used as the model gives them, but for the final warping."""
        return (
            self.repetition_penalty == 1.0
            and self.frequency_penalty == 0.0
            and self.presence_penalty == 0.0
            and not self.logit_bias
            and not self.bad_words
            and self.min_tokens == 0
            and self.grammar is None
            and not self.processors
        )


def template_kwargs(value: object) -> dict[str, Any]:
    """Check variables for a chat template, such as ``{"enable_thinking": False}``; returns a copy.

    Raises:
        PromptError: not a mapping of names to JSON values, too large, or a name that isn't a variable's.
    """
    if not isinstance(value, Mapping):
        raise PromptError(f"chat_template_kwargs must map names to values, not {value!r:.80}")
    for name in value:
        if not isinstance(name, str) or not name.isidentifier() or name in _NOT_VARIABLES:
            raise PromptError(f"chat_template_kwargs: {name!r:.80} can't be a template's variable")
    try:
        text = json.dumps(dict(value), allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise PromptError(f"chat_template_kwargs must be JSON values: {error}") from None
    if len(text) > _LONGEST_KWARGS:
        raise PromptError(f"chat_template_kwargs may have {_LONGEST_KWARGS} characters of JSON")
    copied: dict[str, Any] = json.loads(text)
    return copied


def checked_params(params: object, wrong: Mapping[str, object]) -> SamplingParams:
    """The parameters of a request (None: the defaults); ``wrong`` are arguments that nobody knows.

    Raises:
        SamplingError: there are such arguments, or ``params`` is something else.
    """
    known = {field.name for field in fields(SamplingParams)}
    for name in wrong.keys() - known:
        raise SamplingError(
            f"there is no parameter {name}; how to sample is said by params=SamplingParams(...)"
        )
    if wrong:
        given = ", ".join(f"{name}={value!r}" for name, value in wrong.items())
        raise SamplingError(f"sampling parameters go together: pass params=SamplingParams({given})")
    if params is None:
        return SamplingParams()
    if not isinstance(params, SamplingParams):
        raise SamplingError(
            f"params must be SamplingParams, as in params=SamplingParams(max_tokens=4), not {params!r}"
        )
    return params


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_text(value: object) -> bool:
    """Half a surrogate is none: that is how bytes which are no UTF-8 come from a command line."""
    return isinstance(value, str) and bool(value) and not _HALVES.search(value)


_HALVES = re.compile("[\ud800-\udfff]")
_RANGES = (
    ("temperature", 0.0, 100.0),
    ("top_p", 0.0, 1.0),
    ("top_k", 0, 2**31),
    ("min_p", 0.0, 1.0),
    ("typical_p", 0.0, 1.0),
    ("repetition_penalty", 0.01, 100.0),
    ("frequency_penalty", -100.0, 100.0),
    ("presence_penalty", -100.0, 100.0),
    ("max_tokens", 1, 2**31),
    ("min_tokens", 0, 2**31),
)
_TUPLES: tuple[tuple[str, Callable[[object], bool], str], ...] = (
    ("stop", _is_text, "non-empty strings of valid Unicode"),
    ("bad_words", _is_text, "non-empty strings of valid Unicode"),
    ("stop_token_ids", _is_whole, "token ids"),
    ("stop_when", callable, "functions"),
    ("processors", callable, "functions"),
)
