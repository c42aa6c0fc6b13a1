"""Tools and calls as values."""

from typing import Any

import pytest

from specstream.errors import PromptError
from specstream.tools import MAX_TOOLS, Tool, ToolCall, ToolCallDelta, Tools

TOOL = Tool("now")


def get_weather(city: str, days: int = 1) -> str:
    """The weather in a city.

    Args:
        city: Where.
        days: How many days.
    """
    return f"{city}: fine for {days} days"


def test_a_function_becomes_a_tool() -> None:
    tool = Tool.of(get_weather)
    assert (tool.name, tool.description) == ("get_weather", "The weather in a city.")
    assert tool.parameters["required"] == ["city"]
    assert tool.parameters["properties"]["days"]["type"] == "integer"
    assert Tools.of([get_weather, TOOL]) == Tools((tool, TOOL))


def test_a_function_without_a_description_is_refused() -> None:
    with pytest.raises(PromptError, match="can't be described as a tool"):
        Tool.of(lambda city: city)


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"name": "two words"}, "a tool's name has"),
        ({"name": "x" * 65}, "a tool's name has"),
        ({"name": "auto"}, "a choice of tools"),
        ({"name": "a", "description": 3}, "must be a text"),
        ({"name": "a", "parameters": {"type": "string"}}, "a schema of an object"),
        ({"name": "a", "parameters": []}, "a schema of an object"),
        ({"name": "a", "parameters": {"x": {1}}}, "must be JSON values"),
    ],
)
def test_a_tool_is_checked(fields: dict[str, Any], why: str) -> None:
    with pytest.raises(PromptError, match=why):
        Tool(**fields)


@pytest.mark.parametrize(
    ("tools", "choice", "why"),
    [
        ((TOOL, TOOL), "auto", "two tools are called 'now'"),
        ((TOOL,), "later", "the choice is auto, none, required or a tool"),
        ((), "required", "there is no tool"),
        (tuple(Tool(f"t{n}") for n in range(MAX_TOOLS + 1)), "auto", "may have 128 tools"),
        ((Tool("a", "x" * 200_000),), "auto", "characters of JSON"),
    ],
)
def test_tools_are_checked(tools: tuple[Tool, ...], choice: str, why: str) -> None:
    with pytest.raises(PromptError, match=why):
        Tools(tools, choice)


def test_something_else_is_refused() -> None:
    for given in ("now", [3], {"name": "now"}):
        with pytest.raises(PromptError, match="Tool (objects )?or (a )?functions?, not"):
            Tools.of(given)  # type: ignore[arg-type]
    assert Tools.of(()) is Tools.of(None) is Tools.of(Tools(())) is None


@pytest.mark.parametrize(
    ("tools", "why"),
    [
        ((get_weather,), r"a tool is a Tool, .*Tool\.of\(function\)"),
        (({"name": "f"},), "a tool is a Tool, not {'name'"),
        (Tool("f"), "a tuple of Tool objects"),
        ("f", "a tuple of Tool objects"),
    ],
)
def test_tools_with_a_choice_hold_tools_only(tools: Any, why: str) -> None:
    with pytest.raises(PromptError, match=why):
        Tools(tools, choice="required")


def test_which_tools_are_forced() -> None:
    both = (TOOL, Tool("later"))
    assert [Tools(both, choice).forced for choice in ("auto", "none", "required", "later")] == [
        (), (), both, both[1:],
    ]  # fmt: skip


def test_deltas_add_up() -> None:
    deltas = [
        ToolCallDelta(0, "a", "now"),
        ToolCallDelta(0, "a", "now", '{"x"'),
        ToolCallDelta(0, "a", "now", ": 1}", done=True),
        ToolCallDelta(1, "b", "now", "{"),
    ]
    assert ToolCall.collect(deltas) == (ToolCall("a", "now", '{"x": 1}'),)
