"""Multi-token prediction modules (DeepSeek-V3, arXiv 2412.19437, section 2.2).

A module is one decoder layer after a projection of [norm(embedding of a token); norm(state of the token
before)]. It predicts the token after these two; for deeper levels of a draft its own normed output takes
the state's place.
"""

from __future__ import annotations

import dataclasses
import logging
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from specstream.errors import ModelUnsupported
from specstream.model.attention.base import Batch
from specstream.model.heads.base import Level, likeliest
from specstream.model.heads.layer import FeatureLayer, layer_weights
from specstream.model.heads.mtp_format import MtpTensors, foreign, read_modules
from specstream.model.heads.tensors import Placed, Tensors
from specstream.model.kv.contiguous import ContiguousCache
from specstream.model.norms import rms_norm
from specstream.model.products import Product
from specstream.model.runner import ModelRunner

__all__ = ["MtpHead", "find", "load"]

_log = logging.getLogger("specstream.model")


class MtpHead:
    """A multi-token prediction module, ready to draft; a `FeatureHead`.

    Args:
        module: Its tensors.
        target: The model that it drafts for. The layer has the target's sizes and rotary table, and the
            target's embedding and output head are used where the module has none.

    Raises:
        ModelBroken: a tensor is missing, has another shape or an unknown name.
        ModelUnsupported: the module has gated attention or quantised weights, or the target gives no
            hidden states.
    """

    kind, title = "mtp", "the multi-token prediction module"
    ids: Tensor | None = None

    def __init__(self, module: MtpTensors, target: ModelRunner) -> None:
        self._decoder, sizes = target.decoder, target.decoder.weights
        self.depths: tuple[int, ...] = (len(sizes.layers),)
        self.width = sizes.hidden
        target.check_states(self.depths)
        self.device, self.dtype = target.device, target.dtype
        self._before_norm, tensors = module.before_norm, module.tensors
        _refuse(tensors, 2 * sizes.heads * sizes.head_dim, self.width)
        take, norms = Placed(tensors, sizes.embedding), partial(rms_norm, eps=sizes.eps)
        products = target.decoder.products
        self._enorm = norms(take("enorm.weight", sizes.hidden))
        self._hnorm = norms(take("hnorm.weight", sizes.hidden))
        joint = take("eh_proj.weight", sizes.hidden, 2 * sizes.hidden)
        if module.state_first:
            joint = torch.cat(joint.chunk(2, 1)[::-1], 1)
        self._project = products(joint)
        own = dataclasses.replace(sizes, layers=(layer_weights(take, sizes, tensors.__contains__),))
        self._layer = FeatureLayer(own, norms, self._decoder, self._decoder.rotary)
        self._norm = norms(take("norm.weight", sizes.hidden))
        self._embedding = take.own("embed_tokens.weight", sizes.embedding, sizes.vocab_size)
        head = take.own("head.weight", sizes.head, sizes.vocab_size)
        self._output: Product = self._decoder.logits if head is sizes.head else products(head)
        self.parameters, self.nbytes = take.parameters, take.nbytes
        tensors.check_all_taken()

    def new_cache(self) -> ContiguousCache:
        """See `FeatureHead`."""
        return self._layer.new_cache()

    def fuse(self, states: Tensor) -> Tensor:
        """See `FeatureHead`: the last layer's states, in most layouts after the target's final norm."""
        last = states[:, 0]
        return last if self._before_norm else self._decoder.normed(last)

    def __call__(self, tokens: Tensor, features: Tensor, batch: Batch, most: int = 1) -> Level:
        """See `FeatureHead`."""
        read = self._enorm(F.embedding(tokens, self._embedding))
        x = self._project(torch.cat([read, self._hnorm(features)], -1))
        final = self._norm(self._layer(x, batch))
        logits = self._output(final)
        return Level(logits, final, *likeliest(logits, most, self.ids))


def _refuse(tensors: Tensors, gated: int, hidden: int) -> None:
    """Refuse quantised modules, and those with gated attention (Qwen3-Next: gates in ``q_proj``).

    Args:
        tensors: The module's tensors.
        gated: Rows of ``q_proj`` with gates.
        hidden: Its columns.
    """
    for name, dtype in tensors.dtypes.items():
        if not dtype.is_floating_point or dtype.itemsize < 2:
            raise foreign(tensors.folder, f"quantised weights ({name} holds {dtype})")
    if tensors.size("self_attn.q_proj.weight") == (gated, hidden):
        raise foreign(tensors.folder, "gated attention")


def load(name: str, target: ModelRunner) -> MtpHead:
    """Load the module in the target's own folder; see `specstream.model.heads.mtp_format`.

    If the folder holds several modules, the first drafts all tokens.

    Args:
        name: The target's folder or Hub id.
        target: The target.

    Raises:
        ModelBroken: tensors are missing, damaged or of the wrong shape.
        ModelUnsupported: there is no module, or one of a kind that isn't supported.
    """
    found = find(name, target)
    if found is None:
        raise ModelUnsupported(
            f"{name} holds no multi-token prediction module (model.layers.N.eh_proj, mtp.fc or "
            "model.mtp_layers in its safetensors); choose another proposer"
        )
    return found


def find(name: str, target: ModelRunner) -> MtpHead | None:
    """As `load`, but return None if the folder holds no module."""
    config = target.model.config
    target.check_states((int(config.get_text_config().num_hidden_layers),))
    found = read_modules(name, config)
    if found is None:
        return None
    if found.count > 1:
        _log.info("%s holds %d prediction modules; the first drafts", name, found.count)
    return MtpHead(found, target)
