"""Multi-token prediction modules (DeepSeek-V3, arXiv 2412.19437, section 2.2).

A module is one decoder layer after a projection of [norm(embedding of a token); norm(state of the token
before)]. It predicts the token after these two; for deeper levels of a draft its own normed output takes
the state's place.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors import SafetensorError, safe_open
from torch import Tensor
from transformers.utils.hub import cached_file

from specstream.checks import first_line
from specstream.errors import ModelBroken, ModelUnsupported
from specstream.model.attention.base import Batch
from specstream.model.heads.base import Level, likeliest
from specstream.model.heads.layer import FeatureLayer, layer_weights
from specstream.model.heads.tensors import Placed, Tensors
from specstream.model.kv import ContiguousCache
from specstream.model.layers import Product, rms_norm
from specstream.model.runner import ModelRunner
from specstream.models.sources import gguf_file

__all__ = ["MtpHead", "MtpTensors", "find", "foreign", "load", "read_modules"]

# Our names' prefixes, and what stands for them in a folder; "" are the tensors of the decoder layer, and
# {} is the number of the target's layers.
_DEEPSEEK = {
    "eh_proj.": "model.layers.{}.eh_proj.",
    "norm.": "model.layers.{}.shared_head.norm.",
    "head.": "model.layers.{}.shared_head.head.",
    "": "model.layers.{}.",
}
_QWEN = {
    "eh_proj.": "mtp.fc.",
    "enorm.": "mtp.pre_fc_norm_embedding.",
    "hnorm.": "mtp.pre_fc_norm_hidden.",
    "norm.": "mtp.norm.",
    "": "mtp.layers.0.",
}
_MIMO = {
    "eh_proj.": "model.mtp_layers.0.input_proj.",
    "enorm.": "model.mtp_layers.0.token_layernorm.",
    "hnorm.": "model.mtp_layers.0.hidden_layernorm.",
    "norm.": "model.mtp_layers.0.final_layernorm.",
    "": "model.mtp_layers.0.",
}
_FOREIGN = {
    "experts (MoE)": (".experts.", ".shared_expert", "mlp.gate."),
    "latent attention (MLA)": ("kv_a_proj", "kv_b_proj", "q_a_proj"),
    "linear attention": (".linear_attn.", ".mamba."),
    "quantised weights": ("_scale", ".qweight", ".qzeros", ".weight_packed"),
}


@dataclass(frozen=True, slots=True)
class MtpTensors:
    """The first module of a folder.

    Attributes:
        tensors: Its tensors, renamed: ``enorm``, ``hnorm``, ``eh_proj``, ``norm``, maybe ``head`` and
            ``embed_tokens``, and those of a decoder layer by transformers' names.
        count: How many modules the folder holds.
        state_first: Whether ``eh_proj`` reads [state, embedding] instead of [embedding, state].
        before_norm: Whether it reads the target's states before the final norm.
    """

    tensors: Tensors
    count: int
    state_first: bool
    before_norm: bool


def read_modules(name: str, config: Any) -> MtpTensors | None:
    """Read the module in a target's folder or downloaded Hub repository; None if there is none.

    Args:
        name: Folder or Hub id; only its safetensors files are searched.
        config: The target's config.

    Raises:
        ModelBroken: a file can't be read.
        ModelUnsupported: the module is of a kind that isn't supported.
    """
    layers = int(config.get_text_config().num_hidden_layers)
    places = {key: file for file in _files(name) for key in _keys(file)}
    for layout in (_DEEPSEEK, _QWEN, _MIMO):
        names = {new: old.format(layers) for new, old in layout.items()}
        if f"{names['eh_proj.']}weight" in places:
            break
    else:
        return None
    found = {key: new for key in places if (new := _renamed(key, names)) is not None}
    _refuse_others(name, found)
    tensors = Tensors(name, {new: _read(places[key], key) for key, new in found.items()})
    stem, first, _ = names[""].rsplit(".", 2)
    numbers = {int(one[1]) for key in places if (one := re.match(rf"{stem}\.(\d+)\.", key))}
    count = sum(number >= int(first) for number in numbers)
    state_first = bool(getattr(config, "mtp_hidden_states_first", layout is _MIMO))
    return MtpTensors(tensors, count, state_first, before_norm=layout is _MIMO)


def _renamed(key: str, names: Mapping[str, str]) -> str | None:
    each = (new + key.removeprefix(old) for new, old in names.items() if key.startswith(old))
    return next(each, None)


def _refuse_others(name: str, found: Mapping[str, str]) -> None:
    for what, marks in _FOREIGN.items():
        if any(mark in f".{new}" for new in found.values() for mark in marks):
            raise foreign(name, what)


def foreign(name: str | Path, what: str) -> ModelUnsupported:
    """The error for a module that has ``what``, in the target's folder ``name``."""
    return ModelUnsupported(
        f"the multi-token prediction module of {name} has {what}; only dense layers like those of Llama "
        "and Qwen are computed here, so choose another proposer"
    )


def _files(name: str) -> Iterator[Path]:
    if gguf_file(name) is not None:
        return
    if Path(name).is_dir():
        yield from sorted(Path(name).glob("*.safetensors"))
        return
    options = {"local_files_only": True, "_raise_exceptions_for_missing_entries": False}
    index = cached_file(name, "model.safetensors.index.json", **options)
    shards = {"model.safetensors"}
    if index is not None:
        try:
            shards = set(json.loads(Path(index).read_text(encoding="utf-8"))["weight_map"].values())
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise ModelBroken(f"{index} can't be read: {first_line(error)}") from None
    for shard in sorted(shards):
        if (file := cached_file(name, shard, **options)) is not None:
            yield Path(file)


def _keys(file: Path) -> list[str]:
    try:
        with safe_open(file, framework="pt") as opened:
            return list(opened.keys())
    except (SafetensorError, OSError) as error:
        raise ModelBroken(f"{file} can't be read: {first_line(error)}") from None


def _read(file: Path, key: str) -> Tensor:
    with safe_open(file, framework="pt") as opened:
        tensor: Tensor = opened.get_tensor(key)
    return tensor


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
    """Load the module in the target's own folder; see `specstream.model.heads.mtp`.

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
