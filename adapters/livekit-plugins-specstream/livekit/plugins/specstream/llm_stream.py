"""One reply of an `LLM`, chunk by chunk."""

import asyncio
from collections.abc import Iterator
from typing import Any

from livekit.agents import APIConnectOptions, APITimeoutError, NotGivenOr, llm, utils
from specstream import Chunk, Report, TextEngine, ToolCall
from specstream.errors import EngineError, SpecstreamError

from .chats import Chats
from .faults import api_error
from .log import logger
from .requests import Settings, messages_of, tools_of

__all__ = ["LLMStream"]


class LLMStream(llm.LLMStream):
    """One reply: an async iterator of `ChatChunk`; the last one has the usage.

    Leaving it, or cancelling what reads it, stops the decoding within one round. The first chunk must
    come within ``conn_options.timeout``; else the reply is stopped, and tried again or elsewhere.
    """

    def __init__(
        self,
        service: llm.LLM[Any],
        *,
        engine: TextEngine,
        chats: Chats,
        settings: Settings,
        chat_ctx: llm.ChatContext,
        tools: list[llm.Tool],
        tool_choice: NotGivenOr[llm.ToolChoice],
        parallel_tool_calls: NotGivenOr[bool],
        conn_options: APIConnectOptions,
    ) -> None:
        super().__init__(service, chat_ctx=chat_ctx, tools=tools, conn_options=conn_options)
        self._engine, self._chats, self._settings = engine, chats, settings
        self._tool_choice, self._parallel = tool_choice, parallel_tool_calls
        self._attempt = chats.attempt(chat_ctx)
        self._reference: str | None = None  # asked for once, however often the reply is tried
        self._id = utils.shortuuid("specstream_")

    async def _run(self) -> None:
        try:
            async with asyncio.timeout(self._conn_options.timeout) as limit:
                await self._reply(limit)
        except TimeoutError:
            raise APITimeoutError(retryable=True) from None

    async def _reply(self, limit: asyncio.Timeout) -> None:
        begun = False
        try:
            messages = messages_of(self._chat_ctx)
            tools = tools_of(self._tools, self._tool_choice, self._parallel)
            if self._reference is None:
                self._reference = self._chats.reference(self._attempt)
            async with self._engine.generate(
                messages,
                self._settings.params,
                reference=self._reference,
                session=self._attempt.session,
                chat_template_kwargs=self._settings.template,
                tools=tools,
            ) as reply:
                try:
                    calls = _Calls()
                    async for chunk in reply:
                        limit.reschedule(None)
                        self._attempt.text += chunk.text
                        for delta in calls.deltas(chunk):
                            begun = True
                            self._send(delta)
                except asyncio.CancelledError:
                    self._note(reply.report)
                    self._chats.cancelled(self._attempt)
                    raise
                self._note(reply.report)
                self._attempt.ended = True
        except SpecstreamError as error:
            raise api_error(error, begun=begun) from error

    def _send(self, delta: llm.ChoiceDelta) -> None:
        self._event_ch.send_nowait(llm.ChatChunk(id=self._id, delta=delta))

    def _note(self, report: Report) -> None:
        """Tell the usage, of a reply that was stopped as well."""
        self._attempt.tokens = report.completion_tokens
        usage = llm.CompletionUsage(
            completion_tokens=report.completion_tokens,
            prompt_tokens=report.prompt_tokens,
            prompt_cached_tokens=report.reused_tokens,
            reasoning_tokens=report.reasoning_tokens,
            total_tokens=report.prompt_tokens + report.completion_tokens,
        )
        self._event_ch.send_nowait(llm.ChatChunk(id=self._id, usage=usage))


class _Calls:
    """Collects the pieces of tool calls: LiveKit takes whole ones."""

    def __init__(self) -> None:
        self._pieces: list[Any] = []

    def deltas(self, chunk: Chunk) -> Iterator[llm.ChoiceDelta]:
        """What a chunk adds to the reply: its text, then the calls that end in it."""
        if chunk.text:
            yield llm.ChoiceDelta(role="assistant", content=chunk.text)
        if not chunk.tool_calls:
            return
        known = len(ToolCall.collect(self._pieces))
        self._pieces += chunk.tool_calls
        for call in ToolCall.collect(self._pieces)[known:]:
            if call.problem in ("cut_off", "no_name"):
                # LiveKit would mend the arguments and run the tool with half of them.
                raise EngineError(
                    f"the model's call of {call.name or 'a tool'!r} can't be made ({call.problem}); "
                    "a call that is cut off needs more max_tokens"
                )
            if call.problem:  # LiveKit answers the model that the call can't be made
                logger.warning("the model's call of %r is wrong: %s", call.name, call.problem)
            made = llm.FunctionToolCall(name=call.name, arguments=call.arguments, call_id=call.id)
            yield llm.ChoiceDelta(role="assistant", tool_calls=[made])
