"""The tools that a client offers, for a session or for one response."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import Field

from specstream.errors import PromptError
from specstream.types import Tool, Tools
from specstream.ws.realtime.strict import Strict, expecting
from specstream.ws.realtime.wire import Refused

__all__ = ["FunctionTool", "ToolChoice", "setting_of", "tools_of"]

MAX_TOOLS = 128


class FunctionTool(Strict):
    """A function that the client makes calls of. ``strict`` is kept and echoed only."""

    type: Literal["function"]
    name: str
    description: str = ""
    parameters: dict[str, Any] = {"type": "object", "properties": {}}
    strict: bool | None = None


class NamedTool(Strict):
    """The one function that a reply must call."""

    type: Literal["function"]
    name: str


ToolChoice = Annotated[
    Literal["auto", "none", "required"] | NamedTool,
    expecting('"auto", "none", "required" or {"type": "function", "name": …}'),
]
ToolList = Annotated[list[FunctionTool], Field(max_length=MAX_TOOLS)]


def tools_of(
    tools: Sequence[FunctionTool], choice: ToolChoice, parallel: bool | None, *, at: str
) -> Tools | None:
    """Make the tools of a response; None if there are none. ``at`` is their path in the frame.

    Raises:
        Refused: a bad name or schema, two tools of one name, or a choice that names none of the tools.
    """
    if not tools:
        return None
    name = choice.name if isinstance(choice, NamedTool) else choice
    try:
        made = tuple(Tool(tool.name, tool.description, tool.parameters) for tool in tools)
        return Tools(made, name or "auto", parallel is not False)
    except PromptError as error:
        raise Refused("invalid_value", f"{error}.", param=f"{at}.tools") from None


def setting_of(tool: Any) -> Any:
    """Convert a `Tool` to its wire form; any other value is returned unchanged."""
    if not isinstance(tool, Tool):
        return tool
    return {
        "type": "function",
        "name": tool.name,
        "description": tool.description,
        "parameters": dict(tool.parameters),
    }
