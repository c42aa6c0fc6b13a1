"""What a text engine is: our own, a scripted one, or a server's; and what each of them can."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from specstream.errors import SpecstreamError
    from specstream.metrics import Report
    from specstream.types import (
        Chunk,
        Manner,
        Message,
        RawPrompt,
        SamplingParams,
        Tool,
        ToolCall,
        Tools,
        Truncation,
    )

__all__ = ["EngineCapabilities", "TextEngine", "TextGeneration"]


@dataclass(frozen=True, slots=True)
class EngineCapabilities:
    """What an engine can beyond writing text. What it can't is refused by a typed error.

    Attributes:
        previews: A reply's ``previewed()`` shows what is drafted before it is verified, so that stages
            can begin on drafted text.
        rounds: A chunk is what one pass of the target committed.
        token_ids: Chunks have the ids of their tokens.
        reference: ``generate(…, reference=…)`` drafts from a text.
        truncation: A conversation that is too long is cut to the token (see `Truncation`); else turn by
            turn, once the server has refused it.
        reproducible: A seed repeats a reply, whoever else is served.
        raw_prompts: ``generate(RawPrompt(…))`` goes on with a text, without a chat template.
        logprobs: `SamplingParams.logprobs` is honoured.
        token_prompts: ``generate(RawPrompt(tokens=…))`` is taken, and the report has their text.
    """

    previews: bool = False
    rounds: bool = False
    token_ids: bool = False
    reference: bool = False
    truncation: bool = False
    reproducible: bool = False
    raw_prompts: bool = False
    logprobs: bool = False
    token_prompts: bool = False


class TextGeneration(Protocol):
    """One reply under way: an async iterator of `Chunk`; the last one has a ``finish_reason``.

    The iteration raises the typed error of a reply that failed, after all chunks before it. Cancelling
    an iteration that waits loses no chunk.
    """

    def __aiter__(self) -> AsyncIterator[Chunk]: ...

    def cancel(self) -> None:
        """Stop writing. Returns at once; idempotent."""
        ...

    def needed_by(self, moment: float, heard: bool = False) -> None:
        """Say when the listener will have nothing left to hear; an engine may ignore it."""
        ...

    @property
    def text(self) -> str:
        """The text that was written, read or not."""
        ...

    @property
    def text_read(self) -> str:
        """The text of the chunks that the iteration has returned."""
        ...

    @property
    def tool_calls(self) -> tuple[ToolCall, ...]:
        """The calls that have ended in those chunks."""
        ...

    @property
    def error(self) -> SpecstreamError | None:
        """What ended the reply, if it failed."""
        ...

    @property
    def report(self) -> Report:
        """How the reply went so far."""
        ...


class TextEngine(Protocol):
    """What pipeline, sessions, `Agent` and server need of an engine.

    `specstream.Engine`, `specstream.OpenAIEngine` and `specstream.testing.ScriptedEngine` have it. An
    engine is an async context manager, and is running inside of its block.
    """

    @property
    def capabilities(self) -> EngineCapabilities:
        """What this engine can."""
        ...

    @property
    def no_tools(self) -> str | None:
        """Why the model can't call tools; None if it can."""
        ...

    @property
    def manner(self) -> Manner:
        """How the model replies in conversation where nobody says otherwise."""
        ...

    def generate(
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
    ) -> AbstractAsyncContextManager[TextGeneration]:
        """Write a reply; leaving the block stops it."""
        ...

    def session(self, system: str | None = None) -> Any:
        """Open a conversation: a `specstream.engine.session.BaseSession`."""
        ...

    def forget(self, session: str) -> None:
        """The conversation is over: its cache may go."""
        ...

    def trim(self, session: str, tokens: int) -> None:
        """The conversation's cache is of use up to so many tokens; an engine may ignore it."""
        ...
