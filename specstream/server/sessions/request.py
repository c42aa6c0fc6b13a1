"""The request for a response, the adapters that responses lend, and what all sessions share."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from anyio import to_thread

from specstream.errors import SpecstreamError
from specstream.listening.ears import Ears
from specstream.listening.preempt import Preempt
from specstream.realtime.input_settings import AudioFormat
from specstream.realtime.settings import OwnEvent, SessionSettings
from specstream.server.counters import Counters
from specstream.server.keys import ApiCaller, KeyAccount
from specstream.server.options import ServerLimits
from specstream.server.sessions.entries import ConversationItems
from specstream.signals import Clock, LoopClock
from specstream.stages.adapters import AdapterKind, MarkKind, stage_of
from specstream.stages.contract import close_part
from specstream.stages.marking import marked
from specstream.stages.pipeline import Pipeline, Stage
from specstream.stages.stages import SegmentStage
from specstream.types import Message, SamplingParams, Tools, Truncation

__all__ = [
    "AdapterPool",
    "Factories",
    "Factory",
    "ResponseRequest",
    "ServedEngine",
    "ServedSession",
    "Service",
]

_log = logging.getLogger("specstream.realtime")

Factory = Callable[[], Any]


@dataclass(frozen=True, slots=True)
class Factories:
    """One factory per kind of adapter (or stage); None if the server has none.

    ``mark`` makes what marks the voice's speech.

    An adapter serves one response at a time and may remember earlier ones, so connections share none.
    """

    voice: Factory | None = None
    avatar: Factory | None = None
    prompt: Factory | None = None
    mark: Factory | None = None


class AdapterPool:
    """Lends a set of adapters to each running response; they are made on first use and then reused."""

    def __init__(self, factories: Factories) -> None:
        self._factories = factories
        self._idle: list[dict[AdapterKind | MarkKind, Any]] = []
        self._used: dict[Pipeline, dict[AdapterKind | MarkKind, Any]] = {}

    async def pipeline(self, *, audio: bool, avatar: bool, prompt: bool) -> Pipeline:
        """Build a pipeline of branches that are wanted and available; `release` it after the response.

        Raises:
            AdapterUnavailable: an adapter can't be made.
        """
        adapters = self._idle.pop() if self._idle else {}
        branches: list[list[Stage[Any, Any]]] = []
        try:
            if audio:
                speaking = await self._stage(adapters, "voice")
                if self._factories.mark is not None:
                    speaking = marked(speaking, await self._made(adapters, "mark"))
                branches.append([speaking])
                if avatar and self._factories.avatar:
                    branches[0].append(await self._stage(adapters, "avatar"))
            if prompt and self._factories.prompt:
                branches.append([await self._stage(adapters, "prompt")])
        except BaseException:
            self._idle.append(adapters)
            raise
        # Nobody hears a reply without branches, so it needn't be cut into phrases.
        pipeline = Pipeline(branches, head=SegmentStage(lookahead=True) if branches else None)
        self._used[pipeline] = adapters
        return pipeline

    def names(self) -> dict[str, str]:
        """Return the names of the idle adapters that have one, by kind."""
        found: dict[str, str] = {}
        for kind, adapter in ((k, a) for made in self._idle for k, a in made.items()):
            if name := getattr(getattr(adapter, "capabilities", None), "name", ""):
                found[kind] = name
        return found

    async def _stage(
        self, adapters: dict[AdapterKind | MarkKind, Any], kind: AdapterKind
    ) -> Stage[Any, Any]:
        return stage_of(kind, await self._made(adapters, kind))

    async def _made(
        self, adapters: dict[AdapterKind | MarkKind, Any], kind: AdapterKind | MarkKind
    ) -> Any:
        if kind not in adapters:
            # Making an adapter may read large files; a thread keeps other sessions going meanwhile.
            adapters[kind] = await to_thread.run_sync(getattr(self._factories, kind))
        return adapters[kind]

    def release(self, pipeline: Pipeline) -> None:
        """Return a pipeline's adapters to the pool: its response is over."""
        self._idle.append(self._used.pop(pipeline))

    async def aclose(self) -> None:
        """Close all adapters; what one raises then is logged."""
        sets = [*self._idle, *self._used.values()]
        self._idle.clear()
        self._used.clear()
        for kind, adapter in ((kind, one) for adapters in sets for kind, one in adapters.items()):
            try:
                await close_part(kind, adapter)
            except SpecstreamError as error:
                _log.error("an adapter is left behind: %s", error)


class ServedSession(Protocol):
    """The part of `specstream.Session` that a response uses."""

    def reply(
        self,
        messages: list[Message],
        params: SamplingParams,
        *,
        speculate: bool = True,
        learn: bool = True,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        tools: Tools | None = None,
        truncation: Truncation | None = None,
    ) -> AbstractAsyncContextManager[Any]:
        """Start a reply: an async iterator of `Chunk` with ``cancel`` and ``report``."""
        ...

    async def aclose(self) -> None:
        """Release the conversation's cache."""
        ...


class ServedEngine(Protocol):
    """The part of `specstream.Engine` that the server uses."""

    @property
    def no_tools(self) -> str | None:
        """Why the model can't call tools; None if it can."""
        ...

    def session(self) -> ServedSession:
        """Open a conversation with a cache of its own."""
        ...


@dataclass(frozen=True, slots=True)
class ResponseRequest:
    """A response as requested, with every default filled in.

    The reply is written to ``conversation``; None for an out-of-band response.
    """

    messages: list[Message]
    params: SamplingParams
    audio: bool
    wants: frozenset[OwnEvent]
    conversation: ConversationItems | None
    max_output_tokens: int | Literal["inf"] = "inf"
    voice: str | dict[str, str] = "default"
    format: AudioFormat = field(default_factory=AudioFormat)
    metadata: dict[str, str] | None = None
    template_kwargs: dict[str, Any] = field(default_factory=dict)
    speculate: bool = True
    learn: bool = True
    tools: Tools | None = None
    truncation: Truncation | None = None


@dataclass(frozen=True, slots=True)
class Service:
    """The objects and settings that all sessions of a server share.

    ``clock`` paces audio, ``timer`` is for rate limits and slow readers; for ``preempt`` and ``names``
    see `RealtimeServer`. ``caller`` is who is served, if it is for one.
    """

    engine: ServedEngine
    settings: SessionSettings
    params: SamplingParams = field(default_factory=SamplingParams)
    factories: Factories = field(default_factory=Factories)
    clock: Clock = field(default_factory=LoopClock)
    timer: Clock = field(default_factory=LoopClock)
    counters: Counters = field(default_factory=Counters)
    limits: ServerLimits = field(default_factory=ServerLimits)
    caller: ApiCaller = field(default_factory=lambda: ApiCaller(KeyAccount()))
    ears: Ears | None = None
    preempt: Preempt | None = None
    names: Mapping[str, str] = field(default_factory=dict)
