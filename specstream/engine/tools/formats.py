"""The forms in which models write calls, and how ``tool_choice`` forces or bans one."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from specstream.engine.core.prompt import template_variables
from specstream.engine.core.reasoning import ReasoningTag
from specstream.errors import PromptError, SamplingError
from specstream.model.tokens.grammar import COMPACT, check_grammar, kept_schema
from specstream.params import Grammar, SamplingParams
from specstream.tools import (
    MAX_CALLS,
    CallProblem,
    Tool,
    ToolCall,
    ToolCallDelta,
    Tools,
    arguments_problem,
    new_call_id,
)

__all__ = ["CallFormat", "CallLog", "closed", "format_of", "with_choice"]


@dataclass(slots=True)
class _Call:
    """``told``: characters of the arguments that `CallLog.take` has returned; -1: not even the name."""

    id: str
    name: str
    arguments: str = ""
    done: bool = False
    problem: CallProblem = ""
    told: int = -1


class CallLog:
    """Takes the calls of a reply from the parsers, one call after another.

    Attributes:
        full: Whether no further call is recorded: one is there and more aren't allowed, or there are
            `MAX_CALLS`.
    """

    def __init__(self, tools: Tools, new_id: Callable[[], str] = new_call_id) -> None:
        self.tools = tools
        self.full = False
        self._new_id = new_id
        self._calls: list[_Call] = []
        self._taken = 0  # calls that `take` has reported as done

    @property
    def calls(self) -> tuple[ToolCall, ...]:
        """The calls that have ended."""
        done = (call for call in self._calls if call.done)
        return tuple(ToolCall(call.id, call.name, call.arguments, call.problem) for call in done)

    @property
    def writing(self) -> bool:
        """Whether a call has begun and not ended."""
        return bool(self._calls) and not self._calls[-1].done

    def open(self, name: str) -> None:
        """Begin a call."""
        if not self.full:
            self._calls.append(_Call(self._new_id(), name))

    def write(self, text: str) -> None:
        """Append to the arguments of the open call, if there is one."""
        if self.writing:
            self._calls[-1].arguments += text

    def close(self, *, cut: bool = False) -> None:
        """End the open call, if there is one; ``cut``: the reply ended inside the call."""
        if not self.writing:
            return
        call = self._calls[-1]
        if not call.arguments and not cut:
            call.arguments = "{}"
        call.done, call.problem = True, self._problem(call, cut)
        self.full = not self.tools.parallel or len(self._calls) >= MAX_CALLS

    def _problem(self, call: _Call, cut: bool) -> CallProblem:
        broken = arguments_problem(call.arguments)
        if cut and (broken or not call.name):
            return "cut_off"
        if not call.name:
            return "no_name"
        return broken or ("" if self.tools.find(call.name) is not None else "unknown_tool")

    def take(self) -> tuple[ToolCallDelta, ...]:
        """Return what was recorded since the last call of this method."""
        deltas = []
        for index in range(self._taken, len(self._calls)):
            call = self._calls[index]
            new, done = call.arguments[max(call.told, 0) :], call.done
            if new or done or call.told < 0:
                deltas.append(ToolCallDelta(index, call.id, call.name, new, done, call.problem))
            call.told = len(call.arguments)
            self._taken += done
        return tuple(deltas)


# Openers of calls with their closing tags ("": none). Hermes, Qwen and SmolLM write JSON between
# <tool_call> tags, Qwen3-Coder and GLM other tags; Granite and Phi-4 write <|tool_call|>.
_TAGS = {
    "<tool_call>": "</tool_call>",
    "<|tool_call|>": "<|/tool_call|>",
    "<function=": "",
    "[TOOL_CALLS]": "",
    "<|python_tag|>": "",
}
_OTHER_MARKS = ("</tool_call>", "<|/tool_call|>", "[CALL_ID]", "[ARGS]")
_EXAMPLE = [{"type": "function", "function": {"name": "f", "description": "", "parameters": {}}}]


@dataclass(frozen=True, slots=True)
class CallFormat:
    """The format of one model's calls.

    Attributes:
        openers: Texts that begin a call, each with its closing tag; "" if it has none.
        bare: Whether a reply may be a call without an opener, from its first brace on (Llama 3).
        markers: Special tokens among openers and other marks, which decode to no text, by id.
        several: Whether the template renders a message with two calls; Llama 3's refuses such a
            history, so a reply that had two could never be gone on with.
        template: The chat template from which the format was recognised.
        tokens: Marks that a grammar has to name as a token, with its id. Those that aren't special
            decode to their text, so they are not among ``markers``.
    """

    openers: dict[str, str]
    bare: bool = False
    several: bool = True
    markers: dict[int, str] = field(default_factory=dict)
    template: str = ""
    tokens: dict[str, int] = field(default_factory=dict)


def format_of(tokenizer: Any) -> CallFormat:
    """Return the call format of the tokenizer's model.

    Raises:
        PromptError: the chat template takes no tools, or its format of calls isn't known here.
    """
    name = getattr(tokenizer, "name_or_path", "") or "the target"
    if Path(name).is_absolute():
        name = Path(name).name  # clients of a server get these messages, too
    if not getattr(tokenizer, "chat_template", None):
        raise PromptError(f"{name} has no chat template, so it can't be told of tools")
    try:
        template = str(tokenizer.get_chat_template(tools=_EXAMPLE))
    except ValueError as error:
        raise PromptError(f"{name} has no chat template for tools: {error}") from error
    if "tools" not in template_variables(template):
        raise PromptError(
            f"the chat template of {name} takes no tools: take a model that was trained to call them"
        )
    openers = {mark: end for mark, end in _TAGS.items() if mark in template}
    # Llama 3.1 has the tag and the bare form; 3.2 only describes and repeats the bare form.
    described = '{"name": ' in template and '"parameters": ' in template
    bare = "<|python_tag|>" in openers or (described and not openers)
    if not openers and not bare:
        raise PromptError(
            f"the chat template of {name} takes tools, but how the model writes calls isn't known: "
            f"it has none of {', '.join(_TAGS)}"
        )
    added = getattr(tokenizer, "added_tokens_decoder", {})
    marks = {*_TAGS, *_OTHER_MARKS}
    markers = {i: t.content for i, t in added.items() if t.special and t.content in marks}
    if bare and "<|python_tag|>" in markers.values():
        openers["<|python_tag|>"] = ""
    # llguidance takes an added token that looks like a tag for a special one, declared or not.
    tokens = {
        t.content: i
        for i, t in added.items()
        if t.content in marks and (t.special or t.content[0] + t.content[-1] == "<>")
    }
    return CallFormat(openers, bare, _takes_two(tokenizer), markers, template, tokens)


def _takes_two(tokenizer: Any) -> bool:
    """Whether the chat template renders two calls of one message, if it renders one."""
    functions = {"name": "f", "arguments": {}}
    calls = [{"id": new_call_id(), "type": "function", "function": functions} for _ in range(2)]
    asked = {"role": "user", "content": "x"}

    def renders(calls: list[dict[str, Any]]) -> bool:
        made: dict[str, Any] = {"role": "assistant", "content": "", "tool_calls": calls}
        results = [{"role": "tool", "content": "1", "tool_call_id": one["id"]} for one in calls]
        try:
            tokenizer.apply_chat_template([asked, made, *results], tools=_EXAMPLE, tokenize=False)
        except Exception:  # whatever the template raises
            return False
        return True

    return renders(calls) or not renders(calls[:1])


_OPEN = ("additionalProperties", "patternProperties", "unevaluatedProperties", "propertyNames")
# Beside these, a schema's own properties are not all that an object may have.
_COMBINED = ("allOf", "anyOf", "oneOf", "not", "if", "$ref", "dependentSchemas")
_BY_NAME = ("properties", "$defs", "definitions", "dependentSchemas")
_ONE = ("items", "contains", "additionalProperties")
_SEVERAL = ("anyOf", "oneOf", "prefixItems")


def closed(schema: Any) -> Any:
    """Return a copy of a JSON schema in which objects with properties have no others.

    JSON Schema leaves an object open unless it says ``additionalProperties``. Who describes a tool by
    its parameters seldom means that, and a model that is free to go on invents some. llama.cpp and
    xgrammar read such objects as closed, too. What the schema says itself stays, and so do objects that
    are combined of several schemas, whose other parts may name more, or require what they do not name.
    """
    if not isinstance(schema, dict):
        return schema
    made = dict(schema)
    for key in _BY_NAME:
        if isinstance(made.get(key), dict):
            made[key] = {name: closed(one) for name, one in made[key].items()}
    for key in _ONE:
        made = made | {key: closed(made[key])} if key in made else made
    for key in _SEVERAL:
        if isinstance(made.get(key), list):
            made[key] = [closed(one) for one in made[key]]
    named = isinstance(made.get("properties"), dict) and all(
        name in made["properties"] for name in made.get("required") or ()
    )
    if named and not any(key in made for key in (*_OPEN, *_COMBINED)):
        made["additionalProperties"] = False
    return made


def with_choice(
    params: SamplingParams, tools: Tools, form: CallFormat, opened: ReasoningTag | None
) -> SamplingParams:
    """Return the parameters with a grammar if a call is required, or with openers banned if none may be.

    Where the reply has a grammar and may consist of calls as well, the grammar becomes one of both.

    Raises:
        SamplingError: a call can't be forced or allowed: llguidance is missing, the request has a
            grammar that can't be joined, the prompt ends inside a reasoning span, or there is no grammar
            for the model's format.
    """
    if tools.choice == "none":
        return replace(params, bad_words=(*params.bad_words, *form.openers))
    if not tools.forced and params.grammar is None:
        return params
    asked = f"tool_choice {tools.choice!r}"
    if tools.forced and params.grammar is not None:
        raise SamplingError(f"{asked} is a grammar, so the reply can't have another one")
    if tools.forced and opened is not None:
        raise SamplingError(
            f"{asked} leaves no room for the reasoning that the chat template begins; switch that off, "
            'as by chat_template_kwargs={"enable_thinking": False}'
        )
    if params.grammar is not None:
        asked = 'a grammar beside tools (leave it out, or ask for tool_choice "none")'
    grammar = Grammar("lark", _lark(tools, form, params.grammar, asked))
    try:
        check_grammar(grammar)
    except SamplingError as error:
        _blame(tools, params.grammar)
        raise SamplingError(f"{asked} can't be honoured: {error}") from error
    return replace(params, grammar=grammar)


def _blame(tools: Tools, other: Grammar | None) -> None:
    """Raise an error of the one schema that can't be used, instead of one of the joined grammar."""
    if other is not None:
        check_grammar(other)
    for tool in tools.forced or tools.tools:
        try:
            check_grammar(Grammar("json_schema", json.dumps(closed(tool.parameters))))
        except SamplingError as error:
            raise SamplingError(f"the parameters of tool {tool.name}: {error}") from None


