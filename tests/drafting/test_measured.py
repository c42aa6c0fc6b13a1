"""Times of passes that are kept between starts, and every reason to measure them again."""

import json
import logging
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from specstream.checks import cache_folder
from specstream.config import EngineConfig
from specstream.drafting.calibration import FRESH, MeasuredTimes, identity_of
from specstream.engine.build import build_engine
from tests.support.tiny import save_pair

IDENTITY = {"version": 1}


def counted(times: list[float]) -> tuple[Callable[[], list[float]], list[int]]:
    calls = list[int]()

    def measure() -> list[float]:
        calls.append(1)
        return list(times)

    return measure, calls


def start(folder: Path, count: int = 2, identity: object = IDENTITY) -> tuple[list[float], int]:
    """The times of a start, and how often it has measured."""
    measure, calls = counted([1.5] * count)
    times = MeasuredTimes(identity, folder)  # type: ignore[arg-type]
    found = times.of("target", count, measure)
    assert times.of("target", count, measure) == found
    times.keep()
    return found, len(calls)


def test_a_later_start_takes_what_an_earlier_one_measured(tmp_path: Path) -> None:
    folder = tmp_path / "not" / "there"
    assert start(folder) == ([1.5, 1.5], 1)
    assert start(folder) == ([1.5, 1.5], 0)
    assert start(folder, count=3) == ([1.5] * 3, 1)
    assert start(folder, count=3, identity={"version": 2})[1] == 1
    assert len(list(folder.iterdir())) == 2


@pytest.mark.parametrize(
    "text", ["", "[]", "{", '{"target": [1.5, -1.0]}', '{"target": [1.5, NaN]}', '{"target": 3}']
)
def test_a_damaged_file_is_as_none(text: str, tmp_path: Path) -> None:
    start(tmp_path)
    (file,) = tmp_path.iterdir()
    file.write_text(text)
    assert start(tmp_path)[1] == 1
    assert json.loads(file.read_text()) == {"target": [1.5, 1.5]}


def test_so_is_an_old_one(tmp_path: Path) -> None:
    start(tmp_path)
    (file,) = tmp_path.iterdir()
    old = time.time() - 40 * 24 * 3600
    os.utime(file, (old, old))
    assert start(tmp_path)[1] == 1


def test_a_folder_that_can_not_be_written_is_said_and_does_no_harm(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    with caplog.at_level(logging.INFO, "specstream.engine"):
        assert start(tmp_path / "file") == ([1.5, 1.5], 1)
    assert "can't be kept" in caplog.text


def test_files_are_few(tmp_path: Path) -> None:
    for version in range(70):
        start(tmp_path, identity={"version": version})
    assert len(list(tmp_path.iterdir())) == 64


def test_without_an_identity_each_call_measures() -> None:
    measure, calls = counted([1.0])
    for _ in range(3):
        assert FRESH.of("target", 1, measure) == [1.0]
    FRESH.keep()
    assert len(calls) == 3


def test_an_engine_of_the_same_models_is_measured_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPECSTREAM_CACHE", str(tmp_path / "cache"))
    target, draft = save_pair(tmp_path / "models")
    config = EngineConfig(target=str(target), draft=str(draft))
    measured = list[str]()
    of = MeasuredTimes.of

    def told(self: MeasuredTimes, name: str, count: int, measure: Callable[[], list[float]]) -> object:
        def work() -> list[float]:
            measured.append(name)
            return measure()

        return of(self, name, count, work)

    monkeypatch.setattr(MeasuredTimes, "of", told)
    first = build_engine(config)
    assert {"target", "draft"} <= set(measured)
    measured.clear()
    second = build_engine(config)
    assert measured == []
    assert first.target.dtype is second.target.dtype
    (Path(target) / "config.json").touch()
    build_engine(config)
    assert "target" in measured


def test_all_that_times_depend_on_is_part_of_the_identity(tmp_path: Path) -> None:
    target, _ = save_pair(tmp_path)
    core = build_engine(EngineConfig(target=str(target), threads=1))

    def identity(config: EngineConfig = core.config, cores: int = 2, quota: float | None = None) -> str:
        return json.dumps(identity_of(config, core.target, cores, quota))

    one = identity()
    assert one == identity()
    assert one != identity(core.config.model_copy(update={"dtype": "float16"}))
    assert one != identity(cores=3) and one != identity(quota=1.5)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(before + 1)
        assert one != identity()
    finally:
        torch.set_num_threads(before)
    file = tmp_path / "one.gguf"
    file.write_text("a model")
    as_file = core.config.model_copy(update={"target": str(file)})
    found = identity(as_file)
    file.write_text("another one")
    assert identity(as_file) != found
    (target / ".#config.json").symlink_to("nowhere")
    assert identity() == "null"  # a file that can't be told: nothing is kept


def test_without_a_home_folder_nothing_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    def none() -> Path:
        raise RuntimeError("could not determine home directory")

    for name in ("SPECSTREAM_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(Path, "home", none)
    with pytest.raises(OSError, match="set SPECSTREAM_CACHE"):
        cache_folder("measured")
    times = MeasuredTimes(IDENTITY)
    assert times.of("target", 1, lambda: [2.0]) == [2.0]
    times.keep()
