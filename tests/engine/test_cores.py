import os
from pathlib import Path

import pytest

from specstream.commands.doctor import host_facts
from specstream.engine import cores
from specstream.engine.cores import cores_here, default_threads


def test_the_cores_are_those_that_may_be_used() -> None:
    assert 1 <= cores_here() <= (os.cpu_count() or 1)


@pytest.mark.parametrize(
    ("text", "words", "threads"),
    [
        ("150000 100000\n", "; a quota allows the time of 1.5", 1),
        ("310000 100000\n", "; a quota allows the time of 3.1", 3),
        ("50000 100000\n", "; a quota allows the time of 0.5", 1),
        ("max 100000\n", "", 7),
    ],
)
def test_a_quota_of_a_container_counts_as_cores_and_is_told(
    text: str, words: str, threads: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "cpu.max"
    file.write_text(text)
    monkeypatch.setattr(cores, "QUOTA_FILE", file)
    monkeypatch.setattr(cores, "cores_here", lambda: 8)
    assert default_threads() == threads
    assert host_facts(0)["cores"].endswith(f"may be used{words}")
