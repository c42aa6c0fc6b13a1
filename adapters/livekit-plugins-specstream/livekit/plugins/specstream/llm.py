"""`LLM`: any text engine of specstream as the language model of LiveKit Agents."""

from typing import Any

from livekit.agents import DEFAULT_API_CONNECT_OPTIONS, NOT_GIVEN, APIConnectOptions, NotGivenOr, llm
from specstream import SamplingParams, TextEngine
from specstream.errors import ConfigError

from .chats import Chats
from .dropped import DroppedReplies
from .llm_stream import LLMStream
from .requests import Settings

__all__ = ["LLM"]


class LLM(llm.LLM[Any]):
    """A language model on an engine that the caller has entered, and closes.

    ::

        async with Engine.load() as engine:
            session = AgentSession(llm=LLM(engine=engine, max_tokens=120), ...)

    Leaving a reply's stream, or cancelling the task that reads it, stops the decoding within one round.
    Nothing is retried once a reply has begun, so no text is doubled. A preemptive reply that LiveKit
    drops gives its text to the next reply to the same point of the chat as a draft
    (``reference=`` of `Engine.generate`), where the engine can do that.

    Args:
        engine: A running `Engine`, `OpenAIEngine`, or another `TextEngine`; many services may share it.
        params: How replies are sampled; None: as the engine's ``manner`` says.
        model: The model's name in metrics and traces.
        settings: Single fields of `SamplingParams`, such as ``temperature=0.7``, ``max_tokens=120``,
            ``top_p``, ``seed``, ``stop``; also ``chat_template_kwargs``.

    Raises:
        ConfigError: ``engine`` is no engine, or ``params`` are something else.
        SamplingError: an unknown setting, or a value out of range.
        PromptError: ``chat_template_kwargs`` is no mapping.
    """

    def __init__(
        self,
        *,
        engine: TextEngine,
        params: SamplingParams | None = None,
        model: str = "specstream",
        **settings: Any,
    ) -> None:
        super().__init__()
        if isinstance(engine, type | str) or not callable(getattr(engine, "generate", None)):
            raise ConfigError(
                f"engine must be a running engine, such as that of `async with Engine.load()`, not "
                f"{engine!r:.80}"
            )
        if not isinstance(params, SamplingParams | None):
            raise ConfigError(f"params must be SamplingParams(...), not {params!r:.80}")
        self._engine, self._params, self._model = engine, params, model
        self._settings = settings
        Settings(params or SamplingParams(), {}).changed(settings)  # refuse wrong ones now
        self._chats = Chats(engine)

    @property
    def model(self) -> str:
        """The model's name in metrics and traces."""
        return self._model

    @property
    def provider(self) -> str:
        """``"specstream"``."""
        return "specstream"

    @property
    def dropped(self) -> DroppedReplies:
        """Replies so far that were stopped or thrown away, and what was made of them."""
        return self._chats.dropped

    def chat(
        self,
        *,
        chat_ctx: llm.ChatContext,
        tools: list[llm.Tool] | None = None,
        conn_options: APIConnectOptions = DEFAULT_API_CONNECT_OPTIONS,
        parallel_tool_calls: NotGivenOr[bool] = NOT_GIVEN,
        tool_choice: NotGivenOr[llm.ToolChoice] = NOT_GIVEN,
        extra_kwargs: NotGivenOr[dict[str, Any]] = NOT_GIVEN,
    ) -> LLMStream:
        """Begin a reply; its stream raises what goes wrong with it, as errors of LiveKit.

        Args:
            chat_ctx: The conversation; text only.
            tools: Function tools that the model may call.
            conn_options: How often and when a reply that hasn't begun is tried again.
            parallel_tool_calls: Whether a reply may have several calls; by default it may.
            tool_choice: ``"auto"`` (by default), ``"none"``, ``"required"`` or a tool.
            extra_kwargs: Settings of this reply; see the class.

        Raises:
            SamplingError: an unknown setting, or a value out of range.
            PromptError: ``chat_template_kwargs`` is no mapping.
        """
        params = self._params
        if params is None:  # an engine's manner is known once it is running
            manner = getattr(self._engine, "manner", None)
            params = manner.params if manner is not None else SamplingParams()
        settings = Settings(params, {}).changed(self._settings)
        if isinstance(extra_kwargs, dict):
            settings = settings.changed(extra_kwargs)
        return LLMStream(
            self,
            engine=self._engine,
            chats=self._chats,
            settings=settings,
            chat_ctx=chat_ctx,
            tools=tools or [],
            tool_choice=tool_choice,
            parallel_tool_calls=parallel_tool_calls,
            conn_options=conn_options,
        )

    async def aclose(self) -> None:
        """Let the engine drop the caches of this service's chats; the engine stays open. Idempotent."""
        self._chats.forget()
        await super().aclose()
