"""What a start does to its process: the garbage collector is left as it was found."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path

import pytest

from specstream import Engine
from specstream.errors import ModelError


@pytest.fixture(params=["as usual", "switched off", "frozen"])
def collector(request: pytest.FixtureRequest) -> Iterator[tuple[bool, bool]]:
    if request.param == "switched off":
        gc.disable()
    if request.param == "frozen":
        gc.freeze()
    yield gc.isenabled(), gc.get_freeze_count() > 0
    gc.enable()
    gc.unfreeze()


async def test_after_a_start_it_collects_as_before(collector: tuple[bool, bool]) -> None:
    async with Engine.load():
        assert (gc.isenabled(), gc.get_freeze_count() > 0) == collector


async def test_after_one_that_failed_too(collector: tuple[bool, bool], tmp_path: Path) -> None:
    with pytest.raises(ModelError):
        async with Engine.load(tmp_path):
            pass
    assert (gc.isenabled(), gc.get_freeze_count() > 0) == collector
