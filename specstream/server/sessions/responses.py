"""The responses of a session: those to its conversation, those out of band, and those begun early."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace

import anyio
import anyio.lowlevel
from anyio.abc import TaskGroup

from specstream.errors import SpecstreamError
from specstream.listening.preempt import Ledger, Preempt
from specstream.listening.taking import Guess
from specstream.realtime import events as ev
from specstream.realtime.resources import ErrorDetail, Failure
from specstream.realtime.settings import ResponseSettings
from specstream.realtime.wire import Refused
from specstream.server.counters import Counters
from specstream.server.journal.restored import RestoredReply, RestoredSession
from specstream.server.limits import Meter
from specstream.server.sessions.boxes import Outbox
from specstream.server.sessions.microphone import Microphone
from specstream.server.sessions.request import AdapterPool, ResponseRequest, Service
from specstream.server.sessions.response import ResponseTurn
from specstream.server.sessions.session import RealtimeSession
from specstream.signals import finished
from specstream.stages.pipeline import Hold

__all__ = ["EarlyResponses", "SessionResponses"]

MAX_RESPONSES = 4
"""Responses of one session at once: a place for the conversation's, the others for those out of band."""
OUT_OF_BAND_AT_ONCE = 1
"""Out-of-band responses of a session that are generated at once: no session may fill the batch."""

_log = logging.getLogger("specstream.realtime")

_RESTARTED = "The server has restarted before what was said was understood; say it again."
_NOT_ACTIVE = "Cancellation failed: no active response found"  # clients match on these words


