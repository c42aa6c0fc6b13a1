"""`OpenAIEngine`: the models that a server already serves, as a text engine."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TYPE_CHECKING, Any, Never, Self, Unpack

from specstream.checks import check_numbers
from specstream.engine.core.prompt import check_messages
from specstream.engine.openai.body import ServerKind, body_of, with_question
from specstream.engine.openai.generation import OpenAIGeneration, Patience
from specstream.engine.openai.start import LIMITS, ReplyStart, typed
from specstream.engine.protocol import EngineCapabilities
from specstream.engine.session import BaseSession, ReplyOptions
from specstream.errors import ConfigError, ConnectionFailed, EngineClosed, PromptError
from specstream.params import checked_params, template_kwargs
from specstream.tools import MAX_CALLS
from specstream.types import Manner, Message, RawPrompt, SamplingParams, Tool, Tools, Truncation

if TYPE_CHECKING:
    from openai import AsyncOpenAI

__all__ = ["OpenAIEngine", "OpenAISession"]

_KEYS = ("SPECSTREAM_ENGINE_KEY", "OPENAI_API_KEY")
_NO_LIST = (404, 405, 501)  # where /models isn't there, and a model was named
_KINDS: dict[str, ServerKind] = {"vllm": "vllm", "llamacpp": "llama.cpp"}


class OpenAIEngine:
    """A server that speaks OpenAI's chat completions, as an engine for pipelines, agents and servers.

    ::

        async with OpenAIEngine("http://127.0.0.1:8000/v1") as engine:
            async with Agent(engine=engine, voice="hibari") as agent: ...

    vLLM, SGLang, llama.cpp's server, Ollama, OpenAI itself. Replies are always streamed; leaving a
    reply's block, or cancelling it, closes its stream, and the server stops writing. Nothing is retried
    once a word has come. Needs the extra ``openai``, and no torch.

    Args:
        url: The base address, such as ``"http://127.0.0.1:8000/v1"``.
        model: The model's name there; None: the only one that the server lists.
        api_key: Sent as a bearer; None: ``$SPECSTREAM_ENGINE_KEY``, else ``$OPENAI_API_KEY``, if set.
            It is never logged.
        first_token_s: A server may be silent for so long before a reply's first word.
        between_s: The same between two words: some servers never end a stream after they were stopped.

    Attributes:
        kind: Whether it is a vLLM or llama.cpp server, which take further parameters; known once the
            engine is entered.

    Raises:
        ConfigError: no address, or a time out of range.
    """

    capabilities = EngineCapabilities()
    no_tools: str | None = None
    slowed: str | None = None

    def __init__(
        self,
        url: str,
        model: str | None = None,
        *,
        api_key: str | None = None,
        first_token_s: float = 60.0,
        between_s: float = 20.0,
    ) -> None:
        if not isinstance(url, str) or not url.startswith(("http://", "https://")):
            raise ConfigError(f"an engine's address begins with http:// or https://, not {url!r:.80}")
        check_numbers(0.1, first_token_s=first_token_s, between_s=between_s)
        self.url, self._model = url.rstrip("/"), model
        self.kind: ServerKind = ""
        self.manner = Manner()
        self._limit = LIMITS[0]
        self._key = api_key or next((os.environ[k] for k in _KEYS if os.environ.get(k)), None)
        self._patience = Patience(first_token_s, between_s)
        self._client: AsyncOpenAI | None = None

    @property
    def model(self) -> str:
        """The model's name at the server.

        Raises:
            EngineClosed: none was given, and the engine wasn't entered.
        """
        if self._model is None:
            raise EngineClosed("the model's name is known once the engine is entered")
        return self._model

    async def __aenter__(self) -> Self:
        """Ask the server what it is and which models it has.

        Raises:
            ConfigError: the package openai is missing, the key is refused, or the server has several
                models and none was named.
            ConnectionFailed: nobody answers.
            EngineBusy: the server is still loading.
        """
        try:
            from openai import AsyncOpenAI
        except ImportError:
            raise ConfigError(
                "engines behind an address need the package openai: pip install "
                "'specstream-client[openai]'"
            ) from None
        longest = max(self._patience.first_s, self._patience.between_s) + 5.0
        self._client = AsyncOpenAI(
            base_url=self.url, api_key=self._key or "none", max_retries=2, timeout=longest
        )
        try:
            await self._look(self._client)
        except BaseException as error:
            await self._close()
            if isinstance(error, Exception):
                raise typed(error, self.url) from error
            raise
        return self

    async def _look(self, client: AsyncOpenAI) -> None:
        models = await self._listed(client)
        names = [model.id for model in models]
        for model in models:
            self.kind = _KINDS.get(str(getattr(model, "owned_by", "")), self.kind)
        if self._model is None:
            if len(names) != 1:
                listed = ", ".join(names[:20]) or "none"
                raise ConfigError(f"name one of the models of {self.url}: {listed}")
            self._model = names[0]

    async def _listed(self, client: AsyncOpenAI) -> list[Any]:
        """The models that the server lists; none if it has no such list, or one of another shape."""
        try:
            listed = (await client.models.list()).data
            return [model for model in listed if isinstance(getattr(model, "id", None), str)]
        except Exception as error:
            refused = getattr(error, "status_code", None)
            if refused is None and isinstance(typed(error, self.url), ConnectionFailed):
                raise
            if refused is not None and (self._model is None or refused not in _NO_LIST):
                raise
        return []

    async def __aexit__(self, *exc: object) -> None:
        await self._close()

    async def _close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.close()

    @asynccontextmanager
    async def generate(
        self,
        messages: Sequence[Message] | RawPrompt | str,
        params: SamplingParams | None = None,
        *,
        reference: str = "",
        session: str | None = None,
        speculate: bool | int = True,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        tools: Tools | Sequence[Tool | Callable[..., Any]] | None = None,
        learn: bool = True,
        truncation: Truncation | None = None,
        **wrong: Never,
    ) -> AsyncGenerator[OpenAIGeneration, None]:
        """Write a reply; leaving the block closes its stream.

        Arguments and errors are those of `specstream.Engine.generate`. The server decides on drafting
        and caches, so ``session``, ``speculate`` and ``learn`` change nothing; a conversation's cache is
        found by its text. With a ``truncation``, the oldest turns leave a prompt that the server refuses
        as too long. The iteration raises the server's refusals as typed errors with its own words.

        Raises:
            EngineClosed: the engine isn't entered.
            PromptError: a ``reference``, which needs an engine of our own; a wrong message.
            SamplingError: a parameter that this server can't honour.
        """
        client = self._client
        if client is None:
            raise EngineClosed("the engine is not running: enter it with `async with`")
        if reference:
            raise PromptError("a reference drafts for an engine of our own, not for a server")
        if isinstance(messages, RawPrompt):
            raise PromptError("a server's engine takes messages; a raw prompt needs one of our own")
        params = checked_params(params, wrong)
        asked = check_messages(messages)
        offered = Tools.of(tools)
        own, extra = body_of(params, self.kind, offered, template_kwargs(chat_template_kwargs or {}))
        own[self._limit] = own.pop(LIMITS[0])
        own |= {"model": self.model, "stream": True, "stream_options": {"include_usage": True}}
        start = ReplyStart(
            self.url,
            client.with_options(max_retries=0).chat.completions.create,
            {**own, "extra_body": extra},
            asked,
            shortens=truncation is not None,
            first_s=self._patience.first_s,
        )
        generation = OpenAIGeneration(
            self.url,
            start,
            params,
            self._patience,
            lambda error: typed(error, self.url),
            [call["id"] for message in asked for call in message.get("tool_calls", ())],
            1 if offered is not None and not offered.parallel else MAX_CALLS,
        )
        try:
            yield generation
        finally:
            await generation.aclose()
            if start.limit != LIMITS[0]:
                self._limit = start.limit

    def session(self, system: str | None = None) -> OpenAISession:
        """Open a conversation; after an interruption its history ends at the last word heard."""
        return OpenAISession(self, system)

    @property
    def places(self) -> int:
        """How many replies are written side by side: the server's affair; 0."""
        return 0

    def forget(self, session: str) -> None:
        """Do nothing: the server's cache is its own affair."""

    def trim(self, session: str, tokens: int) -> None:
        """Do nothing: servers find what a prompt shares with an earlier one by its text."""


class OpenAISession(BaseSession[OpenAIGeneration]):
    """A conversation with a server's model; see `specstream.Session`."""

    def reply(
        self,
        messages: Sequence[Message] | str,
        params: SamplingParams | None = None,
        **options: Unpack[ReplyOptions],
    ) -> AbstractAsyncContextManager[OpenAIGeneration]:
        """As `specstream.Session.reply`; also in an empty conversation, which `generate` refuses."""
        asked = with_question(messages) if isinstance(messages, list | tuple) else messages
        return super().reply(asked, params, **options)
