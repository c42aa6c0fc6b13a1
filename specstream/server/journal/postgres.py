"""A journal in PostgreSQL, for servers on several machines (extra ``postgres``)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import anyio

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

__all__ = ["PostgresJournal"]

_WITHIN_S = 10.0  # a database that doesn't answer for so long has failed
_CONNECTIONS = 4
_SCHEMA = """
CREATE TABLE IF NOT EXISTS specstream_sessions (
    name TEXT PRIMARY KEY, format TEXT NOT NULL, owner TEXT NOT NULL, epoch BIGINT NOT NULL,
    written TIMESTAMPTZ NOT NULL DEFAULT now());
CREATE TABLE IF NOT EXISTS specstream_frames (
    name TEXT NOT NULL REFERENCES specstream_sessions ON DELETE CASCADE,
    seq BIGINT NOT NULL, text TEXT NOT NULL, PRIMARY KEY (name, seq));
CREATE TABLE IF NOT EXISTS specstream_records (
    name TEXT NOT NULL REFERENCES specstream_sessions ON DELETE CASCADE,
    record TEXT COLLATE "C" NOT NULL, value TEXT NOT NULL, PRIMARY KEY (name, record));
"""
_LOCK = 0x73706563  # of the schema, while one server makes it


class PostgresJournal:
    """A `Journal` in three tables of a PostgreSQL database, which it makes if they aren't there.

    How much a commit outlives is the database's setting (``synchronous_commit``).

    Args:
        url: Of the database, ``postgresql://user@host/name``; a password from its ``PGPASSWORD`` or
            password file is taken, too.
        max_age_s: Sessions in which nothing was written for so long are dropped.

    Raises:
        ConfigError: the driver isn't installed.
    """

    def __init__(self, url: str, *, max_age_s: float = 3600.0) -> None:
        try:
            import asyncpg
        except ImportError:
            raise ConfigError(
                "a journal in PostgreSQL needs asyncpg: pip install 'specstream-sdk[postgres]'"
            ) from None
        self._driver: Any = asyncpg
        self._url, self.max_age_s = url, max_age_s
        self._pool: Any = None
        self._opening = anyio.Lock()

    @asynccontextmanager
    async def connected(self, done: str) -> AsyncGenerator[Any, None]:
        """A connection in a transaction, whose failures are typed; a cancel waits for its end.

        Raises:
            JournalFailed: the database can't be reached, doesn't answer, or refuses.
        """
        try:
            with anyio.CancelScope(shield=True), anyio.fail_after(_WITHIN_S):
                async with (await self._opened()).acquire() as connection, connection.transaction():
                    yield connection
        except (OSError, TimeoutError, asyncio.IncompleteReadError, ValueError) as error:
            told = str(error) or "the database does not answer"
            raise JournalFailed(f"a session can't be {done} in the journal: {told}") from error
        except (self._driver.PostgresError, self._driver.InterfaceError) as error:
            raise JournalFailed(f"a session can't be {done} in the journal: {error}") from error

    async def _opened(self) -> Any:
        async with self._opening:
            if self._pool is None:
                options = {"min_size": 0, "max_size": _CONNECTIONS}
                pool = await self._driver.create_pool(self._url, **options)
                async with pool.acquire() as connection, connection.transaction():
                    await connection.execute(f"SELECT pg_advisory_xact_lock({_LOCK})")
                    await connection.execute(_SCHEMA)
                self._pool = pool
        return self._pool

    async def begin(self, token: str, owner: str) -> SessionLog:
        """See `Journal.begin`."""
        name = session_name(token)
        async with self.connected("begun") as database:
            insert = "INSERT INTO specstream_sessions (name, format, owner, epoch)"
            await database.execute(f"{insert} VALUES ($1, $2, $3, 1)", name, FORMAT, owner)
        return _PostgresLog(self, name, 1)

    async def take(self, token: str, owner: str) -> tuple[SessionLog, SavedSession] | None:
        """See `Journal.take`."""
        name = session_name(token)
        async with self.connected("read") as database:
            row = await database.fetchrow(
                "SELECT format, epoch FROM specstream_sessions WHERE name = $1 AND owner = $2"
                " AND written > now() - $3 * interval '1 second' FOR UPDATE",
                name,
                owner,
                self.max_age_s,
            )
            if row is None:
                return None
            if row["format"] != FORMAT:
                raise JournalFailed(f"the session was written in format {row['format']}, not {FORMAT}")
            epoch = row["epoch"] + 1
            set_epoch = "UPDATE specstream_sessions SET epoch = $2 WHERE name = $1"
            await database.execute(set_epoch, name, epoch)
            frames = "SELECT seq, text FROM specstream_frames WHERE name = $1 ORDER BY seq"
            records = "SELECT record, value FROM specstream_records WHERE name = $1"
            saved = SavedSession(
                tuple(Frame(*row) for row in await database.fetch(frames, name)),
                dict(map(tuple, await database.fetch(records, name))),
            )
        return _PostgresLog(self, name, epoch), saved

    async def sweep(self) -> None:
        """See `Journal.sweep`."""
        async with self.connected("dropped") as database:
            await database.execute(
                "DELETE FROM specstream_sessions WHERE written < now() - $1 * interval '1 second'",
                self.max_age_s,
            )

    async def aclose(self) -> None:
        """See `Journal.aclose`."""
        if self._pool is not None:
            with anyio.move_on_after(_WITHIN_S, shield=True):
                await self._pool.close()
            self._pool = None


class _PostgresLog:
    def __init__(self, journal: PostgresJournal, name: str, epoch: int) -> None:
        self._journal, self._name, self._epoch = journal, name, epoch

    async def commit(self, changes: Sequence[Change]) -> None:
        """See `SessionLog.commit`."""
        async with self._journal.connected("written") as database:
            mine = "UPDATE specstream_sessions SET written = now() WHERE name = $1 AND epoch = $2"
            if await database.execute(mine, self._name, self._epoch) != "UPDATE 1":
                raise JournalTaken("another process has taken the session over")
            for change in changes:
                statement, arguments = _statement(change)
                await database.execute(statement, self._name, *arguments)

    async def aclose(self, *, remove: bool) -> None:
        """See `SessionLog.aclose`."""
        if remove:
            async with self._journal.connected("ended") as database:
                mine = "DELETE FROM specstream_sessions WHERE name = $1 AND epoch = $2"
                await database.execute(mine, self._name, self._epoch)


def _statement(change: Change) -> tuple[str, tuple[object, ...]]:
    match change:
        case Frame(seq, text):
            return "INSERT INTO specstream_frames VALUES ($1, $2, $3)", (seq, text)
        case Forget(seq):
            newest = "(SELECT MAX(seq) FROM specstream_frames WHERE name = $1)"
            drop = "DELETE FROM specstream_frames WHERE name = $1 AND seq <= $2 AND seq <"
            return f"{drop} {newest}", (seq,)
        case Put(name, value):
            insert = "INSERT INTO specstream_records VALUES ($1, $2, $3)"
            replaced = "ON CONFLICT (name, record) DO UPDATE SET value = EXCLUDED.value"
            return f"{insert} {replaced}", (name, value)
        case Drop(prefix):
            drop = "DELETE FROM specstream_records WHERE name = $1 AND record >= $2 AND record < $3"
            return drop, (prefix, prefix + LAST)
