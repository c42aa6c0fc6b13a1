"""`OpenAIEngine`: the models that a server already serves, as a text engine."""

from __future__ import annotations

import json
import os
import re
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Never, Self

from specstream.checks import check_numbers
from specstream.engine.core.prompt import check_messages
from specstream.engine.openai.body import ServerKind, body_of, messages_of, without_oldest_turn
from specstream.engine.openai.generation import OpenAIGeneration, Patience
from specstream.engine.protocol import EngineCapabilities
from specstream.engine.session import BaseSession
from specstream.errors import (
    ConfigError,
    ConnectionFailed,
    EngineBusy,
    EngineClosed,
    EngineError,
    EngineFailed,
    ModelNotFound,
    PromptError,
    PromptTooLong,
    SpecstreamError,
)
from specstream.params import checked_params, template_kwargs
from specstream.types import Manner, Message, RawPrompt, SamplingParams, Tool, Tools, Truncation

if TYPE_CHECKING:
    from openai import AsyncOpenAI

__all__ = ["OpenAIEngine", "OpenAISession", "typed", "words_of"]

_KEYS = ("SPECSTREAM_ENGINE_KEY", "OPENAI_API_KEY")
_KINDS: dict[str, ServerKind] = {"vllm": "vllm", "llamacpp": "llama.cpp"}
_MOST_CUTS = 32  # turns that are left out of a prompt, one refused request each


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
            raise ConfigError(
                f"an engine's address begins with http:// or https://, not {url!r:.80}"
            )
        check_numbers(0.1, first_token_s=first_token_s, between_s=between_s)
        self.url, self._model = url.rstrip("/"), model
        self.kind: ServerKind = ""
        self.manner = Manner()
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
        models = (await client.models.list()).data
        names = [model.id for model in models]
        for model in models:
            self.kind = _KINDS.get(str(getattr(model, "owned_by", "")), self.kind)
        if self._model is None:
            if len(names) != 1:
                listed = ", ".join(names[:20]) or "none"
                raise ConfigError(f"name one of the models of {self.url}: {listed}")
            self._model = names[0]

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
        own, extra = body_of(
            params, self.kind, offered, template_kwargs(chat_template_kwargs or {})
        )
        create: Any = client.chat.completions.create
        left_out = 0

        async def start() -> AsyncIterator[Any]:
            nonlocal asked, left_out
            for _ in range(_MOST_CUTS):
                try:
                    parts: AsyncIterator[Any] = await create(
                        model=self.model,
                        messages=messages_of(asked),
                        stream=True,
                        stream_options={"include_usage": True},
                        extra_body=extra,
                        **own,
                    )
                    return parts
                except Exception as error:
                    fault = typed(error, self.url)
                    shorter = without_oldest_turn(asked) if truncation is not None else None
                    if not isinstance(fault, PromptTooLong) or shorter is None:
                        raise fault from error
                    left_out += len(asked) - len(shorter)
                    generation.left_out, asked = left_out, shorter
            raise PromptTooLong(f"{self.url} refuses the conversation, however short")

        messages_of(asked)  # raises now, not in the iteration
        generation = OpenAIGeneration(
            self.url, start, params, self._patience, lambda error: typed(error, self.url)
        )
        try:
            yield generation
        finally:
            await generation.aclose()

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


_TOO_LONG = re.compile(
    r"context[ _](?:length|size|window)|exceeds?_context|input_tokens|too long", re.I
)
_LONGEST = 300  # characters of a server's words in an error


def typed(error: Exception, url: str) -> SpecstreamError:
    """Return an exception of the ``openai`` package, or of reading its stream, as one of ours."""
    import openai

    if isinstance(error, SpecstreamError):
        return error
    if isinstance(error, openai.APIStatusError):
        made = _of_status(error.status_code, words_of(error), url)
    elif isinstance(error, openai.APIConnectionError):
        cause = error.__cause__ or error
        made = ConnectionFailed(f"{url}: the connection failed ({cause or type(cause).__name__})")
    elif isinstance(error, openai.APIError):  # an error event in the stream
        made = EngineFailed(f"{url} ended the reply: {words_of(error)}")
    elif isinstance(error, json.JSONDecodeError):
        made = EngineFailed(f"{url} sent an event that is no JSON")
    else:
        made = EngineFailed(f"{url}: {error or type(error).__name__}")
    made.__cause__ = error
    return made


def _of_status(status: int, words: str, url: str) -> SpecstreamError:
    said = f"{url} answers {status}: {words}"
    if status in (401, 403):
        return ConfigError(f"{said}; check the key")
    if status == 404:
        return ModelNotFound(said)
    if status in (429, 503):
        return EngineBusy(said)
    if status in (400, 413, 422):
        return PromptTooLong(said) if _TOO_LONG.search(words) else PromptError(said)
    return EngineFailed(said) if status >= 500 else EngineError(said)


def words_of(error: Any) -> str:
    """Return what a server said, whatever shape its body has: an object, a list, a text."""
    body: Any = getattr(error, "body", None)
    if isinstance(body, dict):
        inner = body.get("error", body.get("detail", body.get("message", body)))
        body = inner.get("message", inner) if isinstance(inner, dict) else inner
    words = body if isinstance(body, str) else json.dumps(body) if body else str(error)
    kind = error.body.get("type", "") if isinstance(getattr(error, "body", None), dict) else ""
    param = getattr(error, "param", None) or ""
    hints = " ".join(str(hint) for hint in (kind, param) if hint and str(hint) not in words)
    return " ".join(words.split())[:_LONGEST] + (f" ({hints})" if hints else "")
