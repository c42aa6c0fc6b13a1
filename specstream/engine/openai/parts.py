"""What the parts of a server's stream tell: texts, calls and counts, in the forms that servers have.

Counts are a courtesy: whatever stands in their place, the reply goes on without them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from specstream.checks import valid_text
from specstream.tools import MAX_CALLS, CallProblem, ToolCallDelta, arguments_problem, new_call_id

__all__ = ["Joiner", "ServerCalls", "ServerCounts", "delta_of", "error_in", "reasoning_in", "text_in"]


class Joiner:
    """Joins characters that a server has cut in two: surrogates, where it counts UTF-16 units."""

    def __init__(self) -> None:
        self._held = ""  # the first half of a pair

    def add(self, text: str) -> str:
        """Return the text that is complete now; a half without its other one becomes U+FFFD."""
        text = self._held + text
        self._held = text[-1:] if "\ud800" <= text[-1:] <= "\udbff" else ""
        return valid_text(text.removesuffix(self._held))

    def finish(self) -> str:
        """Return what is left of a character whose other half never came."""
        held, self._held = self._held, ""
        return valid_text(held)


def delta_of(choice: Any) -> Any:
    """What a choice adds: its delta, or the whole message that some servers put into one event."""
    return _get(choice, "delta") or _get(choice, "message")


def text_in(delta: Any) -> str:
    """The text that a delta adds; a refusal is what the model says, too.

    Raises:
        TypeError: the content is neither text nor parts of one.
    """
    if not isinstance(_get(delta, "content"), str | Sequence | None):
        raise TypeError("content without text")
    return _text(_get(delta, "content")) + _text(_get(delta, "refusal"))


def reasoning_in(delta: Any) -> str:
    """The reasoning that a delta adds; some servers give it under two names."""
    return _text(_get(delta, "reasoning_content")) or _text(_get(delta, "reasoning"))


def error_in(part: Any) -> str:
    """What a part says if it is an error without a key ``error``, as vLLM's are; else ""."""
    if _get(part, "object") != "error" and _get(part, "choices") is not None:
        return ""
    return _text(_get(part, "message")) or _text(_get(part, "detail"))


def _get(given: Any, name: str) -> Any:
    """A field of an object of the client's library, which keeps unknown ones apart, or of a mapping."""
    return given.get(name) if isinstance(given, Mapping) else getattr(given, name, None)


def _text(given: Any) -> str:
    """A text, or the texts of parts."""
    if isinstance(given, str):
        return given
    if isinstance(given, Mapping):
        return _text(given.get("text") or given.get("content"))
    return "".join(map(_text, given)) if isinstance(given, Sequence) else ""


@dataclass(slots=True)
class ServerCounts:
    """Tokens and drafts of a reply, as far as the server tells them; None: it doesn't."""

    prompt: int | None = None
    cached: int | None = None
    completion: int | None = None
    rounds: int | None = None
    drafted: int | None = None
    accepted: int | None = None

    def read(self, part: Any) -> None:
        """Take note of what a part tells: OpenAI's usage, llama.cpp's timings, vLLM's metrics."""
        if (usage := _get(part, "usage")) is not None:
            self.prompt = _count(usage, "prompt_tokens")
            self.completion = _count(usage, "completion_tokens")
            self.cached = _count(_get(usage, "prompt_tokens_details"), "cached_tokens")
        if (timings := _get(part, "timings")) is not None:
            self.cached = self.cached or _count(timings, "cache_n")
            self.drafted = _count(timings, "draft_n")
            self.accepted = _count(timings, "draft_n_accepted")
        drafts = _get(_get(part, "metrics"), "speculative_decoding")
        if drafts is not None:
            self.rounds = _count(drafts, "num_spec_steps")
            self.drafted = _count(drafts, "num_draft_tokens")
            self.accepted = _count(drafts, "num_accepted_draft_tokens")


