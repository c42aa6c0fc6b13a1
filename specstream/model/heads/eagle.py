"""EAGLE-3 heads (arXiv 2503.01840): one decoder layer over the target's hidden states.

A row reads a feature, fused from the states of several (usually three) of the target's layers, and the
embedding of the token after it, and predicts the token after that. For deeper levels of a draft the
head's own output takes the feature's place.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from specstream.errors import ModelBroken
from specstream.model.attention.base import Batch
from specstream.model.heads.base import Level, check_made_for, likeliest
from specstream.model.heads.eagle_format import EagleShape, read_shape
from specstream.model.heads.layer import FeatureLayer, head_weights, layer_weights, rotary_of
from specstream.model.heads.recognise import read_head_config
from specstream.model.heads.tensors import Placed, Tensors
from specstream.model.kv.base import ContiguousCache
from specstream.model.layers import Norm, rms_norm
from specstream.model.native.chain import NativeLevel
from specstream.model.native.matrix import NativeMatrix
from specstream.model.runner import ModelRunner

__all__ = ["EagleHead", "load"]


class EagleHead:
    """An EAGLE-3 head, ready to draft; a `FeatureHead`.

    Args:
        shape: Sizes and variants.
        tensors: The tensors of its folder.
        target: The model that it drafts for, whose embedding and output head are used where the folder
            has none.

    Raises:
        ModelBroken: a tensor is missing or has another shape.
    """

    kind, title = "eagle", "the EAGLE head"

    def __init__(self, shape: EagleShape, tensors: Tensors, target: ModelRunner) -> None:
        self.shape, self.device, self.dtype = shape, target.device, target.dtype
        self._target = target
        self.depths, self.width = shape.depths, shape.hidden
        s, taps = shape, len(shape.depths)
        like = target.decoder.weights
        products = target.decoder.products
        norms, take = partial(rms_norm, eps=s.eps), Placed(tensors, like.embedding)
        self._fc = products(take("fc.weight", s.hidden, taps * s.target_hidden))
        self._tap_norms: list[Norm] = []
        if s.fc_norm:
            names = [f"fc_norm.{tap}.weight" for tap in range(taps)]
            self._tap_norms = [norms(take(name, s.target_hidden)) for name in names]
        self._fc_norm: Norm | None = None
        if s.norm_before_fc:
            self._fc_norm = norms(take("input_norm.weight", taps * s.target_hidden))

        def of_layer(name: str, *sizes: int) -> Tensor:
            return take(f"midlayer.{name}", *sizes)

        embedding_norm = of_layer("input_layernorm.weight", s.hidden)
        norm = take("norm.weight", s.hidden)
        self._embedding_norm, self._norm = norms(embedding_norm), norms(norm)
        self.ids = _vocabulary(shape, tensors, self.device)
        self._embedding = _embedding(take, like.embedding)
        self._output = products(_head(shape, take, like.head, self.ids))
        layer = layer_weights(
            of_layer,
            s,
            lambda name: s.bias and name == "self_attn.q_proj.bias",
            norm="hidden_norm.weight",
            wide=2,
        )
        weights = head_weights(s, like, [layer])
        self._layer = FeatureLayer(weights, norms, target.decoder, rotary_of(s, like.embedding))
        native, alike = self._layer.native, self._embedding.dtype is weights.dtype
        self._level: NativeLevel | None = None
        if native is not None and isinstance(self._output, NativeMatrix) and alike:
            self._level = NativeLevel(
                native,
                self._output,
                self._layer.rotary,
                self._embedding,
                (embedding_norm, layer.norm, norm),
                residual_normed=s.norm_before_residual,
                output_normed=s.norm_output,
            )
        self.parameters, self.nbytes = take.parameters, take.nbytes

    def adopt(self, weights: Mapping[str, Tensor]) -> None:
        """Replace the weights by others of the same names and shapes; to be called between two passes.

        Cached rows stay as they are, although the earlier weights made them.
        """
        values = {name: value.detach().cpu() for name, value in weights.items()}
        if self.ids is not None:
            values["d2t"] = self.ids.cpu() - torch.arange(len(self.ids))
        made = EagleHead(self.shape, Tensors("the head that learns", values), self._target)
        vars(self).update(vars(made))

    def new_cache(self) -> ContiguousCache:
        """See `FeatureHead`."""
        return self._layer.new_cache()

    def fuse(self, states: Tensor) -> Tensor:
        """See `FeatureHead`: a projection of all depths' states, with norms in some variants."""
        if self._tap_norms:
            parts = zip(self._tap_norms, states.unbind(1), strict=True)
            states = torch.stack([norm(one) for norm, one in parts], 1)
        joint = states.flatten(1)
        if self._fc_norm is not None:
            joint = self._fc_norm(joint)
        return self._fc(joint)

    def __call__(self, tokens: Tensor, features: Tensor, batch: Batch, most: int = 1) -> Level:
        """See `FeatureHead`."""
        if self._level is not None:
            most = min(most, self.shape.draft_vocab_size)
            level = Level(*self._level(tokens, features, batch, most))
            batch.append()
            return level if self.ids is None else level._replace(choices=self.ids[level.choices])
        normed = self._layer.norm(features)
        read = self._embedding_norm(F.embedding(tokens, self._embedding))
        x = normed.clone() if self.shape.norm_before_residual else features.clone()
        x = self._layer(x, batch, torch.cat([read, normed], -1))
        final = self._norm(x)
        returned, logits = final if self.shape.norm_output else x, self._output(final)
        return Level(logits, returned, *likeliest(logits, most, self.ids))


