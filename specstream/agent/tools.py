"""Tools of an agent: functions that its model calls while it talks."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import json
import threading
import uuid
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from specstream.agent.events import ToolEnded, ToolStarted, ToolStatus
from specstream.checks import check_ranges, first_line, for_future
from specstream.engine.session import BaseSession
from specstream.errors import ConfigError
from specstream.signals import finished
from specstream.tools import Message, Tool, ToolCall, Tools, arguments_problem

__all__ = ["AgentTool", "ToolCalls"]

_AT_ONCE = 8  # calls that run; more are answered by an error
_MOST_CHARS = 8000  # of a result
_ASKED = 16  # calls that wait for the user's consent
_CLOSE_S = 1.0  # seconds that cancelled calls may take to end
_MOST_HANGING = 32  # functions of the process; then others are answered by an error
_PENDING = "still running; the result comes later"
_CANCELLED = "cancelled: the user spoke before there was a result"
_CONSENT = (
    "not done yet: say what this would do and ask the user; once they agree, call it again with the "
    "same arguments"
)


@dataclass(frozen=True, slots=True)
class AgentTool:
    """A function that an agent's model may call.

    Attributes:
        run: Called with the arguments by name. A plain function runs on a thread, where it can't be
            stopped: its result is no longer waited for. What it returns becomes text: a text as it is,
            anything else as JSON.
        tool: Its name, description and parameters; None: read off type hints and docstring (`Tool.of`).
        timeout_s: Seconds after which the call has failed.
        cancellable: Whether an interruption cancels the call. If not, it goes on, and its result is
            answered when it comes.
        confirm: For side effects: the first call does nothing but ask the model to ask the user; the
            same call in a later turn is made.

    Raises:
        ConfigError: ``run`` is no function, or a time out of range.
        PromptError: the function can't be described.
    """

    run: Callable[..., Any]
    tool: Tool | None = None
    timeout_s: float = 30.0
    cancellable: bool = False
    confirm: bool = False

    def __post_init__(self) -> None:
        if not callable(self.run):
            raise ConfigError(f"a tool of an agent is a function, not {self.run!r:.80}")
        check_ranges(self, timeout_s=(0.01, 3600))
        if not isinstance(self.tool, Tool | None):
            raise ConfigError(f"the description of a tool is a Tool(...), not {self.tool!r:.80}")
        if self.tool is None:
            object.__setattr__(self, "tool", Tool.of(self.run))

    @property
    def name(self) -> str:
        """What the model calls it."""
        assert self.tool is not None
        return self.tool.name


@dataclass(slots=True, eq=False)
class _Running:
    call: ToolCall
    tool: AgentTool | None
    asked: str  # the question in whose reply the call is
    task: asyncio.Task[None] | None = None
    result: str | None = None
    message: Message | None = None  # the call's result in the history
    late: bool = field(default=False)  # the history has a placeholder, and later turns
    stopped: bool = field(default=False)  # by us: nobody wants its result


class ToolCalls:
    """The calls of an agent's model: run beside its speech, their results brought into the history.

    Args:
        tools: What may be called.
        tell: Reports an event.
        changed: Called when a call has ended.

    Attributes:
        offered: The tools of the next reply; None if there are none.
    """

    def __init__(
        self,
        tools: Sequence[AgentTool],
        tell: Callable[[str, object], Awaitable[None]],
        changed: Callable[[], None],
    ) -> None:
        self._tools = {tool.name: tool for tool in tools}
        self.offered = Tools.of([tool.tool for tool in tools if tool.tool is not None])
        self._tell, self._changed = tell, changed
        self._calls: list[_Running] = []  # without an answer
        self._tasks = set[asyncio.Task[Any]]()  # at work, those that were stopped included
        self._asked: OrderedDict[tuple[str, str], int] = OrderedDict()  # for consent, in which turn
        self._turn = 0

    async def begin(self, call: ToolCall, asked: str) -> None:
        """Run a call that the model has written in reply to a question, as a task."""
        arguments = call.arguments if call.arguments.strip() else "{}"  # an engine may leave it out
        problem = call.problem or arguments_problem(arguments)
        call = replace(call, arguments=arguments, problem=problem)
        running = _Running(call, self._tools.get(call.name), asked)
        self._calls.append(running)
        await self._tell("agent", ToolStarted(call))
        status, why = self._refusal(running)
        if why:
            await self._end(running, status, why)
        else:
            running.task = asyncio.create_task(self._run(running))
            self._tasks.add(running.task)
            running.task.add_done_callback(self._tasks.discard)

    def _refusal(self, running: _Running) -> tuple[ToolStatus, str]:
        call, tool = running.call, running.tool
        if tool is None:
            return (
                "failed",
                f"error: there is no tool {call.name!r}; there are: {', '.join(self._tools)}",
            )
        if call.problem:
            return "failed", f"error: the arguments are wrong ({call.problem})"
        if sum(one.task is not None and one.result is None for one in self._calls) >= _AT_ONCE:
            return "failed", f"error: {_AT_ONCE} calls are running already; wait for them"
        if tool.confirm:
            key = (call.name, json.dumps(json.loads(call.arguments), sort_keys=True))
            if self._asked.pop(key, self._turn) >= self._turn:
                self._asked[key] = self._turn
                while len(self._asked) > _ASKED:
                    self._asked.popitem(last=False)
                return "unconfirmed", _CONSENT
        return "completed", ""

    async def _run(self, running: _Running) -> None:
        assert running.tool is not None
        # In a task of its own: that is cancelled once, while anyio's scopes cancel until it has ended.
        work = asyncio.create_task(_outcome(running.tool, running.call))
        self._tasks.add(work)
        work.add_done_callback(self._tasks.discard)
        try:
            await asyncio.wait({work}, timeout=running.tool.timeout_s)
        except asyncio.CancelledError:
            _give_up(work)
            if not running.stopped:
                raise
            await self._tell("agent", ToolEnded(running.call, "cancelled", _CANCELLED))
            return
        if not work.done():
            _give_up(work)
            late = f"error: no result within {running.tool.timeout_s:g} s"
            await self._end(running, "timed_out", late)
        elif work.cancelled():
            await self._end(running, "failed", "error: the tool cancelled the task that it runs in")
        else:
            await self._end(running, *work.result())

    async def _end(self, running: _Running, status: ToolStatus, result: str) -> None:
        running.result = result = _whole(result)
        if running.message is not None and not running.late:
            running.message["content"] = result
        self._changed()
        await self._tell("agent", ToolEnded(running.call, status, result))

    @property
    def pending(self) -> bool:
        """Whether there are calls whose results no reply has answered."""
        return bool(self._calls)

    @property
    def fresh(self) -> bool:
        """Whether the last reply has calls; their results have not been answered."""
        return any(not one.late for one in self._calls)

    @property
    def awaited(self) -> bool:
        """Whether such a call has no result yet."""
        return any(one.result is None and not one.late for one in self._calls)

    @property
    def running(self) -> bool:
        """Whether any call has no result yet."""
        return any(one.result is None for one in self._calls)

    @property
    def due(self) -> bool:
        """Whether there is a result that no reply has answered."""
        return any(one.result is not None for one in self._calls)

    def record(self, session: BaseSession[Any]) -> None:
        """Bring the calls of the reply that has ended into the history, with results or placeholders.

        A call that isn't in the history, as the reply failed, is cancelled.
        """
        known = {made["id"] for message in session.messages for made in message.get("tool_calls", ())}
        for one in list(self._calls):
            if one.message is not None:
                continue
            if one.call.id in known:
                session.add_result(one.call, _PENDING if one.result is None else one.result)
                one.message = session.messages[-1]
            else:
                self._calls.remove(one)
                self._stop(one)

    def interrupted(self) -> None:
        """Cancel the calls that an interruption cancels; nobody waits for their results."""
        for one in list(self._calls):
            if one.tool is not None and one.tool.cancellable and one.result is None:
                self._stop(one)
                self._calls.remove(one)

    def give_up(self) -> None:
        """Stop the calls of the last reply; nobody answers their results."""
        for one in [one for one in self._calls if not one.late]:
            if one.result is None:
                self._stop(one)
            self._calls.remove(one)

    def _stop(self, one: _Running) -> None:
        one.result, one.stopped = _CANCELLED, True
        if one.message is not None and not one.late:
            one.message["content"] = _CANCELLED
        if one.task is not None:
            one.task.cancel()

    def asked(self, session: BaseSession[Any], *, goes_on: bool) -> None:
        """The user has said something: the history goes on, with the results that have come.

        ``goes_on``: it is the rest of what they had said, and agrees to nothing.
        """
        self.next_turn(goes_on=goes_on)
        self.interrupted()
        self.deliver(session)

    def next_turn(self, *, goes_on: bool) -> None:
        """The user has said something, and no call is pending."""
        self._turn += not goes_on

    def deliver(self, session: BaseSession[Any]) -> str:
        """Make the results that have come a part of what the next reply answers.

        Returns the question that the last of them came from; "" without one.

        One whose place in the history lies behind is called again at its end, under another id:
        templates and servers take a result only after its call. Those without a result will come so.
        """
        asked = ""
        for one in [one for one in self._calls if one.result is not None]:
            asked = one.asked
            self._calls.remove(one)
            if one.late:
                again = replace(one.call, id=f"call_{uuid.uuid4().hex[:12]}")
                made: Message = {"role": "assistant", "content": "", "tool_calls": [again.message()]}
                session.messages.append(made)
                session.add_result(again, str(one.result))
        for one in self._calls:
            one.late = True
        return asked

    async def aclose(self) -> None:
        """Cancel all calls, and wait a second at most for what they do then. Idempotent."""
        for one in self._calls:
            if one.task is not None and one.result is None:  # results that have come stay
                one.stopped = True
                one.task.cancel()
        if self._tasks:
            await finished(asyncio.wait(set(self._tasks), timeout=_CLOSE_S))


async def _outcome(tool: AgentTool, call: ToolCall) -> tuple[ToolStatus, str]:
    """Run a tool; whatever it raises is its failure, but for a cancel that comes from here."""
    try:
        return "completed", _text_of(await _called(tool.run, json.loads(call.arguments)))
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        return "failed", _told(error)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # SystemExit, and the like of pytest's outcomes
        return "failed", _told(error)


def _told(error: BaseException) -> str:
    try:
        return f"error: {type(error).__name__}: {first_line(error)}"
    except Exception:  # of its own text
        return f"error: {type(error).__name__}"


async def _called(run: Callable[..., Any], arguments: dict[str, Any]) -> Any:
    bound = inspect.signature(run).bind(**arguments)  # before a thread is taken
    if len(_hanging) >= _MOST_HANGING:
        raise RuntimeError(f"{_MOST_HANGING} functions of tools hang")
    if inspect.iscoroutinefunction(run):
        return await run(*bound.args, **bound.kwargs)
    context, thread = contextvars.copy_context(), _Daemon()
    work = partial(context.run, for_future, partial(run, *bound.args, **bound.kwargs))
    try:
        made = await asyncio.get_running_loop().run_in_executor(thread, work)
    except asyncio.CancelledError:
        if not thread.future.done():
            _hanging.add(thread.future)
            thread.future.add_done_callback(_hanging.discard)
        raise
    return await made if inspect.isawaitable(made) else made


_hanging: set[Future[Any] | asyncio.Task[Any]] = set()  # functions for which nobody waits any more


def _give_up(work: asyncio.Task[Any]) -> None:
    work.cancel()
    _hanging.add(work)
    work.add_done_callback(_hanging.discard)


class _Daemon(ThreadPoolExecutor):
    """A thread for one function, which ends with the process, and so may hang."""

    def __init__(self) -> None:
        super().__init__(1)
        self.future = Future[Any]()

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Start ``fn``."""
        future = self.future
        future.set_running_or_notify_cancel()  # nobody can cancel it from now on

        def call() -> None:
            try:
                found = fn(*args, **kwargs)
            except BaseException as error:
                future.set_exception(error)
            else:
                future.set_result(found)

        threading.Thread(target=call, name="specstream-tool", daemon=True).start()
        return future


def _whole(text: str) -> str:
    """Replace half surrogates, which no tokenizer takes."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _json(made: object) -> str:
    def plain(value: object) -> str:
        """Of dates, paths and the like: what says nothing but an address in memory is refused."""
        nameless = type(value).__repr__ is object.__repr__ and type(value).__str__ is object.__str__
        if nameless or inspect.isgenerator(value) or inspect.isasyncgen(value):
            raise TypeError(f"a tool returns text or what JSON can hold, not {type(value).__name__}")
        return str(value)

    return json.dumps(made, ensure_ascii=False, allow_nan=False, default=plain)


def _text_of(made: object) -> str:
    if made is None:
        return "done"
    text = made if isinstance(made, str) else _json(made)
    return text if len(text) <= _MOST_CHARS else f"{text[:_MOST_CHARS]} … (cut)"
