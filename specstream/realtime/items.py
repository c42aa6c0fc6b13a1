"""The items that a client sends: messages, calls, results, and the tools of a session."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any, Literal

from pydantic import Field, PlainValidator, StringConstraints, model_validator

from specstream.errors import PromptError
from specstream.realtime.resources import ItemStatus, Phase
from specstream.realtime.wire import Refused, Strict, at_most, expecting, validate
from specstream.types import Tool, Tools

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
ToolList = Annotated[list[FunctionTool], at_most(MAX_TOOLS)]


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
    param = f"{at}.tools"
    try:
        made = tuple(Tool(tool.name, tool.description, tool.parameters) for tool in tools)
        of_any = Tools(made, parallel=parallel is not False)
        param = f"{at}.tool_choice"
        return replace(of_any, choice=name or "auto")
    except PromptError as error:
        raise Refused("invalid_value", f"{error}.", param=param) from None


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


_PARTS = {"system": "input_text", "user": "input_text", "assistant": "output_text"}
_CallId = Annotated[str, Field(min_length=1, max_length=256)]


class PartInput(Strict):
    """One piece of a message; only text can be put into the conversation."""

    type: str
    text: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _only_text(cls, data: Any) -> Any:
        kind = data.get("type") if isinstance(data, dict) else None
        if kind in ("input_audio", "input_image", "output_audio"):
            raise ValueError(f"{kind} content can't be put into the conversation here; send text")
        return data


class _Input(Strict):
    type: str  # first, so that a wrong type is what a refusal names
    id: Annotated[str, StringConstraints(pattern=r"^[a-zA-Z0-9_-]{1,64}$")] | None = None
    object: Literal["realtime.item"] | None = None
    status: ItemStatus | None = None
    phase: Phase | None = None  # of a message that a client gives back


class ItemInput(_Input):
    """A message as a client writes it."""

    type: Literal["message"]
    role: Literal["system", "user", "assistant"]
    content: Annotated[list[PartInput], at_most(1024)]

    @model_validator(mode="after")
    def _parts_fit_role(self) -> ItemInput:
        wanted = _PARTS[self.role]
        if any(part.type != wanted or part.text is None for part in self.content):
            raise ValueError(f"every part of a message with role {self.role!r} is {wanted} with text")
        return self


class FunctionCallInput(_Input):
    """A call that a client creates, for example one from an earlier session."""

    type: Literal["function_call"]
    call_id: _CallId
    name: Annotated[str, Field(min_length=1)]
    arguments: str


class FunctionOutputInput(_Input):
    """The result of a call, from the client that ran the function."""

    type: Literal["function_call_output"]
    call_id: _CallId
    output: str


class ItemReference(Strict):
    """An item of the conversation, by its id."""

    type: Literal["item_reference"]
    id: str


AnyItemInput = ItemInput | FunctionCallInput | FunctionOutputInput


def _model_of(data: Any) -> type[AnyItemInput]:
    """Choose by ``type``, so that a refusal names the wrong key and not the members of a union."""
    match data:
        case {"type": "function_call"}:
            return FunctionCallInput
        case {"type": "function_call_output"}:
            return FunctionOutputInput
    return ItemInput


NewItem = Annotated[AnyItemInput, PlainValidator(lambda data: _model_of(data).model_validate(data))]


def parse_input(items: list[dict[str, Any]]) -> list[AnyItemInput | ItemReference]:
    """Read ``response.input``: items, and references to items of the conversation.

    Raises:
        Refused: an entry is neither.
    """
    parsed: list[AnyItemInput | ItemReference] = []
    for index, item in enumerate(items):
        model: type[AnyItemInput | ItemReference] = ItemReference
        if item.get("type") != "item_reference":
            model = _model_of(item)
        parsed.append(validate(model, item, at=f"response.input[{index}]"))
    return parsed
