"""The measurement of the server: every arm streams, and what it costs is counted."""

import argparse
from typing import Any, cast

import pytest

from specstream.bench.load import serving
from specstream.bench.load.serving import HttpFigures, measure_http
from specstream.commands.bench.serving import run_serving
from specstream.errors import ConfigError
from specstream.signals import event_loops
from specstream.testing import ScriptedEngine

pytestmark = pytest.mark.slow


async def test_all_servers_stream_and_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "SETTLE_S", 0.1)
    told: list[str] = []
    figures = await serving.measure_serving(3, 1.0, 1, told.append)
    assert len(told) == len(figures) == 5 * len(event_loops())
    for served in figures.values():
        # Three sessions get twenty deltas each in that second, or fewer on a machine that is busy.
        assert len(served.gaps_ms) > 3
        assert served.events >= len(served.gaps_ms)
        assert served.to_dict()["cpu_us_per_event"] > 0
    for loop in event_loops():
        audio = figures["audio", loop]
        assert audio.events > len(audio.gaps_ms), "audio comes besides"


@pytest.mark.parametrize("sessions", [0, -1, 10**6])
async def test_an_impossible_number_of_sessions_is_refused(sessions: int) -> None:
    with pytest.raises(ConfigError, match="--serve"):
        await run_serving(argparse.Namespace(serve=sessions))


async def test_both_ways_are_asked_as_often_and_in_turn() -> None:
    engine = ScriptedEngine(["one two three four"])
    prompts = [[{"role": "user", "content": text}] for text in ("a", "b", "c")]
    told = list[str]()
    ways = await measure_http(cast(Any, engine), cast(Any, prompts), 9, 2, told.append)
    assert told == ["warm-up", "round 1 of 2", "round 2 of 2"]
    assert {name: len(way.tokens) for name, way in ways.items()} == {"python": 6, "http": 6}
    assert ways["python"].tokens == ways["http"].tokens
    assert all(way.first_s[i] <= way.whole_s[i] for way in ways.values() for i in range(6))
    asked = [(messages[0]["content"], params.max_tokens) for messages, params in engine.requests]
    assert asked[-9:] == [(text, most) for text in "abc" for most in (1, 9, 9)]


def test_a_rate_is_over_all_replies() -> None:
    way = HttpFigures([0.1, 0.3, 0.2], [1.0, 3.0, 1.0], [10, 20, 20])
    assert way.rate == pytest.approx(10)
    assert way.to_dict() == {"tokens_per_second": 10.0, "first_ms": 200.0}