def _vocabulary(shape: EagleShape, tensors: Tensors, device: torch.device) -> Tensor | None:
    """``[draft vocabulary]`` int64: each draft token's id in the target; None: the ids are the same."""
    if "t2d" in tensors:
        tensors.take("t2d", (shape.vocab_size,))
    if "d2t" not in tensors and shape.draft_vocab_size == shape.vocab_size:
        return None
    ids = tensors.take_ids("d2t", shape.draft_vocab_size, shape.vocab_size, offsets=True)
    if torch.equal(ids, torch.arange(shape.vocab_size)):
        return None
    return ids.to(device)


def _embedding(take: Placed, lent: Tensor) -> Tensor:
    """The head's own embedding, or the target's if it has none or an equal one."""
    own = take.own("embed_tokens.weight", lent, None)
    if own.shape[0] < lent.shape[0]:
        raise ModelBroken(f"{take.tensors.folder}: embed_tokens.weight has too few rows")
    return own


def _head(shape: EagleShape, take: Placed, lent: Tensor, ids: Tensor | None) -> Tensor:
    """The head's own output head, or the target's rows of the tokens that can be drafted."""
    if "lm_head.weight" in take.tensors:
        return take("lm_head.weight", shape.draft_vocab_size, shape.hidden)
    return lent if ids is None else take.rows(lent, ids)


def load(folder: str | Path, target: ModelRunner) -> EagleHead:
    """Load the head of a folder; see `specstream.model.heads.eagle_format` for the layouts.

    Raises:
        ModelBroken: its files are damaged, or tensors are missing or of the wrong shape.
        ModelUnsupported: it was made for another target, or is a variant that is not supported.
    """
    sizes = target.decoder.weights
    shape = read_shape(read_head_config(folder), hidden=sizes.hidden, layers=len(sizes.layers))
    check_made_for(
        f"the head in {folder}",
        ("hidden states of size", shape.target_hidden, sizes.hidden),
        ("a vocabulary of", shape.vocab_size, sizes.vocab_size),
        ("embeddings of size", shape.hidden, sizes.hidden),
    )
    target.check_states(shape.depths)
    tensors = Tensors.read(folder).renamed(lambda name: re.sub(r"^layers\.0\.", "midlayer.", name))
    head = EagleHead(shape, tensors, target)
    tensors.check_all_taken()
    return head