def _text_rule(grammar: Grammar, asked: str) -> str:
    """The rule of a reply that is no call."""
    if grammar.kind != "json_schema":
        raise SamplingError(f"{asked}: a {grammar.kind} grammar can't be joined with that of calls")
    schema = json.loads(kept_schema(grammar.text))
    if isinstance(schema, dict):
        schema = {"x-guidance": COMPACT, **schema}
    return f"%json {json.dumps(schema)}"


def _lark(tools: Tools, form: CallFormat, other: Grammar | None, asked: str) -> str:
    """The grammar of calls; of those, or else of a text by the grammar ``other``."""
    openers, key = form.openers, "arguments"
    opener = _mark(form, next(iter(openers), ""))
    before = after = between = ""
    around = "calls"
    if "<function=" in openers or "<arg_key>" in form.template:
        raise SamplingError(f"{asked}: there is no grammar for the calls that this model writes")
    if form.bare:
        key, between = "parameters", _text("; ")
    elif "[TOOL_CALLS]" in openers and "[ARGS]" in form.template:
        key, before = "", opener
    elif "[TOOL_CALLS]" in openers:
        around, between = f'{opener} " "? "[" calls "]"', _text(", ")
    else:
        before, between = f'{opener} "\\n"', _text("\n")
        after = f'"\\n" {_mark(form, next(iter(openers.values())))}'
    more = f"({between} call)*" if tools.parallel else ""
    callable = tools.forced or tools.tools
    names = [f"call_{number}" for number in range(len(callable))]
    choice = "" if other is None else " | text"
    lines = [f"start: {around}{choice}", f"calls: call {more}", f"call: {' | '.join(names)}"]
    for name, tool in zip(names, callable, strict=True):
        schema = {**_parameters(tool), "type": "object", "x-guidance": COMPACT}
        if form.bare and other is not None:
            lines.append(f"{name}: %json {json.dumps(_call_schema(tool, key, schema))}")
            continue
        lines.append(f"{name}: {before} {_call(form, tool, key, f'{name}_arguments')} {after}")
        lines.append(f"{name}_arguments: %json {json.dumps(schema)}")
    if other is not None:
        lines.append(f"text: {_text_rule(other, asked)}")
    return "\n".join(lines)


