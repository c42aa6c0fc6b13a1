"""Runs one model over one or several sequences; the only caller of a model's forward."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedModel

from specstream.model.cache import KVCache, check_supported

__all__ = ["ForwardInput", "ModelRunner"]


@dataclass(frozen=True, slots=True)
class ForwardInput:
    """Tokens to append to one sequence.

    Attributes:
        token_ids: ``[n]`` int64 on the runner's device, n >= 1.
        cache: The sequence's cache; grows by n rows.
        keep: For how many of the last tokens logits are wanted.
    """

    token_ids: Tensor
    cache: KVCache
    keep: int = 1


class ModelRunner:
    """A target or a draft, ready to run.

    ``vocab_size`` fixes the width of the logits: two models with one tokenizer often pad their
    output layers differently, and both sides of a verdict need the same width.

    With ``fixed_width`` W every pass has exactly W tokens (filled up with junk whose rows are taken
    back) over a cache that always shows its whole capacity. Floating-point sums then have one order,
    so a token's logits don't depend, to the last bit, on how many tokens were judged along with it.

    ``context_length`` bounds the context below what the model itself could take.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        vocab_size: int | None = None,
        fixed_width: int | None = None,
        context_length: int | None = None,
    ) -> None:
        check_supported(model.config)
        self.model: PreTrainedModel = model
        self.device = model.device
        self.dtype = model.dtype
        text = model.config.get_text_config()
        self.model_vocab_size = int(text.vocab_size)
        self.vocab_size = vocab_size or self.model_vocab_size
        own = int(getattr(text, "max_position_embeddings", 0) or 2**31)
        # Junk that fills a pass up has positions too, and a model may have no more than its own.
        own -= fixed_width or 0
        self.context_length = min(own, context_length or own)
        self.fixed_width = fixed_width
        self.forwards = 0

    def new_cache(self) -> KVCache:
        """An empty cache for one sequence."""
        width = self.fixed_width
        return KVCache(self.model.config, self.context_length + 4 * width if width else None)

    def forward(self, inputs: Sequence[ForwardInput]) -> list[Tensor]:
        """Append tokens to each sequence and return its logits, ``[keep, vocab_size]`` each.

        The rows of a sequence don't depend on what else is in ``inputs``.
        """
        return [self._one(item) for item in inputs]

    @torch.inference_mode()
    def warm_up(self) -> None:
        """Run the shapes of a prompt and of a round once, so that no request pays for the first."""
        cache = self.new_cache()
        for width in (self.fixed_width,) if self.fixed_width else (16, 5, 1):
            tokens = torch.zeros(width, dtype=torch.int64, device=self.device)
            self.forward([ForwardInput(tokens, cache)])
        self.forwards = 0

    def _one(self, item: ForwardInput) -> Tensor:
        self.forwards += 1
        tokens, count, cache = item.token_ids, item.token_ids.shape[0], item.cache
        before, last = cache.length, item.keep
        if self.fixed_width is not None:
            junk = self.fixed_width - count
            if junk < 0:
                raise ValueError(
                    f"a pass of fixed width {self.fixed_width} can't take {count} tokens"
                )
            tokens, last = torch.cat([tokens, tokens.new_zeros(junk)]), self.fixed_width
        logits: Tensor = self.model(
            input_ids=tokens.unsqueeze(0),
            past_key_values=cache.transformers,
            use_cache=True,
            logits_to_keep=last,
        ).logits[0, -last:]
        if self.fixed_width is not None:
            cache.rollback_to(before + count)
            logits = logits[count - item.keep : count]
        return self._fit(logits)

    def _fit(self, logits: Tensor) -> Tensor:
        surplus = logits.shape[-1] - self.vocab_size
        if surplus > 0:
            return logits[..., : self.vocab_size]
        if surplus < 0:
            pad = logits.new_full((*logits.shape[:-1], -surplus), -torch.inf)
            return torch.cat([logits, pad], dim=-1)
        return logits
