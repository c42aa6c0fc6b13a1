"""What a client asks for: the fields of a request's body, and OpenAI's messages and tools as ours."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal, TypeAlias, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from specstream.engine.protocol import EngineCapabilities
from specstream.errors import PromptError, SamplingError
from specstream.params import Grammar, SamplingParams
from specstream.realtime.protocol import structure
from specstream.realtime.settings import Biases, Texts, TokenIds
from specstream.realtime.wire import at_most
from specstream.server.api.errors import ApiError
from specstream.server.sessions.request import Service
from specstream.tools import MAX_TOOLS
from specstream.types import Message, Tool, Tools

__all__ = [
    "ChatBody",
    "Items",
    "JsonFormat",
    "SamplingBody",
    "StreamOptions",
    "ToolObjects",
    "able",
    "messages_of",
    "parsed",
    "tools_of",
]

WITHOUT_EFFECT = frozenset(
    "store metadata user safety_identifier prompt_cache_key prompt_cache_retention service_tier "
    "reasoning_effort verbosity modalities stream_format strict".split()
)
"""Fields that clients send without meaning them, or that change no word here."""
MOST_TOKENS = 4096
"""Tokens of a reply whose request names no limit."""

_SAMPLING = (
    *("temperature", "top_p", "top_k", "min_p", "typical_p", "seed", "frequency_penalty"),
    *("presence_penalty", "repetition_penalty", "min_tokens", "stop_token_ids", "bad_words"),
)

T = TypeVar("T", bound="Body")
Items = Annotated[list[dict[str, Any]], at_most(16_384)]
"""The messages of a conversation, or what a message consists of."""
ToolObjects = Annotated[list[dict[str, Any]], at_most(MAX_TOOLS)]
_Capability: TypeAlias = Literal["raw_prompts", "token_prompts", "logprobs"]


class Body(BaseModel):
    """A body: fields that aren't named are refused by name, but for those without effect.

    Attributes:
        most_structure: Characters of JSON that may be outside of strings: reading them holds up others.
    """

    model_config = ConfigDict(extra="allow", frozen=True)
    most_structure: ClassVar[int] = 256 << 10


class StreamOptions(BaseModel):
    """How a reply is streamed; other options are ignored."""

    include_usage: bool = False


class JsonSchema(BaseModel):
    """A schema and its name."""

    name: str = "reply"
    schema_: dict[str, Any] = Field(alias="schema")


class JsonFormat(BaseModel):
    """The shape of a reply."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None

    def grammar(self) -> Grammar | None:
        """The grammar that the reply follows; None: any text."""
        if self.type == "text":
            return None
        if self.type == "json_object":
            return Grammar("json_schema", '{"type": "object"}')
        if self.json_schema is None:
            raise ApiError(400, "json_schema is missing", param="response_format")
        return Grammar("json_schema", json.dumps(self.json_schema.schema_))


class Prediction(BaseModel):
    """Predicted output: text that the reply is expected to repeat in part."""

    type: Literal["content"] = "content"
    content: str | Items

    @property
    def text(self) -> str:
        """The text, of all parts."""
        if isinstance(self.content, str):
            return self.content
        return "".join(str(part.get("text", "")) for part in self.content)


class Speculation(BaseModel):
    """How many positions ahead may be drafted in a round."""

    num_speculative_tokens: Annotated[int, Field(ge=0)]


