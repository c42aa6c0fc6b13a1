"""Admission of a request: shorten and encode its prompt, check its parameters, reserve a KV cache."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache
from itertools import accumulate
from typing import Any

from transformers import PreTrainedTokenizerBase

from specstream.config import EngineConfig
from specstream.drafting.noise import Noise
from specstream.engine.core.detokenizer import Repeats, decoder_of
from specstream.engine.core.output import ReplyOutput
from specstream.engine.core.prompt import EncodedPrompt, PromptEncoder, raw_tokens, texts_of
from specstream.engine.core.reasoning import Reasoning, markers_of
from specstream.engine.core.request import Request, TokenSequence
from specstream.engine.core.slots import Slots
from specstream.engine.tools.calls import Calls
from specstream.engine.tools.formats import CallFormat, format_of, with_choice
from specstream.errors import EngineBusy, PromptError, PromptTooLong, SamplingError
from specstream.model.defaults import ModelDefaults, manner_of
from specstream.model.runner import ModelRunner
from specstream.model.tokens.processors import LogitsPipeline, ModelFacts
from specstream.params import Truncation
from specstream.types import Message, SamplingParams, Tools

__all__ = ["SHORT_CHARS", "Admission", "fitting"]

_PER_MESSAGE = 8  # tokens that a chat template adds to a message, more than most do


def _chars_of(messages: Sequence[Message]) -> int:
    return sum(len(text) for message in messages for text in texts_of(message))


def fitting(
    messages: Sequence[Message], count: Callable[[str], int], room: int, how: Truncation
) -> list[Message]:
    """Return the messages that stay, so that all of them are about ``room`` tokens or fewer.

    System messages at the beginning stay, and so does the last turn of the user with what follows. The
    rest begins with a turn of the user. Where the cut is depends on nothing but the messages: they are
    gone through from the first, and whenever those up to a reply had outgrown the room, the oldest left
    until ``how.retention_ratio`` of the room was filled. So the next prompts begin alike and their keys
    and values stay in the cache.

    Args:
        messages: A conversation.
        count: The tokens of a text.
        room: Tokens that the prompt may have.
        how: When and how much to cut.
    """
    sizes = [_PER_MESSAGE + sum(map(count, texts_of(message))) for message in messages]
    first = next((i for i, m in enumerate(messages) if m["role"] != "system"), len(messages))
    room -= sum(sizes[:first])
    if how.post_instructions is not None:
        room = min(room, how.post_instructions)
    before = [0, *accumulate(sizes)]  # tokens of the messages before each
    start = turn = first  # turn: the last one of the user so far
    for i, message in enumerate(messages[first:], first):
        turn = i if message["role"] == "user" else turn
        answered = i + 1 == len(messages) or messages[i + 1]["role"] == "assistant"
        if answered and before[i + 1] - before[start] > room:
            enough = before[i + 1] - how.retention_ratio * room
            turns = (j for j in range(start + 1, turn) if messages[j]["role"] == "user")
            start = next((j for j in turns if before[j] >= enough), turn)
    return [*messages[:first], *messages[start:]]


SHORT_CHARS = 4000
"""Longest prompt, in characters, that is encoded between two rounds (about 2 ms); see `is_long`."""

_ATTEMPTS = 4  # at shortening a conversation


class Admission:
    """Turns requests into sequences to decode; refuses before the first round what can't be served.

    Attributes:
        prompts: Encodes the conversations.
    """

    def __init__(
        self,
        config: EngineConfig,
        target: ModelRunner,
        tokenizer: PreTrainedTokenizerBase,
        slots: Slots,
        eos_ids: frozenset[int],
    ) -> None:
        self._target, self._slots, self._eos_ids = target, slots, eos_ids
        self._tokenizer, self._decoder = tokenizer, decoder_of(tokenizer)
        longest = max(len(token) for token in tokenizer.get_vocab())
        self._max_chars = longest * target.context_length
        self.prompts = PromptEncoder(tokenizer)
        # A tokenizer must be used by one thread only: long prompts are encoded on a second, by a copy.
        self._copy = PromptEncoder(copy.deepcopy(tokenizer), warns=False)
        self._template_kwargs = config.chat_template_kwargs
        self._calls: CallFormat | PromptError
        try:
            self._calls = format_of(tokenizer)
        except PromptError as error:
            self._calls = error
        self._markers = markers_of(tokenizer) if config.reasoning == "apart" else None
        own = target.model.generation_config if config.model_defaults else None
        self._defaults = ModelDefaults.of(own)
        self.manner = manner_of(own)
        self._reproducible = config.mode == "reproducible"

    @property
    def no_tools(self) -> str | None:
        """Why the model can't call tools; None if it can."""
        return str(self._calls) if isinstance(self._calls, PromptError) else None

    def is_long(self, request: Request) -> bool:
        """Whether encoding the prompt takes so long that it would delay the rounds of other requests."""
        return _chars(request) + len(request.reference) > SHORT_CHARS

    def tokenize(self, request: Request, *, aside: bool = False) -> None:
        """Encode the prompt and the reference text of a request, and store their ids in it.

        A prompt with more characters than the longest tokens could cover within the context is refused
        without being encoded. With ``aside`` a copy of the tokenizer is used, so that a second thread
        may call this, one request at a time.

        Raises:
            PromptError: the messages can't be encoded or leave no room, or the model takes no tools.
        """
        context = self._target.context_length
        prompts = self._copy if aside else self.prompts
        prompt = self._shortened(request, prompts)
        if request.reference:
            ids = prompts.encode_text(request.reference[: self._max_chars])
            request.reference_ids = [i for i in ids if i < self._target.vocab_size][:context]
        request.prompt = prompt

    def _shortened(self, request: Request, prompts: PromptEncoder) -> EncodedPrompt:
        """Encode the prompt, without the oldest turns if the request allows that and it must be."""
        context, messages = self._target.context_length, request.messages
        known = range(self._target.vocab_size)
        if unknown := [one for one in raw_tokens(messages) if one not in known]:
            raise PromptError(f"the model has no token {unknown[0]}: they are 0 to {known[-1]}")
        options = {**self._template_kwargs, **request.template_kwargs}
        tools = self._told(request.tools)
        if request.truncation is not None:
            most = context - min(request.params.max_tokens, context // 4)

            @cache
            def count(text: str) -> int:  # one that can't fit isn't encoded to know it
                return prompts.count(text) if len(text) <= self._max_chars else context + 1

            room = most - (count(json.dumps([t.schema() for t in tools.tools])) if tools else 0)
            for _ in range(_ATTEMPTS):
                kept = fitting(messages, count, room, request.truncation)
                request.truncated = len(messages) - len(kept)
                if _chars_of(kept) <= self._max_chars:
                    with suppress(PromptTooLong):
                        return prompts.encode(kept, most + 1, options, tools)
                room -= context // 16  # the template adds more to a message than was thought
            messages = kept
        chars = _chars_of(messages)
        if chars > self._max_chars:
            raise PromptTooLong(
                f"the prompt has {chars} characters; at most {self._max_chars} can fit into"
                f" the {context} tokens of the model's context; shorten it"
            )
        return prompts.encode(messages, context, options, tools)

    def _told(self, tools: Tools | None) -> Tools | None:
        """Return the tools that the prompt describes; none if the request rules out calls."""
        if tools is None or tools.choice == "none":
            return None
        if isinstance(self._calls, PromptError):
            raise PromptError(str(self._calls))
        return tools

    def encode(
        self, messages: list[Message], template_kwargs: Mapping[str, Any] | None = None
    ) -> EncodedPrompt:
        """Encode ``messages`` as the prompt of a reply, without a request.

        Raises:
            PromptError: see `PromptEncoder.encode`.
        """
        options = {**self._template_kwargs, **(template_kwargs or {})}
        return self.prompts.encode(messages, self._target.context_length, options)

    def admit(self, request: Request) -> bool:
        """Make a request ready for its first round; False if it must wait until memory becomes free.

        Raises:
            PromptError: the messages can't be encoded or leave no room.
            SamplingError: a parameter can't be honoured with this model.
            EngineBusy: the device has no memory for the prompt even though no other request runs.
        """
        if request.prompt is None:
            self.tokenize(request)
        assert request.prompt is not None
        prompt, opened, _ = request.prompt
        target = self._target
        params, calls = request.params, None
        if request.tools is not None and isinstance(self._calls, CallFormat):
            tools = request.tools
            if not self._calls.several:
                tools = replace(tools, parallel=False)
            params = with_choice(params, tools, self._calls, opened)
            if tools.choice != "none":
                calls = Calls(self._calls, tools)
        params = self._checked(params, prompt)
        limit = min(len(prompt) + params.max_tokens, target.context_length)
        if not self._has_room(request.session, len(prompt), limit):
            return False
        request.params = params
        processors = None
        if not params.plain_logits:
            facts = ModelFacts(self._tokenizer, prompt, target.vocab_size, self._eos_ids, target.device)
            processors = LogitsPipeline(params, facts)
        reuse = params.prompt_logprobs is None
        slot, request.reused = self._slots.take(request.session, prompt, limit, reuse=reuse)
        sampled_with_seed = params.seed is not None and not params.greedy
        sequence = TokenSequence(
            id=request.id,
            held=slot,
            token_ids=list(prompt),
            params=params,
            limit=limit,
            noise=Noise(
                request.noise if params.seed is None else params.seed,
                keyed=self._reproducible or sampled_with_seed,
            ),
            eos_ids=self._eos_ids,
            reference_ids=request.reference_ids,
            processors=processors,
            most_drafted=0 if request.proposer == "off" else request.most_drafted,
        )
        reasoning = Reasoning(self._markers, opened, params.stop)
        repeats = Repeats(params.max_repeats) if params.max_repeats else None
        output = ReplyOutput(self._decoder, params.stop, reasoning, calls, repeats)
        request.admitted = sequence, output
        return True

    def _checked(self, params: SamplingParams, prompt: list[int]) -> SamplingParams:
        """Check token ids of prompt and parameters; apply the model's defaults to the parameters."""
        target = self._target
        missing = [i for i in prompt if i >= target.model_vocab_size]
        if missing:
            raise PromptError(
                f"the prompt has {self._tokenizer.convert_ids_to_tokens(missing[0])!r}, for which the "
                f"model has no row ({target.model_vocab_size} rows); leave this text out"
            )
        wrong = [i for i in params.stop_token_ids if not 0 <= i < target.vocab_size]
        if wrong:
            raise SamplingError(f"stop_token_ids names {wrong[0]}; there are {target.vocab_size}")
        return self._defaults.applied(params, prompt, self._eos_ids, target.device)

    def _has_room(self, session: str | None, prompt: int, limit: int) -> bool:
        """Whether a cache of ``limit`` tokens fits into memory; if not, running requests must end first.

        While no other request runs, room for the prompt alone is enough: the reply may then end early.

        Raises:
            EngineBusy: no other request runs, and not even the prompt fits.
        """
        if self._slots.has_room(session, limit):
            return True
        if not self._slots.in_use:
            if self._slots.has_room(session, prompt):
                return True
            raise EngineBusy(
                f"the device has no memory for the keys and values of {prompt} tokens; shorten the "
                "prompt, or free memory on the device"
            )
        return False

    def leave(self, request: Request) -> None:
        """Give back the cache of an ended request: kept if it belongs to a conversation. Idempotent."""
        if request.admitted is not None and request.sequence.held is not None:
            self._slots.give_back(request.sequence.held, request.token_ids)
            request.sequence.held = None


def _chars(request: Request) -> int:
    tools = request.tools.tools if request.tools is not None else ()
    told = _chars_of(request.messages) + len(raw_tokens(request.messages))
    return sum(len(str(t.schema())) for t in tools) + told
