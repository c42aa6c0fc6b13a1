"""Medusa heads (arXiv 2401.10774): each predicts one of the next tokens from the last hidden state."""

from __future__ import annotations

from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from specstream.errors import ModelBroken
from specstream.model.heads.base import spread
from specstream.model.heads.recognise import read_head_config
from specstream.model.heads.research.medusa_format import MedusaShape, plain_name
from specstream.model.heads.tensors import Placed, Tensors
from specstream.model.layers import Product
from specstream.model.runner import ModelRunner

__all__ = ["MedusaHead", "load"]

_MOST_HEADS = 32
_FIRST_OUTPUT = "lm_heads.0.weight"


class MedusaHead:
    """All Medusa heads of a folder; a `Head`.

    Head k (from 0) reads the state, after the target's final norm, from which token t was predicted, and
    predicts token t + 1 + k. It consists of residual blocks ``x + SiLU(W x + b)`` and an output head,
    which may be its own, shared by all heads, or rows of the target's.

    Args:
        shape: Sizes.
        tensors: The weights, with the names of `plain_name`; all that are known are taken.
        target: The model that is drafted for.

    Raises:
        ModelBroken: a tensor is missing or malformed.
        ModelUnsupported: the target gives no hidden states.
    """

    kind = "medusa"

    def __init__(self, shape: MedusaShape, tensors: Tensors, target: ModelRunner) -> None:
        sizes = target.decoder.weights
        self.depths: tuple[int, ...] = (len(sizes.layers),)
        target.check_states(self.depths)
        self.shape, self._decoder = shape, target.decoder
        self.device, self.dtype = target.device, sizes.dtype
        take = Placed(tensors, sizes.embedding)
        count = 1
        while count < _MOST_HEADS and f"blocks.{count}.layers.0.weight" in tensors:
            count += 1
        self._blocks = [
            [self._block(take, f"blocks.{head}.layers.{at}") for at in range(shape.layers)]
            for head in range(count)
        ]
        self.ids: Tensor | None = None
        pruned = shape.draft_vocab_size < shape.vocab_size and _FIRST_OUTPUT not in tensors
        if pruned or "token_map" in tensors:
            ids = tensors.take_ids("token_map", shape.draft_vocab_size, shape.vocab_size)
            self.ids = ids.to(self.device)
        self._outputs = self._output_heads(take, sizes.head)
        self.parameters, self.nbytes = take.parameters, take.nbytes

    @property
    def heads(self) -> int:
        """The number of heads, each of which predicts one token."""
        return len(self._blocks)

    def normed(self, states: Tensor) -> Tensor:
        """The inputs of the heads: states ``[n, hidden]`` after the target's final norm."""
        return self._decoder.normed(states)

    def __call__(self, states: Tensor, heads: int) -> Tensor:
        """Logits ``[heads, n, draft vocabulary]`` of the first heads, for normed ``[n, hidden]``."""
        each = list[Tensor]()
        for blocks in self._blocks[:heads]:
            x = states
            for block in blocks:
                x = x + F.silu(block(x))
            each.append(x)
        if self._outputs is None:
            logits = self._decoder.logits(torch.cat(each))
        elif len(self._outputs) == 1:
            logits = self._outputs[0](torch.cat(each))
        else:
            return torch.stack([out(x) for out, x in zip(self._outputs, each, strict=False)])
        return logits.view(len(each), states.shape[0], -1)

    def whole(self, logits: Tensor) -> Tensor:
        """Spread logits ``[..., draft vocabulary]`` over the target's: -inf for all other tokens."""
        return spread(logits, self.ids, self.shape.vocab_size)

    def _block(self, take: Placed, name: str) -> Product:
        hidden = self.shape.hidden
        weight, bias = take(f"{name}.weight", hidden, hidden), None
        if f"{name}.bias" in take.tensors:
            bias = take(f"{name}.bias", hidden)
        return self._decoder.products(weight, bias)

    def _output_heads(self, take: Placed, lent: Tensor) -> list[Product] | None:
        """One output head for each head, or one for all; None: the target's whole output head."""
        if _FIRST_OUTPUT in take.tensors and not self.shape.shared:
            return [self._output(take, f"lm_heads.{head}.weight") for head in range(self.heads)]
        for name in ("lm_head.weight", _FIRST_OUTPUT):
            if name in take.tensors:
                return [self._output(take, name)]
        if self.ids is None:
            return None
        return [self._decoder.products(take.rows(lent, self.ids), None)]

    def _output(self, take: Placed, name: str) -> Product:
        rows = take(name, None, self.shape.hidden)
        if self.ids is not None and rows.shape[0] > self.ids.shape[0]:
            rows = rows[self.ids]
        limit = self.shape.vocab_size if self.ids is None else self.ids.shape[0]
        if rows.shape[0] > limit or (self.ids is not None and rows.shape[0] < limit):
            raise ModelBroken(
                f"{take.tensors.folder}: {name} has {rows.shape[0]} rows for {limit} tokens"
            )
        return self._decoder.products(rows, None)


def load(folder: str | Path, target: ModelRunner) -> MedusaHead:
    """Load the heads of a folder; see `specstream.model.heads.research.medusa_format` for the layouts.

    Raises:
        ModelBroken: its files are damaged, or tensors are missing or of the wrong shape.
        ModelUnsupported: they were made for another target.
    """
    config, sizes = read_head_config(folder), target.decoder.weights
    shape = MedusaShape.of(config, hidden=sizes.hidden, vocab_size=sizes.vocab_size)
    tensors = Tensors.read(folder, "medusa_lm_head.pt").renamed(plain_name)
    head = MedusaHead(shape, tensors, target)
    told = config.get("num_heads", config.get("medusa_num_heads"))
    if isinstance(told, int) and told > head.heads:  # published folders may hold more than that
        raise ModelBroken(
            f"{folder} names {told} Medusa heads in config.json and holds {head.heads}"
        )
    tensors.check_all_taken(unless="lm_heads." if shape.shared else None)
    return head
