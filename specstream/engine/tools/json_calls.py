"""Parses calls written as JSON objects, ``{"name": …, "arguments": {…}}``, as they are generated.

The parser looks at strings and brackets only: arguments that aren't valid JSON are passed on as they
are, and the log reports the problem when the call ends.
"""

from __future__ import annotations

import json
from collections.abc import Callable

from specstream.engine.tools.inlet import Inlet, Step
from specstream.engine.tools.log import CallLog

__all__ = ["CutOff", "Malformed", "read_calls", "read_value"]

_NAMES = ("name", "function")
_ARGUMENTS = ("arguments", "parameters")
_DEEPEST = 8  # objects that may be wrapped around a call's own


class Malformed(Exception):
    """The text can't be parsed as a call from here on."""


class CutOff(Exception):
    """The reply has ended inside a call."""


def read_calls(inlet: Inlet, log: CallLog, *, expected: bool = True) -> Step[None]:
    """Parse one object, several with or without separators, or a list of objects.

    White space after the last call is left to the reply. If an object fails, the inlet stays marked
    before it.

    Args:
        inlet: The input, before the first object.
        log: Takes the calls.
        expected: With False, an object counts as a call only if its first key, apart from ``type`` and
            ``id``, names a known tool.

    Raises:
        Malformed: the text isn't a call, or can't be parsed any further.
        CutOff: the reply ended inside a call.
    """
    listed = (yield from inlet.space()) == "["
    if listed:
        inlet.skip(1)
    first = True
    while True:
        char = yield from inlet.space()
        if char == "{":
            inlet.mark()
            inlet.skip(1)
            yield from _object(inlet, log, expected or not first)
            if not log.writing and not log.full:
                raise Malformed  # an object without a name
            log.close()
            inlet.mark()
            first = False
        elif char and char in ",;" and not first:
            inlet.skip(1)
            if not listed:
                inlet.mark()  # white space behind it may be the reply's
        elif listed and char == "]":
            inlet.skip(1)
            return
        elif first or listed:
            raise Malformed if char else CutOff
        else:
            inlet.rewind()
            return


def _object(inlet: Inlet, log: CallLog, expected: bool, depth: int = 0) -> Step[None]:
    """Parse the rest of an object, after its opening brace."""
    early: str | None = None  # arguments that came before the name
    given = False
    while (char := (yield from inlet.space())) != "}":
        if char == ",":
            inlet.skip(1)
            continue
        key = yield from _string(inlet)
        yield from inlet.space()
        if not (yield from inlet.takes(":")):
            raise Malformed if inlet.pending else CutOff
        char = yield from inlet.space()
        if key in _NAMES and char == "{" and depth < _DEEPEST:
            inlet.skip(1)
            yield from _object(inlet, log, expected, depth + 1)
            given = True
        elif key in _NAMES and not log.writing:
            name = yield from _string(inlet)
            if not expected and log.tools.find(name) is None:
                raise Malformed
            log.open(name)
            log.write(early or "")
        elif key in _ARGUMENTS and not given:
            given = True
            if log.writing:
                yield from _arguments(inlet, log.write)
            else:
                parts: list[str] = []
                yield from _arguments(inlet, parts.append)
                early = "".join(parts)
        elif not expected and not log.writing and key not in ("type", "id"):
            raise Malformed
        else:
            yield from read_value(inlet, lambda text: None)
    inlet.skip(1)


def _arguments(inlet: Inlet, write: Callable[[str], None]) -> Step[None]:
    """Parse arguments: an object, which some models write as a string, or as null if it is empty."""
    char = yield from inlet.peek()
    if char == '"':
        write((yield from _string(inlet)))
    elif char == "n" and (yield from inlet.takes("null")):
        write("{}")
    else:
        yield from read_value(inlet, write)


def read_value(inlet: Inlet, write: Callable[[str], None]) -> Step[None]:
    """Read any JSON value and pass it to ``write`` piece by piece.

    Raises:
        Malformed: ``<`` outside of a string, which begins a closing tag.
        CutOff: the reply ended inside the value.
    """
    depth, begun = 0, False
    while True:
        char = yield from inlet.peek()
        if char == "":
            raise CutOff
        if char == "<":
            raise Malformed
        if depth == 0 and (char in ",}]" or (begun and char.isspace())):
            return
        if char == '"':
            yield from _raw_string(inlet, write)
        else:
            inlet.skip(1)
            write(char)
        begun = True
        depth += (char in "{[") - (char in "}]")
        if depth == 0 and char in '}]"':
            return


def _raw_string(inlet: Inlet, write: Callable[[str], None]) -> Step[None]:
    """Read a string and pass it to ``write`` verbatim, with quotes and escapes."""
    inside = escaped = False
    while True:
        char = yield from inlet.peek()
        if char == "":
            raise CutOff
        inlet.skip(1)
        write(char)
        if char == '"' and inside and not escaped:
            return
        inside, escaped = True, char == "\\" and not escaped


def _string(inlet: Inlet) -> Step[str]:
    """Read a string and return the text that it denotes."""
    char = yield from inlet.peek()
    if char != '"':
        raise Malformed if char else CutOff
    parts: list[str] = []
    yield from _raw_string(inlet, parts.append)
    try:
        return str(json.loads("".join(parts), strict=False))
    except ValueError:
        raise Malformed from None
