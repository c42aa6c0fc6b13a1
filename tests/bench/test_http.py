"""Chat over HTTP beside the Python API: both ways ask the same of one engine."""

from __future__ import annotations

from typing import Any, cast

import pytest

from specstream.bench.load.http import HttpFigures, measure_http
from specstream.testing import ScriptedEngine


async def test_both_ways_are_asked_as_often_and_in_turn() -> None:
    engine = ScriptedEngine(["one two three four"])
    prompts = [[{"role": "user", "content": text}] for text in ("a", "b", "c")]
    told = list[str]()
    ways = await measure_http(cast(Any, engine), cast(Any, prompts), 9, 2, told.append)
    assert told == ["warm-up", "round 1 of 2", "round 2 of 2"]
    assert {name: len(way.tokens) for name, way in ways.items()} == {"python": 6, "http": 6}
    assert ways["python"].tokens == ways["http"].tokens
    assert all(way.first_s[i] <= way.whole_s[i] for way in ways.values() for i in range(6))
    assert [messages[0]["content"] for messages, _ in engine.requests[-6:]] == list("aabbcc")
    assert {params.max_tokens for _, params in engine.requests} == {9}


def test_a_rate_is_over_all_replies() -> None:
    way = HttpFigures([0.1, 0.3, 0.2], [1.0, 3.0, 1.0], [10, 20, 20])
    assert way.rate == pytest.approx(10)
    assert way.to_dict() == {"tokens_per_second": 10.0, "first_ms": 200.0}
