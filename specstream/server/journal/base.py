"""What a journal promises: numbered frames and named records of sessions, written all or nothing.

A journal knows nothing of what is in a session.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

__all__ = [
    "FORMAT",
    "LAST",
    "Change",
    "Drop",
    "Forget",
    "Frame",
    "Journal",
    "Put",
    "SavedSession",
    "SessionLog",
    "session_name",
]

FORMAT = "1"
"""Of the records; a session that was written in another format is refused, and left as it is."""


LAST = "\U0010ffff"
"""Behind every name that begins as a prefix does."""


class Frame(NamedTuple):
    """Keep a frame that a client has not acknowledged."""

    seq: int
    text: str


class Forget(NamedTuple):
    """Drop the frames up to this number, but not the newest of all."""

    seq: int


class Put(NamedTuple):
    """Keep a record, in place of one of the same name."""

    name: str
    value: str


class Drop(NamedTuple):
    """Drop the records whose names begin so."""

    prefix: str


Change = Frame | Forget | Put | Drop


@dataclass(frozen=True, slots=True)
class SavedSession:
    """What was written of a session: its frames in order, and its records by name."""

    frames: tuple[Frame, ...]
    records: dict[str, str]


class SessionLog(Protocol):
    """Where one process writes one session."""

    async def commit(self, changes: Sequence[Change]) -> None:
        """Write all changes or none; once it returns they outlive the process.

        Cancelling the call waits for its end.

        Raises:
            JournalTaken: another process has taken the session.
            JournalFailed: it can't be written.
        """

    async def aclose(self, *, remove: bool) -> None:
        """Write no more. ``remove``: the session is over, drop it, unless another process has it."""


class Journal(Protocol):
    """A place for the sessions of a server, or of several that share it."""

    async def begin(self, token: str, owner: str) -> SessionLog:
        """Begin a session; ``owner`` tells whose it is.

        Raises:
            JournalFailed: it can't be written.
        """

    async def take(self, token: str, owner: str) -> tuple[SessionLog, SavedSession] | None:
        """Take a session, from whichever process has it.

        None: there is none, it is too old, or somebody else's.

        From then on the other process can't write it any more.

        Raises:
            JournalFailed: it can't be read.
        """

    async def sweep(self) -> None:
        """Drop the sessions that are too old."""

    async def aclose(self) -> None:
        """Release what the journal holds; its sessions stay."""


def session_name(token: str) -> str:
    """The name of a session in a journal: its token can't be read from it."""
    return hashlib.sha256(token.encode()).hexdigest()[:40]
