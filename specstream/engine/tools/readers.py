"""Reads calls while they are written: JSON objects, and the tags of Qwen3-Coder and GLM."""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Sequence
from typing import Any, TypeAlias, TypeVar

from specstream.engine.core.detokenizer import held_back
from specstream.engine.tools.formats import CallLog

__all__ = [
    "CutOff",
    "Malformed",
    "PendingText",
    "Step",
    "first_of",
    "read_calls",
    "read_function",
    "read_keys_and_values",
    "read_value",
]

T = TypeVar("T")
Step: TypeAlias = Generator[None, None, T]


class PendingText:
    """Text that was fed and not read yet. At the end of the reply, reads return ``""``.

    Attributes:
        ended: Set by the owner once no more text will be fed.
    """

    def __init__(self) -> None:
        self._text = ""
        self._at = 0
        self._mark: int | None = None
        self.ended = False

    def feed(self, text: str) -> None:
        """Add text; text that was read is dropped, except from a mark on."""
        kept = self._at if self._mark is None else self._mark
        self._text = self._text[kept:] + text
        self._at -= kept
        self._mark = None if self._mark is None else 0

    @property
    def pending(self) -> str:
        """The text that can be read without waiting."""
        return self._text[self._at :]

    def skip(self, count: int) -> None:
        """Read characters that are pending; a negative number makes them pending again."""
        self._at += count

    def mark(self) -> None:
        """Keep the text that is read from here on, for `since_mark` or `rewind`."""
        self._mark = self._at

    def since_mark(self) -> str:
        """The text that was read since the mark."""
        assert self._mark is not None
        return self._text[self._mark : self._at]

    def rewind(self) -> None:
        """Make the text that was read since the mark pending again."""
        assert self._mark is not None
        self._at = self._mark
        self.release()

    def release(self) -> None:
        """Forget the mark."""
        self._mark = None

    def peek(self) -> Step[str]:
        """Return the next character without reading it."""
        while self._at == len(self._text):
            if self.ended:
                return ""
            yield
        return self._text[self._at]

    def space(self) -> Step[str]:
        """Read white space; return the character after it without reading that."""
        while (char := (yield from self.peek())).isspace():
            self._at += 1
        return char

    def takes(self, mark: str) -> Step[bool]:
        """Read ``mark`` if it comes next; return whether it did."""
        while not self.pending.startswith(mark):
            if self.ended or not mark.startswith(self.pending):
                return False
            yield
        self._at += len(mark)
        return True

    def until(self, *marks: str) -> Step[tuple[str, str]]:
        """Read up to the first of ``marks`` and past it; return the text and the mark.

        If none of them comes, return the text up to the reply's end and ``""``.
        """
        while True:
            at, mark = first_of(marks, self.pending)
            if mark or self.ended:
                break
            yield
        text = self.pending[:at] if mark else self.pending
        self._at += len(text) + len(mark)
        return text, mark


def first_of(marks: tuple[str, ...], text: str) -> tuple[int, str]:
    """Return where the first of ``marks`` begins in ``text``, and that mark.

    If there is none: where the longest suffix begins that may become a mark, and ``""``.
    """
    found = [(at, -len(mark), mark) for mark in marks if (at := text.find(mark)) >= 0]
    if found:
        at, _, mark = min(found)
        return at, mark
    return len(text) - held_back(text, marks), ""


_NAMES = ("name", "function")
_ARGUMENTS = ("arguments", "parameters")
_DEEPEST = 8  # objects that may be wrapped around a call's own


class Malformed(Exception):
    """The text can't be parsed as a call from here on."""


class CutOff(Exception):
    """The reply has ended inside a call."""


def read_calls(inlet: PendingText, log: CallLog, *, expected: bool = True) -> Step[None]:
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


def _object(inlet: PendingText, log: CallLog, expected: bool, depth: int = 0) -> Step[None]:
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


def _arguments(inlet: PendingText, write: Callable[[str], None]) -> Step[None]:
    """Parse arguments: an object, which some models write as a string, or as null if it is empty."""
    char = yield from inlet.peek()
    if char == '"':
        write((yield from _string(inlet)))
    elif char == "n" and (yield from inlet.takes("null")):
        write("{}")
    else:
        yield from read_value(inlet, write)


