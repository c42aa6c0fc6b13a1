"""`Agent`: a conversation that listens, speaks, and can be interrupted."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import anyio

from specstream.agent.hearing import Echo, Hearing
from specstream.agent.parts import check_names, check_options, make_parts, playout_of
from specstream.agent.talking import Talking
from specstream.agent.tools import AgentTool
from specstream.config import EngineConfig
from specstream.engine.core.prompt import checked_text
from specstream.engine.engine import Engine
from specstream.engine.openai.engine import OpenAIEngine
from specstream.engine.protocol import EngineCapabilities, TextEngine
from specstream.engine.session import BaseSession
from specstream.errors import ConfigError, RequestError
from specstream.listening.preempt import Ledger, Preempt, PreemptReport
from specstream.listening.taking import Question
from specstream.playback.playout import AudioSink, AudioWriter, Playout
from specstream.playback.turn import Interruption
from specstream.signals import finished
from specstream.stages.contract import Link, close_part
from specstream.stages.pipeline import Event
from specstream.types import Manner, Message, SamplingParams

if TYPE_CHECKING:
    from specstream.listening.events import ListenerSettings

__all__ = ["Agent"]

_MAX_EVENTS = 64  # unread events, after which the agent waits for its reader
_NOT_ENTERED = "the agent is not running: use it in its block (async with)"
_ELSEWHERE = (
    "this agent belongs to the event loop that entered it; from another thread pass the call there, by "
    "asyncio.run_coroutine_threadsafe or loop.call_soon_threadsafe"
)


class Agent:
    """A talking agent, and an async iterator of its events.

    ::

        async with Agent(voice="espeak", play="reply.wav") as agent:
            await agent.say("Tell me a story.")
            agent.finish()
            async for event in agent:
                print(event.item)

    Events are those of the pipeline (`Chunk`, `Phrase`, `Speech`, `AvatarCue`, `ScenePrompt`,
    `StageFailed`), of the ears (`specstream.listening.events`) and of `specstream.agent.events`, in one
    numbered order; ``t_ms`` counts from the agent's start. The iteration ends after `finish` and the
    last reply. If nobody reads the events, the agent stops talking once 64 of them wait.

    With a recogniser, the user's voice pauses play-out, a recognised word interrupts the reply (the
    history ends at the last word that the user heard), and a noise without words resumes play-out. The
    transcript of a finished turn of the user becomes the agent's next question.

    Args:
        target: Target model (see `Engine.load`); the bundled one by default.
        draft: Draft model (see `Engine.load`).
        engine: A running engine to use instead of loading one; it is left open. Or the address of a
            server (see `OpenAIEngine`), whose model ``target`` names.
        voice: A voice's name or object, or a stage; ``"auto"`` is
            `specstream.stages.adapters.default_voice`; None: text only.
        mark: What marks the speech as machine-made before anybody gets it (see
            `specstream.stages.AudioMark`): a mark's name or object; None: none.
        avatar: An avatar's name, object or stage; None: none.
        prompts: A prompt adapter's name, object or stage; None: none.
        ears: A recogniser's name or object, or `Ears`; None: the agent is typed to.
        turns: A turn detector's name or object; ``"auto"``: ``smart-turn`` if it was pulled, else
            ``silero``.
        echo: Takes the agent's own voice out of what it hears: an echo canceller's name or object;
            ``"auto"``: an installed one (``speexdsp``), if any is; None: the user wears headphones, or
            the microphone's audio comes without echoes. Without one the agent interrupts itself.
        listening: How the user's speech is cut into turns and recognised.
        sample_rate: Samples a second of the audio that `hear` is given.
        play: Where speech goes: a `Playout`, a sink, a function ``writer(pcm, sample_rate)``, or the
            path of a WAV file; None discards the audio, in the time that playing it would take.
        system: The system message; None: that of `Engine.manner`; "": none.
        params: Sampling parameters of the replies; None: those of `Engine.manner`.
        preempt: Begin to answer before the question is over (see `Preempt`); None: don't.
        tools: What the model may call while it talks: functions, or `AgentTool` with limits. Calls run
            beside the speech of the reply that has them, and their results are answered when they come.
        meanwhile: Said while tools run that the model called without a word, such as "One moment.".
        options: Further keys of `EngineConfig`.

    Parts that are given as objects are closed with the agent; an engine is not. All methods belong to
    the event loop that entered the agent: elsewhere they raise `RequestError`.
    """

    def __init__(
        self,
        target: str | Path | None = None,
        draft: str | Path | None = None,
        *,
        engine: TextEngine | str | None = None,
        voice: Any = "auto",
        mark: Any = None,
        avatar: Any = None,
        prompts: Any = None,
        ears: Any = None,
        turns: Any = "auto",
        echo: Any = "auto",
        listening: ListenerSettings | None = None,
        sample_rate: int = 24_000,
        play: Playout | AudioSink | AudioWriter | str | Path | None = None,
        system: str | None = None,
        params: SamplingParams | None = None,
        preempt: Preempt | None = None,
        tools: Sequence[AgentTool | Callable[..., Any]] = (),
        meanwhile: str = "",
        **options: Any,
    ) -> None:
        check_names(options, [*EngineConfig.model_fields, *inspect.signature(Agent).parameters])
        if isinstance(engine, str) and "://" in engine and draft is None and not options:
            self._own: Engine | OpenAIEngine | None = OpenAIEngine(
                engine, None if target is None else str(target)
            )
        elif engine is not None and (target is not None or draft is not None or options):
            raise ConfigError("give the agent a running engine, or what to load, not both")
        else:
            self._own = Engine.load(target, draft, **options) if engine is None else None
        told = {"system": system, "params": params, "preempt": preempt, "meanwhile": meanwhile}
        check_options(self._own or engine, sample_rate, echo, tools=tools, **told)
        self._given = None if isinstance(engine, str) else engine
        self._listening = listening
        self._sample_rate = sample_rate
        self._playout = playout_of(play)
        echo = echo if self._playout.audible else None
        self._made_of = (voice, mark, avatar, prompts, ears, turns, echo)
        self._system, self._params = system, params
        self._stack = AsyncExitStack()
        self._events: Link[Event] = Link(_MAX_EVENTS)
        self._in_order = anyio.Lock()
        self._seq = 0
        self._began = 0.0
        self._ledger = Ledger(preempt)
        self._tools = [one if isinstance(one, AgentTool) else AgentTool(one) for one in tools]
        self._meanwhile = meanwhile
        self._session: BaseSession[Any] | None = None
        self._talking: Talking | None = None
        self._hearing: Hearing | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._error: BaseException | None = None
        self._entered = self._finished = False
        self._loop: asyncio.AbstractEventLoop | None = None

    async def __aenter__(self) -> Self:
        """Load the models and make the parts, off the event loop.

        If this is cancelled, everything made so far is released.

        Raises:
            ModelError: a model can't be loaded; also a subclass.
            AdapterUnavailable: a part's name is unknown, or what it needs is missing.
            ConfigError: parts that don't go together, or the agent was entered before.
        """
        if self._entered:
            raise ConfigError("this agent was entered before; make a new one")
        self._entered, self._loop = True, asyncio.get_running_loop()
        try:
            await self._open()
        except BaseException:
            with anyio.CancelScope(shield=True):
                await self._stack.aclose()
            raise
        return self

    async def _open(self) -> None:
        self._began = anyio.current_time()
        self._stack.push_async_callback(self._playout.aclose)
        parts = await make_parts(
            *self._made_of, generator=self._own or self._given, keeps=self._ledger.report.on
        )
        for part in parts.closed:
            self._stack.push_async_callback(close_part, type(part).__name__, part)
        engine = self._given
        if self._own is not None:
            engine = await self._stack.enter_async_context(self._own)
        assert engine is not None
        if self._tools and (why := getattr(engine, "no_tools", None)) is not None:
            raise ConfigError(f"the agent can't have tools: {why}")
        manner = getattr(engine, "manner", Manner())  # engines of others may have none
        system = manner.system if self._system is None else self._system
        params = self._params or manner.params
        session = await self._stack.enter_async_context(engine.session(system or None))
        self._session = session
        talking = self._talking = Talking(
            session,
            parts,
            self._playout,
            params,
            self._ledger,
            self._tell,
            getattr(engine, "capabilities", EngineCapabilities(reference=True)).reference,
            self._tools,
            self._meanwhile,
        )
        if parts.ears is not None:
            echo = None
            if parts.echo is not None:
                echo = Echo(parts.echo, self._sample_rate, self._playout.clock.now)
                self._playout.told = echo.played
            self._hearing = Hearing(
                parts.ears,
                self._sample_rate,
                self._listening,
                talking,
                self._tell,
                clean=echo.clean if echo is not None else None,
            )
            self._begin(self._hearing.run)
        self._begin(self._talk)

    async def __aexit__(self, *exc: object) -> None:
        """Interrupt the reply under way and close every part; cancelling waits for that."""
        with anyio.CancelScope(shield=True):
            self._finished = True
            self._events.abandon()
            if self._talking is not None:
                self._talking.questions.close()  # who waits in `say` waits no longer
            for task in self._tasks:
                task.cancel()
            try:
                if self._tasks:
                    await finished(asyncio.wait(self._tasks))
            finally:
                await self._stack.aclose()

    @property
    def preempted(self) -> PreemptReport:
        """Time saved and work wasted by pre-emptive answers so far."""
        return self._ledger.report

    @property
    def messages(self) -> list[Message]:
        """The conversation's history; replies in it end where the user stopped hearing them.

        Raises:
            RequestError: the agent was not entered.
        """
        if self._session is None:
            raise RequestError(_NOT_ENTERED)
        return self._session.messages

    async def say(self, text: str) -> None:
        """Ask the agent something, in writing; replies come in the order of questions.

        Typed questions wait until the user has finished, and for the answer to what was said aloud.
        The call waits while 8 questions are queued. If it is cancelled, the question is not asked.

        Raises:
            RequestError: the agent is not running, `finish` was called, or ``text`` is no text or empty.
        """
        self._check()
        if not isinstance(text, str) or not text.strip():
            raise RequestError(f"say a text, not {text!r:.80}")
        checked_text(text, "what is said")
        assert self._talking is not None
        await self._talking.questions.ask(Question(text))

    async def hear(self, pcm: bytes) -> None:
        """Take audio of the microphone: whole samples, signed 16-bit little-endian mono.

        Waits while too many turns wait for recognition. If this is cancelled, untaken audio is lost.

        Raises:
            RequestError: the agent has no ears, is not running, or `finish` was called.
        """
        self._check()
        if self._hearing is None:
            raise RequestError("this agent has no ears: give it some, such as ears='whisper'")
        await self._hearing.listener.add(pcm)

    def interrupt(self, played_ms: float | None = None) -> Interruption | None:
        """Stop the reply under way (see `Turn.interrupt`); None if there is none.

        Calls of tools that are cancellable are cancelled, too.
        """
        if self._talking is None:
            return None
        self._check_loop()
        return self._talking.interrupt(played_ms)

    def finish(self) -> None:
        """Accept no more questions: the iteration ends after the replies that are due. Idempotent."""
        self._check_loop()
        self._finished = True
        if self._hearing is not None:
            self._hearing.listener.finish()  # what was said last is still answered
        elif self._talking is not None:
            self._talking.questions.close()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event:
        if not self._entered:
            raise RequestError(_NOT_ENTERED)
        self._check_loop()
        try:
            event = await self._events.__anext__()
        except StopAsyncIteration:
            if self._error is not None:
                raise self._error from self._error.__cause__
            raise
        assert isinstance(event, Event)
        return event

    def _check(self) -> None:
        if not self._tasks or self._finished or self._error is not None:
            raise RequestError("the agent takes no more: use it in its block, before `finish`")
        self._check_loop()

    def _check_loop(self) -> None:
        """Refuse another event loop, and a thread without one: nobody there would ever be woken."""
        if self._loop is None:
            return
        try:
            here = asyncio.get_running_loop() is self._loop
        except RuntimeError:  # no loop runs in this thread
            here = False
        if not here:
            raise RequestError(_ELSEWHERE)

    def _begin(self, work: Callable[[], Awaitable[None]]) -> None:
        """Run ``work`` as a task; if it raises, the iteration of events ends with that error."""

        async def run() -> None:
            try:
                await work()
            except asyncio.CancelledError:  # the agent is left
                raise
            except BaseException as error:  # else who reads the events would wait for good
                self._error = self._error or error
                if self._talking is not None:
                    self._talking.questions.close()
                self._events.close()
                if isinstance(error, KeyboardInterrupt | SystemExit):
                    raise

        self._tasks.append(asyncio.create_task(run()))

    async def _tell(self, source: str, item: object) -> None:
        async with self._in_order:
            t_ms = (anyio.current_time() - self._began) * 1e3
            await self._events.send(Event(self._seq, t_ms, source, item))
            self._seq += 1

    async def _talk(self) -> None:
        assert self._talking is not None
        await self._talking.run()
        self._events.close()
