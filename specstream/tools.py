"""Messages, tools that a model may call, and the calls it makes: plain values, no torch."""

from __future__ import annotations

import json
import re
import secrets
import string
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Never, NotRequired, TypedDict

from specstream.errors import PromptError

__all__ = [
    "MAX_CALLS",
    "CallMessage",
    "CallProblem",
    "FunctionMessage",
    "Message",
    "Tool",
    "ToolCall",
    "ToolCallDelta",
    "Tools",
    "arguments_problem",
    "json_copy",
    "new_call_id",
]

MAX_TOOLS = 128
MAX_CHARS = 1 << 17
"""Limit on the JSON of all tools of a reply, in characters; the JSON is part of the prompt."""

MAX_CALLS = 128
"""Calls of one reply; later ones are not recorded."""

_ALPHABET = string.ascii_letters + string.digits
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_CHOICES = ("auto", "none", "required")

CallProblem = Literal["", "cut_off", "bad_json", "no_name", "unknown_tool"]
"""What is wrong with a call: the reply ended inside it; its arguments are no JSON object; it names no
tool, or one that wasn't offered."""


def new_call_id() -> str:
    """Return nine random letters and digits, as Mistral's chat templates demand; others take any id."""
    return "".join(secrets.choice(_ALPHABET) for _ in range(9))


class FunctionMessage(TypedDict):
    """The function that a `CallMessage` calls; ``arguments`` is JSON text, or the object itself."""

    name: str
    arguments: str | dict[str, Any]


class CallMessage(TypedDict):
    """A call in a `Message` of the assistant, as in the OpenAI API."""

    id: str
    type: Literal["function"]
    function: FunctionMessage


