"""The Realtime sessions of a server, those included that outlive their sockets or its process."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import re
from collections.abc import AsyncGenerator, Callable, Generator, Mapping
from contextlib import AbstractContextManager, ExitStack, asynccontextmanager, contextmanager
from dataclasses import replace

import anyio

from specstream.client.socket import CLOSE_TIMEOUT
from specstream.errors import JournalFailed, SpecstreamError
from specstream.realtime.events import ErrorEvent
from specstream.realtime.resources import ErrorDetail
from specstream.realtime.wire import Refused
from specstream.server.journal.base import Journal
from specstream.server.journal.record import SessionRecord
from specstream.server.journal.restored import RestoredSession, restored
from specstream.server.keys import ApiCaller, KeyAccount
from specstream.server.limits import Allowances, ConnectionLimit, Meter, UnderWay
from specstream.server.logs import labelled
from specstream.server.sessions.connection import RealtimeConnection
from specstream.server.sessions.request import Service
from specstream.server.sessions.resume import ResumableSocket, new_token
from specstream.server.socket import AsgiSocket, ServedSocket
from specstream.signals import finished

__all__ = ["SessionHost"]

_SWEEP_S = 60.0  # between two looks for sessions in the journal that are too old
_EXPIRED = "There is no session to resume: it has ended, or what was missed is gone."

_log = logging.getLogger("specstream.server")


class SessionHost:
    """Serves sessions. One that can be resumed runs in a task of its own, and may outlive its socket.

    Args:
        service: What they share, now.
        limit: The places, of which each takes one.
        allowances: What clients pay with.
        journal: Where sessions that can be resumed are written down.

    Attributes:
        connections: Of the sessions that are served now.
        resumables: By token, the sessions that can be resumed.
        tasks: Of these sessions.
    """

    def __init__(
        self,
        service: Callable[[], Service],
        limit: ConnectionLimit,
        allowances: Allowances,
        journal: Journal | None,
    ) -> None:
        self._service, self._limit, self._allowances = service, limit, allowances
        self._journal = journal
        self.connections: set[RealtimeConnection] = set()
        self.resumables: dict[str, ResumableSocket] = {}
        self._restoring = anyio.Lock()
        self.tasks = set[asyncio.Task[None]]()
        self._under_way = UnderWay()

    @asynccontextmanager
    async def open(self) -> AsyncGenerator[None, None]:
        """Serve sessions while the block runs; they have ended when it is left."""
        keeper = asyncio.create_task(self._keep(self._journal)) if self._journal else None
        try:
            yield
        finally:
            self.end()
            if keeper is not None:
                keeper.cancel()
                self.tasks.add(keeper)
            await finished(self._over())

    async def _over(self) -> None:
        if self.tasks:
            await asyncio.wait(self.tasks)
        if self._journal is not None:
            await self._journal.aclose()

    def end(self) -> None:
        """End all sessions at once."""
        self._under_way.end()

    async def drain(self, seconds: float) -> None:
        """See `RealtimeServer.drain`."""
        async with anyio.create_task_group() as group:
            for connection in self.connections:
                group.start_soon(connection.drain, seconds)

    async def serve(self, socket: AsgiSocket, query: Mapping[str, str], caller: ApiCaller) -> None:
        """Serve a connection: a new session, or one that goes on."""
        account, model = caller.account, query.get("model")
        if (token := query.get("resume")) is not None:
            seq = query.get("seq", "-1")
            await self._resume(
                socket, token, int(seq) if re.fullmatch(r"-1|\d{1,15}", seq) else -2, caller
            )
            return
        # Asked again: several handshakes may have passed the gate at once.
        if (why := self._limit.refusal(socket.address, account)) is not None:
            await socket.close(1013, why)
            return
        if "resumable" not in query:
            await self._run(socket, model, caller)
            return
        token, record = new_token(), None
        with self._limit.taken(socket.address, account):  # for others that come meanwhile
            if self._journal is not None:
                try:
                    record = SessionRecord(await self._journal.begin(token, _owner(account, token)))
                except JournalFailed as error:
                    _log.error("no session begins: %s", error)
                    await _refuse(socket, error, 1011)
                    return
            resume_s = self._service().limits.resume_s
            held = ResumableSocket(socket, account, resume_s, token=token, record=record)
            self._begin(held, model, caller)
        await held.left(socket)

    async def _resume(self, socket: ServedSocket, token: str, seen: int, caller: ApiCaller) -> None:
        """Serve a session on a new connection, or say why it can't be: by an event, then by closing."""
        why: SpecstreamError = Refused("resume_expired", _EXPIRED, param="resume")
        held, code = self.resumables.get(token), 1008
        if held is not None:
            await held.keep()  # it may have gone on elsewhere
        leaves = self._journal is not None and self._limit.stopping  # another process will have it
        if held is not None and (held.broken or (leaves and held.closed and not held.dismissed)):
            await socket.close(1013, "the session is being left; try again")
            return
        if held is None and self._journal is not None:
            try:
                async with self._restoring:  # a client may try again while its session is restored
                    held = self.resumables.get(token)
                    if held is None:
                        full = self._limit.refusal(socket.address, caller.account)
                        if full is not None:
                            await socket.close(1013, full)
                            return
                        held = await self._restore(self._journal, socket, token, caller)
            except JournalFailed as error:
                _log.error("no session is resumed: %s", error)
                why, code = error, 1011
        if held is None or held.account is not caller.account or not held.can_resume(seen):
            await _refuse(socket, why, code)
        elif not await held.serve(socket, seen, self._service().timer):
            await _refuse(socket, why, 1008)

    async def _restore(
        self, journal: Journal, socket: ServedSocket, token: str, caller: ApiCaller
    ) -> ResumableSocket | None:
        """Take a session from the journal and go on with it; None if it isn't there."""
        account = caller.account
        taken = await journal.take(token, _owner(account, token))
        if taken is None:
            return None
        log, saved = taken
        try:
            session = restored(saved)
        except JournalFailed:
            await log.aclose(remove=False)
            raise
        held = ResumableSocket(
            socket,
            account,
            self._service().limits.resume_s,
            token=token,
            record=SessionRecord(log),
            restored=session,
        )
        self._begin(held, None, caller, session)
        return held

    def _begin(
        self,
        held: ResumableSocket,
        model: str | None,
        caller: ApiCaller,
        session: RestoredSession | None = None,
    ) -> None:
        self.resumables[held.token] = held
        place = ExitStack()
        place.enter_context(self._limit.taken(held.address, caller.account))  # before the task runs
        task = asyncio.create_task(self._run(held, model, caller, session, place))
        self.tasks.add(task)
        task.add_done_callback(lambda _: place.close())
        task.add_done_callback(self.tasks.discard)

    async def _run(
        self,
        socket: ServedSocket,
        model: str | None,
        caller: ApiCaller,
        session: RestoredSession | None = None,
        place: AbstractContextManager[object] | None = None,
    ) -> None:
        """Serve a session until its client has left. ``place``: if it is taken already."""
        service, account = replace(self._service(), caller=caller), caller.account
        held = socket if isinstance(socket, ResumableSocket) else None
        meter = Meter(service.timer, self._allowances.of(socket.address, account))
        resume = {"token": held.token, "seconds": held.resume_s} if held is not None else None
        record = held.record if held is not None else None
        connection = RealtimeConnection(socket, service, model, meter, resume, record, session)
        service.counters.sessions += 1
        service.counters.sessions_total += 1
        self.connections.add(connection)
        key = account.key.name if account.key is not None else None
        stopped = False
        try:
            with (
                labelled(session=connection.id, address=socket.address, key=key),
                _logged(),
                self._under_way.scope() as scope,
                place or self._limit.taken(socket.address, account),
            ):
                await connection.serve()
            stopped = scope.cancelled_caught
        except Exception:
            if held is None:
                raise
            _log.exception("session %s broke", connection.id)
            await _close(socket, 1011, "the session broke")
        finally:
            self.connections.remove(connection)
            service.counters.sessions -= 1
            if held is not None:
                del self.resumables[held.token]
                stays = (stopped or connection.stopping) and not held.dismissed
                await finished(self._leave(held, goes_on=stays))
        if stopped or held is not None:
            code = (1001, "the server is stopping") if stopped else (1000, "")
            await _close(socket, *code)

    async def _leave(self, held: ResumableSocket, *, goes_on: bool) -> None:
        """A session has ended here; ``goes_on``: another process may resume it."""
        if held.record is None:
            return
        try:
            if goes_on and not held.broken:
                await held.record.commit()
            await held.record.aclose(remove=not goes_on and not held.broken)
        except JournalFailed as error:
            _log.warning("a session that has ended stays in the journal: %s", error)

    async def _keep(self, journal: Journal) -> None:
        """Drop from the journal what is too old, but no session that is served here."""
        while True:
            for held in list(self.resumables.values()):
                await held.keep()
            try:
                await journal.sweep()
            except JournalFailed as error:
                _log.warning("the journal can't be swept: %s", error)
            await anyio.sleep(_SWEEP_S)


async def _close(socket: ServedSocket, code: int, reason: str) -> None:
    """Close a socket whose session has ended, though its peer may read nothing."""
    with anyio.move_on_after(CLOSE_TIMEOUT) as waited:
        await socket.close(code, reason)
    if waited.cancelled_caught:
        socket.abort()


async def _refuse(socket: ServedSocket, why: SpecstreamError, code: int) -> None:
    event = ErrorEvent(error=ErrorDetail.of(why, None))
    await socket.send(event.model_dump_json(exclude={"specstream"}))  # it has no number
    await socket.close(code, why.code)


def _owner(account: KeyAccount, token: str) -> str:
    """Whose session it is, in a form from which no key can be read."""
    secret = account.key.secret if account.key is not None else ""
    return hashlib.sha256(f"{token} {secret}".encode()).hexdigest()


@contextmanager
def _logged() -> Generator[None, None, None]:
    began = anyio.current_time()
    _log.info("session opened")
    try:
        yield
    finally:
        _log.info("session closed after %.1f s", anyio.current_time() - began)
