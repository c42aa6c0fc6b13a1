"""Parses calls in the tags of Qwen3-Coder and GLM; values become JSON by the tool's schema."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from specstream.engine.tools.inlet import Inlet, Step
from specstream.engine.tools.json_calls import CutOff, Malformed
from specstream.engine.tools.log import CallLog

__all__ = ["read_function", "read_pairs"]


def read_function(inlet: Inlet, log: CallLog) -> Step[None]:
    """Parse Qwen3-Coder's ``NAME>``, ``<parameter=KEY>value</parameter>`` … ``</function>``.

    Raises:
        Malformed: there is other text between the parameters.
        CutOff: the reply ended inside the call.
    """
    name, mark = yield from inlet.until(">")
    if not mark:
        raise CutOff
    values = _Values(log, name.strip())
    while True:
        yield from inlet.space()
        if (yield from inlet.takes("</function>")):
            break
        if not (yield from inlet.takes("<parameter=")):
            raise CutOff if inlet.ended else Malformed
        key, mark = yield from inlet.until(">")
        value, end = yield from inlet.until("</parameter>")
        if not (mark and end):
            raise CutOff
        values.add(key.strip(), value)
    values.close()


def read_pairs(inlet: Inlet, log: CallLog, closer: str) -> Step[None]:
    """Parse GLM's ``NAME``, then ``<arg_key>KEY</arg_key><arg_value>value</arg_value>`` pairs.

    ``closer``, which ends the call, is not read.

    Raises:
        Malformed: there is other text between the pairs.
        CutOff: the reply ended inside the call.
    """
    name, mark = yield from inlet.until("\n", "<arg_key>", closer)
    if not mark:
        raise CutOff
    if mark != "\n":
        inlet.skip(-len(mark))
    values = _Values(log, name.strip())
    while True:
        yield from inlet.space()
        if (yield from inlet.takes(closer)):
            inlet.skip(-len(closer))
            break
        if not (yield from inlet.takes("<arg_key>")):
            raise CutOff if inlet.ended else Malformed
        key, mark = yield from inlet.until("</arg_key>")
        yield from inlet.space()
        if not (yield from inlet.takes("<arg_value>")):
            raise CutOff if inlet.ended else Malformed
        value, end = yield from inlet.until("</arg_value>")
        if not (mark and end):
            raise CutOff
        values.add(key.strip(), value)
    values.close()


class _Values:
    """Writes the arguments of one call to the log as a JSON object, key by key."""

    def __init__(self, log: CallLog, name: str) -> None:
        tool = log.tools.find(name)
        schema = tool.parameters.get("properties") if tool is not None else None
        self._properties: dict[str, Any] = schema if isinstance(schema, dict) else {}
        self._log = log
        self._next = "{"
        log.open(name)

    def add(self, key: str, text: str) -> None:
        text = text.removeprefix("\n").removesuffix("\n")
        self._log.write(f"{self._next}{json.dumps(key, ensure_ascii=False)}: ")
        self._log.write(json.dumps(_typed(text, self._properties.get(key)), ensure_ascii=False))
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