class Message(TypedDict):
    """One turn of the conversation, in the shape that chat templates take.

    An assistant's message may have ``tool_calls``; a tool's message is the result of the call
    ``tool_call_id``, and ``name`` the tool.
    """

    role: Literal["system", "user", "assistant", "tool"]
    content: str
    tool_calls: NotRequired[list[CallMessage]]
    tool_call_id: NotRequired[str]
    name: NotRequired[str]


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that a model may call.

    Attributes:
        name: Up to 64 letters, digits, ``_``, ``-`` and ``.``.
        description: What it does and when to call it.
        parameters: JSON schema of the object that holds its arguments.

    Raises:
        PromptError: a bad name, or parameters that are no JSON schema of an object.
    """

    name: str
    description: str = ""
    parameters: Mapping[str, Any] = field(default_factory=lambda: {"type": "object", "properties": {}})

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not _NAME.fullmatch(self.name):
            raise PromptError(
                f"a tool's name has up to 64 letters, digits, '_', '-' and '.': {self.name!r:.80}"
            )
        if self.name in _CHOICES:
            raise PromptError(f"a tool can't be called {self.name!r}: that is a choice of tools")
        if not isinstance(self.description, str):
            raise PromptError(f"the description of tool {self.name} must be a text")
        given, what = self.parameters, f"the parameters of tool {self.name}"
        if not isinstance(given, Mapping) or given.get("type", "object") != "object":
            raise PromptError(f"{what} must be a schema of an object")
        object.__setattr__(self, "parameters", json_copy(given, what))

    @classmethod
    def of(cls, function: Callable[..., Any]) -> Tool:
        """Describe a Python function as a tool, by its type hints and its docstring in Google's style.

        ``transformers.utils.get_json_schema`` reads them, so the first call imports transformers.

        Raises:
            PromptError: a hint, or the description of an argument, is missing.
        """
        from transformers.utils.chat_template_utils import get_json_schema

        try:
            schema = get_json_schema(function)["function"]
        except Exception as error:
            raise PromptError(f"{function!r} can't be described as a tool: {error}") from error
        return cls(schema["name"], schema["description"] or "", schema["parameters"])

    def schema(self) -> dict[str, Any]:
        """The tool in the form that chat templates take."""
        function = {
            "name": self.name,
            "description": self.description,
            "parameters": dict(self.parameters),
        }
        return {"type": "function", "function": function}


@dataclass(frozen=True, slots=True)
class Tools:
    """The tools of one reply.

    Attributes:
        tools: What the model may call.
        choice: ``"auto"``: the model decides; ``"none"``: it is not told of the tools and can't begin a
            call; ``"required"``: the reply consists of calls; a tool's name: the reply consists of
            calls of this tool. The last two need the extra ``grammar``.
        parallel: Whether a reply may have several calls; if not, it ends with the first.

    Raises:
        PromptError: something that is no tool, too many or too large tools, two of one name, or a
            choice that is none of them.
    """

    tools: tuple[Tool, ...]
    choice: str = "auto"
    parallel: bool = True

    def __post_init__(self) -> None:
        if not isinstance(self.tools, Sequence) or isinstance(self.tools, str | bytes):
            raise PromptError(f"tools are a tuple of Tool objects, not {self.tools!r:.80}")
        for tool in self.tools:
            if not isinstance(tool, Tool):
                how = "; Tool.of(function) describes a function" if callable(tool) else ""
                raise PromptError(f"a tool is a Tool, not {tool!r:.80}{how}")
        names = [tool.name for tool in self.tools]
        if len(names) > MAX_TOOLS:
            raise PromptError(f"a reply may have {MAX_TOOLS} tools, not {len(names)}")
        if twice := [name for name in names if names.count(name) > 1]:
            raise PromptError(f"two tools are called {twice[0]!r}")
        if sum(len(json.dumps(tool.schema())) for tool in self.tools) > MAX_CHARS:
            raise PromptError(f"the tools may have {MAX_CHARS} characters of JSON")
        if self.choice not in (*_CHOICES, *names):
            raise PromptError(f"the choice is auto, none, required or a tool, not {self.choice!r}")
        if self.choice == "required" and not names:
            raise PromptError("a call is required, but there is no tool")

    @classmethod
    def of(cls, given: Tools | Sequence[Tool | Callable[..., Any]] | None) -> Tools | None:
        """The tools of a request, functions described by `Tool.of`; None if there are none.

        Raises:
            PromptError: something else was given.
        """
        if not isinstance(given, Tools | None):
            if not isinstance(given, Sequence) or isinstance(given, str | bytes):
                raise PromptError(f"tools are a list of Tool objects or functions, not {given!r:.80}")
            for each in given:
                if not isinstance(each, Tool) and not callable(each):
                    raise PromptError(f"a tool is a Tool or a function, not {each!r:.80}")
            given = cls(tuple(each if isinstance(each, Tool) else Tool.of(each) for each in given))
        return given if given is not None and given.tools else None

    @property
    def forced(self) -> tuple[Tool, ...]:
        """The tools of which one must be called; empty if the model may reply without a call."""
        if self.choice == "required":
            return self.tools
        return tuple(tool for tool in self.tools if tool.name == self.choice)

    def find(self, name: str) -> Tool | None:
        """The tool of that name."""
        return next((tool for tool in self.tools if tool.name == name), None)


@dataclass(frozen=True, slots=True)
class ToolCallDelta:
    """What a chunk adds to one call.

    Attributes:
        index: Number of the call in the reply, from 0.
        id: The same in every delta of a call.
        name: The tool.
        arguments: New JSON text of the arguments.
        done: Whether the call ends here.
        problem: What is wrong with the call; set in the delta that ends it.
    """

    index: int
    id: str
    name: str
    arguments: str = ""
    done: bool = False
    problem: CallProblem = ""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call that has ended.

    Attributes:
        id: The id that its result refers to.
        name: The tool; empty if the model wrote none (``problem`` is ``"no_name"``).
        arguments: JSON text of an object. If there is a problem, what the model wrote.
        problem: Empty for a call that can be made.
    """

    id: str
    name: str
    arguments: str
    problem: CallProblem = ""

    @classmethod
    def collect(cls, deltas: Sequence[ToolCallDelta]) -> tuple[ToolCall, ...]:
        """The calls that ended, from all deltas of a reply so far."""
        written: dict[int, str] = {}
        calls: list[ToolCall] = []
        for delta in deltas:
            written[delta.index] = written.get(delta.index, "") + delta.arguments
            if delta.done:
                calls.append(cls(delta.id, delta.name, written[delta.index], delta.problem))
        return tuple(calls)

    def message(self) -> CallMessage:
        """The call in a message of the assistant."""
        function: FunctionMessage = {"name": self.name, "arguments": self.arguments}
        return {"id": self.id, "type": "function", "function": function}


def json_copy(value: Mapping[str, Any], what: str) -> dict[str, Any]:
    """Return a deep copy of ``value`` as plain JSON data.

    Raises:
        PromptError: ``what``, the name of the value, isn't JSON.
    """
    try:
        copied: dict[str, Any] = json.loads(json.dumps(dict(value), allow_nan=False))
    except (TypeError, ValueError, RecursionError) as error:
        raise PromptError(f"{what} must be JSON values: {error}") from None
    return copied


def arguments_problem(text: str) -> CallProblem:
    """Return "" if ``text`` is a JSON object, else "bad_json"."""
    try:
        return "" if isinstance(json.loads(text, parse_constant=_refuse), dict) else "bad_json"
    except (ValueError, RecursionError):
        return "bad_json"


def _refuse(name: str) -> Never:
    raise ValueError(f"{name} is no JSON")  # Python would read NaN and Infinity
