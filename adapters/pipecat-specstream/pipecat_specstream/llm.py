"""A language model of specstream as a service of Pipecat."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from pipecat.frames.frames import (
    EagerEndOfTurnCancelFrame,
    Frame,
    FunctionCallFromLLM,
    InterruptionFrame,
    LLMContextFrame,
    LLMFullResponseEndFrame,
    LLMFullResponseStartFrame,
    UserStoppedSpeakingFrame,
)
from pipecat.metrics.metrics import LLMTokenUsage
from pipecat.processors.aggregators.llm_context import LLMContext
from pipecat.processors.frame_processor import FrameDirection
from pipecat.services.llm_service import LLMService
from pipecat.services.settings import LLMSettings
from pipecat.utils.errors import ErrorCategory
from pipecat_specstream.early_reply import EarlyReply
from pipecat_specstream.faults import category_of
from pipecat_specstream.llm_settings import SpecstreamLLMSettings
from pipecat_specstream.prompt import messages_of, tools_of
from specstream import (
    Grammar,
    Message,
    Report,
    SamplingParams,
    SpecstreamError,
    TextEngine,
    ToolCall,
    Tools,
    Truncation,
)

__all__ = ["SpecstreamLLMService"]


class SpecstreamLLMService(LLMService[Any]):
    """Answers contexts with a `TextEngine`: `Engine`, `OpenAIEngine` or a scripted one.

    An interruption stops the decoding within a round. The text of a speculative answer that was
    dropped is given to the next request as ``reference``, if the engine can draft from one.

    Args:
        engine: A running engine. It belongs to the caller, who closes it after the pipeline has ended;
            many services may share it.
        settings: Settings other than the model's own manner.
        chat_template_kwargs: Variables for the model's chat template, such as
            ``{"enable_thinking": False}``.
        truncation: How a conversation that outgrows the model's context is shortened. None: the
            request fails with an `ErrorFrame`.
        **options: Those of Pipecat's `LLMService`.

    Raises:
        ConfigError: a setting that the engine can't honour.
        SamplingError: a setting's value is out of range.
    """

    Settings = SpecstreamLLMSettings
    supports_response_schema = True

    _settings: SpecstreamLLMSettings

    def __init__(
        self,
        *,
        engine: TextEngine,
        settings: LLMSettings | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        truncation: Truncation | None = None,
        **options: Any,
    ) -> None:
        model = str(getattr(engine, "model", None) or "specstream")
        complete = SpecstreamLLMSettings.complete(model, settings)
        super().__init__(settings=complete, **options)
        self._engine = engine
        self._options: dict[str, Any] = {
            "chat_template_kwargs": chat_template_kwargs,
            "truncation": truncation,
        }
        self._conversation = f"pipecat-{uuid.uuid4()}"  # the requests share a KV cache
        self._guess: EarlyReply | None = None

    def can_generate_metrics(self) -> bool:
        """True: time to the first byte and token, tokens, processing time."""
        return True

    async def cleanup(self) -> None:
        """Release what the service holds; the engine stays open."""
        await super().cleanup()  # type: ignore[no-untyped-call]
        self._engine.forget(self._conversation)

    async def run_inference(
        self,
        context: LLMContext,
        max_tokens: int | None = None,
        system_instruction: str | None = None,
        response_schema: dict[str, Any] | None = None,
    ) -> str | None:
        """Answer a context outside of the pipeline; cancelling stops the decoding.

        Args:
            context: What is asked.
            max_tokens: Longest reply; None: as set.
            system_instruction: In place of the service's own.
            response_schema: JSON schema of the reply; needs specstream's extra ``grammar``.

        Raises:
            SpecstreamError: the engine can't answer, or can't honour the schema.
        """
        messages, _ = await self._asked(context, system_instruction or self._system(context))
        params = self._params()
        if max_tokens is not None:
            params = replace(params, max_tokens=max_tokens)
        if response_schema is not None:
            params = replace(params, grammar=Grammar("json_schema", json.dumps(response_schema)))
        async with self._engine.generate(messages, params, **self._options) as reply:
            return "".join([chunk.text async for chunk in reply]) or None

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        """Answer an `LLMContextFrame`; pass all other frames on."""
        if isinstance(frame, EagerEndOfTurnCancelFrame | InterruptionFrame) and self._guess:
            self._guess.dropped = True
        elif isinstance(frame, UserStoppedSpeakingFrame) and self._guess:
            self._guess = self._guess if self._guess.dropped else None  # else it is the answer
        await super().process_frame(frame, direction)
        if not isinstance(frame, LLMContextFrame):
            await self.push_frame(frame, direction)
            return
        await self.push_frame(LLMFullResponseStartFrame())
        await self.start_processing_metrics()
        try:
            await self._answer(frame)
        except Exception as error:
            await self.push_error(f"no answer: {error}", exception=error, category=category_of(error))
        # Not in a ``finally``: it would reach the voice before the interruption that cancelled
        # the answer, and the voice would speak what was to be dropped.
        await self.stop_processing_metrics()
        await self.push_frame(LLMFullResponseEndFrame())

    async def _update_settings(  # type: ignore[override]  # as in the base class
        self, delta: LLMSettings
    ) -> dict[str, Any]:
        try:
            self._settings.check(delta)
        except SpecstreamError as error:
            # The settings stay as they were, so the service can go on.
            await self.push_error(
                f"settings not changed: {error}", error, category=ErrorCategory.APPLICATION
            )
            return {}
        return await super()._update_settings(delta)

    async def _answer(self, frame: LLMContextFrame) -> None:
        context = frame.context
        messages, tools = await self._asked(context, self._system(context))
        reference, self._guess = self._reference(messages), None
        await self.start_ttfb_metrics()
        async with self._engine.generate(
            messages,
            self._params(),
            reference=reference,
            session=self._conversation,
            tools=tools,
            **self._options,
        ) as reply:
            if frame.speculation:
                self._guess = EarlyReply(messages, lambda: reply.text)
            try:
                async for chunk in reply:
                    await self.stop_ttfb_metrics()
                    if chunk.tool_calls:  # a reply of calls only has no first token of text
                        await self.stop_ttfat_metrics()
                    if chunk.text:
                        await self._push_llm_text(chunk.text)
            finally:  # of an interrupted reply, too
                await self.start_llm_usage_metrics(_usage(reply.report))
            calls = reply.tool_calls
        await self._run_calls(calls, context)

    async def _asked(
        self, context: LLMContext, system: str | None
    ) -> tuple[list[Message], Tools | None]:
        """The request's messages and tools."""
        given = await self.get_llm_adapter().get_llm_invocation_params(
            context, system_instruction=system, convert_developer_to_user=True
        )
        return messages_of(given["messages"]), tools_of(given["tools"], given["tool_choice"])

    def _system(self, context: LLMContext) -> str | None:
        """The system message, the model's own where none was given; Pipecat's additions stand behind."""
        own, said = self._engine.manner.system, self._settings.system_instruction
        given = any(
            isinstance(message, dict) and message["role"] == "system"
            for message in context.get_messages()
        )
        own = None if given or self._base_system_instruction else own
        return "\n\n".join(text for text in (own, said) if text) or None

    def _params(self) -> SamplingParams:
        return self._settings.sampling(self._engine.manner.params)

    def _reference(self, messages: Sequence[Message]) -> str:
        if self._guess is None or not self._engine.capabilities.reference:
            return ""
        return self._guess.reference(messages)

    async def _run_calls(self, calls: Sequence[ToolCall], context: LLMContext) -> None:
        wanted: list[FunctionCallFromLLM] = []
        for call in calls:
            if call.problem in ("", "unknown_tool"):  # Pipecat answers calls of unknown tools
                wanted.append(
                    FunctionCallFromLLM(
                        function_name=call.name,
                        tool_call_id=call.id,
                        arguments=json.loads(call.arguments or "{}"),
                        context=context,
                    )
                )
                continue
            await self.push_error(
                f"the model's call of {call.name or 'a tool'} was not made ({call.problem}): "
                f"{call.arguments:.200}",
                category=ErrorCategory.SERVER,
            )
        if wanted:
            await self.run_function_calls(wanted)


def _usage(report: Report) -> LLMTokenUsage:
    return LLMTokenUsage(
        prompt_tokens=report.prompt_tokens,
        completion_tokens=report.completion_tokens,
        total_tokens=report.prompt_tokens + report.completion_tokens,
        cache_read_input_tokens=report.reused_tokens,
        reasoning_tokens=report.reasoning_tokens,
    )
