"""A journal in a folder of one machine: one SQLite file for each session."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

import anyio
from anyio import to_thread

from specstream.errors import ConfigError, JournalFailed, JournalTaken
from specstream.server.journal.base import (
    FORMAT,
    LAST,
    Change,
    Drop,
    Forget,
    Frame,
    Put,
    SavedSession,
    SessionLog,
    session_name,
)

__all__ = ["SqliteJournal"]

T = TypeVar("T")

_SCHEMA = (
    "CREATE TABLE meta (format TEXT NOT NULL, owner TEXT NOT NULL, epoch INTEGER NOT NULL)",
    "CREATE TABLE frames (seq INTEGER PRIMARY KEY, text TEXT NOT NULL)",
    "CREATE TABLE records (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID",
)
_SUFFIX = ".session"
_LOGS = ("-wal", "-shm")  # beside the session's own file while it is open
_BUSY_S = 5.0


class SqliteJournal:
    """A `Journal` in a folder of one machine: one SQLite file (WAL) for each session.

    Never on a network file system. Files can be read by this user alone. A commit outlives the process;
    with ``durable`` it outlives the machine, too, and takes milliseconds instead of microseconds.

    Args:
        folder: Is made if it isn't there.
        durable: Wait for the disk at each commit.
        max_age_s: Sessions in which nothing was written for so long are dropped.

    Raises:
        ConfigError: the folder can't be made or written.
    """

    def __init__(self, folder: str | Path, *, durable: bool = False, max_age_s: float = 3600.0) -> None:
        folder = Path(folder)
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"the journal's folder {folder} can't be made: {error}") from None
        if not os.access(folder, os.W_OK | os.X_OK):
            raise ConfigError(f"the journal's folder {folder} can't be written")
        self.folder, self.durable, self.max_age_s = folder, durable, max_age_s
        self._threads = anyio.CapacityLimiter(4)

    async def _run(self, work: Callable[[], T]) -> T:
        return await to_thread.run_sync(work, limiter=self._threads)  # a cancel waits for its end

    def _path(self, token: str) -> Path:
        return self.folder / (session_name(token) + _SUFFIX)

    async def begin(self, token: str, owner: str) -> SessionLog:
        """See `Journal.begin`."""
        path = self._path(token)

        def make() -> _SqliteLog:
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
            with ExitStack() as undo:
                undo.callback(_unlink, path)
                database = undo.enter_context(closing(_connect(path, self.durable)))
                database.execute("PRAGMA journal_mode = WAL")
                database.execute("BEGIN")
                for statement in _SCHEMA:
                    database.execute(statement)
                database.execute("INSERT INTO meta VALUES (?, ?, 1)", (FORMAT, owner))
                database.execute("COMMIT")
                undo.pop_all()
            return _SqliteLog(database, path, 1, self._run)

        return await self._run(_told(make, "begun"))

    async def take(self, token: str, owner: str) -> tuple[SessionLog, SavedSession] | None:
        """See `Journal.take`."""
        path = self._path(token)

        def read() -> tuple[SessionLog, SavedSession] | None:
            if not path.exists() or self._age(path) > self.max_age_s:
                return None
            try:
                taken = self._read(path, owner)
            except (sqlite3.Error, OSError):
                if path.exists():
                    raise
                taken = None
            if taken is None and not path.exists():  # it has ended meanwhile
                _unlink(path)  # logs that were opened after that
            return taken

        return await self._run(_told(read, "read"))

    def _read(self, path: Path, owner: str) -> tuple[SessionLog, SavedSession] | None:
        with ExitStack() as undo:
            database = undo.enter_context(closing(_connect(path, self.durable)))
            database.execute("BEGIN IMMEDIATE")
            meta = database.execute("SELECT format, owner, epoch FROM meta").fetchone()
            if meta is None or meta[1] != owner:
                return None
            format, _, epoch = meta
            if format != FORMAT:
                raise JournalFailed(f"the session was written in format {format}, not {FORMAT}")
            database.execute("UPDATE meta SET epoch = ?", (epoch + 1,))
            rows = database.execute("SELECT seq, text FROM frames ORDER BY seq")
            frames = tuple(Frame(*row) for row in rows)
            saved = SavedSession(frames, dict(database.execute("SELECT * FROM records")))
            database.execute("COMMIT")
            log = _SqliteLog(database, path, epoch + 1, self._run)
            undo.pop_all()
            return log, saved

    async def sweep(self) -> None:
        """See `Journal.sweep`."""

        def drop() -> None:
            failed: OSError | None = None
            found = [*self.folder.glob("*" + _SUFFIX)]
            for suffix in _LOGS:  # which a kill may have left alone
                left = self.folder.glob("*" + _SUFFIX + suffix)
                found += (path.with_name(path.name.removesuffix(suffix)) for path in left)
            for path in dict.fromkeys(found):
                try:
                    if self._age(path) > self.max_age_s:
                        _unlink(path)
                except OSError as error:  # others may still go
                    failed = failed or error
            if failed is not None:
                raise failed

        await self._run(_told(drop, "dropped"))

    def _age(self, path: Path) -> float:
        """Seconds since something was written, in the file or in the logs beside it."""
        last = 0.0
        for file in (path, *(_beside(path, suffix) for suffix in _LOGS)):
            try:
                last = max(last, file.stat().st_mtime)
            except FileNotFoundError:  # ended meanwhile, or nothing in the log
                continue
        return time.time() - last

    async def aclose(self) -> None:
        """See `Journal.aclose`."""


class _SqliteLog:
    def __init__(
        self,
        database: sqlite3.Connection,
        path: Path,
        epoch: int,
        run: Callable[[Callable[[], None]], Awaitable[None]],
    ) -> None:
        self._database, self._path, self._epoch, self._run = database, path, epoch, run
        self._file = path.stat().st_ino

    async def commit(self, changes: Sequence[Change]) -> None:
        """See `SessionLog.commit`."""

        def write() -> None:
            self._begin()
            try:
                for change in changes:
                    self._database.execute(*_statement(change))
                self._database.execute("COMMIT")
            except BaseException:
                _roll_back(self._database)
                raise

        await self._run(_told(write, "written"))

    def _begin(self) -> None:
        """Lock the file, if the session is still this process's."""
        try:
            same = self._path.stat().st_ino == self._file
        except FileNotFoundError:
            same = False
        if not same:
            raise JournalFailed("the session's file is gone: it ended elsewhere, or somebody touched it")
        self._database.execute("BEGIN IMMEDIATE")
        if self._database.execute("SELECT epoch FROM meta").fetchone() != (self._epoch,):
            _roll_back(self._database)
            raise JournalTaken("another process has taken the session over")

    async def aclose(self, *, remove: bool) -> None:
        """See `SessionLog.aclose`."""

        def close() -> None:
            with closing(self._database):
                if remove and self._path.exists():
                    self._begin()
                    self._database.execute("DELETE FROM meta")  # for who has opened it meanwhile
                    self._database.execute("COMMIT")
                    _unlink(self._path)

        with suppress(JournalTaken):
            await self._run(_told(close, "ended"))


