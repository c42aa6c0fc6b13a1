"""A conversation with an engine: its history, and the KV cache that is kept from turn to turn."""

from __future__ import annotations

import uuid
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from typing import Any, Generic, Protocol, Self, TypeAlias, TypedDict, TypeVar, Unpack

from specstream.engine.generation import Generation
from specstream.errors import PromptError, RequestError, SpecstreamError
from specstream.metrics import Report
from specstream.playback.playout import Playout
from specstream.playback.turn import Interruption, ReplySource, Turn, speaking
from specstream.stages.pipeline import Hold, Pipeline
from specstream.types import Message, SamplingParams, Tool, ToolCall, Tools, Truncation

__all__ = ["BaseSession", "ReplyOptions", "Session"]


ToolList: TypeAlias = Tools | Sequence[Tool | Callable[..., Any]]


class ReplyOptions(TypedDict, total=False):
    """Options of a reply, as in `Engine.generate`."""

    reference: str
    speculate: bool
    chat_template_kwargs: Mapping[str, Any] | None
    tools: ToolList | None
    learn: bool
    truncation: Truncation | None


class _Reply(ReplySource, Protocol):
    """The part of `Generation` that a conversation uses."""

    @property
    def tool_calls(self) -> tuple[ToolCall, ...]: ...

    @property
    def error(self) -> SpecstreamError | None: ...

    @property
    def report(self) -> Report: ...


R = TypeVar("R", bound=_Reply)
R_co = TypeVar("R_co", bound=_Reply, covariant=True)


class _Engine(Protocol[R_co]):
    """The part of `specstream.Engine` that a conversation uses."""

    def generate(
        self,
        messages: Sequence[Message] | str,
        params: SamplingParams | None = None,
        *,
        session: str | None = None,
        **options: Unpack[ReplyOptions],
    ) -> AbstractAsyncContextManager[R_co]: ...

    def forget(self, session: str) -> None: ...

    def trim(self, session: str, tokens: int) -> None: ...


