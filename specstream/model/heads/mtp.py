"""A multi-token prediction module in service (DeepSeek-V3, arXiv 2412.19437, section 2.2).

One decoder layer behind a projection of [norm(embedding of a token); norm(state of the token before)].
It predicts the token after; for deeper drafts its own normed output takes the state's place.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Sequence
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from specstream.errors import ModelBroken, ModelUnsupported
from specstream.model.attention.base import Batch
from specstream.model.attention.contiguous import ContiguousAttention
from specstream.model.decoder import rotations
from specstream.model.heads.mtp_format import MtpTensors, read_modules
from specstream.model.kv.base import RowCache
from specstream.model.layers import layer_of
from specstream.model.norms import rms_norm
from specstream.model.products import Product, can_pack, product
from specstream.model.runner import ModelRunner
from specstream.model.tree import Tree
from specstream.model.weights import LayerWeights

__all__ = ["MtpHead", "find", "load"]

_log = logging.getLogger("specstream.model")


class MtpHead:
    """See the module; a `FeatureHead`. Keys and values are contiguous on every device: one layer's.

    Args:
        module: Its tensors.
        target: Lends positions, embedding and output head, and tells the layer's sizes.

    Raises:
        ModelBroken: a tensor is missing, has another shape, or belongs to nothing that is known.
        ModelUnsupported: attention with gates, quantised weights, or a target without hidden states.
    """

    kind, title = "mtp", "the multi-token prediction module"
    ids: Tensor | None = None

    def __init__(self, module: MtpTensors, target: ModelRunner) -> None:
        self._decoder, sizes = target.decoder, target.decoder.weights
        self.depths: tuple[int, ...] = (len(sizes.layers),)
        self.width = sizes.hidden
        target.check_states(self.depths)
        self.device, self.dtype = target.device, target.dtype
        self.parameters = self.nbytes = 0
        self._tensors, self._before_norm = module.tensors, module.before_norm
        norms = partial(rms_norm, eps=sizes.eps)
        self._enorm = norms(self._take("enorm.weight", sizes.hidden))
        self._hnorm = norms(self._take("hnorm.weight", sizes.hidden))
        joint = self._take("eh_proj.weight", sizes.hidden, 2 * sizes.hidden)
        if module.state_first:
            joint = torch.cat(joint.chunk(2, 1)[::-1], 1)
        self._packed = can_pack(self.dtype, self.device)
        self._project = self._product(joint)
        layer = self._layer_weights()
        own = dataclasses.replace(sizes, layers=(layer,))
        self._layer = layer_of(own, layer, norms, self._product)
        self._norm = norms(self._take("norm.weight", sizes.hidden))
        self._attention = ContiguousAttention(own)
        embedding = self._own("embed_tokens.weight", sizes.embedding)
        self._embedding = sizes.embedding if embedding is None else embedding
        head = self._own("head.weight", sizes.head)
        self._output: Product = self._decoder.logits if head is None else self._product(head)
        if module.tensors.left:
            raise ModelBroken(
                f"{module.tensors.folder}: these tensors of the multi-token prediction module are not "
                f"known: {module.tensors.left}"
            )

    def new_cache(self) -> RowCache:
        """See `FeatureHead`."""
        return self._attention.new_cache()

    def fuse(self, states: Tensor) -> Tensor:
        """See `FeatureHead`: the states themselves, or the target's final norm of them."""
        last = states[:, 0]
        return last if self._before_norm else self._decoder.normed(last)

    def __call__(
        self,
        tokens: Tensor,
        features: Tensor,
        caches: Sequence[RowCache],
        counts: Sequence[int],
        keeps: Sequence[int],
        trees: Sequence[Tree | None] | None = None,
    ) -> tuple[Tensor, Tensor]:
        """See `FeatureHead`."""
        if trees is not None and not any(trees):
            trees = None
        batch = Batch(caches, counts, keeps, trees)
        plan = self._attention.plan(batch)
        cos, sin = rotations(self._decoder.rotary, batch, self.device)
        read = self._enorm(F.embedding(tokens, self._embedding))
        x = self._project(torch.cat([read, self._hnorm(features)], -1))
        kept = plan.narrow() if sum(keeps) < tokens.shape[0] else None
        x = self._layer(x, cos, sin, plan, 0, kept)
        for cache, count in zip(caches, counts, strict=True):
            cache.append_to(cache.length + count)
        final = self._norm(x)
        return self._output(final), final

    def _take(self, name: str, *shape: int) -> Tensor:
        found = self._tensors.take(name, shape)
        if not found.is_floating_point() or found.dtype.itemsize < 2:
            raise ModelUnsupported(
                f"{self._tensors.folder}: {name} of the multi-token prediction module holds "
                f"{found.dtype}; quantised modules are not computed here, so choose another proposer"
            )
        found = found.to(self.device, self.dtype)
        self.parameters += found.numel()
        self.nbytes += found.nbytes
        return found

    def _optional(self, name: str, *shape: int) -> Tensor | None:
        return self._take(name, *shape) if name in self._tensors else None

    def _own(self, name: str, lent: Tensor) -> Tensor | None:
        """The module's own copy of a matrix; None: it has none, or the same as the target's."""
        if name not in self._tensors:
            return None
        found = self._tensors.take(name, lent.shape).to(self.device, self.dtype)
        if torch.equal(found, lent):
            return None
        self.parameters += found.numel()
        self.nbytes += found.nbytes
        return found

    def _product(self, weight: Tensor, bias: Tensor | None = None) -> Product:
        return product(weight, bias, packed=self._packed)

    def _layer_weights(self) -> LayerWeights:
        s, take, optional = self._decoder.weights, self._take, self._optional
        rows = {"q": s.heads * s.head_dim} | dict.fromkeys("kv", s.kv_heads * s.head_dim)
        self._refuse_gates(rows["q"])
        three = [take(f"self_attn.{n}_proj.weight", count, s.hidden) for n, count in rows.items()]
        biases = [optional(f"self_attn.{n}_proj.bias", count) for n, count in rows.items()]
        present = [bias for bias in biases if bias is not None]
        if len(present) not in (0, 3):
            raise ModelBroken(f"{self._tensors.folder}: some biases of self_attn are missing")
        return LayerWeights(
            norm=take("input_layernorm.weight", s.hidden),
            qkv=torch.cat(three),
            qkv_bias=torch.cat(present) if present else None,
            query_norm=optional("self_attn.q_norm.weight", s.head_dim),
            key_norm=optional("self_attn.k_norm.weight", s.head_dim),
            out=take("self_attn.o_proj.weight", s.hidden, rows["q"]),
            out_bias=optional("self_attn.o_proj.bias", s.hidden),
            mlp_norm=take("post_attention_layernorm.weight", s.hidden),
            gate_up=torch.cat(
                [take(f"mlp.{n}_proj.weight", s.intermediate, s.hidden) for n in ("gate", "up")]
            ),
            down=take("mlp.down_proj.weight", s.hidden, s.intermediate),
        )

    def _refuse_gates(self, rows: int) -> None:
        """Qwen3-Next's attention has a gate in its queries: twice their rows."""
        found = self._tensors.size("self_attn.q_proj.weight")
        if found is not None and found == (2 * rows, self.width):
            raise ModelUnsupported(
                f"the multi-token prediction module of {self._tensors.folder} has gated attention, "
                "which is not computed here; choose another proposer"
            )


def load(name: str, target: ModelRunner) -> MtpHead:
    """The module in the target's own folder; see `specstream.model.heads.mtp_format` for the layouts.

    Of several modules the first drafts all tokens.

    Args:
        name: The target's folder or Hub id.
        target: The target.

    Raises:
        ModelBroken: tensors are missing, damaged or of the wrong shape.
        ModelUnsupported: no module is there, or one of a kind that is not computed here.
    """
    found = find(name, target)
    if found is None:
        raise ModelUnsupported(
            f"{name} holds no multi-token prediction module (model.layers.N.eh_proj, mtp.fc or "
            "model.mtp_layers in its safetensors); choose another proposer"
        )
    return found


def find(name: str, target: ModelRunner) -> MtpHead | None:
    """As `load`, but None where the folder holds no module."""
    config = target.model.config
    target.check_states((int(config.get_text_config().num_hidden_layers),))
    found = read_modules(name, config)
    if found is None:
        return None
    if found.count > 1:
        _log.info("%s holds %d prediction modules; the first drafts", name, found.count)
    return MtpHead(found, target)
