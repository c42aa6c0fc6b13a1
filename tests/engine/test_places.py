"""How many requests share a pass when nothing says it."""

import logging
from pathlib import Path
from typing import Any

import pytest

from specstream.config import EngineConfig, parse_config
from specstream.drafting.calibration import MeasuredTimes, pass_ms
from specstream.engine import build
from specstream.engine.core import scheduler as places
from specstream.engine.core.scheduler import choose_places
from specstream.model.runner import ModelRunner
from tests.support.tiny import tiny_model

RUNNER = ModelRunner(tiny_model(40, seed=1))


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """What passes of four and of sixteen requests take, in ms."""
    times = [1.0, 2.0]
    monkeypatch.setattr(places, "pass_ms", lambda target, counts: times)
    monkeypatch.setattr(places, "free_bytes", lambda target: 2**30)
    return times


@pytest.mark.parametrize(("many_ms", "chosen"), [(1.0, 16), (3.9, 16), (4.1, 4), (9.0, 4)])
def test_sixteen_where_their_pass_takes_less_than_four_of_four(
    many_ms: float, chosen: int, measured: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    measured[1] = many_ms
    with caplog.at_level(logging.INFO, "specstream.engine"):
        assert choose_places(RUNNER) == chosen
    assert f"{chosen} requests share a pass" in caplog.text


@pytest.mark.parametrize(("many_ms", "kept"), [(2.0, True), (3.2, False), (5.0, False), (6.0, True)])
def test_only_a_clear_choice_is_kept_for_later_starts(
    many_ms: float, kept: bool, measured: list[float], tmp_path: Path
) -> None:
    measured[:] = [1.0, many_ms]
    times = MeasuredTimes({"a": 1}, tmp_path)
    first = choose_places(RUNNER, times)
    times.keep()
    measured[:] = [1.0, 100.0 if first == 16 else 1.0]
    again = choose_places(RUNNER, MeasuredTimes({"a": 1}, tmp_path))
    assert (again == first) is kept


def test_four_where_memory_has_no_room_for_more(
    measured: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    each = RUNNER.cache_bytes(min(2048, RUNNER.context_length))
    for free, chosen in ((32 * each, 16), (32 * each - 2, 4)):
        monkeypatch.setattr(places, "free_bytes", lambda target, free=free: free)
        assert choose_places(RUNNER) == chosen


@pytest.mark.parametrize("options", [{"lean": False}, {"fixed_width": 4}])
def test_four_where_each_sequence_has_a_pass_of_its_own(
    options: dict[str, Any], measured: list[float]
) -> None:
    assert choose_places(ModelRunner(tiny_model(40, seed=1), **options)) == 4


def test_the_time_of_passes_is_measured_and_leaves_nothing_behind() -> None:
    assert all(ms > 0 for ms in pass_ms(RUNNER, (1, 4, 16)))
    assert RUNNER.forwards == 0


def test_the_memory_that_is_free_is_read() -> None:
    assert 2**20 < places.free_bytes(RUNNER) < 2**50


@pytest.mark.parametrize(("given", "chosen"), [(None, 9), (3, 3)])
def test_an_engine_measures_only_if_nobody_says_it(
    given: int | None, chosen: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "choose_places", lambda target, times: 9)
    core = build.build_engine(parse_config({"threads": 1, "max_running": given, "proposer": "off"}))
    assert core.config.places == chosen


def test_a_config_that_no_engine_was_built_from_is_careful() -> None:
    assert EngineConfig().places == 4
