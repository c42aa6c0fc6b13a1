"""The journal: all or nothing, one writer at a time, and nothing that a stranger can read."""

import json
import os
import sqlite3
import stat
from collections.abc import AsyncGenerator, Generator
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import pytest
from anyio import from_thread

from specstream.errors import ConfigError, JournalFailed, JournalTaken
from specstream.server.journal.base import Change, Drop, Forget, Frame, Journal, Put, session_name
from specstream.server.journal.postgres import PostgresJournal
from specstream.server.journal.sqlite import SqliteJournal
from tests.support.databases import postgres

TOKEN, OWNER = "a token", "somebody"
SOME: list[Change] = [Frame(0, "zero"), Put("item:a", "1"), Frame(1, "one"), Put("item:b", "2")]


def file_of(folder: Path) -> Path:
    return folder / f"{session_name(TOKEN)}.session"


def files(folder: Path) -> list[Path]:
    return list(folder.iterdir())


class Place(Protocol):
    """Opens the journal of a test as another process would."""

    def __call__(self, **options: Any) -> Journal: ...


@pytest.fixture(scope="module")
def database() -> Generator[str, None, None]:
    with postgres() as url:
        yield url


@pytest.fixture(params=["sqlite", "durable", "postgres"])
async def place(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncGenerator[Place, None]:
    opened: list[Journal] = []
    url = request.getfixturevalue("database") if request.param == "postgres" else ""

    def make(**options: Any) -> Journal:
        if url:
            opened.append(PostgresJournal(url, **options))
        else:
            options["durable"] = request.param == "durable"
            opened.append(SqliteJournal(tmp_path, **options))
        return opened[-1]

    if url:  # whatever an earlier test has left
        old = make(max_age_s=-1.0)
        await old.sweep()
    yield make
    for journal in opened:
        await journal.aclose()


async def test_another_process_reads_what_was_committed(place: Place) -> None:
    log = await place().begin(TOKEN, OWNER)
    await log.commit(SOME)
    await log.commit([Forget(0), Put("item:a", "3"), Drop("item:b"), Frame(2, "two")])
    taken = await place().take(TOKEN, OWNER)
    assert taken is not None
    _, saved = taken
    assert saved.frames == (Frame(1, "one"), Frame(2, "two"))
    assert saved.records == {"item:a": "3"}


async def test_the_newest_frame_stays_so_that_its_number_is_known(place: Place) -> None:
    log = await place().begin(TOKEN, OWNER)
    await log.commit([*SOME, Forget(1)])
    taken = await place().take(TOKEN, OWNER)
    assert taken is not None and taken[1].frames == (Frame(1, "one"),)


async def test_a_commit_writes_all_or_nothing(place: Place) -> None:
    log = await place().begin(TOKEN, OWNER)
    await log.commit(SOME)
    with pytest.raises(JournalFailed):
        await log.commit([Put("item:c", "3"), Frame(1, "a number that was used")])
    await log.commit([Frame(2, "two")])
    taken = await place().take(TOKEN, OWNER)
    assert taken is not None
    assert "item:c" not in taken[1].records and len(taken[1].frames) == 3


async def test_who_was_taken_for_dead_can_write_no_more(place: Place) -> None:
    first = await place().begin(TOKEN, OWNER)
    await first.commit(SOME)
    taken = await place().take(TOKEN, OWNER)
    assert taken is not None
    second, _ = taken
    with pytest.raises(JournalTaken):
        await first.commit([Frame(2, "of the dead")])
    await first.aclose(remove=True)
    await second.commit([Frame(2, "of the living")])
    await second.aclose(remove=True)
    assert await place().take(TOKEN, OWNER) is None, "it was over"


async def test_a_session_whose_file_was_removed_was_not_taken_over(tmp_path: Path) -> None:
    log = await SqliteJournal(tmp_path).begin(TOKEN, OWNER)
    file_of(tmp_path).unlink()
    with pytest.raises(JournalFailed, match="file is gone") as failed:
        await log.commit(SOME)
    assert not isinstance(failed.value, JournalTaken)
    await log.aclose(remove=True)


async def test_a_session_is_of_its_owner_and_of_whoever_knows_its_token(place: Place) -> None:
    journal = place()
    log = await journal.begin(TOKEN, OWNER)
    await log.commit(SOME)
    assert await journal.take("another token", OWNER) is None
    assert await journal.take(TOKEN, "somebody else") is None
    await log.commit([Frame(2, "still its own")])


async def test_old_sessions_are_dropped(place: Place) -> None:
    log = await place().begin(TOKEN, OWNER)
    await log.commit(SOME)
    young, old = place(max_age_s=100.0), place(max_age_s=-1.0)
    await young.sweep()
    assert await old.take(TOKEN, OWNER) is None
    assert await young.take(TOKEN, OWNER) is not None
    await old.sweep()
    assert await young.take(TOKEN, OWNER) is None


async def test_letters_of_all_kinds_come_back(place: Place) -> None:
    log = await place().begin(TOKEN, OWNER)
    text = json.dumps({"text": "ä \x00 \ud83d\ude00 ' \" \\ \u2028"})
    await log.commit([Frame(0, text), Put("item:ä", text)])
    taken = await place().take(TOKEN, OWNER)
    assert taken is not None
    assert taken[1].frames[0].text == taken[1].records["item:ä"] == text


@pytest.mark.parametrize(
    "url", ["postgresql://test@127.0.0.1:1/none", "postgresql://[", "postgresql://h:port/x"]
)
async def test_a_database_that_cannot_be_reached_is_a_typed_error(url: str) -> None:
    pytest.importorskip("asyncpg")
    with pytest.raises(JournalFailed, match="can't be begun"):
        await PostgresJournal(url).begin(TOKEN, OWNER)


async def test_nobody_else_on_the_machine_can_read_it(tmp_path: Path) -> None:
    log = await SqliteJournal(tmp_path / "journal").begin(TOKEN, OWNER)
    await log.commit(SOME)
    assert stat.S_IMODE((tmp_path / "journal").stat().st_mode) == 0o700
    for file in files(tmp_path / "journal"):
        assert stat.S_IMODE(file.stat().st_mode) == 0o600, file.name


async def test_a_session_of_another_format_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    log = await SqliteJournal(tmp_path).begin(TOKEN, OWNER)
    await log.commit(SOME)
    await log.aclose(remove=False)
    with sqlite3.connect(file_of(tmp_path)) as database:
        database.execute("UPDATE meta SET format = '0'")
    database.close()
    with pytest.raises(JournalFailed, match="format 0"):
        await SqliteJournal(tmp_path).take(TOKEN, OWNER)
    with sqlite3.connect(file_of(tmp_path)) as database:
        assert database.execute("SELECT format, epoch FROM meta").fetchone() == ("0", 1)
        assert database.execute("SELECT COUNT(*) FROM frames").fetchone() == (2,)
    database.close()


async def test_a_torn_last_write_is_as_if_it_had_not_been(tmp_path: Path) -> None:
    """The log beside the file, cut at each of many lengths: some beginning of what was committed."""
    log = await SqliteJournal(tmp_path / "whole").begin(TOKEN, OWNER)
    for number in range(20):
        await log.commit([Frame(number, f"frame {number}")])
    whole = file_of(tmp_path / "whole")
    data, written = whole.read_bytes(), whole.with_name(whole.name + "-wal").read_bytes()
    counts = set[int]()
    for length in range(0, len(written), 1511):
        folder = tmp_path / str(length)
        journal = SqliteJournal(folder)
        file_of(folder).write_bytes(data)
        whole_log = file_of(folder)
        whole_log.with_name(whole_log.name + "-wal").write_bytes(written[:length])
        try:
            taken = await journal.take(TOKEN, OWNER)
        except JournalFailed:  # torn before the session had begun: no client has its token
            continue
        assert taken is not None
        another, saved = taken
        assert [frame.seq for frame in saved.frames] == list(range(len(saved.frames)))
        counts.add(len(saved.frames))
        await another.aclose(remove=False)
    assert len(counts) > 10


async def test_what_is_no_session_is_a_typed_error(tmp_path: Path) -> None:
    file_of(tmp_path).write_bytes(b"not a database" * 500)
    with pytest.raises(JournalFailed, match="can't be read"):
        await SqliteJournal(tmp_path).take(TOKEN, OWNER)


async def test_a_full_disk_is_a_typed_error_and_breaks_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened, connect = list[sqlite3.Connection](), sqlite3.connect

    def noted(*args: Any, **options: Any) -> sqlite3.Connection:
        opened.append(connect(*args, **options))
        return opened[-1]

    monkeypatch.setattr(sqlite3, "connect", noted)
    log = await SqliteJournal(tmp_path).begin(TOKEN, OWNER)
    await log.commit(SOME)
    (database,) = opened
    (pages,) = database.execute("PRAGMA page_count").fetchone()
    database.execute(f"PRAGMA max_page_count = {pages + 1}")
    with pytest.raises(JournalFailed, match="full"):
        await log.commit([Frame(2, "two"), Frame(3, "x" * 100_000)])
    await log.commit([Frame(2, "small enough")])
    taken = await SqliteJournal(tmp_path).take(TOKEN, OWNER)
    assert taken is not None and taken[1].frames[-1] == Frame(2, "small enough")


async def test_a_session_that_cannot_begin_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect = sqlite3.connect

    def full(*args: Any, **options: Any) -> sqlite3.Connection:
        database: sqlite3.Connection = connect(*args, **options)
        database.execute("PRAGMA max_page_count = 1")
        return database

    monkeypatch.setattr(sqlite3, "connect", full)
    with pytest.raises(JournalFailed, match="can't be begun"):
        await SqliteJournal(tmp_path).begin(TOKEN, OWNER)
    assert files(tmp_path) == []


@pytest.mark.parametrize("opened", [False, True], ids=["before the file is opened", "after"])
async def test_a_session_that_ends_while_it_is_taken_is_not_there(
    tmp_path: Path, opened: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = await SqliteJournal(tmp_path).begin(TOKEN, OWNER)
    await log.commit(SOME)
    connect = sqlite3.connect

    def ends_meanwhile(*args: Any, **options: Any) -> sqlite3.Connection:
        database: sqlite3.Connection | None = connect(*args, **options) if opened else None
        monkeypatch.undo()
        from_thread.run(partial(log.aclose, remove=True))
        return database or connect(*args, **options)

    monkeypatch.setattr(sqlite3, "connect", ends_meanwhile)
    assert await SqliteJournal(tmp_path).take(TOKEN, OWNER) is None
    assert not files(tmp_path)


@pytest.mark.parametrize("removed", [1, 2], ids=["its log", "its index"])
async def test_a_session_of_which_files_are_removed_is_not_there(
    tmp_path: Path, removed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = await SqliteJournal(tmp_path).begin(TOKEN, OWNER)
    await log.commit(SOME)
    unlink, other, taken = Path.unlink, SqliteJournal(tmp_path), []
    steps = iter(range(removed + 1))

    def taken_meanwhile(path: Path, missing_ok: bool = False) -> None:
        if next(steps, None) == removed:
            monkeypatch.undo()
            taken.append(from_thread.run(other.take, TOKEN, OWNER))
        unlink(path, missing_ok)

    monkeypatch.setattr(Path, "unlink", taken_meanwhile)
    await log.aclose(remove=True)
    assert taken == [None]
    assert not files(tmp_path)


@pytest.mark.parametrize("how", ["removed", "replaced"])
async def test_a_file_that_somebody_else_touched_is_noticed(tmp_path: Path, how: str) -> None:
    log = await SqliteJournal(tmp_path).begin(TOKEN, OWNER)
    await log.commit(SOME)
    if how == "replaced":
        file_of(tmp_path).rename(tmp_path / "old")
        await SqliteJournal(tmp_path).begin(TOKEN, OWNER)
    else:
        await SqliteJournal(tmp_path, max_age_s=-1.0).sweep()  # by a clock of its own
    with pytest.raises(JournalFailed):
        await log.commit([Frame(2, "two")])
    await log.aclose(remove=False)


async def test_a_file_that_cannot_be_dropped_keeps_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = SqliteJournal(tmp_path, max_age_s=-1.0)
    for token in ("a", "b", "c"):
        await (await journal.begin(token, OWNER)).aclose(remove=False)
    kept, unlink = session_name("b"), Path.unlink

    def refuses(path: Path, missing_ok: bool = False) -> None:
        if path.name.startswith(kept):
            raise PermissionError("not yours")
        unlink(path, missing_ok)

    monkeypatch.setattr(Path, "unlink", refuses)
    with pytest.raises(JournalFailed, match="not yours"):
        await journal.sweep()
    assert {file.name.split(".")[0] for file in files(tmp_path)} == {kept}


async def test_old_sessions_are_dropped_and_others_stay(tmp_path: Path) -> None:
    journal = SqliteJournal(tmp_path, max_age_s=100.0)
    old, new = await journal.begin(TOKEN, OWNER), await journal.begin("new", OWNER)
    await old.commit(SOME)
    await new.commit(SOME)
    for file in files(tmp_path):
        if file.name.startswith(session_name(TOKEN)):
            os.utime(file, (1e9, 1e9))
    assert await journal.take(TOKEN, OWNER) is None
    await journal.sweep()
    assert {file.name.split(".")[0] for file in files(tmp_path)} == {session_name("new")}


@pytest.mark.parametrize("left", ["-wal", "-shm"])
async def test_logs_that_a_kill_has_left_alone_are_dropped(tmp_path: Path, left: str) -> None:
    alone = tmp_path / f"{session_name('gone')}.session{left}"
    alone.touch()
    log = await SqliteJournal(tmp_path).begin(TOKEN, OWNER)
    await SqliteJournal(tmp_path).sweep()
    assert alone.exists(), "not before it is old"
    os.utime(alone, (0.0, 0.0))
    await SqliteJournal(tmp_path).sweep()
    assert not alone.exists()
    await log.commit(SOME)
    await log.aclose(remove=True)


def test_a_folder_that_cannot_be_used_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="can't be made"):
        SqliteJournal(tmp_path / "file")
