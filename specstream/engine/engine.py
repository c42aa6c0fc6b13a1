"""`Engine`: the asyncio API over the engine thread. Loads no torch until it is entered."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Never, Self, TypeVar

from specstream.config import EngineConfig, parse_config
from specstream.engine.generation import Generation
from specstream.engine.hosting import EngineHost
from specstream.engine.protocol import EngineCapabilities
from specstream.engine.session import Session
from specstream.errors import ConfigError, PromptError, RequestError, SamplingError
from specstream.params import checked_params, template_kwargs
from specstream.types import Manner, Message, RawPrompt, SamplingParams, Tool, Tools, Truncation

if TYPE_CHECKING:
    from specstream.drafting import Proposer, ProposerContext
    from specstream.drafting.checking import Explanation
    from specstream.engine.core.step import EngineCore
    from specstream.training.learner import LearningReport

__all__ = ["Engine", "Session"]

T = TypeVar("T")


class Engine:
    """A target model, with or without drafts, on a thread of its own.

    ::

        async with Engine.load() as engine:
            async with engine.generate("Tell me a story.") as chunks:
                async for chunk in chunks:
                    print(chunk.text, end="")

    One engine serves many requests at once. It belongs to the event loop that entered it.
    """

    @property
    def capabilities(self) -> EngineCapabilities:
        """What this engine can, for parts that take any engine."""
        exact = self.config.mode == "reproducible"
        return EngineCapabilities(True, True, True, True, True, exact, True, True, True)

    def __init__(self, config: EngineConfig) -> None:
        if not isinstance(config, EngineConfig):
            raise ConfigError(
                f"Engine takes an EngineConfig, not {config!r:.80}; Engine.load takes models' names"
            )
        self.config = config
        self._host = EngineHost()

    @classmethod
    def load(
        cls,
        target: str | Path | None = None,
        draft: str | Path | Sequence[str | Path] | None = None,
        *,
        proposer: str | dict[str, Any] | Proposer | Callable[[ProposerContext], Proposer] | None = None,
        config: EngineConfig | None = None,
        **options: Any,
    ) -> Engine:
        """Describe an engine; the weights are read when its ``async with`` block is entered.

        Args:
            target: Folder, GGUF file, Hub id or a pulled model's name; the bundled target by default.
            draft: The same for the draft model or a trained head's folder, or several of them.
            proposer: A kind (``"auto"``, the default; ``"draft"``, ``"suffix"``, …) or a kind
                with its options (``{"kind": "suffix", "num_tokens": 12}``), one of an installed package
                included; a proposer of your own, which then serves this engine only; or a function that
                makes one when the engine is entered.
            config: What to start from; the other arguments override it.
            options: Further keys of `EngineConfig`.

        Raises:
            ConfigError: an unknown key or a value out of range.
        """
        if config is not None and not isinstance(config, EngineConfig):
            raise ConfigError("config must be an EngineConfig; single keys go as Engine.load(key=value)")
        values = dict(config) if config is not None else {}
        named = {"target": target, "draft": draft, "proposer": proposer}
        values |= options | {key: value for key, value in named.items() if value is not None}
        return cls(parse_config(values))

    async def __aenter__(self) -> Self:
        """Load the models, off the event loop.

        Raises:
            ModelError: any of its kinds.
            ConfigError: the engine was entered before, or a proposer can't be made.
        """
        await self._host.start(self.config)
        return self

    async def __aexit__(self, *exc: object) -> None:
        """End every request as cancelled, after the round under way, and stop the thread."""
        await self._host.stop()

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
    ) -> AsyncGenerator[Generation, None]:
        """Write one reply.

        Leaving the block (by cancellation, too) stops the decoding within one round.

        Args:
            messages: The conversation, one user message, or a `RawPrompt` that the model goes on with.
            params: How to sample; greedy by default.
            reference: Text that the reply is expected to repeat in part, such as the text being
                rewritten or an answer written ahead. Suffix lookup drafts from it and finds its way back
                after edits. It never changes what is written.
            session: Requests that name the same session share a KV cache.
            speculate: False decodes this request without a proposer; a number is the most positions
                ahead that a round may draft, for each of which a tree of drafts may have several tokens.
            chat_template_kwargs: Variables for the model's chat template, such as
                ``{"enable_thinking": False}``; they win over the engine's own.
            tools: What the model may call: `Tool` objects, functions with type hints and a docstring in
                Google's style, or `Tools`, which says how many and which must be called. Calls are in
                the chunks, in ``generation.tool_calls`` and never in the text; the caller makes them,
                and asks again with the results among the messages (role ``"tool"``).
            learn: False keeps this request out of learning in service (see `LearningConfig`).
            truncation: What leaves a conversation that is too long for the context (the report says how
                many messages did). None: it is refused.
            wrong: Refused: sampling parameters belong into ``params``.

        Raises:
            PromptError: the prompt is empty, ``reference`` or ``session`` is no text, a template
                variable has a bad name or value, or a tool can't be described.
            SamplingError: a sampling parameter was passed by itself, not in ``params``.
            EngineClosed: the engine is not running, was entered in the parent of this forked process,
                or its event loop is closed.
            EngineError: another event loop has entered the engine.

        The iteration raises further errors: too long a prompt, a variable that the template doesn't
        know, tools for a model that takes none, a full waiting line, and `ConsumerStalled` if nobody
        read the reply for ``max_parked_s`` while others waited.
        """
        from specstream.engine.core.prompt import check_messages, checked_text
        from specstream.engine.core.request import Request

        worker, bridge = self._host.running()
        params = checked_params(params, wrong)
        checked = check_messages(messages)
        if session is not None:
            _check_session(session)
        if not isinstance(speculate, int) or speculate < 0:
            raise SamplingError(f"speculate must be True, False or a number, not {speculate!r:.80}")
        if not isinstance(truncation, Truncation | None):
            raise PromptError(f"truncation is a Truncation(...) or None, not {truncation!r:.80}")
        if not isinstance(learn, bool):
            raise PromptError(f"learn is True or False, not {learn!r:.80}")
        named = {} if chat_template_kwargs is None else chat_template_kwargs
        make = partial(
            Request,
            checked,
            params,
            session=session,
            reference=checked_text(reference, "reference"),
            proposer=self.config.proposer.kind if speculate else "off",
            template_kwargs=template_kwargs(named),
            tools=Tools.of(tools),
            learn=learn,
            truncation=truncation,
            most_drafted=None if speculate is True else int(speculate),
        )
        generation = Generation(worker, bridge, self.config.max_unread_chunks, make)
        worker.submit(generation.request)
        try:
            yield generation
        finally:
            generation.cancel()

    @property
    def places(self) -> int:
        """How many requests share each pass of the target; 0 while the engine isn't running."""
        worker = self._host.worker
        return worker.places if worker is not None else 0

    @property
    def no_tools(self) -> str | None:
        """Why the target can't call tools; None if it can. Known once the engine is entered."""
        worker = self._host.worker
        return worker.no_tools if worker is not None else "the engine is not running"

    @property
    def slowed(self) -> str | None:
        """Why the target's passes on a CPU take twice as long as they could; None if they don't.

        Known once the engine is entered.
        """
        worker = self._host.worker
        return worker.slowed if worker is not None else None

    @property
    def failure(self) -> BaseException | None:
        """What ended the engine before its block was left; None if nothing did.

        Its replies have ended with `EngineFailed`, and further requests are refused (`EngineClosed`).
        """
        return self._host.failure

    async def wait_closed(self) -> None:
        """Wait until the engine has ended. Cancelling only gives up the wait.

        Raises:
            EngineFailed: it has ended by itself (see `failure`).
            EngineClosed: it isn't running.
            EngineError: another event loop has entered it.
        """
        await self._host.wait_closed()

    @property
    def manner(self) -> Manner:
        """How the target replies in conversation where nobody says otherwise. Known once it is loaded.

        As the model's own ``generation_config`` recommends; where that recommends nothing, mildly
        sampled. A system message asks for short spoken answers. `generate` doesn't use it: an `Agent`,
        a server and the commands ``chat`` and ``say`` do.
        """
        worker = self._host.worker
        return worker.manner if worker is not None else Manner()

    async def ask(self, question: Callable[[EngineCore], T]) -> T:
        """Run ``question`` on the engine's thread, between two steps: for measurements and tests.

        Cancelling only gives up the wait.

        Raises:
            EngineClosed: the engine is not running, or ended meanwhile.
            EngineError: another event loop has entered the engine.
        """
        return await self._host.ask(question)

    async def explain(self) -> Explanation | None:
        """Why the engine speculates as it does now, in words and figures; None if the proposer is fixed.

        Cancelling only gives up the wait.

        Raises:
            EngineClosed: the engine is not running, or ended meanwhile.
            EngineError: another event loop has entered it.
        """
        return await self._host.ask(lambda core: core.proposing.explain())

    async def learning(self) -> LearningReport | None:
        """What learning in service has done so far; None if this engine doesn't learn.

        Cancelling only gives up the wait.

        Raises:
            EngineClosed, EngineError: see `explain`.
        """
        return await self._host.ask(lambda core: core.learned)

    async def complete(
        self, messages: Sequence[Message], *, max_tokens: int = 256, reference: str = ""
    ) -> str:
        """Write one greedy reply and return its whole text. Cancelling stops the decoding."""
        params = SamplingParams(max_tokens=max_tokens)
        async with self.generate(messages, params, reference=reference) as generation:
            return "".join([chunk.text async for chunk in generation])

    def session(self, system: str | None = None) -> Session:
        """Begin a conversation, whose cache is kept from turn to turn."""
        return Session(self, system)

    def forget(self, session: str) -> None:
        """Drop the cache that is kept for ``session``; nothing if there is none. Returns at once.

        Raises:
            PromptError: ``session`` is no text.
        """
        _check_session(session)  # an error on the engine's thread would end the engine
        self._host.post(lambda core: core.slots.forget(session))

    def trim(self, session: str, tokens: int) -> None:
        """Roll the cache that is kept for ``session`` back to its first ``tokens`` tokens.

        Returns at once; if a request of the session is under way, the cache is cut when that ends.

        Raises:
            PromptError: ``session`` is no text.
            RequestError: ``tokens`` is no whole number from 0 on.
        """
        _check_session(session)
        if not isinstance(tokens, int) or tokens < 0:
            raise RequestError(f"tokens must be a whole number from 0 on, not {tokens!r:.80}")
        self._host.post(lambda core: core.slots.trim(session, tokens))


def _check_session(session: object) -> None:
    if not isinstance(session, str):
        raise PromptError(f"session must be a text, not {session!r:.80}")
