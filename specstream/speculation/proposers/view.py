"""A request as a draft model sees it: with other token ids than its own."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from specstream.speculation.proposal import SpecRequest

__all__ = ["RequestView"]


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
