"""Closes the objects of a tool's JSON schema against properties that it doesn't name."""

from __future__ import annotations

from typing import Any

__all__ = ["closed"]

_OPEN = ("additionalProperties", "patternProperties", "unevaluatedProperties", "propertyNames")
# Beside these, a schema's own properties are not all that an object may have.
_COMBINED = ("allOf", "anyOf", "oneOf", "not", "if", "$ref", "dependentSchemas")
_BY_NAME = ("properties", "$defs", "definitions", "dependentSchemas")
_ONE = ("items", "contains", "additionalProperties")
_SEVERAL = ("anyOf", "oneOf", "prefixItems")


def closed(schema: Any) -> Any:
    """Return a copy of a JSON schema in which objects with properties have no others.

    JSON Schema leaves an object open unless it says ``additionalProperties``. Who describes a tool by
    its parameters seldom means that, and a model that is free to go on invents some. llama.cpp and
    xgrammar read such objects as closed, too. What the schema says itself stays, and so do objects that
    are combined of several schemas, whose other parts may name more.
    """
    if not isinstance(schema, dict):
        return schema
    made = dict(schema)
    for key in _BY_NAME:
        if isinstance(made.get(key), dict):
            made[key] = {name: closed(one) for name, one in made[key].items()}
    for key in _ONE:
        made = made | {key: closed(made[key])} if key in made else made
    for key in _SEVERAL:
        if isinstance(made.get(key), list):
            made[key] = [closed(one) for one in made[key]]
    named = isinstance(made.get("properties"), dict)
    if named and not any(key in made for key in (*_OPEN, *_COMBINED)):
        made["additionalProperties"] = False
    return made