def _parameters(tool: Tool) -> dict[str, Any]:
    try:
        kept: dict[str, Any] = json.loads(kept_schema(json.dumps(closed(tool.parameters))))
    except SamplingError as error:
        raise SamplingError(f"the parameters of tool {tool.name}: {error}") from None
    return kept


def _call(form: CallFormat, tool: Tool, key: str, arguments: str) -> str:
    if not key:
        return f"{_text(tool.name)} {_mark(form, '[ARGS]')} {arguments}"
    head = f'{{"name": {json.dumps(tool.name)}, "{key}": '
    return f'{_text(head)} {arguments} "}}"'


def _call_schema(tool: Tool, key: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """A call as a schema: a text ``{"name": `` beside another object would swallow that one's brace."""
    shared: dict[str, Any] = {
        name: arguments.pop(name) for name in ("$defs", "definitions") if name in arguments
    }
    properties = {"name": {"const": tool.name}, key: arguments}
    made: dict[str, Any] = {"type": "object", "properties": properties, "required": ["name", key]}
    return {**made, "additionalProperties": False, **shared, "x-guidance": COMPACT}


def _mark(form: CallFormat, mark: str) -> str:
    """Return the grammar term for a mark: a token if the mark is one, else a text."""
    return f"<[{form.tokens[mark]}]>" if mark in form.tokens else _text(mark)


def _text(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
