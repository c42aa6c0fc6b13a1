from __future__ import annotations

import logging
from pathlib import Path

import pytest

from specstream.bench import prepare
from specstream.bench.padded import Shape
from specstream.bench.prepare import Faults, padded_target, settle_threads
from specstream.config import EngineConfig


async def test_threads_that_were_asked_for_stand() -> None:
    config, notes = await settle_threads(EngineConfig(threads=3, device="cpu"))
    assert (config.threads, notes) == (3, [])


@pytest.mark.parametrize(
    ("rates", "chosen"), [({4: 9.0, 2: 5.0, 1: 3.0}, 4), ({4: 1, 2: 9, 1: 2}, 2)]
)
async def test_busy_cores_are_left_alone_and_that_is_said(
    rates: dict[int, float], chosen: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prepare, "cores_here", lambda: 4)
    monkeypatch.setattr(prepare, "measure_rate", rates.__getitem__)
    config, notes = await settle_threads(EngineConfig(device="cpu"))
    assert config.threads == chosen
    assert [f"{chosen} of 4 threads" in note for note in notes] == [True] * (chosen < 4)


async def test_a_padded_target_is_there_as_long_as_it_is_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def save(target: str, padding: object, folder: Path) -> tuple[Shape, int]:
        (folder / "config.json").write_text(target)
        return Shape(12, 64, 256, 4, 2), 5_000_000

    monkeypatch.setattr(prepare, "save_padded", save)
    config = EngineConfig(target="mine", threads=1)
    async with padded_target(config, "5M") as (padded, words):
        file = Path(padded.target) / "config.json"
        assert file.read_text() == "mine"
        assert words.startswith("5M parameters, 12 layers of width 64")
    assert not file.exists()
    async with padded_target(config, None) as (same, words):
        assert (same, words) == (config, "")


def test_errors_in_the_engines_log_are_counted() -> None:
    log = logging.getLogger("specstream.engine")
    faults = Faults()
    log.error("it broke")
    log.warning("never mind")
    log.error("again")
    assert faults.end() == ["the engine reported an error 2 times; the first: it broke"]
    log.error("nobody listens")
    assert Faults().end() == []