def _statement(change: Change) -> tuple[str, tuple[object, ...]]:
    match change:
        case Frame(seq, text):
            return "INSERT INTO frames VALUES (?, ?)", (seq, text)
        case Forget(seq):
            newest = "(SELECT MAX(seq) FROM frames)"
            return f"DELETE FROM frames WHERE seq <= ? AND seq < {newest}", (seq,)
        case Put(name, value):
            return "INSERT OR REPLACE INTO records VALUES (?, ?)", (name, value)
        case Drop(prefix):
            return "DELETE FROM records WHERE name >= ? AND name < ?", (prefix, prefix + LAST)


def _connect(path: Path, durable: bool) -> sqlite3.Connection:
    options: dict[str, Any] = {"isolation_level": None, "check_same_thread": False}
    address = f"file:{quote(str(path))}?mode=rw"
    database: sqlite3.Connection = sqlite3.connect(address, timeout=_BUSY_S, uri=True, **options)
    database.execute(f"PRAGMA synchronous = {'FULL' if durable else 'NORMAL'}")
    return database


def _roll_back(database: sqlite3.Connection) -> None:
    if database.in_transaction:  # a full disk has rolled back by itself
        database.execute("ROLLBACK")


def _beside(path: Path, suffix: str) -> Path:
    return path.with_name(path.name + suffix)


def _unlink(path: Path) -> None:
    # The session's own file first: who has opened it then sees what is in its log, or that it is gone.
    for file in (path, *(_beside(path, suffix) for suffix in _LOGS)):
        file.unlink(missing_ok=True)


def _told(work: Callable[[], T], done: str) -> Callable[[], T]:
    """Raises JournalFailed where the database or the file system fails."""

    def told() -> T:
        try:
            return work()
        except (sqlite3.Error, OSError, ValueError, TypeError) as error:
            why = getattr(error, "strerror", None) or error  # clients get it: no paths
            raise JournalFailed(f"a session can't be {done} in the journal: {why}") from error

    return told
