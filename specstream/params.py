"""How a reply is sampled and when it ends: the parameters of one request, checked when made."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from functools import cached_property
from typing import Any, Literal

from specstream.errors import PromptError, SamplingError
from specstream.tools import json_copy

__all__ = [
    "Grammar",
    "Manner",
    "Parameter",
    "SamplingParams",
    "Truncation",
    "checked_params",
    "parameters",
    "template_kwargs",
]

_LONGEST_KWARGS = 65_536  # characters of JSON
# Arguments of transformers' `apply_chat_template` and names that it gives the template itself: a
# caller's variable of such a name would change how the prompt is made, not what the template writes.
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
        if not _is_text(self.text):
            raise SamplingError(f"the {self.kind} grammar is not valid Unicode")


@dataclass(frozen=True, slots=True)
class Parameter:
    """The declaration of a sampling parameter, kept in the metadata of its field.

    Attributes:
        stage: The code that applies it: ``"logits"`` a processor of
            `specstream.model.tokens.processors`, ``"warper"``
            `specstream.model.tokens.sampling.probabilities`, ``"reply"`` the engine (seeded noise and
            ends of replies).
        check: Called with name and value; raises `SamplingError` for a value that is wrong.
        example: A value other than the default, which the coverage check tries on a model.
        theirs: The name in transformers' ``GenerationConfig``; "" if there is none.
    """

    stage: Literal["logits", "warper", "reply"]
    check: Callable[[str, Any], None]
    example: Any
    theirs: str = ""


def parameters() -> dict[str, Parameter]:
    """All sampling parameters by name, in the order of the fields of `SamplingParams`."""
    return {field.name: field.metadata["parameter"] for field in fields(SamplingParams)}


def _number(low: float, high: float, *, above: bool = False) -> Callable[[str, Any], None]:
    """Return a check for a number from ``low`` to ``high``; ``above`` excludes ``low``."""

    def check(name: str, value: Any) -> None:
        if not _is_number(value):
            raise SamplingError(f"{name} must be a number, not {value!r}")
        if not low <= value <= high:  # also refuses NaN
            raise SamplingError(f"{name} must be between {low} and {high}, not {value}")
        if above and value == low:
            raise SamplingError(f"{name} must be above {low:g}")

    return check


def _whole(low: int, high: int) -> Callable[[str, Any], None]:
    in_range = _number(low, high)

    def check(name: str, value: Any) -> None:
        in_range(name, value)
        if not _is_whole(value):
            raise SamplingError(f"{name} must be a whole number, not {value!r}")

    return check


def _tuple_of(holds: Callable[[object], bool], what: str) -> Callable[[str, Any], None]:
    def check(name: str, value: Any) -> None:
        sequence = isinstance(value, Sequence) and not isinstance(value, str)
        if not sequence or not all(map(holds, value)):
            raise SamplingError(f"{name} must be a tuple of {what}, not {value!r}")

    return check


def _check_seed(name: str, value: Any) -> None:
    if value is not None and not _is_whole(value):
        raise SamplingError(f"{name} must be a whole number, not {value!r}")
    if value is not None and not 0 <= value < 2**63:
        raise SamplingError(f"{name} must be between 0 and 2**63 - 1, not {value}")


def _check_logprobs(name: str, value: Any) -> None:
    if value is not None:
        _whole(0, 20)(name, value)


def _check_bias(name: str, value: Any) -> None:
    if not isinstance(value, Mapping) or not all(map(_is_whole, value)):
        raise SamplingError(f"{name} must map token ids to numbers")
    if not all(_is_number(bias) and -1e9 <= bias <= 1e9 for bias in value.values()):
        raise SamplingError(f"{name} values must be numbers between -1e9 and 1e9")


def _check_grammar(name: str, value: Any) -> None:
    if value is not None and not isinstance(value, Grammar):
        raise SamplingError(f"{name} must be a Grammar, not {value!r}")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_text(value: object) -> bool:
    """Return whether ``value`` is non-empty text of valid Unicode.

    Python turns bytes of a command line that are not UTF-8 into lone surrogates.
    """
    return isinstance(value, str) and bool(value) and not re.search("[\ud800-\udfff]", value)


_TEXTS = _tuple_of(_is_text, "non-empty texts of valid Unicode")


def _is_plain(value: object) -> bool:
    return callable(value) and not inspect.iscoroutinefunction(value)


_FUNCTIONS = _tuple_of(_is_plain, "functions that are not async")


def _parameter(default: Any, *declared: Any) -> Any:
    """A field with a default and the arguments of its `Parameter`."""
    metadata = {"parameter": Parameter(*declared)}
    if default == {}:
        return field(default_factory=dict, metadata=metadata)
    return field(default=default, metadata=metadata)


@dataclass(frozen=True)  # without slots, which have no place for cached properties
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
            for greedy text: in native passes, and practically always in float32; in any dtype and pass
            with ``mode="reproducible"``). Sampled drafts are then accepted a little less often. None: a
            different text each time.
        max_tokens: Longest reply, reasoning and end-of-sequence token included.
        min_tokens: The reply can't end by itself before it has this many tokens: the model's own end
            and ``stop_token_ids`` can't be drawn, and stop strings completed earlier count as text.
            A grammar that can't go on ends the reply earlier; one that never lasts so long is refused.
        stop: Strings that end the reply; not part of its text. They are not looked for in reasoning.
        stop_token_ids: Tokens that end the reply, besides the model's own. Part of its text.
        stop_when: Functions that are called with the reply's token ids and text (as the model wrote it,
            reasoning included) after every single token, once and in order; True ends the reply there.
        bad_words: Texts that are not written: the last token of each, as it is tokenised alone and
            after a space, is ruled out where the others precede it.
        max_repeats: The reply ends, as by ``max_tokens``, when a sentence of at least three words has
            been written so many times: small models go round in circles. 0: never.
        logprobs: How many of the likeliest tokens are told with each token of a chunk, beside the
            token's own log probability (see `TokenLogprob`), from 0 to 20; None: neither.
        prompt_logprobs: The same for the prompt's tokens, in `Report.prompt_logprobs`; the prompt is
            then read from its first token on, whatever a cache holds.
        grammar: The shape of the reply from its first token on, so it leaves no room for reasoning;
            needs the extra ``grammar``.
        processors: Transformers-style ``f(input_ids [1, n], scores [1, V]) -> scores [1, V]``. They
            must depend on their arguments only: they are called for rejected drafted tokens, too.

    Raises:
        SamplingError: a value is out of range.
    """

    temperature: float = _parameter(0.0, "warper", _number(0.0, 100.0), 0.7, "temperature")
    top_p: float = _parameter(1.0, "warper", _number(0.0, 1.0, above=True), 0.5, "top_p")
    top_k: int = _parameter(0, "warper", _whole(0, 2**31), 2, "top_k")
    seed: int | None = _parameter(None, "reply", _check_seed, 1)
    max_tokens: int = _parameter(256, "reply", _whole(1, 2**31), 8, "max_new_tokens")
    stop: tuple[str, ...] = _parameter((), "reply", _TEXTS, ("a",), "stop_strings")
    min_p: float = _parameter(0.0, "warper", _number(0.0, 1.0), 0.5, "min_p")
    typical_p: float = _parameter(1.0, "warper", _number(0.0, 1.0, above=True), 0.5, "typical_p")
    repetition_penalty: float = _parameter(
        1.0, "logits", _number(0.01, 100.0), 1.5, "repetition_penalty"
    )
    frequency_penalty: float = _parameter(0.0, "logits", _number(-100.0, 100.0), 1.0)
    presence_penalty: float = _parameter(0.0, "logits", _number(-100.0, 100.0), 1.0)
    logit_bias: Mapping[int, float] = _parameter({}, "logits", _check_bias, {0: 5.0}, "sequence_bias")
    bad_words: tuple[str, ...] = _parameter((), "logits", _TEXTS, ("a",), "bad_words_ids")
    min_tokens: int = _parameter(0, "logits", _whole(0, 2**31), 2, "min_new_tokens")
    stop_token_ids: tuple[int, ...] = _parameter((), "reply", _tuple_of(_is_whole, "token ids"), (0,))
    stop_when: tuple[Callable[[list[int], str], bool], ...] = _parameter(
        (), "reply", _FUNCTIONS, (lambda ids, text: False,)
    )
    max_repeats: int = _parameter(0, "reply", _whole(0, 1000), 3)
    logprobs: int | None = _parameter(None, "reply", _check_logprobs, 2)
    prompt_logprobs: int | None = _parameter(None, "reply", _check_logprobs, 2)
    grammar: Grammar | None = _parameter(None, "logits", _check_grammar, Grammar("regex", "[a-z]+"))
    processors: tuple[Callable[..., Any], ...] = _parameter(
        (), "logits", _FUNCTIONS, (lambda ids, scores: scores - scores.max(),)
    )

    def __post_init__(self) -> None:
        for name, parameter in _PARAMETERS.items():
            parameter.check(name, getattr(self, name))
        if self.min_tokens > self.max_tokens:
            raise SamplingError("min_tokens can't be more than max_tokens")

    @property
    def greedy(self) -> bool:
        """Whether the most likely token is always taken."""
        return self.temperature == 0.0

    @cached_property
    def processing(self) -> tuple[str, ...]:
        """The parameters of stage ``"logits"`` that are set; an empty value counts as not set."""
        return tuple(n for n, off in _PROCESSED if (v := getattr(self, n)) and v != off)

    @cached_property
    def plain_logits(self) -> bool:
        """Whether no logits processor applies: only warpers (temperature, top-k, …) and the draw.

        Asked for each drafted token.
        """
        return not self.processing


