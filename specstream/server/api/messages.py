"""OpenAI's messages and tools as ours."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from specstream.errors import PromptError
from specstream.server.api.errors import ApiError
from specstream.types import Message, Tool, Tools

__all__ = ["messages_of", "tools_of"]

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
            raise ApiError(
                400, f"{at}: write it as tool_calls", param=at, code="unsupported_content"
            )
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
