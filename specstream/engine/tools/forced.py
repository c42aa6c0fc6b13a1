"""Implements ``tool_choice`` by sampling parameters: a grammar that forces calls, or banned openers."""

from __future__ import annotations

import json
from dataclasses import replace

from specstream.engine.reasoning import Tag
from specstream.engine.tools.closed import closed
from specstream.engine.tools.formats import CallFormat
from specstream.errors import SamplingError
from specstream.model.grammar import COMPACT, check_grammar
from specstream.params import Grammar, SamplingParams
from specstream.tools import Tool, Tools

__all__ = ["with_choice"]


def with_choice(
    params: SamplingParams, tools: Tools, form: CallFormat, opened: Tag | None
) -> SamplingParams:
    """Return the parameters with a grammar if a call is required, or with openers banned if none may be.

    Raises:
        SamplingError: a call can't be forced: llguidance is missing, the request has a grammar already,
            the prompt ends inside a reasoning span, or there is no grammar for the model's format.
    """
    if tools.choice == "none":
        return replace(params, bad_words=(*params.bad_words, *form.openers))
    if not tools.forced:
        return params
    asked = f"tool_choice {tools.choice!r}"
    if params.grammar is not None:
        raise SamplingError(f"{asked} is a grammar, so the reply can't have another one")
    if opened is not None:
        raise SamplingError(
            f"{asked} leaves no room for the reasoning that the chat template begins; switch that off, "
            'as by chat_template_kwargs={"enable_thinking": False}'
        )
    grammar = Grammar("lark", _lark(tools, form, asked))
    try:
        check_grammar(grammar)
    except SamplingError as error:
        raise SamplingError(f"{asked} can't be honoured: {error}") from error
    return replace(params, grammar=grammar)


def _lark(tools: Tools, form: CallFormat, asked: str) -> str:
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
    names = [f"call_{number}" for number in range(len(tools.forced))]
    lines = [f"start: {around}", f"calls: call {more}", f"call: {' | '.join(names)}"]
    for name, tool in zip(names, tools.forced, strict=True):
        schema = {**closed(tool.parameters), "type": "object", "x-guidance": COMPACT}
        lines.append(f"{name}: {before} {_call(form, tool, key, f'{name}_arguments')} {after}")
        lines.append(f"{name}_arguments: %json {json.dumps(schema)}")
    return "\n".join(lines)


def _call(form: CallFormat, tool: Tool, key: str, arguments: str) -> str:
    if not key:
        return f"{_text(tool.name)} {_mark(form, '[ARGS]')} {arguments}"
    head = f'{{"name": {json.dumps(tool.name)}, "{key}": '
    return f'{_text(head)} {arguments} "}}"'


def _mark(form: CallFormat, mark: str) -> str:
    """Return the grammar term for a mark: a token if the mark is one, else a text."""
    return f"<[{form.tokens[mark]}]>" if mark in form.tokens else _text(mark)


def _text(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
