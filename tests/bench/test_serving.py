"""The measurement of the server: every arm streams, and what it costs is counted."""

from __future__ import annotations

import argparse

import pytest

from specstream.bench.load import serving
from specstream.commands.bench.serving import run_serving
from specstream.errors import ConfigError

pytestmark = pytest.mark.slow


async def test_all_servers_stream_and_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "_SETTLE_S", 0.1)
    told: list[str] = []
    figures = await serving.measure_serving(3, 1.0, 1, told.append)
    assert len(told) == len(figures) == 5
    for served in figures.values():
        # Three sessions get twenty deltas each in that second, or fewer on a machine that is busy.
        assert len(served.gaps_ms) > 3
        assert served.events >= len(served.gaps_ms)
        assert served.to_dict()["cpu_us_per_event"] > 0
    assert figures["audio"].events > len(figures["audio"].gaps_ms), "audio comes besides"


@pytest.mark.parametrize("sessions", [0, -1, 10**6])
async def test_an_impossible_number_of_sessions_is_refused(sessions: int) -> None:
    with pytest.raises(ConfigError, match="--serve"):
        await run_serving(argparse.Namespace(serve=sessions))