class SessionResponses:
    """The responses under way. `respond`, `interrupt` and `report` are what a microphone needs.

    Args:
        service: What sessions share, and who the caller is.
        session: The settings and the conversation.
        outbox: Where events go; its record notes each response.
        meter: What the client pays with.

    Attributes:
        ending: Why no more responses begin, if none may.
        quiet_since: When the last response ended, on the clock of the event loop.
        microphone: The input audio, whose next turn may be answered once a response has ended.
    """

    def __init__(self, service: Service, session: RealtimeSession, outbox: Outbox, meter: Meter) -> None:
        self.ending: Refused | None = None
        self._restoring = False
        self.quiet_since = 0.0
        self.microphone: Microphone | None = None
        self._service, self._session, self._outbox, self._meter = service, session, outbox, meter
        self._out_of_band = anyio.Semaphore(OUT_OF_BAND_AT_ONCE)
        self._replies = service.engine.session()
        self._adapters = AdapterPool(service.factories)
        self._running: dict[str, ResponseTurn] = {}
        self._sent: ResponseTurn | None = None  # the conversation's latest that is over
        self._starting = anyio.Lock()
        self._early = EarlyResponses(service.preempt, self._begin_held, service.counters)
        self._group: TaskGroup | None = None

    def open(self, group: TaskGroup) -> None:
        """Run responses in this group from now on."""
        self._group = group

    async def aclose(self) -> None:
        """Release what responses have used; the group has ended."""
        await self._replies.aclose()
        await self._adapters.aclose()

    @property
    def none(self) -> bool:
        """Whether no response is under way."""
        return not self._running

    @property
    def responding(self) -> bool:
        """Whether a response of the conversation is under way."""
        return self.speaking() is not None

    @property
    def played_ms(self) -> float | None:
        """Milliseconds that were heard of the conversation's response; None: none is under way."""
        speaking = self.speaking()
        return None if speaking is None else speaking.played_ms

    def speaking(self) -> ResponseTurn | None:
        """Return the response that writes to the conversation, if there is one."""
        return next((turn for turn in self._running.values() if not turn.out_of_band), None)

    def get(self, response_id: str) -> ResponseTurn | None:
        """Return a response under way."""
        return self._running.get(response_id)

    async def over(self) -> None:
        """Wait until no response is under way."""
        while self._running:
            await next(iter(self._running.values())).finished.wait()
            await anyio.lowlevel.checkpoint()  # lets `_run` remove the response

    def cancel_all(self, why: Refused) -> None:
        """Cancel what is under way and the client knows of, for a reason of the server's."""
        for response in self._running.values():
            response.cancel(why)

    async def cancel(self, response: ResponseTurn | None) -> None:
        """Cancel a response for the client, and wait for its end.

        Raises:
            Refused: there is none, or it is ending.
        """
        if response is None or not response.cancel():
            raise Refused("response_cancel_not_active", _NOT_ACTIVE)
        await response.finished.wait()

    async def report(self, error: SpecstreamError, event_id: str | None = None) -> None:
        """Send an ``error`` event; ``event_id`` is that of the client's frame that caused it."""
        await self._outbox.put(ev.ErrorEvent(error=ErrorDetail.of(error, event_id)))

    async def respond(self, asked: ResponseSettings, event_id: str | None = None) -> None:
        """Start a response; an error or refusal becomes an ``error`` event."""
        try:
            await self.start(asked)
        except SpecstreamError as error:
            if self._outbox.record is not None:
                self._outbox.record.settled(asked)
            await self.report(error, event_id)

    @property
    def stopping(self) -> bool:
        """Whether the server stops, so that another process may go on with the session."""
        return self.ending is not None and self.ending.code == "server_stopping"

    async def interrupt(self) -> None:
        """Cancel the conversation's response, if there is one, because the user speaks.

        One that was sent as a whole may still be playing: if it has hardly begun, nobody answers it.
        """
        async with self._starting:
            speaking = self.speaking()
        if speaking is None and self._sent is not None:
            self._sent.broken_off()
        if speaking is not None:
            speaking.cancel("turn_detected")
            await speaking.finished.wait()
            await anyio.lowlevel.checkpoint()  # lets `_run` remove the response

    async def guessed(self, guess: Guess) -> None:
        """Begin to answer what the user has said so far, if that is worth it (see `Preempt`)."""
        async with self._starting:
            try:
                await self._early.guess(guess, self._expected)
            except SpecstreamError as error:  # it is reported when the question is asked
                _log.debug("no early response: %s", error)

    async def silent(self, turn: int | None) -> None:
        """Drop what was begun for this turn of the user: no question comes of it."""
        async with self._starting:
            await self._early.drop(turn)

    @property
    def refusal(self) -> Refused | None:
        """Why the client may begin nothing more: its key is no longer good, or used up."""
        why = self._service.caller.account.refusal()
        return None if why is None else Refused("insufficient_quota", f"{why}.")

    def _expected(self, said: str) -> ResponseRequest | None:
        """The response that the user would get for these words now; None: none would be started."""
        if self.ending is not None or self.responding or self.refusal is not None:
            return None
        return self._session.request(ResponseSettings(), said)

    async def restore(self, restored: RestoredSession) -> None:
        """Go on where an earlier process has ended: nothing of what it had begun is left open."""
        if not all(restored.turns.values()):
            await self._outbox.put(ev.InputCleared())
        for item_id in (item_id for item_id, committed in restored.turns.items() if committed):
            failure = Failure(type="server_error", code="server_restarted", message=_RESTARTED)
            await self._outbox.put(ev.TranscriptionFailed(item_id=item_id, error=failure))
        self._restoring = True
        for reply in restored.replies:
            begun = reply if reply.created else None
            try:
                await self._begin(reply.asked, reply.request(self._session), begun)
            except SpecstreamError as error:  # this server can't do what the earlier one could
                if self.stopping:  # the next one may
                    return
                await self.report(error)
                if begun is not None:
                    begun.lost = True
                    await self._begin(reply.asked, begun.told(self._session), begun)
            if begun is None and self._outbox.record is not None:
                self._outbox.record.over(reply.id)
        self._restoring = False
        if restored.owed and self.microphone is not None:
            self.microphone.owe()
        if restored.deferred is not None:
            if self._outbox.record is not None:
                self._outbox.record.deferred(restored.deferred)
            await self.respond(restored.deferred)
        if self.microphone is not None:
            await self.microphone.settle()

    async def start(self, asked: ResponseSettings) -> None:
        """Start a response.

        Raises:
            Refused: it can't be done, or another one is in its way.
            AdapterError: a stage can't be made.
        """
        async with self._starting:  # both the client and the end of a turn start responses
            if (why := self.ending or self.refusal) is not None:
                raise why
            await self._meter.answer()
            request = self._session.request(asked)
            apart = request.conversation is None
            if not apart and (active := self.speaking()) is not None:
                message = f"Conversation already has an active response in progress: {active.id}."
                message += " Cancel it, or wait for it."
                raise Refused("conversation_already_has_active_response", message)
            out_of_band = sum(turn.out_of_band for turn in self._running.values())
            if apart and out_of_band >= MAX_RESPONSES - 1:
                message = f"{out_of_band} out-of-band responses are under way already; wait for one."
                raise Refused("too_many_responses", message)
            early = None if apart else await self._early.take(request)
            if early is None:
                await self._begin(asked, request)
            else:
                self._started(early, asked)

    async def _begin(
        self, asked: ResponseSettings, request: ResponseRequest, begun: RestoredReply | None = None
    ) -> None:
        response = await self._make(request, begun)
        self._started(response, asked)
        assert self._group is not None
        self._group.start_soon(self._run, response)

    async def _begin_held(self, request: ResponseRequest, hold: Hold) -> ResponseTurn:
        await self._meter.answer()
        response = await self._make(request, hold=hold)
        assert self._group is not None
        self._group.start_soon(self._run, response)
        return response

    def _started(self, response: ResponseTurn, asked: ResponseSettings) -> None:
        """Take note of a response that the client is told of."""
        self._running[response.id] = response
        if not response.out_of_band and self.microphone is not None:
            self.microphone.answered()
        if self._outbox.record is not None:
            record = self._outbox.record
            record.answers(response.id, asked, response.request, again=self._restoring)

    async def _make(
        self, request: ResponseRequest, begun: RestoredReply | None = None, hold: Hold | None = None
    ) -> ResponseTurn:
        if self._outbox.record is not None:
            request, again = self._repeatable(request)
            if begun is not None:
                begun.goes_on = begun.may_go_on and (again or not begun.entries)
        speaks = begun is None or begun.goes_on  # else it only ends
        pipeline = await self._adapters.pipeline(
            audio=speaks and request.audio,
            avatar=speaks and "avatar" in request.wants,
            prompt=speaks and "prompt" in request.wants,
        )
        if self.ending is not None:  # meanwhile: a remote adapter may take seconds to answer
            self._adapters.release(pipeline)
            raise self.ending
        apart = request.conversation is None
        replies = self._service.engine.session() if apart else self._replies
        place = self._out_of_band if apart else nullcontext()
        shared = self._service, replies, pipeline, self._outbox, place
        return ResponseTurn(request, *shared, begun, hold)

    def _repeatable(self, request: ResponseRequest) -> tuple[ResponseRequest, bool]:
        """The request so that another process would write the same reply, and whether it would."""
        capabilities = getattr(self._service.engine, "capabilities", None)
        if capabilities is None or not capabilities.reproducible:
            return request, False
        if request.params.seed is None:
            params = replace(request.params, seed=secrets.randbits(31))
            request = replace(request, params=params)
        return request, True

    async def _run(self, response: ResponseTurn) -> None:
        try:
            await response.run()
        finally:
            self.quiet_since = anyio.current_time()
            if self._running.pop(response.id, None) is not None and not response.out_of_band:
                self._sent = response
            self._adapters.release(response.pipeline)
            if response.out_of_band:
                await finished(response.replies.aclose())
        if self.microphone is not None:
            await self.microphone.settle()


