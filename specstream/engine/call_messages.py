"""Checks tool calls and tool results in messages, and converts calls for chat templates."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from specstream.errors import PromptError
from specstream.tools import CallMessage, json_copy
from specstream.types import Message

__all__ = ["checked_calls", "checked_text", "for_template", "texts_of"]


def checked_calls(given: Mapping[str, Any], number: int, before: Sequence[Message]) -> Message:
    """Return a copy of a message whose tool calls, or whose reference to a call, are checked.

    Args:
        given: The message as the caller wrote it; its ``role`` and ``content`` are checked already.
        number: The message's index, for error texts.
        before: The messages before it, which hold the call, and so the tool's name, behind a result.

    Raises:
        PromptError: a call or a result doesn't have the shape of the OpenAI API.
    """
    message: Message = {"role": given["role"], "content": given.get("content") or ""}
    if given.get("tool_calls"):
        if given["role"] != "assistant" or not isinstance(given["tool_calls"], Sequence):
            raise PromptError(f"message {number}: tool_calls are a list in an assistant's message")
        message["tool_calls"] = [_call(call, number) for call in given["tool_calls"]]
    if given["role"] == "tool":
        if (call_id := given.get("tool_call_id")) is not None:
            message["tool_call_id"] = checked_text(call_id, f"message {number}: tool_call_id")
        name = given.get("name") or _name_of(call_id, before)
        if name:
            message["name"] = checked_text(name, f"message {number}: name")
    return message


def _call(given: Any, number: int) -> CallMessage:
    function = given.get("function") if isinstance(given, Mapping) else None
    if not isinstance(function, Mapping) or given.get("type", "function") != "function":
        raise PromptError(
            f"message {number}: a tool call needs an id and a function with name and arguments"
        )
    arguments = function.get("arguments", {})
    what = f"message {number}: arguments"
    if isinstance(arguments, Mapping):
        arguments = json_copy(arguments, what)
    else:
        arguments = checked_text(arguments, what)
    return {
        "id": checked_text(given.get("id"), f"message {number}: the id of a call"),
        "type": "function",
        "function": {
            "name": checked_text(function.get("name"), f"message {number}: the name of a call"),
            "arguments": arguments,
        },
    }


def checked_text(value: object, what: str) -> str:
    """Return ``value`` if it is a text that a tokenizer can encode.

    Raises:
        PromptError: ``what``, the name of the value, is no text, or not valid Unicode.
    """
    if not isinstance(value, str):
        raise PromptError(f"{what} must be a text, not {value!r:.80}")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise PromptError(f"{what} is not valid Unicode: half a surrogate") from None
    return value


def _name_of(call_id: Any, messages: Sequence[Message]) -> str:
    calls = [call for message in messages for call in message.get("tool_calls", ())]
    return next((call["function"]["name"] for call in calls if call["id"] == call_id), "")


def for_template(messages: Sequence[Message]) -> list[Message]:
    """Parse the arguments of calls into objects, since chat templates serialise them themselves.

    Arguments that aren't a JSON object stay the text that the model wrote.
    """
    out: list[Message] = []
    for message in messages:
        calls = [_parsed(call) for call in message.get("tool_calls", ())]
        out.append({**message, "tool_calls": calls} if calls else message)
    return out


def _parsed(call: CallMessage) -> CallMessage:
    function = call["function"]
    arguments = function["arguments"]
    if isinstance(arguments, str):
        try:
            parsed = json.loads(arguments)
        except (ValueError, RecursionError):
            return call
        if isinstance(parsed, dict):
            arguments = parsed
    return {**call, "function": {**function, "arguments": arguments}}


def texts_of(message: Message) -> Iterator[str]:
    """Yield the texts of a message whose length is unbounded: its content and its calls' arguments."""
    yield message["content"]
    for call in message.get("tool_calls", ()):
        arguments = call["function"]["arguments"]
        yield arguments if isinstance(arguments, str) else json.dumps(arguments)
