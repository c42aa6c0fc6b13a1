"""EAGLE-3 heads (arXiv 2503.01840): one decoder layer over the target's hidden states.

A row reads a feature, fused from the states of several (usually three) of the target's layers, and the
embedding of the token after it, and predicts the token after that. For deeper levels of a draft the
head's own output takes the feature's place.

Two conventions number the layers whose states are read. ``eagle_aux_hidden_state_layer_ids`` at the top
level (vLLM, speculators) counts states that *enter* a layer: id i is the state after i layers. The same
key inside ``eagle_config`` (SpecForge, SGLang) counts states that *leave* a layer: id i is the state
after i + 1 layers. Without either key all of them read the states after 2, L // 2 and L - 3 of L layers.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from specstream.errors import ModelBroken, ModelUnsupported
from specstream.model.attention.base import Batch
from specstream.model.heads.base import (
    LayerShape,
    Level,
    check_made_for,
    likeliest,
    read_head_config,
    reading,
)
from specstream.model.heads.layer import FeatureLayer, head_weights, layer_weights, rotary_of
from specstream.model.heads.tensors import Placed, Tensors
from specstream.model.kv import ContiguousCache
from specstream.model.layers import Norm, rms_norm
from specstream.model.native.layers import NativeLevel
from specstream.model.native.matrix import NativeMatrix
from specstream.model.runner import ModelRunner

__all__ = ["EagleHead", "EagleShape", "default_depths", "is_eagle", "load", "read_shape"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EagleShape(LayerShape):
    """Sizes and variants of an EAGLE-3 head; even with biases in attention ``o_proj`` has none.

    Attributes:
        target_hidden: Size of the target's hidden states.
        draft_vocab_size: Number of tokens that it can draft.
        depths: After how many of the target's layers it reads hidden states.
        norm_before_residual: The layer adds its results to the normed feature, not to the feature.
        fc_norm: Each of the states that are read has a norm of its own before ``fc`` (EAGLE 3.1).
        norm_before_fc: The states share one norm before ``fc``, over their concatenation.
        norm_output: The next level of a draft reads the normed output (EAGLE 3.1).
    """

    target_hidden: int
    draft_vocab_size: int
    depths: tuple[int, ...]
    norm_before_residual: bool = False
    fc_norm: bool = False
    norm_before_fc: bool = False
    norm_output: bool = False

    @property
    def config(self) -> dict[str, Any]:
        """``config.json`` in the layout of the original repository and of SpecForge."""
        return self.written | {
            "architectures": ["LlamaForCausalLMEagle3"],
            "model_type": "llama",
            "target_hidden_size": self.target_hidden,
            "num_hidden_layers": 1,
            "draft_vocab_size": self.draft_vocab_size,
            "mlp_bias": False,
            "norm_before_residual": self.norm_before_residual,
            "fc_norm": self.fc_norm,
            "norm_before_fc": self.norm_before_fc,
            "norm_output": self.norm_output,
            "eagle_aux_hidden_state_layer_ids": list(self.depths),
            "eagle_config": {
                "eagle_aux_hidden_state_layer_ids": [depth - 1 for depth in self.depths],
                "use_aux_hidden_state": True,
            },
        }


def default_depths(layers: int) -> tuple[int, ...]:
    """The depths that are read if a config names none: after 2, half and all but 3 of the layers."""
    return min(2, layers), layers // 2, max(layers - 3, 1)


def is_eagle(config: Mapping[str, Any]) -> bool:
    """Whether a ``config.json`` describes an EAGLE-3 head."""
    named = config.get("speculators_model_type") or _part(config, "speculators_config").get("algorithm")
    if named is not None:
        return named in ("eagle3", "peagle")
    if any("eagle3" in str(name).lower() for name in config.get("architectures") or ()):
        return True
    # The original repository's config is a Llama's with one additional key, draft_vocab_size.
    other = {"dflash_config", "block_size", "medusa_num_heads", "speculators_version"} & set(config)
    return config.get("model_type") == "llama" and "draft_vocab_size" in config and not other


def read_shape(config: Mapping[str, Any], *, hidden: int, layers: int) -> EagleShape:
    """The shape of the head that a ``config.json`` describes.

    Args:
        config: In the layout of the original repository, of SpecForge or of speculators.
        hidden: Size of the target's hidden states, used if the config doesn't have it.
        layers: The target's number of layers.

    Raises:
        ModelBroken: a field is missing or out of range.
        ModelUnsupported: the head is of a variant that is not supported.
    """
    with reading("the EAGLE head"):
        speculators = "transformer_layer_config" in config
        layer = _part(config, "transformer_layer_config") if speculators else config
        more = _part(config, "eagle_config")
        _refuse(config, layer)
        sizes = LayerShape.read(layer)
        norm_before_fc = config.get("norm_before_fc", more.get("norm_before_fc", False))
        return EagleShape(
            **sizes,
            target_hidden=int(config.get("target_hidden_size") or hidden),
            draft_vocab_size=int(config.get("draft_vocab_size") or sizes["vocab_size"]),
            depths=_depths(config, more) or default_depths(layers),
            norm_before_residual=bool(config.get("norm_before_residual", speculators)),
            fc_norm=bool(config.get("fc_norm", False)),
            norm_before_fc=bool(norm_before_fc),
            norm_output=bool(config.get("norm_output", False)),
        )


def _depths(config: Mapping[str, Any], more: Mapping[str, Any]) -> tuple[int, ...]:
    entering = config.get("eagle_aux_hidden_state_layer_ids")
    leaving = more.get("eagle_aux_hidden_state_layer_ids")
    if entering:
        return tuple(int(one) for one in entering)
    return tuple(int(one) + 1 for one in leaving or ())


def _refuse(config: Mapping[str, Any], layer: Mapping[str, Any]) -> None:
    """Refuse variants whose weights would load but be computed wrongly."""
    if config.get("mask_token_id") is not None or config.get("speculators_model_type") == "peagle":
        raise ModelUnsupported(
            "this is a P-EAGLE head (mask_token_id), which drafts all tokens in one pass; only heads "
            "that draft token by token are supported"
        )
    if int(layer.get("num_hidden_layers") or 1) != 1:
        raise ModelUnsupported("only EAGLE heads of one layer are supported")
    kind = layer.get("model_type", "llama")
    if kind != "llama":
        raise ModelUnsupported(f"only EAGLE heads with a Llama layer are supported, not {kind}")


def _part(config: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = config.get(name)
    return found if isinstance(found, Mapping) else {}


class EagleHead:
    """An EAGLE-3 head, ready to draft; a `FeatureHead`.

    Args:
        shape: Sizes and variants.
        tensors: The tensors of its folder.
        target: The model that it drafts for, whose embedding and output head are used where the folder
            has none.

    Attributes:
        output: The product with its output matrix.

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
        self.output = products(_head(shape, take, like.head, self.ids))
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
        if native is not None and isinstance(self.output, NativeMatrix) and alike:
            self._level = NativeLevel(
                native,
                self.output,
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
        returned, logits = final if self.shape.norm_output else x, self.output(final)
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
    """Load the head of a folder, in one of the layouts above.

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
