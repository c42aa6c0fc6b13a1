"""Records the calls of one reply while they are generated."""

from __future__ import annotations

import secrets
import string
from collections.abc import Callable
from dataclasses import dataclass

from specstream.tools import CallProblem, ToolCall, ToolCallDelta, Tools, arguments_problem

__all__ = ["CallLog", "new_call_id"]

_ALPHABET = string.ascii_letters + string.digits
MAX_CALLS = 128
"""Calls of one reply; later ones are not recorded."""


def new_call_id() -> str:
    """Return nine random letters and digits, as Mistral's chat templates demand; others take any id."""
    return "".join(secrets.choice(_ALPHABET) for _ in range(9))


@dataclass(slots=True)
class _Call:
    """``told``: characters of the arguments that `CallLog.take` has returned; -1: not even the name."""

    id: str
    name: str
    arguments: str = ""
    done: bool = False
    problem: CallProblem = ""
    told: int = -1


class CallLog:
    """Takes the calls of a reply from the parsers, one call after another.

    Attributes:
        full: Whether no further call is recorded: one is there and more aren't allowed, or there are
            `MAX_CALLS`.
    """

    def __init__(self, tools: Tools, new_id: Callable[[], str] = new_call_id) -> None:
        self.tools = tools
        self.full = False
        self._new_id = new_id
        self._calls: list[_Call] = []
        self._taken = 0  # calls that `take` has reported as done

    @property
    def calls(self) -> tuple[ToolCall, ...]:
        """The calls that have ended."""
        done = (call for call in self._calls if call.done)
        return tuple(ToolCall(call.id, call.name, call.arguments, call.problem) for call in done)

    @property
    def writing(self) -> bool:
        """Whether a call has begun and not ended."""
        return bool(self._calls) and not self._calls[-1].done

    def open(self, name: str) -> None:
        """Begin a call."""
        if not self.full:
            self._calls.append(_Call(self._new_id(), name))

    def write(self, text: str) -> None:
        """Append to the arguments of the open call, if there is one."""
        if self.writing:
            self._calls[-1].arguments += text

    def close(self, *, cut: bool = False) -> None:
        """End the open call, if there is one; ``cut``: the reply ended inside the call."""
        if not self.writing:
            return
        call = self._calls[-1]
        if not call.arguments and not cut:
            call.arguments = "{}"
        call.done, call.problem = True, self._problem(call, cut)
        self.full = not self.tools.parallel or len(self._calls) >= MAX_CALLS

    def _problem(self, call: _Call, cut: bool) -> CallProblem:
        broken = arguments_problem(call.arguments)
        if cut and (broken or not call.name):
            return "cut_off"
        if not call.name:
            return "no_name"
        return broken or ("" if self.tools.find(call.name) is not None else "unknown_tool")

    def take(self) -> tuple[ToolCallDelta, ...]:
        """Return what was recorded since the last call of this method."""
        deltas = []
        for index in range(self._taken, len(self._calls)):
            call = self._calls[index]
            new, done = call.arguments[max(call.told, 0) :], call.done
            if new or done or call.told < 0:
                deltas.append(ToolCallDelta(index, call.id, call.name, new, done, call.problem))
            call.told = len(call.arguments)
            self._taken += done
        return tuple(deltas)
