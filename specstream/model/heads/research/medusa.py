"""Medusa heads (arXiv 2401.10774): each predicts one of the next tokens from the last hidden state.

Three layouts are read: those of the original repository and of text-generation-inference
(``medusa_num_heads``; tensors ``0.0.linear.weight``, ``0.1.weight``, maybe with the prefix
``medusa_head.``), and vLLM's (``model_type`` medusa; ``blocks.0.layers.0.weight``,
``lm_heads.0.weight``, ``token_map``), in which heads are also written.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from specstream.errors import ModelBroken, ModelUnsupported
from specstream.model.heads.base import check_made_for, number, read_head_config, spread
from specstream.model.heads.tensors import Placed, Tensors
from specstream.model.layers import Product
from specstream.model.runner import ModelRunner

__all__ = ["MedusaHead", "MedusaShape", "is_medusa", "load", "plain_name"]

_MAX_BLOCKS = 32  # residual blocks of a head
_LOSSY = {"posterior_alpha", "posterior_threshold", "typical_acceptance"}


@dataclass(frozen=True, slots=True)
class MedusaShape:
    """Sizes of Medusa heads.

    Attributes:
        hidden: Size of the target's hidden states.
        vocab_size: Size of the target's vocabulary.
        draft_vocab_size: Number of tokens that can be drafted; ``vocab_size`` if all can.
        layers: Residual blocks of each head.
        shared: Whether all heads share one output head.
    """

    hidden: int
    vocab_size: int
    draft_vocab_size: int
    layers: int = 1
    shared: bool = False

    @classmethod
    def of(cls, config: Mapping[str, Any], *, hidden: int, vocab_size: int) -> MedusaShape:
        """The shape that a ``config.json`` describes.

        Args:
            config: In one of the layouts.
            hidden: The target's hidden size, which the original layout doesn't have.
            vocab_size: Size of the target's vocabulary.

        Raises:
            ModelBroken: a size isn't a positive whole number, or is out of range.
            ModelUnsupported: the heads were made for a target of other sizes.
        """
        if lossy := sorted(_LOSSY & config.keys()):
            raise ModelUnsupported(
                f"the Medusa heads ask for typical acceptance ({lossy[0]}), which changes the "
                "distribution of the text and is not offered; take it out of their config.json"
            )
        title = "the set of Medusa heads"
        told = number(config, "hidden_size", default=hidden)
        check_made_for(title, ("hidden states of size", told, hidden))
        whole = number(config, "vocab_size", default=vocab_size)
        if whole > vocab_size:  # fewer are no reason: a target's vocabulary may be padded
            check_made_for(title, ("a vocabulary of", whole, vocab_size))
        layers = number(config, "medusa_num_layers", "num_hidden_layers", default=1)
        if layers > _MAX_BLOCKS:
            raise ModelBroken(f"Medusa heads with {layers} blocks each; {_MAX_BLOCKS} at most")
        drafted = number(config, "truncated_vocab_size", default=whole)
        if drafted > whole:
            raise ModelBroken(f"truncated_vocab_size {drafted} is more than vocab_size {whole}")
        return cls(hidden, vocab_size, drafted, layers, bool(config.get("original_lm_head")))

    def config(self, heads: int) -> dict[str, Any]:
        """The content of ``config.json``, in vLLM's layout."""
        return {
            "architectures": ["MedusaModel"],
            "model_type": "medusa",
            "hidden_size": self.hidden,
            "vocab_size": self.vocab_size,
            "truncated_vocab_size": self.draft_vocab_size,
            "num_heads": heads,
            "num_hidden_layers": self.layers,
            "original_lm_head": self.shared,
            "medusa_fc_bias": True,
        }


def is_medusa(config: Mapping[str, Any]) -> bool:
    """Whether a ``config.json`` describes Medusa heads."""
    named = "MedusaModel" in (config.get("architectures") or ())
    return named or "medusa_num_heads" in config or config.get("model_type") == "medusa"


def plain_name(name: str) -> str:
    """The name in vLLM's layout of a tensor in any layout."""
    name = re.sub(r"^medusa_heads?\.", "", name)
    name = re.sub(r"^(\d+)\.(\d+)\.linear\.", r"blocks.\1.layers.\2.", name)
    return re.sub(r"^(\d+)\.\d+\.weight$", r"lm_heads.\1.weight", name)


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
    """Load the heads of a folder, in one of the layouts above.

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
        raise ModelBroken(f"{folder} names {told} Medusa heads in config.json and holds {head.heads}")
    tensors.check_all_taken(unless="lm_heads." if shape.shared else None)
    return head
