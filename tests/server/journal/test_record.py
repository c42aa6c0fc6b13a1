"""What a session notes for its journal, where writing fails or is cancelled."""

from __future__ import annotations

from collections.abc import Sequence

import anyio
import anyio.lowlevel
import pytest

from specstream.errors import JournalFailed
from specstream.server.journal.base import Change, Put
from specstream.server.journal.record import SessionRecord


class FailingOnce:
    """Writes nothing at the first commit: it fails, or is cancelled."""

    def __init__(self, *, fails: bool) -> None:
        self.written: list[Change] = []
        self._fails, self._calls = fails, 0

    async def commit(self, changes: Sequence[Change]) -> None:
        self._calls += 1
        if self._calls == 1 and self._fails:
            raise JournalFailed("no room")
        await anyio.lowlevel.checkpoint()  # where a call is cancelled before it begins
        self.written += changes

    async def aclose(self, *, remove: bool) -> None:
        raise NotImplementedError


@pytest.mark.parametrize("fails", [True, False])
async def test_what_could_not_be_written_comes_first_in_the_next_commit(fails: bool) -> None:
    log = FailingOnce(fails=fails)
    record = SessionRecord(log)
    record.applied(1)
    if fails:
        with pytest.raises(JournalFailed):
            await record.commit()
    else:
        with anyio.CancelScope() as scope:
            scope.cancel()
            await record.commit()
    record.applied(2)
    await record.commit()
    assert log.written == [Put("applied", "1"), Put("applied", "2")]
