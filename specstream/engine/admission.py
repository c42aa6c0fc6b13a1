"""How a request gets in: its prompt encoded, its parameters checked, a cache taken for it."""

from __future__ import annotations

from transformers import PreTrainedTokenizerBase

from specstream.config import AutoProposerConfig, EngineConfig
from specstream.engine.detokenizer import decoder_of
from specstream.engine.phrase import FirstPhrase, PhraseLengths
from specstream.engine.prompt import encode_messages
from specstream.engine.request import Request
from specstream.engine.slots import Slots
from specstream.errors import PromptError, SamplingError
from specstream.model.processors import LogitsPipeline
from specstream.model.runner import ModelRunner
from specstream.spec.proposal import Proposer

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
        self._eos_ids = eos_ids
        self._coupled = config.mode == "reproducible"
        wanted = config.proposer
        eager = isinstance(wanted, AutoProposerConfig) and wanted.objective == "first_phrase"
        self._phrases = PhraseLengths() if eager else None
        self.slots = Slots(target.new_cache, config.max_sessions, proposer.release)

    def is_long(self, request: Request) -> bool:
        """Whether encoding the request takes long enough for others to notice."""
        return _chars(request) + len(request.reference) > SHORT_CHARS

    def encode(self, request: Request) -> None:
        """Put the prompt into tokens; any one thread may do this, before the request is admitted.

        What can't fit whatever its tokens are is not encoded at all.

        Raises:
            PromptError: the messages can't be encoded or leave no room.
        """
        context, chars = self._target.context_length, _chars(request)
        if chars > self._max_chars:
            raise PromptError(
                f"the prompt has {chars} characters; at most {self._max_chars} can fit into"
                f" the {context} tokens of the model's context; shorten it"
            )
        prompt = encode_messages(self._tokenizer, request.messages, context)
        if request.reference:
            text = request.reference[: self._max_chars]
            reference = self._tokenizer.encode(text, add_special_tokens=False)
            request.reference_ids = [int(i) for i in reference][:context]
        request.prompt = prompt

    def admit(self, request: Request) -> None:
        """Make a request ready for its first round.

        Raises:
            PromptError: the messages can't be encoded or leave no room.
            SamplingError: a parameter can't be honoured with this model.
        """
        target, params = self._target, request.params
        if request.prompt is None:
            self.encode(request)
        prompt = request.prompt
        assert prompt is not None
        wrong = [i for i in params.stop_token_ids if not 0 <= i < target.vocab_size]
        if wrong:
            raise SamplingError(f"stop_token_ids names {wrong[0]}; there are {target.vocab_size}")
        processors = None
        if LogitsPipeline.needed(params):
            processors = LogitsPipeline(
                params, self._tokenizer, prompt, target.vocab_size, self._eos_ids, target.device
            )
        request.context_length, request.eos_ids = target.context_length, self._eos_ids
        if self._phrases is not None:
            request.first_phrase = FirstPhrase(self._phrases)
        slot, request.reused = self.slots.take(request.session, prompt)
        request.admit(slot, prompt, self._decoder, target.device, processors, coupled=self._coupled)

    def leave(self, request: Request) -> None:
        """A request is over: keep its conversation's cache, drop any other. Idempotent."""
        if request.slot_state is not None:
            self.slots.give_back(request.slot_state, request.session, request.token_ids)
            request.slot_state = None


def _chars(request: Request) -> int:
    return sum(len(message["content"]) for message in request.messages)