@dataclass(slots=True, eq=False)
class _Begun:
    guess: Guess
    request: ResponseRequest  # as it was made; the response's own may have a seed
    response: ResponseTurn
    hold: Hold
    at: float


class EarlyResponses:
    """Holds at most one response, which answers a guess at the user's next question.

    Args:
        settings: When to begin one; None: never.
        begin: Starts a response that is held back.
        counters: Count what became of it.
    """

    def __init__(
        self,
        settings: Preempt | None,
        begin: Callable[[ResponseRequest, Hold], Awaitable[ResponseTurn]],
        counters: Counters,
    ) -> None:
        self._ledger = Ledger(settings)
        self._begin, self._counters = begin, counters
        self._begun: _Begun | None = None

    async def guess(self, guess: Guess, request: Callable[[str], ResponseRequest | None]) -> None:
        """Begin the response that ``request`` makes of these words, unless it is begun or not worth it.

        Raises:
            Refused, AdapterError: it can't be begun.
        """
        if self._begun is not None and self._begun.guess == guess:
            return
        await self.drop()
        asked = request(guess.text)
        if asked is None or not self._ledger.begins(guess):
            return
        hold = Hold(self._ledger.settings.max_tokens)
        response = await self._begin(asked, hold)
        self._begun = _Begun(guess, asked, response, hold, anyio.current_time())

    async def drop(self, turn: int | None = None) -> None:
        """End the response for this turn of the user (None: for any): nobody asks for it."""
        begun = self._begun
        if begun is None or turn not in (None, begun.guess.turn):
            return
        self._begun = None
        if begun.response.usable:
            self._counters.early["dropped"] += 1
        else:
            self._ledger.failed()
            self._counters.early["failed"] += 1
        self._ledger.unwanted(begun.response.tokens, begun.response.made_s)
        begun.response.drop()
        await begun.response.finished.wait()
        await anyio.lowlevel.checkpoint()  # its adapters are free again

    async def take(self, request: ResponseRequest) -> ResponseTurn | None:
        """Return the response if it answers ``request``, and let its events out; else drop it."""
        begun = self._begun
        if begun is None or begun.request != request or not begun.response.usable:
            await self.drop()
            return None
        self._begun = None
        self._ledger.wanted((anyio.current_time() - begun.at) * 1e3)
        self._counters.early["used"] += 1
        begun.hold.release()
        return begun.response
