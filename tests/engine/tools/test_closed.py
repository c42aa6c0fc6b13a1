"""Objects of a tool's schema are closed, unless the schema says or implies something else."""

import json
from typing import Any

import pytest

from specstream.engine.tools.formats import closed

CITY = {"type": "object", "properties": {"city": {"type": "string"}}}
EMPTY: dict[str, Any] = {"type": "object", "properties": {}}
SHUT = {**CITY, "additionalProperties": False}


@pytest.mark.parametrize(
    ("schema", "wanted"),
    [
        (CITY, SHUT),
        (EMPTY, EMPTY | {"additionalProperties": False}),
        ({"type": "object"}, {"type": "object"}),
        ({**CITY, "additionalProperties": True}, {**CITY, "additionalProperties": True}),
        ({**CITY, "patternProperties": {"x.*": {}}}, {**CITY, "patternProperties": {"x.*": {}}}),
        ({"type": "array", "items": CITY}, {"type": "array", "items": SHUT}),
        ({"anyOf": [CITY, {"type": "null"}]}, {"anyOf": [SHUT, {"type": "null"}]}),
        ({"allOf": [CITY, CITY]}, {"allOf": [CITY, CITY]}),
        ({**CITY, "anyOf": [CITY]}, {**CITY, "anyOf": [SHUT]}),
        ({"properties": {"at": CITY}}, {"properties": {"at": SHUT}, "additionalProperties": False}),
        ({"$defs": {"c": CITY}, "$ref": "#/$defs/c"}, {"$defs": {"c": SHUT}, "$ref": "#/$defs/c"}),
        ({"additionalProperties": CITY}, {"additionalProperties": SHUT}),
        ({**CITY, "required": ["city"]}, {**SHUT, "required": ["city"]}),
        ({**CITY, "required": ["unit"]}, {**CITY, "required": ["unit"]}),
        (True, True),
    ],
)
def test_closed(schema: Any, wanted: Any) -> None:
    before = json.dumps(schema)
    assert closed(schema) == wanted
    assert json.dumps(schema) == before


def test_a_forced_call_takes_no_parameter_that_the_tool_does_not_have() -> None:
    llguidance: Any = pytest.importorskip("llguidance")
    for schema, allowed in ((closed(CITY), False), (CITY, True)):
        grammar = llguidance.LLMatcher.grammar_from_json_schema(schema)
        tokens = llguidance.LLTokenizer("byte")
        matcher = llguidance.LLMatcher(tokens, grammar)
        text = b'{"city":"Oslo","unit"'
        taken = matcher.validate_tokens(list(text))
        assert (taken == len(text)) == allowed
