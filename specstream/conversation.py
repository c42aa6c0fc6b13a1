"""A conversation with an engine: its history, and the cache that is kept from turn to turn."""

from __future__ import annotations

import uuid
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Never, Protocol, Self

from specstream.errors import PromptError, RequestError
from specstream.generation import Generation
from specstream.types import Message, SamplingParams

__all__ = ["Session"]


class Answering(Protocol):
    """What a conversation needs of `specstream.Engine`."""

    def generate(
        self,
        messages: Sequence[Message] | str,
        params: SamplingParams | None = None,
        *,
        reference: str = "",
        session: str | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        **wrong: Never,
    ) -> AbstractAsyncContextManager[Generation]:
        """A reply, whose cache is kept under the name ``session``."""
        ...

    def forget(self, session: str) -> None:
        """Drop that cache."""
        ...


class Session:
    """A conversation. ``messages`` is its history and may be edited between turns.

    What a reply shares with the turns before it is not read again by the models.
    """

    def __init__(self, engine: Answering, system: str | None = None) -> None:
        self._engine = engine
        self._key = uuid.uuid4().hex
        self._talking = False
        self._unread: list[Message] = []  # said, but not known to have been read by the models
        self.messages: list[Message] = []
        if system:
            self.messages.append({"role": "system", "content": system})

    @asynccontextmanager
    async def reply(
        self,
        messages: Sequence[Message] | str,
        params: SamplingParams | None = None,
        *,
        reference: str = "",
        chat_template_kwargs: Mapping[str, Any] | None = None,
        **wrong: Never,
    ) -> AsyncGenerator[Generation, None]:
        """A reply to any messages; the history is left alone. Ends as `Engine.generate` does."""
        async with self._engine.generate(
            messages,
            params,
            reference=reference,
            session=self._key,
            chat_template_kwargs=chat_template_kwargs,
            **wrong,
        ) as generation:
            yield generation

    @asynccontextmanager
    async def generate(
        self,
        text: str,
        params: SamplingParams | None = None,
        *,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        **wrong: Never,
    ) -> AsyncGenerator[Generation, None]:
        """Say ``text`` as the user. Both turns enter the history, the reply as far as it was read.

        Reasoning is not remembered. Ends as `Engine.generate` does.

        Words that were interrupted before the first chunk stay in the history: the next prompt has two
        turns of the user in a row (joined by a newline where the model's chat template refuses that).
        A turn that ends with an error before its first chunk is forgotten, so that the next one can be
        served; so are, if that was a PromptError, interrupted words that the models had not read.

        Raises:
            RequestError: another turn of this conversation is under way.
        """
        if self._talking:
            raise RequestError("this conversation is in the middle of a turn; end it first")
        self._talking = True
        said: Message = {"role": "user", "content": text}
        self.messages.append(said)
        self._unread.append(said)
        generation: Generation | None = None
        try:
            async with self.reply(
                self.messages, params, chat_template_kwargs=chat_template_kwargs, **wrong
            ) as generation:
                yield generation
        finally:
            self._talking = False
            self._remember(said, generation)

    def _remember(self, said: Message, generation: Generation | None) -> None:
        """The turn is over: what the history keeps of it."""
        request = generation._request if generation is not None else None
        heard = "".join(generation._heard) if generation is not None else ""
        gone: list[Message] = []
        if heard:
            self.messages.append({"role": "assistant", "content": heard})
        elif request is None:
            gone = [said]
        elif request.error is not None:
            # Too long a prompt may be so by words that were interrupted before anybody counted them.
            gone = self._unread if isinstance(request.error, PromptError) else [said]
        for messages in (self.messages, self._unread):
            messages[:] = [m for m in messages if not any(m is other for other in gone)]
        if request is not None and request.prompt_length > 0:
            self._unread.clear()

    async def aclose(self) -> None:
        """Forget the conversation's cache. Idempotent."""
        self._engine.forget(self._key)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.aclose()
