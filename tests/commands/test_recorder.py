"""A turn on a full disk leaves only complete files."""

import json
import resource
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import StringIO
from pathlib import Path

import pytest
import soundfile

from specstream.commands.main import main
from specstream.commands.shared.output import RunPrinter
from specstream.commands.shared.recorder import Recorder
from specstream.errors import OutputError
from specstream.stages.pipeline import Event
from specstream.types import AvatarCue, Span
from tests.commands.doubles import scripted

REPLY = "[smile] A fox walked into a snowy forest. She looked up at the stars."


@contextmanager
def room_for(size: int) -> Iterator[None]:
    """No file can grow past ``size`` bytes: the kernel refuses, as it does on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def check_whole(path: Path) -> None:
    assert path.stat().st_size > 0
    if path.suffix == ".wav":
        assert soundfile.info(path).frames > 0
    elif path.suffix == ".jsonl":
        assert [json.loads(line) for line in path.read_text().splitlines()]
    else:
        assert json.loads(path.read_text())["events"]


@pytest.mark.parametrize("size", [0, 44, 200, 20_000, 300_000])
def test_a_full_disk_leaves_whole_files_or_none(
    size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    scripted(monkeypatch, "say", REPLY)
    argv = ["say", "Tell me a story", "--voice", "reference", "--out", str(tmp_path)]
    with room_for(size):
        code = main(argv)
    error = capsys.readouterr().err.strip().splitlines()
    assert code == (0 if size == 300_000 else 1), error
    if code:
        assert len(error) == 1
        assert error[0].startswith(f"specstream: can't write {tmp_path}/")
    for path in tmp_path.iterdir():
        check_whole(path)
    assert len(list(tmp_path.iterdir())) == 4 or code


def test_files_that_a_failure_left_empty_go_and_the_others_stay(tmp_path: Path) -> None:
    nothing = Span(0, 0)
    cue = AvatarCue("viseme", "aa", 0.0, 1.0, 1.0, nothing, nothing, nothing)
    with (
        suppress(ZeroDivisionError),
        Recorder(tmp_path, RunPrinter(StringIO(), show_runs=False)) as recorder,
    ):
        recorder.add(Event(0, 0.0, "avatar", cue))
        raise ZeroDivisionError
    assert {path.name for path in tmp_path.iterdir()} == {"avatar.jsonl", "trace.json"}
    for path in tmp_path.iterdir():
        check_whole(path)


def test_a_folder_that_cannot_be_written_is_one_error(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("a file")
    with pytest.raises(OutputError, match="can't write"):
        Recorder(tmp_path / "out", RunPrinter(StringIO(), show_runs=False))
