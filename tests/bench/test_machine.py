import json
from pathlib import Path

import pytest

import specstream
from specstream.bench import machine
from specstream.bench.machine import choose_threads, load_average, provenance_of, settle_threads
from specstream.bench.run import Outcome
from specstream.bench.table import heading_of
from specstream.config import DEFAULT_TARGET, EngineConfig
from tests.support.tiny import save_pair


def test_it_names_versions_machine_models_and_options() -> None:
    config = EngineConfig(dtype="bfloat16", device="cpu", threads=2)
    found = provenance_of(config, {"quick": True}, DEFAULT_TARGET)
    assert json.loads(json.dumps(found)) == found
    assert found["specstream"] == specstream.__version__
    assert found["packages"]["torch"]
    assert (found["dtype"], found["device"], found["threads"]) == ("bfloat16", "cpu", 2)
    assert found["target"]["name"] == found["draft"]["name"] == "bundled"
    assert found["target"]["parameters"] > found["draft"]["parameters"] > 1e6
    assert found["cpu"]
    assert found["gpu"] is None
    assert found["options"] == {"quick": True}


def test_a_target_that_no_draft_fits_has_none(tmp_path: Path) -> None:
    target, _ = save_pair(tmp_path)
    found = provenance_of(EngineConfig(target=str(target), device="cpu"), {}, str(target))
    assert found["draft"] is None
    outcome = Outcome()
    origin = found | {"options": {"temperature": 0, "max_tokens": 8}, "load_average_before": None}
    assert "draft none" in heading_of(origin, outcome)[0]


def test_load_averages_are_three_numbers() -> None:
    assert len(load_average() or [0, 0, 0]) == 3


async def test_threads_that_were_asked_for_stand() -> None:
    config, notes = await settle_threads(EngineConfig(threads=3, device="cpu"))
    assert (config.threads, notes) == (3, [])


@pytest.mark.parametrize(("rates", "chosen"), [({4: 9.0, 2: 5.0, 1: 3.0}, 4), ({4: 1, 2: 9, 1: 2}, 2)])
async def test_busy_cores_are_left_alone_and_that_is_said(
    rates: dict[int, float], chosen: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "cores_here", lambda: 4)
    monkeypatch.setattr(machine, "measure_rate", rates.__getitem__)
    config, notes = await settle_threads(EngineConfig(device="cpu"))
    assert config.threads == chosen
    assert [f"{chosen} of 4 threads" in note for note in notes] == [True] * (chosen < 4)


@pytest.mark.parametrize(
    ("cores", "rates", "chosen"),
    [
        (2, {2: 100, 1: 90}, 2),
        (2, {2: 100, 1: 105}, 2),  # as good as equal: all cores stand
        (2, {2: 10, 1: 400}, 1),
        (8, {8: 50, 4: 300, 1: 200}, 4),
        (8, {8: 50, 4: 60, 1: 200}, 1),
    ],
)
def test_fewer_threads_only_where_they_are_plainly_faster(
    cores: int, rates: dict[int, float], chosen: int
) -> None:
    assert choose_threads(cores, rates.__getitem__) == chosen


def test_candidates_take_turns() -> None:
    asked: list[int] = []

    def rate(threads: int) -> float:
        asked.append(threads)
        return 1.0

    choose_threads(4, rate)
    assert asked[:6] == [4, 2, 1, 4, 2, 1]


def test_one_core_is_not_measured() -> None:
    def never(threads: int) -> float:
        raise AssertionError

    assert choose_threads(1, never) == 1
