"""The names of multi-token prediction modules' tensors in a target's own folder.

Three layouts are read. DeepSeek's: a layer after the target's last,
``model.layers.N.{enorm,hnorm,eh_proj}`` and ``shared_head.{norm,head}``. Qwen3-Next's: ``mtp.fc``,
``mtp.pre_fc_norm_{embedding,hidden}``, ``mtp.norm``, ``mtp.layers.0.*``. MiMo's: ``model.mtp_layers.0.``
with ``token_layernorm``, ``hidden_layernorm``, ``input_proj``, ``final_layernorm``. Modules of the first
two read the target's state after its final norm (as do transformers' ``MtpModel`` and vLLM) and join
[embedding, state]; MiMo's read it before that norm and join [state, embedding].
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor
from transformers.utils.hub import cached_file

from specstream.checks import first_line
from specstream.errors import ModelBroken, ModelUnsupported
from specstream.model.heads.tensors import Tensors
from specstream.model.places import gguf_file

__all__ = ["MtpTensors", "foreign", "read_modules"]

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
