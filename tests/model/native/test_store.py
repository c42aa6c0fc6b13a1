import os
from pathlib import Path

import pytest

from specstream.model.native.library import CodeStore


class Maker:
    """Writes a file at the path that it gets, and counts its calls."""

    def __init__(self) -> None:
        self.made = 0

    def __call__(self, path: Path) -> None:
        self.made += 1
        path.write_text(f"package {self.made}")


def test_one_recipe_is_made_once_by_all_who_share_the_folder(tmp_path: Path) -> None:
    make = Maker()
    first = CodeStore(tmp_path / "a" / "b").path({"width": 1, "dtype": "x"}, make)
    again = CodeStore(tmp_path / "a" / "b").path({"dtype": "x", "width": 1}, make)
    other = CodeStore(tmp_path / "a" / "b").path({"dtype": "x", "width": 2}, make)
    assert first == again != other
    assert (make.made, first.read_text()) == (2, "package 1")
    assert sorted(first.parent.iterdir()) == sorted([first, other])  # nothing half-made is left


def test_only_its_owner_can_put_code_there(tmp_path: Path) -> None:
    path = CodeStore(tmp_path / "mine").path({}, Maker())
    assert path.parent.stat().st_mode & 0o077 == 0


def test_code_that_others_could_have_written_is_not_loaded(tmp_path: Path) -> None:
    folder = tmp_path / "shared"
    CodeStore(folder).path({}, Maker())
    folder.chmod(0o777)
    with pytest.raises(PermissionError, match="others can write to it"):
        CodeStore(folder).path({}, Maker())


def test_what_a_killed_process_left_is_cleared_away_in_time(tmp_path: Path) -> None:
    old, new = tmp_path / "tmpold", tmp_path / "tmpnew"
    for left in (old, new):
        left.mkdir()
    os.utime(old, (1, 1))
    CodeStore(tmp_path).path({}, Maker())
    assert not old.exists() and new.exists()


def test_the_least_recently_used_go_first(tmp_path: Path) -> None:
    store, make = CodeStore(tmp_path, kept=2), Maker()
    paths = [store.path({"n": n}, make) for n in (0, 1)]
    for age, path in enumerate(reversed(paths), start=1):
        os.utime(path, (age, age))
    store.path({"n": 1}, make)  # used again
    third = store.path({"n": 2}, make)
    assert sorted(tmp_path.iterdir()) == sorted([paths[1], third])


def test_a_failure_leaves_nothing_behind(tmp_path: Path) -> None:
    def fail(path: Path) -> None:
        path.write_text("half")
        raise RuntimeError("no compiler")

    store = CodeStore(tmp_path)
    with pytest.raises(RuntimeError, match="no compiler"):
        store.path({}, fail)
    assert list(tmp_path.iterdir()) == []


def test_what_was_discarded_is_made_again(tmp_path: Path) -> None:
    store, make = CodeStore(tmp_path), Maker()
    store.discard(store.path({}, make))
    assert store.path({}, make).read_text() == "package 2"


def test_where_the_folder_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("SPECSTREAM_CACHE", raising=False)
    assert CodeStore().folder == tmp_path / "cache" / "specstream" / "compiled"
    monkeypatch.setenv("SPECSTREAM_CACHE", str(tmp_path / "own"))
    assert CodeStore().folder == tmp_path / "own" / "compiled"
