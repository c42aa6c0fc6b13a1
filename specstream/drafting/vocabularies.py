"""A draft with another vocabulary than the target's: common tokens, and a request in its ids."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from specstream.drafting.proposal import SpecRequest
from specstream.model.forward import ForwardInput, ForwardOutput
from specstream.model.graphs import Draws
from specstream.model.heads.base import spread
from specstream.model.kv import KVCache
from specstream.model.runner import ModelRunner
from specstream.model.tokens.spelling import StopRule
from specstream.model.tokens.vocabulary import Translation
from specstream.types import SamplingParams

__all__ = ["IntersectionRunner", "Rendered", "RequestView"]


class IntersectionRunner:
    """A draft model that reads and writes the target's token ids; like a `ModelRunner`.

    Logits are as wide as the target's. Input ids are the target's ids of common tokens, or any of the
    draft's own ids plus ``shift``.

    Attributes:
        shift: The width of the target's logits.
        model_vocab_size: The number of input ids.
        vocab_size: The width of its logits.
    """

    def __init__(self, runner: ModelRunner, translation: Translation) -> None:
        self._runner = runner
        self.device = runner.device
        self.context_length = runner.context_length
        self.shift = self.vocab_size = width = translation.target_rows
        self.model_vocab_size = width + translation.draft_rows
        pairs = torch.tensor(translation.pairs, device=runner.device)
        self._target_ids, self._draft_ids = pairs[:, 0].contiguous(), pairs[:, 1].contiguous()
        # A target id without a counterpart is never drawn, so its entry (0) is never used.
        self._own = torch.zeros(width + translation.draft_rows, dtype=torch.int64)
        self._own = self._own.to(runner.device)
        self._own[self._target_ids] = self._draft_ids
        self._own[width:] = torch.arange(translation.draft_rows, device=runner.device)

    def new_cache(self) -> KVCache:
        """An empty cache for one sequence."""
        return self._runner.new_cache()

    def forward(self, inputs: Sequence[ForwardInput]) -> ForwardOutput:
        """As `ModelRunner.forward`, with ids and logits as the class describes."""
        own = [replace(item, token_ids=self._own[item.token_ids]) for item in inputs]
        return ForwardOutput([self._common(one) for one in self._runner.forward(own).logits])

    def chain(
        self, token_ids: Tensor, cache: KVCache, most: int, stop: StopRule | None = None
    ) -> tuple[Tensor, Tensor] | None:
        """None: a chain in one call would choose among all of the draft's tokens."""
        return None

    @property
    def captured_steps(self) -> int:
        """0, for the same reason."""
        return 0

    def chains(
        self, tokens: Sequence[Tensor], caches: Sequence[KVCache], draws: Draws | None = None
    ) -> None:
        """None, for the same reason."""
        return None

    def _common(self, logits: Tensor) -> Tensor:
        return spread(logits[:, self._draft_ids], self._target_ids, self.shift)


_versions = itertools.count()


class RequestView:
    """A `SpecRequest` as it is at this moment, with other token ids.

    Args:
        request: The request that is viewed.
        token_ids: The ids that the draft reads instead of the request's own.
    """

    def __init__(self, request: SpecRequest, token_ids: list[int]) -> None:
        self.request, self.token_ids = request, token_ids
        self.slot, self.id, self.params = request.slot, request.id, request.params
        self.prompt_length, self.reference_ids = request.prompt_length, request.reference_ids

    def process(self, logits: Tensor, drafted: Sequence[int] | Tensor) -> Tensor:
        """See `SpecRequest.process`."""
        return self.request.process(logits, drafted)

    def draw(self, probs: Tensor, position: int, ids: Tensor | None = None) -> Tensor:
        """See `SpecRequest.draw`."""
        return self.request.draw(probs, position, ids)


class Rendered(RequestView):
    """A request as the draft sees it: with the draft's token ids.

    Each view has an id of its own, so that `DraftModelProposer` takes it for a new request and compares
    its cache with the tokens: re-encoding may have changed some of them.
    """

    def __init__(self, request: SpecRequest, token_ids: list[int], params: SamplingParams) -> None:
        super().__init__(request, token_ids)
        self.id, self.params = next(_versions), params
        # Where the reply begins isn't tracked in the draft's tokens, and there is no reference in them.
        self.prompt_length, self.reference_ids = len(token_ids), []

    def draw(self, probs: Tensor, position: int, ids: Tensor | None = None) -> Tensor:
        """Draw with the request's noise, the position converted to one in the target's tokens."""
        ahead = position - len(self.token_ids)
        return self.request.draw(probs, len(self.request.token_ids) + ahead, ids)
