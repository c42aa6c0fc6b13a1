"""From Pipecat's context to the messages and tools of a request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from specstream import Message, Tool, Tools
from specstream.errors import PromptError

__all__ = ["messages_of", "tools_of"]

_KEPT = {"system": (), "user": (), "assistant": ("tool_calls",), "tool": ("tool_call_id", "name")}


def messages_of(given: Sequence[Mapping[str, Any]]) -> list[Message]:
    """Messages in OpenAI's shape as specstream takes them: each content is one text.

    Raises:
        PromptError: an unknown role, or a content that isn't text, such as an image.
    """
    made: list[Message] = []
    for message in given:
        role = message.get("role")
        if role not in _KEPT:
            raise PromptError(f"a message's role is one of {', '.join(_KEPT)}, not {role!r:.80}")
        kept = {name: message[name] for name in _KEPT[role] if message.get(name) is not None}
        made.append(cast(Message, {"role": role, "content": _text(message.get("content")), **kept}))
    return made


def _text(content: object) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    if not isinstance(content, Sequence):
        raise PromptError(f"a message's content is a text or a list of parts, not {content!r:.80}")
    texts: list[str] = []
    for part in content:
        kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
        if kind != "text" or not isinstance(part.get("text"), str):
            raise PromptError(
                f"the engine reads text only, and a message has a part of type {kind!r:.80}: take "
                "it out of the context, or describe it in words"
            )
        texts.append(part["text"])
    return "\n".join(texts)


def tools_of(given: object, choice: object) -> Tools | None:
    """Tools and choice of tools in OpenAI's shape; None if there are no tools.

    Raises:
        PromptError: a tool that isn't a function, or an unknown choice.
    """
    if not isinstance(given, list) or not given:
        return None
    tools: list[Tool] = []
    for each in given:
        if each.get("type") != "function":
            raise PromptError(f"the engine calls functions only, not {each.get('type')!r:.80}")
        function = each["function"]
        parameters = function.get("parameters") or {"type": "object", "properties": {}}
        tools.append(Tool(function["name"], function.get("description") or "", parameters))
    if isinstance(choice, Mapping):
        choice = choice.get("function", {}).get("name")
    return Tools(tuple(tools), choice if isinstance(choice, str) else "auto")