def read_value(inlet: PendingText, write: Callable[[str], None]) -> Step[None]:
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


def _raw_string(inlet: PendingText, write: Callable[[str], None]) -> Step[None]:
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


def _string(inlet: PendingText) -> Step[str]:
    """Read a string and return the text that it denotes."""
    char = yield from inlet.peek()
    if char != '"':
        raise Malformed if char else CutOff
    parts: list[str] = []
    yield from _raw_string(inlet, parts.append)
    try:
        text = str(json.loads("".join(parts), strict=False))
        text.encode()  # half a surrogate can't be sent
        return text
    except ValueError:
        raise Malformed from None


def read_function(inlet: PendingText, log: CallLog) -> Step[None]:
    """Parse Qwen3-Coder's ``NAME>``, ``<parameter=KEY>value</parameter>`` … ``</function>``.

    Raises:
        Malformed: there is other text between the parameters.
        CutOff: the reply ended inside the call.
    """
    values = _Values(log, (yield from _before(inlet, ">")))
    while not (yield from _ends(inlet, "</function>", "<parameter=")):
        key = yield from _before(inlet, ">")
        values.add(key, (yield from _before(inlet, "</parameter>")))
    values.close()


def read_keys_and_values(inlet: PendingText, log: CallLog, closer: str) -> Step[None]:
    """Parse GLM's ``NAME``, then ``<arg_key>KEY</arg_key><arg_value>value</arg_value>`` pairs.

    ``closer``, which ends the call, is not read.

    Raises:
        Malformed: there is other text between the pairs.
        CutOff: the reply ended inside the call.
    """
    name, mark = yield from inlet.until("\n", "<arg_key>", closer)
    if not mark:
        raise CutOff
    inlet.skip(-len(mark))
    values = _Values(log, name)
    while not (yield from _ends(inlet, closer, "<arg_key>")):
        key = yield from _before(inlet, "</arg_key>")
        yield from _expected(inlet, "<arg_value>")
        values.add(key, (yield from _before(inlet, "</arg_value>")))
    inlet.skip(-len(closer))
    values.close()


def _before(inlet: PendingText, mark: str) -> Step[str]:
    """Read up to ``mark`` and past it; return the text before it."""
    text, found = yield from inlet.until(mark)
    if not found:
        raise CutOff
    return text


def _ends(inlet: PendingText, end: str, more: str) -> Step[bool]:
    """Read white space, then ``end`` or ``more``; return whether it was ``end``."""
    yield from inlet.space()
    if (yield from inlet.takes(end)):
        return True
    yield from _expected(inlet, more)
    return False


def _expected(inlet: PendingText, mark: str) -> Step[None]:
    """Read white space, then ``mark``."""
    yield from inlet.space()
    if not (yield from inlet.takes(mark)):
        raise CutOff if inlet.ended else Malformed


class _Values:
    """Writes the arguments of one call to the log as a JSON object, key by key."""

    def __init__(self, log: CallLog, name: str) -> None:
        name = name.strip()
        tool = log.tools.find(name)
        schema = tool.parameters.get("properties") if tool is not None else None
        self._properties: dict[str, Any] = schema if isinstance(schema, dict) else {}
        self._log = log
        self._next = "{"
        log.open(name)

    def add(self, key: str, text: str) -> None:
        text = text.removeprefix("\n").removesuffix("\n")
        self._log.write(f"{self._next}{json.dumps(key.strip(), ensure_ascii=False)}: ")
        self._log.write(json.dumps(_typed(text, self._properties.get(key.strip())), ensure_ascii=False))
        self._next = ", "

    def close(self) -> None:
        self._log.write("{}" if self._next == "{" else "}")
        self._log.close()


def _typed(text: str, schema: Any) -> Any:
    """Return the value of ``text``: parsed as JSON unless the schema is missing or allows a string."""
    wanted = schema.get("type", "") if isinstance(schema, dict) else "string"
    names: Sequence[Any] = wanted if isinstance(wanted, list) else [wanted]
    if "string" in names:
        return text
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return {"True": True, "False": False, "None": None}.get(text.strip(), text)