class SamplingBody(Body):
    """How to sample, and how far; shared by all routes that write text."""

    model: str | None = None
    stream: bool = False
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    typical_p: float | None = None
    seed: int | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    repetition_penalty: float | None = None
    min_tokens: int | None = None
    stop_token_ids: TokenIds | None = None
    bad_words: Texts | None = None
    logit_bias: Biases | None = None
    stop: Annotated[str, Field(max_length=256)] | Texts | None = None
    speculative: bool | Speculation | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None

    @property
    def speculate(self) -> bool | int:
        """See `Engine.generate`."""
        asked = self.speculative
        return asked.num_speculative_tokens if isinstance(asked, Speculation) else asked is not False

    def params(
        self, base: SamplingParams, limit: int | None, format: JsonFormat | None = None
    ) -> SamplingParams:
        """The parameters of the reply: those that were named, else ``base``.

        Raises:
            ApiError: a value out of range, by name.
        """
        named = {name: getattr(self, name) for name in _SAMPLING}
        chosen: dict[str, Any] = {name: value for name, value in named.items() if value is not None}
        if self.top_p == 0.0:  # the smallest set of tokens: the likeliest one
            chosen |= {"top_p": 1.0, "temperature": 0.0}
        if self.seed is not None and -(2**63) <= self.seed < 0:  # as OpenAI takes them
            chosen["seed"] = self.seed + 2**63
        if self.stop is not None:
            chosen["stop"] = (self.stop,) if isinstance(self.stop, str) else self.stop
        if self.logit_bias:
            chosen["logit_bias"] = self.logit_bias
        if format is not None and (grammar := format.grammar()) is not None:
            chosen["grammar"] = grammar
        chosen["max_tokens"] = limit or max(base.max_tokens, MOST_TOKENS)
        try:
            return replace(base, **chosen)
        except SamplingError as error:
            told = str(error)
            param = next((name for name in chosen if told.startswith(name)), None)
            raise ApiError(400, told, param=param, code="invalid_value") from None


class ChatBody(SamplingBody):
    """The body of ``/v1/chat/completions``."""

    messages: Items
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    n: Annotated[int, Field(ge=1, le=4)] = 1
    stream_options: StreamOptions | None = None
    tools: ToolObjects = []
    tool_choice: str | dict[str, Any] = "auto"
    response_format: JsonFormat | None = None
    prediction: Prediction | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None


def able(service: Service, what: _Capability, param: str) -> None:
    """Refuse a field that this server's engine can't honour.

    Raises:
        ApiError: names the field.
    """
    if not getattr(getattr(service.engine, "capabilities", EngineCapabilities()), what):
        why = f"the engine behind this server has no {what.replace('_', ' ')}"
        raise ApiError(400, why, param=param, code="unsupported_parameter")


