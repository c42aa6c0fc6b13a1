"""A request as a draft model sees it: with other token ids than its own."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from specstream.speculation.proposal import SpecRequest
from specstream.types import SamplingParams

__all__ = ["RequestView"]


class RequestView:
    """A `SpecRequest` that passes everything on to another request, except for the token ids.

    Args:
        request: The request that is viewed.
        token_ids: The ids that the draft reads instead of the request's own.
    """

    def __init__(self, request: SpecRequest, token_ids: list[int]) -> None:
        self.request, self.token_ids = request, token_ids

    @property
    def slot(self) -> int:
        """See `SpecRequest`, as for all attributes below."""
        return self.request.slot

    @property
    def id(self) -> int:
        """As above."""
        return self.request.id

    @property
    def prompt_length(self) -> int:
        """As above."""
        return self.request.prompt_length

    @property
    def reference_ids(self) -> list[int]:
        """As above."""
        return self.request.reference_ids

    @property
    def params(self) -> SamplingParams:
        """As above."""
        return self.request.params

    @property
    def phrase_left(self) -> int | None:
        """As above."""
        return self.request.phrase_left

    def process(self, logits: Tensor, drafted: Sequence[int] | Tensor) -> Tensor:
        """As above."""
        return self.request.process(logits, drafted)

    def draw(self, probs: Tensor, position: int, ids: Tensor | None = None) -> Tensor:
        """As above."""
        return self.request.draw(probs, position, ids)
