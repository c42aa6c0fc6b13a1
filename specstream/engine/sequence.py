"""The tokens of one request, with the state that drafting and verification need."""

from __future__ import annotations

from collections import abc
from dataclasses import dataclass, field

from torch import Tensor

from specstream.engine.phrase import FirstPhrase
from specstream.engine.slots import Slot
from specstream.model.kv import KVCache
from specstream.model.processors import LogitsPipeline, Processed
from specstream.speculation.noise import Noise
from specstream.speculation.proposal import Proposal
from specstream.types import SamplingParams

__all__ = ["TokenSequence"]


@dataclass(slots=True, eq=False)
class TokenSequence:
    """Prompt and reply of one request as the models see them; to a proposer it is a `SpecRequest`."""

    id: int
    held: Slot | None  # the target's cache; None once the request has ended
    token_ids: list[int]
    params: SamplingParams
    limit: int  # maximum length in tokens, prompt included
    noise: Noise
    eos_ids: frozenset[int] = frozenset()
    reference_ids: list[int] = field(default_factory=list)
    processors: LogitsPipeline | None = None  # None if no logits processor is needed
    phrase: FirstPhrase | None = None  # None unless the objective is the first phrase
    speculates: bool = True  # False turns drafting off
    prompt_length: int = field(init=False)
    slot: int = field(init=False)  # the slot's id, which stays valid after the slot was given back

    def __post_init__(self) -> None:
        assert self.held is not None
        self.slot, self.prompt_length = self.held.id, len(self.token_ids)

    @property
    def cache(self) -> KVCache:
        """The target's cache."""
        assert self.held is not None
        return self.held.cache

    @property
    def unread(self) -> int:
        """Tokens that the target has not read yet; the last one is always among them."""
        return len(self.token_ids) - self.cache.length

    @property
    def generated(self) -> int:
        """Committed tokens of the reply."""
        return len(self.token_ids) - self.prompt_length

    @property
    def room(self) -> int:
        """How many more tokens the reply may have."""
        return self.limit - len(self.token_ids)

    @property
    def phrase_left(self) -> int | None:
        """About how many tokens the first speakable phrase still lacks (see `FirstPhrase`)."""
        return self.phrase.left if self.phrase is not None else None

    def draw(self, probs: Tensor, position: int, ids: Tensor | None = None) -> Tensor:
        """Draw an index ``[1]`` from ``probs [1, n]`` for the draft (see `SpecRequest.draw`)."""
        return self.noise.draw(probs, position, ids)

    def process(self, logits: Tensor, drafted: abc.Sequence[int] | Tensor) -> Tensor:
        """Process logits ``[V]`` after ``token_ids`` and ``drafted``; unchanged if that fails."""
        if self.processors is None:
            return logits
        return self.processors.apply(logits, self.token_ids, drafted)

    def process_rows(self, logits: Tensor, proposal: Proposal) -> Processed:
        """Process logits ``[K + 1, V]``, each row in the context of the proposed tokens before it."""
        if self.processors is None:
            return Processed(logits)
        return self.processors.apply_rows(logits, self.token_ids, proposal.tokens, proposal.paths)
