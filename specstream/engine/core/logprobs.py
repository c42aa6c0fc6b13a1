"""Log probabilities of the tokens that a round commits, in the target's own distribution."""

from __future__ import annotations

from functools import cached_property

import torch
from transformers import PreTrainedTokenizerBase

from specstream.drafting.proposal import Verdict
from specstream.errors import VocabularyMismatch
from specstream.model.tokens.spelling import Spelling
from specstream.types import TokenLogprob

__all__ = ["Logprobs"]


class Logprobs:
    """Reads log probabilities off the logits of a pass, with the bytes of each token."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._tokenizer = tokenizer

    def of(self, logits: torch.Tensor, verdict: Verdict, top: int) -> tuple[TokenLogprob, ...]:
        """Return one entry for each token that a round emits.

        Args:
            logits: ``[K + 1, V]``, the target's, before anything was done to them.
            verdict: Which of the K proposed tokens are accepted, and the token after them.
            top: How many of the likeliest tokens to tell with each.
        """
        rows = torch.tensor([0, *(node + 1 for node in verdict.path)], device=logits.device)
        logprobs = logits[rows].float().log_softmax(-1)
        written = torch.tensor(verdict.tokens, device=logits.device)[:, None]
        best = logprobs.topk(min(top, logprobs.shape[-1]))
        own: list[float] = logprobs.gather(-1, written)[:, 0].tolist()
        each = zip(verdict.tokens, own, best.indices.tolist(), best.values.tolist(), strict=True)
        return tuple(
            TokenLogprob(token, self._piece(token), value, self._likeliest(ids, values))
            for token, value, ids, values in each
        )

    def _likeliest(self, ids: list[int], values: list[float]) -> tuple[TokenLogprob, ...]:
        pairs = zip(ids, values, strict=True)
        return tuple(TokenLogprob(token, self._piece(token), value) for token, value in pairs)

    def _piece(self, token: int) -> bytes:
        if self._spelling is not None:
            return self._spelling.piece(token) or b""
        return str(self._tokenizer.decode([token])).encode()

    @cached_property
    def _spelling(self) -> Spelling | None:
        """The bytes of all tokens; None where the tokenizer doesn't tell them, and text must do."""
        try:
            return Spelling("the target", self._tokenizer)
        except VocabularyMismatch:
            return None
