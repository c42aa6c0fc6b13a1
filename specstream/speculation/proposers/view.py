"""A request as a draft model sees it: with other token ids than its own."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from torch import Tensor

from specstream.speculation.proposal import SpecRequest
from specstream.types import SamplingParams

__all__ = ["Rendered", "RequestView"]

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
        self.phrase_left = request.phrase_left

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
