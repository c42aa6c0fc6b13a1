"""Grammar-constrained decoding through llguidance (optional extra ``grammar``)."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from specstream.errors import SamplingError
from specstream.types import Grammar

__all__ = ["GrammarState"]


class GrammarState:
    """Where one reply stands in its grammar."""

    def __init__(
        self, grammar: Grammar, tokenizer: Any, vocab_size: int, end_ids: frozenset[int]
    ) -> None:
        raise SamplingError('grammars need llguidance: pip install "specstream[grammar]"')

    def commit(self, token: int) -> None:
        """A token of the reply is final."""

    def mask(self, logits: Tensor, drafted: list[int]) -> None:
        """Set what the grammar forbids after the committed and ``drafted`` tokens to -inf, in place."""
