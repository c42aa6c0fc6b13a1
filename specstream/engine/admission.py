"""How a request gets in: its prompt encoded, its parameters checked, a cache taken for it."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from transformers import PreTrainedTokenizerBase

from specstream.config import AutoProposerConfig, EngineConfig
from specstream.engine.detokenizer import decoder_of
from specstream.engine.phrase import FirstPhrase, PhraseLengths
from specstream.engine.prompt import Prompt, PromptEncoder
from specstream.engine.reasoning import Reasoning, markers_of
from specstream.engine.request import Request
from specstream.engine.slots import Slots
from specstream.errors import PromptError, SamplingError
from specstream.model.defaults import ModelDefaults
from specstream.model.processors import LogitsPipeline
from specstream.model.runner import ModelRunner
from specstream.speculation.proposal import Proposer
from specstream.types import Message

__all__ = ["SHORT_CHARS", "Admission"]

SHORT_CHARS = 4000
"""A prompt of at most so many characters is encoded between two rounds: it takes about 2 ms."""


class Admission:
    """Knows what a target can serve. Whatever can't be honoured is refused here, before round 0."""

    def __init__(
        self,
        config: EngineConfig,
        target: ModelRunner,
        tokenizer: PreTrainedTokenizerBase,
        proposer: Proposer,
        eos_ids: frozenset[int],
    ) -> None:
        self._target = target
        self._tokenizer, self._decoder = tokenizer, decoder_of(tokenizer)
        longest = max(len(token) for token in tokenizer.get_vocab())
        self._max_chars = longest * target.context_length
        self._prompts = PromptEncoder(tokenizer)
        # A tokenizer is one thread's: long prompts are encoded beside the engine's by a copy.
        self._beside = PromptEncoder(copy.deepcopy(tokenizer), warns=False)
        self._template_kwargs = config.chat_template_kwargs
        self._markers = markers_of(tokenizer) if config.reasoning == "apart" else None
        self._eos_ids = eos_ids
        own = getattr(getattr(target, "model", None), "generation_config", None)
        self._defaults = ModelDefaults.of(own if config.model_defaults else None)
        self._coupled = config.mode == "reproducible"
        wanted = config.proposer
        eager = isinstance(wanted, AutoProposerConfig) and wanted.objective == "first_phrase"
        self._phrases = PhraseLengths() if eager else None
        self.slots = Slots(target.new_cache, config.max_sessions, proposer.release)

    def is_long(self, request: Request) -> bool:
        """Whether encoding the request takes long enough for others to notice."""
        return _chars(request) + len(request.reference) > SHORT_CHARS

    def tokenize(self, request: Request, *, beside: bool = False) -> None:
        """Put the prompt and the reference into tokens, before the request is admitted.

        What can't fit whatever its tokens are is not encoded at all. ``beside``: this is not the
        engine's thread; no two others may do this at once.

        Raises:
            PromptError: the messages can't be encoded or leave no room.
        """
        context, chars = self._target.context_length, _chars(request)
        if chars > self._max_chars:
            raise PromptError(
                f"the prompt has {chars} characters; at most {self._max_chars} can fit into"
                f" the {context} tokens of the model's context; shorten it"
            )
        prompts = self._beside if beside else self._prompts
        options = {**self._template_kwargs, **request.template_kwargs}
        prompt = prompts.encode(request.messages, context, options)
        if request.reference:
            ids = prompts.encode_text(request.reference[: self._max_chars])
            request.reference_ids = [i for i in ids if i < self._target.vocab_size][:context]
        request.prompt = prompt

    def admit(self, request: Request) -> None:
        """Make a request ready for its first round.

        Raises:
            PromptError: the messages can't be encoded or leave no room.
            SamplingError: a parameter can't be honoured with this model.
        """
        target, params = self._target, request.params
        if request.prompt is None:
            self.tokenize(request)
        assert request.prompt is not None
        prompt, opened = request.prompt
        unread = [i for i in prompt if i >= target.model_vocab_size]
        if unread:
            raise PromptError(
                f"the prompt has {self._tokenizer.convert_ids_to_tokens(unread[0])!r}, for which the "
                f"model has no row ({target.model_vocab_size} rows); leave that out"
            )
        wrong = [i for i in params.stop_token_ids if not 0 <= i < target.vocab_size]
        if wrong:
            raise SamplingError(f"stop_token_ids names {wrong[0]}; there are {target.vocab_size}")
        params = self._defaults.applied(params, prompt, self._eos_ids, target.device)
        request.params = params
        processors = None
        if LogitsPipeline.needed(params):
            processors = LogitsPipeline(
                params, self._tokenizer, prompt, target.vocab_size, self._eos_ids, target.device
            )
        request.context_length, request.eos_ids = target.context_length, self._eos_ids
        if self._phrases is not None:
            request.first_phrase = FirstPhrase(self._phrases)
        request.reasoning = Reasoning(self._markers, opened, params.stop)
        slot, request.reused = self.slots.take(request.session, prompt)
        request.admit(slot, prompt, self._decoder, target.device, processors, coupled=self._coupled)

    def encode(
        self, messages: list[Message], template_kwargs: Mapping[str, Any] | None = None
    ) -> Prompt:
        """What the model reads before it replies to ``messages``.

        Raises:
            PromptError: see `PromptEncoder.encode`.
        """
        options = {**self._template_kwargs, **(template_kwargs or {})}
        return self._prompts.encode(messages, self._target.context_length, options)

    def leave(self, request: Request) -> None:
        """A request is over: keep its conversation's cache, drop any other. Idempotent."""
        if request.slot_state is not None:
            self.slots.give_back(request.slot_state, request.session, request.token_ids)
            request.slot_state = None


def _chars(request: Request) -> int:
    return sum(len(message["content"]) for message in request.messages)