def parsed(kind: type[T], data: bytes) -> T:
    """Read a body.

    Raises:
        ApiError: no JSON object, or too large a one outside of its strings; a field that is missing, has
            a wrong type or isn't known.
    """
    most = kind.most_structure
    try:
        if len(data) > most and structure(data.decode(json.detect_encoding(data))) > most:
            told = f"a body of this route has at most {most} characters outside of its strings"
            raise ApiError(413, told, code="body_too_large")
        found: Any = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ApiError(400, f"the body is no JSON: {error}", code="invalid_json") from None
    try:
        json.dumps(found, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:  # no tokenizer reads it, no answer can repeat it
        half = f"\\u{ord(error.object[error.start]):04x}"
        raise ApiError(400, f"the body has half a character ({half})", code="invalid_json") from None
    if not isinstance(found, dict):
        raise ApiError(400, "the body must be a JSON object", code="invalid_json")
    try:
        body = kind.model_validate({name: value for name, value in found.items() if value is not None})
    except ValidationError as error:
        # Of a union, what is wrong in the branch that fits best: the deepest, or one that is only too
        # long. Branches have names, too.
        each = error.errors(include_url=False, include_context=False, include_input=False)
        first = max(each, key=lambda one: (len(one["loc"]), one["type"] == "too_long"))
        named = [part for part in map(str, first["loc"]) if part not in _BRANCHES and "[" not in part]
        param = ".".join(named)
        raise ApiError(400, f"{param}: {first['msg']}", param=param, code="invalid_value") from None
    for name, value in (body.model_extra or {}).items():
        if name not in WITHOUT_EFFECT and value != "":
            message = f"{name} isn't known here, or can't be honoured; leave it out"
            raise ApiError(400, message, param=name, code="unsupported_parameter")
    return body


_BRANCHES = {"bool", "Speculation", "str", "constrained-str"}  # as pydantic calls them
_ROLES = {"developer": "system", "function": "tool"}
_TEXT = ("text", "input_text", "output_text", "refusal")


def messages_of(
    given: Sequence[Mapping[str, Any]], places: Sequence[str] | None = None
) -> list[Message]:
    """Translate messages: contents of parts are joined, a developer's are the system's.

    ``places``: the fields that they come from, for refusals; None: ``messages.0`` and so on.

    Raises:
        ApiError: a part that is no text, or a call in the shape of before tools.
    """
    made = list[Message]()
    names = dict[str, str]()  # of the function of each call
    for number, message in enumerate(given):
        at = f"messages.{number}" if places is None else places[number]
        role = str(message.get("role", ""))
        if message.get("function_call"):
            at += ".function_call"
            raise ApiError(400, f"{at}: write it as tool_calls", param=at, code="unsupported_content")
        one: dict[str, Any] = {
            "role": _ROLES.get(role, role),
            "content": _text(message.get("content"), f"{at}.content"),
        }
        if calls := message.get("tool_calls"):
            one["tool_calls"] = calls
            for call in calls if isinstance(calls, list) else ():
                if isinstance(call, dict) and isinstance(call.get("function"), dict):
                    names[str(call.get("id"))] = str(call["function"].get("name", ""))
        if one["role"] == "tool":
            called = str(message.get("tool_call_id", ""))
            one["tool_call_id"] = called
            one["name"] = message.get("name") or names.get(called, "")
        made.append(one)  # type: ignore[arg-type]  # the engine checks it
    return made


def _text(content: Any, at: str) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    texts = list[str]()
    if not isinstance(content, list):
        raise ApiError(400, f"{at} must be a text or a list of parts", param=at)
    for index, part in enumerate(content):
        kind = part.get("type") if isinstance(part, dict) else None
        if kind not in _TEXT:
            message = f"{at}.{index}: only text can be read here, not {kind}"
            raise ApiError(400, message, param=f"{at}.{index}", code="unsupported_content")
        text = part.get("refusal" if kind == "refusal" else "text", "")
        if not isinstance(text, str):
            raise ApiError(400, f"{at}.{index}: its text must be a text", param=f"{at}.{index}")
        texts.append(text)
    return "".join(texts)


def tools_of(
    given: Sequence[Mapping[str, Any]], choice: str | Mapping[str, Any], parallel: bool | None
) -> Tools | None:
    """Translate tools and the choice among them; None if there are none.

    Raises:
        ApiError: a tool that is no function or badly described, or a choice that names none of them.
    """
    if not given and choice not in ("auto", "none"):
        raise ApiError(400, "a call is asked for, and there are no tools", param="tool_choice")
    if not given:
        return None
    made = list[Tool]()
    named = choice if isinstance(choice, str) else _function(choice, "tool_choice").get("name", "")
    at = "tools"
    try:
        for number, tool in enumerate(given):
            function = _function(tool, f"tools.{number}")
            made.append(
                Tool(
                    function.get("name", ""),
                    function.get("description") or "",
                    function.get("parameters") or {"type": "object", "properties": {}},
                )
            )
        all_of_them = Tools(tuple(made), parallel=parallel is not False)
        at = "tool_choice"
        return replace(all_of_them, choice=str(named))
    except PromptError as error:
        raise ApiError(400, str(error), param=at, code="invalid_value") from None


def _function(tool: Mapping[str, Any], at: str) -> Mapping[str, Any]:
    """The description of a function, under ``function`` or, as in the Responses API, beside the type."""
    if tool.get("type") != "function":
        raise ApiError(400, f"{at}: only functions can be called here", param=at)
    inner = tool.get("function", tool)
    if not isinstance(inner, Mapping):
        raise ApiError(400, f"{at}.function must be an object", param=at)
    return inner