_PARAMETERS = parameters()
_PROCESSED = tuple(
    (field.name, {} if field.default is MISSING else field.default)
    for field in fields(SamplingParams)
    if _PARAMETERS[field.name].stage == "logits"
)


@dataclass(frozen=True, slots=True)
class Manner:
    """How a model replies in a conversation where nobody says otherwise; see `Engine.manner`.

    ``system`` is the system message; None: none.
    """

    params: SamplingParams = SamplingParams()
    system: str | None = None


@dataclass(frozen=True, slots=True)
class Truncation:
    """How a conversation that outgrows the model's context is shortened: its oldest turns leave it.

    The names are those of OpenAI's Realtime API. System messages at the beginning always stay, and a
    quarter of the context, or ``max_tokens`` if that is less, is kept free for the reply.

    Args:
        retention_ratio: How full the room is after a cut, from 0 to 1. With less than 1 cuts are rarer,
            and the prompts between two of them share a cache.
        post_instructions: Most tokens of a prompt without its system messages. None: what fits.

    Raises:
        PromptError: a value out of range.
    """

    retention_ratio: float = 0.8
    post_instructions: int | None = None

    def __post_init__(self) -> None:
        ratio, most = self.retention_ratio, self.post_instructions
        if not (_is_number(ratio) and 0 <= ratio <= 1):
            raise PromptError(f"retention_ratio must be a number from 0 to 1, not {ratio!r:.80}")
        if most is not None and not (_is_whole(most) and most >= 1):
            raise PromptError(f"post_instructions must be a whole number from 1, not {most!r:.80}")


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
    copied = json_copy(value, "chat_template_kwargs")
    if len(json.dumps(copied)) > _LONGEST_KWARGS:
        raise PromptError(f"chat_template_kwargs may have {_LONGEST_KWARGS} characters of JSON")
    return copied


def checked_params(params: object, wrong: Mapping[str, object]) -> SamplingParams:
    """Return the parameters of a request (None: the defaults).

    ``wrong`` are the keyword arguments that `Engine.generate` doesn't have: the error says how to pass
    those that are sampling parameters.

    Raises:
        SamplingError: ``wrong`` isn't empty, or ``params`` is something else than `SamplingParams`.
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
