"""The request for a response, and what all sessions of a server share."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from specstream.listening.ears import Ears
from specstream.pipeline.clock import Clock, LoopClock
from specstream.types import Message, SamplingParams, Tools, Truncation
from specstream.ws.counters import Counters
from specstream.ws.realtime.adapter_pool import Factories
from specstream.ws.realtime.conversation import Conversation
from specstream.ws.realtime.input_settings import AudioFormat
from specstream.ws.realtime.settings import OwnEvent, SessionSettings

__all__ = ["Engine", "Replies", "ResponseRequest", "Service"]


class Replies(Protocol):
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


class Engine(Protocol):
    """The part of `specstream.Engine` that the server uses."""

    @property
    def no_tools(self) -> str | None:
        """Why the model can't call tools; None if it can."""
        ...

    def session(self) -> Replies:
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
    conversation: Conversation | None
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

    ``clock`` paces audio, ``timer`` is for rate limits and slow
    readers; for ``lead_s``, ``buffer_s``, ``idle_s`` and ``names`` see `RealtimeServer`.
    """

    engine: Engine
    settings: SessionSettings
    params: SamplingParams = field(default_factory=SamplingParams)
    factories: Factories = field(default_factory=Factories)
    clock: Clock = field(default_factory=LoopClock)
    timer: Clock = field(default_factory=LoopClock)
    counters: Counters = field(default_factory=Counters)
    lead_s: float = 2.0
    buffer_s: float = 30.0
    idle_s: float = 600.0
    ears: Ears | None = None
    names: Mapping[str, str] = field(default_factory=dict)
