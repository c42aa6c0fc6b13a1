"""The body of a request for chat completions, as far as a kind of server takes it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any, Literal, TypeAlias

from specstream.errors import PromptError, SamplingError
from specstream.tools import Tools
from specstream.types import Message, SamplingParams

__all__ = ["ServerKind", "body_of", "messages_of", "without_oldest_turn"]

ServerKind: TypeAlias = Literal["vllm", "llama.cpp", ""]
"""Servers that take further fields; "": any other one, which gets OpenAI's own fields alone.

Some servers answer 422 to a field that they don't know, others ignore it in silence: so nothing is sent
on trial."""

_COMMON = {
    "temperature": "temperature",
    "top_p": "top_p",
    "max_tokens": "max_tokens",
    "seed": "seed",
    "frequency_penalty": "frequency_penalty",
    "presence_penalty": "presence_penalty",
    "logit_bias": "logit_bias",
}
_EXTRA: dict[str, dict[str, str]] = {
    "vllm": {
        "top_k": "top_k",
        "min_p": "min_p",
        "repetition_penalty": "repetition_penalty",
        "min_tokens": "min_tokens",
        "stop_token_ids": "stop_token_ids",
        "bad_words": "bad_words",
    },
    "llama.cpp": {
        "top_k": "top_k",
        "min_p": "min_p",
        "typical_p": "typical_p",
        "repetition_penalty": "repeat_penalty",
    },
    "": {},
}
_OURS = {"stop", "max_repeats", "grammar"}  # done here, or written in another shape


def body_of(
    params: SamplingParams, kind: ServerKind, tools: Tools | None, variables: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return OpenAI's own fields of a request, and the further ones that this kind of server takes.

    Raises:
        SamplingError: a parameter that is set can't be honoured there.
        PromptError: the same of variables for the chat template.
    """
    names = _COMMON | _EXTRA[kind]
    default, own, extra = SamplingParams(), dict[str, Any](), dict[str, Any]()
    for field in fields(SamplingParams):
        value = getattr(params, field.name)
        if field.name in _OURS:
            continue
        if field.name in names:
            if field.name in ("temperature", "max_tokens") or value != getattr(default, field.name):
                target = own if field.name in _COMMON else extra
                target[names[field.name]] = list(value) if isinstance(value, tuple) else value
        elif value != getattr(default, field.name):
            where = f"a {kind} server" if kind else "this server"
            raise SamplingError(f"{field.name} can't be honoured by {where}; leave it out")
    if "logit_bias" in own:
        own["logit_bias"] = {str(token): bias for token, bias in params.logit_bias.items()}
    if params.stop:
        own["stop"] = list(params.stop[:4])  # more are refused by some; all are looked for here
    if params.grammar is not None:
        own["response_format"] = _format(params)
    if tools is not None and tools.choice != "none":
        own["tools"] = [tool.schema() for tool in tools.tools]
        if tools.choice != "auto":
            named = {"type": "function", "function": {"name": tools.choice}}
            own["tool_choice"] = "required" if tools.choice == "required" else named
        if not tools.parallel:
            own["parallel_tool_calls"] = False
    if variables:
        if not kind:
            raise PromptError("this server takes no variables for its chat template")
        extra["chat_template_kwargs"] = dict(variables)
    if kind == "vllm":
        extra["return_token_ids"] = True
    return own, extra


def _format(params: SamplingParams) -> dict[str, Any]:
    grammar = params.grammar
    assert grammar is not None
    if grammar.kind != "json_schema":
        raise SamplingError(f"a {grammar.kind} grammar can't be sent to a server; a JSON schema can")
    schema = {"name": "reply", "schema": json.loads(grammar.text), "strict": True}
    return {"type": "json_schema", "json_schema": schema}


_NOTHING = "(The user says nothing.)"


def messages_of(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Return the messages as they are sent.

    Turns of the user that follow each other (the first was interrupted before its answer) become one,
    since many chat templates refuse them. Where nothing was said since the last reply, a user's turn
    says so: of a last message of another role some servers would continue the text and repeat it, others
    begin a new turn, and many chat templates refuse it.
    """
    sent: list[dict[str, Any]] = []
    for message in with_question(messages):
        each: dict[str, Any] = dict(message)
        if sent and each["role"] == "user" == sent[-1]["role"]:
            sent[-1] = {**sent[-1], "content": f"{sent[-1]['content']}\n{each['content']}"}
        else:
            sent.append(each)
    return sent


def with_question(messages: Sequence[Message]) -> list[Message]:
    """Return the messages with a user's turn at the end where nothing was said since the last reply.

    Messages of the system, which may lie behind a question, say nothing. Wrong messages are left alone.
    """
    roles = [m.get("role") if isinstance(m, Mapping) else None for m in messages]
    said = [role for role in roles if role not in ("system", "developer")]
    if said and said[-1] != "assistant":
        return list(messages)
    return [*messages, {"role": "user", "content": _NOTHING}]


def without_oldest_turn(messages: Sequence[Message]) -> list[Message] | None:
    """Return the messages without the oldest turn behind the system messages; None: only one is left.

    A turn is the user's message and all that follows it up to the user's next one.
    """
    first = next((at for at, m in enumerate(messages) if m["role"] not in ("system", "developer")), 0)
    later = [at for at in range(first + 1, len(messages)) if messages[at]["role"] == "user"]
    if not later:
        return None
    return [*messages[:first], *messages[later[0] :]]
