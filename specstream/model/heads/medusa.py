"""Medusa heads (arXiv 2401.10774): each predicts one of the next tokens from the last hidden state."""

from __future__ import annotations

from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from specstream.errors import ModelBroken
from specstream.model.heads.base import spread
from specstream.model.heads.medusa_format import MedusaShape, names
from specstream.model.heads.recognise import read_head_config
from specstream.model.heads.tensors import Placed, Tensors
from specstream.model.products import Product
from specstream.model.runner import ModelRunner

__all__ = ["MedusaHead", "load"]

_MOST_HEADS = 32


class MedusaHead:
    """All Medusa heads of a folder; a `Head`.

    Head k (from 0) reads the state, after the target's final norm, from which token t was predicted, and
    predicts token t + 1 + k. It consists of residual blocks ``x + SiLU(W x + b)`` and an output head,
    which may be its own, shared by all heads, or rows of the target's.

    Args:
        shape: Sizes.
        tensors: The weights; all that have known names are taken.
        target: The model that is drafted for.

    Raises:
        ModelBroken: a tensor is missing or malformed.
        ModelUnsupported: the target gives no hidden states.
    """

    kind = "medusa"

    def __init__(self, shape: MedusaShape, tensors: Tensors, target: ModelRunner) -> None:
        sizes = target.decoder.weights
        self.depth = len(sizes.layers)
        target.check_states((self.depth,))
        self.shape, self._decoder, self._tensors = shape, target.decoder, tensors
        self.device, self.dtype = target.device, sizes.dtype
        self._take = take = Placed(tensors, sizes.embedding)
        self._blocks = list[list[Product]]()
        while len(self._blocks) < _MOST_HEADS and self._has(len(self._blocks)):
            self._blocks.append([self._block(len(self._blocks), at) for at in range(shape.layers)])
        if not self._blocks:
            raise ModelBroken(
                f"{tensors.folder}: the tensor {self._block_names(0, 0)[0]} is missing"
            )
        self.ids = self._vocabulary()
        self._outputs = self._output_heads(sizes.head)
        self.parameters, self.nbytes = take.parameters, take.nbytes
        del self._tensors, self._take

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

    def _block_names(self, head: int, at: int) -> list[str]:
        return names(f"{head}.{at}.linear.weight", f"blocks.{head}.layers.{at}.weight")

    def _has(self, head: int) -> bool:
        return any(name in self._tensors for name in self._block_names(head, 0))

    def _block(self, head: int, at: int) -> Product:
        hidden, wanted = self.shape.hidden, self._block_names(head, at)
        weight, bias = self._take(wanted, hidden, hidden), None
        biases = [name.removesuffix("weight") + "bias" for name in wanted]
        if any(name in self._tensors for name in biases):
            bias = self._take(biases, hidden)
        return self._decoder.products(weight, bias)

    def _vocabulary(self) -> Tensor | None:
        """Each draft token's id in the target; None: the ids are the same."""
        wanted, count, folder = (
            names("token_map"),
            self.shape.draft_vocab_size,
            self._tensors.folder,
        )
        if not any(name in self._tensors for name in wanted):
            if self.shape.draft_vocab_size < self.shape.vocab_size and self._own(0) is None:
                raise ModelBroken(f"{folder}: the tensor token_map is missing")
            return None
        ids = self._tensors.take(wanted, (count,))
        if ids.is_floating_point() or ids.dtype is torch.bool:
            raise ModelBroken(f"{folder}: token_map holds {ids.dtype}, no ids")
        ids = ids.to(torch.int64)
        if int(ids.min()) < 0 or int(ids.max()) >= self.shape.vocab_size:
            raise ModelBroken(f"{folder}: token_map leads outside of the target's vocabulary")
        if int(ids.bincount().max()) > 1:
            raise ModelBroken(f"{folder}: token_map names a token twice")
        return ids.to(self.device)

    def _own(self, head: int) -> list[str] | None:
        """The names that a head's own output head may have; None: it has none."""
        wanted = names(f"{head}.{self.shape.layers}.weight", f"lm_heads.{head}.weight")
        return wanted if any(name in self._tensors for name in wanted) else None

    def _output_heads(self, lent: Tensor) -> list[Product] | None:
        """One output head for each head, or one for all; None: the target's whole output head."""
        shared = next((n for n in names("lm_head.weight") if n in self._tensors), None)
        first = self._own(0)
        if self.shape.shared or first is None:
            if shared is None and first is None:
                if self.ids is None:
                    return None
                rows = lent[self.ids]
                self._take.nbytes += rows.nbytes
                return [self._decoder.products(rows, None)]
            return [self._output([shared] if shared is not None else first or [])]
        every = [self._own(head) for head in range(self.heads)]
        return [
            self._output(one or names(f"{i}.{self.shape.layers}.weight"))
            for i, one in enumerate(every)
        ]

    def _output(self, wanted: list[str]) -> Product:
        rows = self._take(wanted, None, self.shape.hidden)
        if self.ids is not None and rows.shape[0] > self.ids.shape[0]:
            rows = rows[self.ids]
        limit = self.shape.vocab_size if self.ids is None else self.ids.shape[0]
        if rows.shape[0] > limit or (self.ids is not None and rows.shape[0] < limit):
            raise ModelBroken(
                f"{self._tensors.folder}: {wanted[0]} has {rows.shape[0]} rows for {limit} tokens"
            )
        return self._decoder.products(rows, None)


def load(folder: str | Path, target: ModelRunner) -> MedusaHead:
    """Load the heads of a folder; see `specstream.model.heads.medusa_format` for the layouts.

    Raises:
        ModelBroken: its files are damaged, or tensors are missing or of the wrong shape.
        ModelUnsupported: they were made for another target, or the target gives no hidden states.
    """
    model = target.model.config.get_text_config()
    hidden, size = int(model.hidden_size), int(model.vocab_size)
    target.check_states((int(model.num_hidden_layers),))
    config = read_head_config(folder)
    shape = MedusaShape.of(config, hidden=hidden, vocab_size=size)
    tensors = Tensors.read(folder, "medusa_lm_head.pt")
    head = MedusaHead(shape, tensors, target)
    told = config.get("num_heads", config.get("medusa_num_heads"))
    if isinstance(told, int) and told > head.heads:  # published folders may hold more than that
        raise ModelBroken(
            f"{folder} names {told} Medusa heads in config.json and holds {head.heads}"
        )
    left = tensors.left
    if left and not (shape.shared and all("lm_heads." in name for name in left)):
        raise ModelBroken(f"{folder}: these tensors belong to no known head: {left}")
    return head
