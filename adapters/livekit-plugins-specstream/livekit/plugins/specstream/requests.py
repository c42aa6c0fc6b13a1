"""A request of LiveKit Agents in specstream's words: messages, tools, settings."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, cast

from livekit.agents import NOT_GIVEN, NotGivenOr, llm
from specstream import Message, SamplingParams, Tool, Tools
from specstream.errors import PromptError, SamplingError

__all__ = ["Settings", "messages_of", "tools_of"]

_TEMPLATE = "chat_template_kwargs"
_PARAMETERS = tuple(field.name for field in fields(SamplingParams))


@dataclass(frozen=True, slots=True)
class Settings:
    """How replies are sampled, and the variables of the model's chat template."""

    params: SamplingParams
    template: Mapping[str, Any]

    def changed(self, settings: Mapping[str, Any]) -> "Settings":
        """Return these settings with others, by their names in `SamplingParams`.

        ``chat_template_kwargs`` are added to those that are set.

        Raises:
            SamplingError: a name that isn't a setting's, or a value out of range.
            PromptError: ``chat_template_kwargs`` is no mapping.
        """
        for name in settings:
            if name not in _PARAMETERS and name != _TEMPLATE:
                known = ", ".join((*_PARAMETERS, _TEMPLATE))
                raise SamplingError(f"there is no setting {name!r}; there are: {known}")
        template = settings.get(_TEMPLATE, {})
        if not isinstance(template, Mapping):
            raise PromptError(f"{_TEMPLATE} must map names to values, not {template!r:.80}")
        params = {name: value for name, value in settings.items() if name != _TEMPLATE}
        return Settings(replace(self.params, **params), {**self.template, **template})


def messages_of(context: llm.ChatContext) -> list[Message]:
    """Return a chat as messages; a developer's are the system's.

    Raises:
        PromptError: a message holds an image.
    """
    made, _ = context.to_provider_format(format="openai")
    messages = []
    for given in cast(list[dict[str, Any]], made):
        content = given.get("content") or ""
        if not isinstance(content, str):
            raise PromptError(
                "specstream's engines read text only: leave images out of the chat context, or "
                "describe them in words"
            )
        role = "system" if given["role"] == "developer" else given["role"]
        kept = {key: given[key] for key in ("tool_calls", "tool_call_id") if key in given}
        messages.append(cast(Message, {"role": role, "content": content, **kept}))
    return messages


def tools_of(
    given: Sequence[llm.Tool],
    choice: NotGivenOr[llm.ToolChoice] = NOT_GIVEN,
    parallel: NotGivenOr[bool] = NOT_GIVEN,
) -> Tools | None:
    """Return the tools of a request; None if there are none.

    Raises:
        PromptError: a tool that its provider runs, or a choice that is none of LiveKit's.
    """
    for tool in given:
        if isinstance(tool, llm.ProviderTool):
            raise PromptError(
                f"tool {tool.id!r} is run by its provider's own model; specstream's engines call "
                "function tools only: leave it out of the agent's tools"
            )
    schemas = llm.ToolContext(list(given)).parse_function_tools("openai", strict=False)
    if not schemas:
        return None
    tools = tuple(_tool(schema["function"]) for schema in schemas)
    return Tools(tools, _choice(choice), parallel if isinstance(parallel, bool) else True)


def _tool(function: Mapping[str, Any]) -> Tool:
    no_arguments = {"type": "object", "properties": {}}
    return Tool(
        function["name"], function.get("description") or "", function.get("parameters") or no_arguments
    )


def _choice(choice: NotGivenOr[llm.ToolChoice]) -> str:
    if isinstance(choice, str):
        return choice
    if not choice:
        return "auto"
    function = choice.get("function") if isinstance(choice, Mapping) else None
    if not isinstance(function, Mapping) or "name" not in function:
        raise PromptError(
            "tool_choice is 'auto', 'none', 'required' or "
            f"{{'type': 'function', 'function': {{'name': …}}}}, not {choice!r:.80}"
        )
    return str(function["name"])
