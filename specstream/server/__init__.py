"""The server: Realtime sessions, the demo page, metrics; and one adapter behind a socket of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from specstream.lazy import offers

if TYPE_CHECKING:
    from specstream.remote.server import AdapterServer as AdapterServer
    from specstream.server.journal.postgres import PostgresJournal as PostgresJournal
    from specstream.server.journal.sqlite import SqliteJournal as SqliteJournal
    from specstream.server.keys import Key as Key, KeyRing as KeyRing
    from specstream.server.options import ServerAccess as ServerAccess, ServerLimits as ServerLimits
    from specstream.server.server import RealtimeServer as RealtimeServer

__all__, __getattr__, __dir__ = offers(
    __name__,
    {
        "specstream.remote.server": "AdapterServer",
        "specstream.server.journal.sqlite": "SqliteJournal",
        "specstream.server.keys": "Key KeyRing",
        "specstream.server.options": "ServerAccess ServerLimits",
        "specstream.server.journal.postgres": "PostgresJournal",
        "specstream.server.server": "RealtimeServer",
    },
)