def _count(given: Any, name: str) -> int | None:
    value = _get(given, name)
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        return max(0, int(value))
    except (ValueError, OverflowError):
        return None


@dataclass(slots=True)
class _Call:
    id: str  # "" for one that is passed over
    theirs: str  # the server's id; "" if it gave none
    name: str = ""
    json: str = ""
    next_name: str = ""  # that came once its arguments were complete
    joiner: Joiner = field(default_factory=Joiner)

    @property
    def problem(self) -> CallProblem:
        """What is wrong with its arguments so far; none at all are those of a tool without any."""
        return arguments_problem(self.json if self.json.strip() else "{}")


@dataclass(slots=True)
class ServerCalls:
    """Puts calls together from their pieces.

    A piece goes on with the call of its index, or the last one where it has no index. It begins another
    one if its id is another, or if arguments come, and a name came, once those of the call are complete:
    some servers number every call 0, others repeat the name in each piece. Each call has an id of its
    own, also where the server gives none or one that is ``taken``: results are told apart by them.
    Pieces of calls behind the first ``most`` are passed over.

    Attributes:
        passed_over: How many pieces were.
    """

    taken: set[str] = field(default_factory=set)
    most: int = MAX_CALLS
    passed_over: int = 0
    _calls: list[_Call] = field(default_factory=list)
    _of_index: dict[int, int] = field(default_factory=dict)

    def add(self, delta: Any) -> tuple[ToolCallDelta, ...]:
        """Take the pieces in a delta."""
        found, pieces = [], _get(delta, "tool_calls")
        for piece in pieces if isinstance(pieces, Iterable) else ():
            function = _get(piece, "function")
            name, arguments = valid_text(_text(_get(function, "name"))), _get(function, "arguments")
            if arguments is not None and not isinstance(arguments, str):
                arguments = json.dumps(arguments)
            arguments = arguments or ""
            id = valid_text(_text(_get(piece, "id")))
            at = self._place(_get(piece, "index"), id, name, arguments)
            if at == self.most:
                self.passed_over += 1
                continue
            call = self._calls[at]
            call.name += name if name != call.name else ""  # some repeat it
            arguments = call.joiner.add(arguments)
            call.json += arguments
            found.append(ToolCallDelta(at, call.id, call.name, arguments))
        return tuple(found)

    def _place(self, index: Any, id: str, name: str, arguments: str) -> int:
        """Where the call of a piece lies, which may be a new one; all that are too many are one."""
        at, named = self._of_index.get(index) if index is not None else len(self._calls) - 1, ""
        if at is not None and at >= 0:
            call = self._calls[at]
            same = not id or not call.theirs or id == call.theirs
            whole = bool(call.json.strip()) and not call.problem
            call.next_name = name if whole and name else call.next_name
            other = bool(name) and name != call.name
            if same and (id or not call.next_name or not (other or arguments.strip())):
                return at
            named = call.next_name if same else ""
        del self._calls[self.most :]
        own = ""
        if len(self._calls) < self.most:
            own = id if id and id not in self.taken else new_call_id()
            self.taken.add(own)
        self._calls.append(_Call(own, id, named))
        at = len(self._calls) - 1
        if index is not None:
            self._of_index[index] = at
        return at

    def end(self, *, cut: bool) -> tuple[ToolCallDelta, ...]:
        """End all calls; ``cut``: the reply was cut off, perhaps within the last one."""
        ends = []
        for at, call in enumerate(self._calls[: self.most]):
            cut_off = cut and at == len(self._calls) - 1
            rest = call.joiner.finish()
            call.json += rest
            problem: CallProblem = "" if call.name else "no_name"
            problem = problem or call.problem
            if not call.json.strip() and not cut_off:
                rest += "{}"
            elif cut_off and (problem or not call.json.strip()):
                problem = "cut_off"
            ends.append(ToolCallDelta(at, call.id, call.name, rest, True, problem))
        return tuple(ends)