class BaseSession(Generic[R]):
    """A conversation with any engine that has the interface of `specstream.Engine`; see `Session`."""

    def __init__(self, engine: _Engine[R], system: str | None = None) -> None:
        self._engine = engine
        self._key = uuid.uuid4().hex
        self._talking = False
        self._unread: list[Message] = []  # user turns that the models may not have read yet
        self.messages: list[Message] = []
        if system:
            self.messages.append({"role": "system", "content": system})

    def reply(
        self,
        messages: Sequence[Message] | str,
        params: SamplingParams | None = None,
        **options: Unpack[ReplyOptions],
    ) -> AbstractAsyncContextManager[R]:
        """Write a reply to any messages, with the conversation's KV cache but without its history.

        Options and errors are those of `Engine.generate`; leaving the block ends the reply as there.
        """
        return self._engine.generate(messages, params, session=self._key, **options)

    @asynccontextmanager
    async def generate(
        self,
        text: str | None = None,
        params: SamplingParams | None = None,
        *,
        hold: Hold | None = None,
        **options: Unpack[ReplyOptions],
    ) -> AsyncGenerator[R, None]:
        """Reply to ``text``, the user's next turn.

        Both turns enter the history; of the reply, the text that the iteration returned. With
        ``text=None`` no user turn is added: the reply is to the history as it is, for example to the
        results of tool calls (see `add_result`). Reasoning doesn't enter the history. Options are those
        of `Engine.generate`; leaving the block ends the reply as there.

        A turn that was interrupted before its first chunk stays in the history: the next prompt has two
        user turns in a row (joined by a newline where the model's chat template refuses that). A turn
        that ends with an error before its first chunk is forgotten, so that the next one can be served.
        If the error was a PromptError, interrupted turns that the models had not read are forgotten too.

        The oldest turns of a history that is too long for the model's context are left out of the prompt
        (see `Truncation`; they stay in ``messages``), unless ``truncation`` is None.

        With a ``hold``, nothing enters the history before the hold is released: leaving the block
        before that leaves the history as it was. The draft never learns from a reply with a ``hold``,
        released or not.

        Raises:
            RequestError: another turn of this conversation is under way.
        """
        if self._talking:
            raise RequestError("this conversation is in the middle of a turn; end it first")
        self._talking = True
        said: Message | None = None if text is None else {"role": "user", "content": text}
        options.setdefault("truncation", Truncation())
        asked = self.messages if said is None else [*self.messages, said]
        if hold is None:
            self._say(said)
        else:
            hold.then(partial(self._say, said))
            options["learn"] = False
        generation: R | None = None
        try:
            async with self.reply(asked, params, **options) as generation:
                yield generation
        finally:
            self._talking = False
            if hold is None or hold.released:
                self._remember(said, generation)

    def _say(self, said: Message | None) -> None:
        if said is not None:
            self.messages.append(said)
            self._unread.append(said)

    def add_result(self, call: ToolCall, result: str) -> None:
        """Append the result of a tool call to the history, for the next reply.

        Raises:
            RequestError: the history has no such call.
        """
        calls = [made["id"] for message in self.messages for made in message.get("tool_calls", ())]
        if call.id not in calls:
            raise RequestError(f"this conversation has no call {call.id!r}")
        self.messages.append(
            {"role": "tool", "content": result, "tool_call_id": call.id, "name": call.name}
        )

    def _remember(self, said: Message | None, generation: R | None) -> None:
        """Add a turn's reply to the history, or remove the user's turn if it got none."""
        forgotten: list[Message] = []
        if generation is None:
            forgotten = [said] if said is not None else []
        elif message := _assistant_message(generation):
            self.messages.append(message)
        elif generation.error is not None:
            # An interrupted turn before this one may have made the prompt too long.
            refused = isinstance(generation.error, PromptError)
            forgotten = self._unread if refused else [said] if said is not None else []
        for messages in (self.messages, self._unread):
            messages[:] = [m for m in messages if not any(m is other for other in forgotten)]
        if generation is not None and generation.report.prompt_tokens > 0:
            self._unread.clear()

    @asynccontextmanager
    async def turn(
        self,
        text: str | None,
        pipeline: Pipeline,
        playout: Playout | None = None,
        params: SamplingParams | None = None,
        *,
        hold: Hold | None = None,
        **options: Unpack[ReplyOptions],
    ) -> AsyncGenerator[Turn[R], None]:
        """Reply to ``text``, the user's next turn, through ``pipeline``, with speech to ``playout``.

        None: reply to the history as it is. The reply enters the history as far as it was heard: all of
        it, or up to the last word that was heard when `Turn.interrupt` was called or the block was left
        early (by cancellation, too). The KV cache is cut at the same place. Without a play-out,
        everything that was read counts as heard.
        ``options`` are further arguments of `generate`; leaving the block ends the reply as there. With
        a ``hold``, the stages work before it is released; iterate over the turn only after that.

        Raises:
            RequestError: another turn of this conversation is under way.
            ConfigError: the play-out plays another turn.
        """
        reply: R | None = None
        turn: Turn[R] | None = None
        try:
            async with self.generate(text, params, hold=hold, **options) as reply:
                async with speaking(reply, pipeline, playout, hold) as turn:
                    yield turn
        finally:
            if hold is not None and not hold.released:
                # What the next prompt doesn't share with this one is cut when that is admitted.
                if reply is not None and reply.report.token_ids:
                    self._engine.trim(self._key, reply.report.prompt_tokens)
            elif reply is not None and turn is not None and turn.outcome is not None:
                self._shorten(reply, turn.outcome)

    def _shorten(self, reply: R, outcome: Interruption) -> None:
        """Cut the history and the KV cache after the last word that was heard."""
        if outcome.complete or not reply.text_read:
            return
        last = self.messages[-1]
        if last["role"] == "assistant" and last["content"] == reply.text_read:
            last["content"] = outcome.heard
            if not outcome.heard and not last.get("tool_calls"):
                self.messages.pop()
        self._engine.trim(self._key, reply.report.prompt_tokens + outcome.tokens_kept)

    async def aclose(self) -> None:
        """Forget the conversation's cache. Idempotent."""
        self._engine.forget(self._key)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.aclose()


def _assistant_message(generation: _Reply) -> Message | None:
    """Return a reply as a message, without calls that were cut off or have no name; None if empty."""
    calls = [call.message() for call in generation.tool_calls if call.name and call.problem != "cut_off"]
    message: Message = {"role": "assistant", "content": generation.text_read}
    if calls:
        message["tool_calls"] = calls
    return message if calls or generation.text_read else None


class Session(BaseSession[Generation]):
    """A conversation. ``messages`` is its history and may be edited between turns.

    The models don't read again what a prompt shares with the turns before it: it stays in the KV cache.
    """
