"""Parses calls in the tags of Qwen3-Coder and GLM; values become JSON by the tool's schema."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from specstream.engine.tools.inlet import Inlet, Step
from specstream.engine.tools.json_calls import CutOff, Malformed
from specstream.engine.tools.log import CallLog

__all__ = ["read_function", "read_keys_and_values"]


def read_function(inlet: Inlet, log: CallLog) -> Step[None]:
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


def read_keys_and_values(inlet: Inlet, log: CallLog, closer: str) -> Step[None]:
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


def _before(inlet: Inlet, mark: str) -> Step[str]:
    """Read up to ``mark`` and past it; return the text before it."""
    text, found = yield from inlet.until(mark)
    if not found:
        raise CutOff
    return text


def _ends(inlet: Inlet, end: str, more: str) -> Step[bool]:
    """Read white space, then ``end`` or ``more``; return whether it was ``end``."""
    yield from inlet.space()
    if (yield from inlet.takes(end)):
        return True
    yield from _expected(inlet, more)
    return False


def _expected(inlet: Inlet, mark: str) -> Step[None]:
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
        self._log.write(
            json.dumps(_typed(text, self._properties.get(key.strip())), ensure_ascii=False)
        )
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
