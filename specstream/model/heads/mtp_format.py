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

from specstream.errors import ModelBroken, ModelUnsupported
from specstream.model.heads.tensors import Tensors
from specstream.model.places import first_line, gguf_file

__all__ = ["MtpTensors", "foreign", "read_modules"]

_DEEPSEEK = {
    "enorm.": "enorm.",
    "hnorm.": "hnorm.",
    "eh_proj.": "eh_proj.",
    "shared_head.norm.": "norm.",
    "shared_head.head.": "head.",
    "embed_tokens.": "embed_tokens.",
}
_MIMO = {
    "token_layernorm.": "enorm.",
    "hidden_layernorm.": "hnorm.",
    "input_proj.": "eh_proj.",
    "final_layernorm.": "norm.",
}
_QWEN = {
    "mtp.fc.": "eh_proj.",
    "mtp.pre_fc_norm_embedding.": "enorm.",
    "mtp.pre_fc_norm_hidden.": "hnorm.",
    "mtp.norm.": "norm.",
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
    first, state_first, before_norm = "", False, False
    if f"model.layers.{layers}.eh_proj.weight" in places:
        stem, first = "model.layers.", f"model.layers.{layers}."
        renamed = {first + old: new for old, new in _DEEPSEEK.items()}
    elif "mtp.fc.weight" in places:
        stem, first, renamed = "mtp.layers.", "mtp.layers.0.", dict(_QWEN)
    elif "model.mtp_layers.0.input_proj.weight" in places:
        stem, first = "model.mtp_layers.", "model.mtp_layers.0."
        renamed = {first + old: new for old, new in _MIMO.items()}
        state_first = before_norm = True
    else:
        return None
    renamed[first] = ""
    found = {key: new for key in places if (new := _renamed(key, renamed)) is not None}
    _refuse(name, found)
    numbers = {int(one[1]) for key in places if (one := re.match(rf"{stem}(\d+)\.", key))}
    tensors = Tensors(name, {new: _read(places[key], key) for key, new in found.items()})
    count = sum(1 for number in numbers if stem != "model.layers." or number >= layers)
    state_first = bool(getattr(config, "mtp_hidden_states_first", state_first))
    return MtpTensors(tensors, count, state_first, before_norm)


def _renamed(key: str, renamed: Mapping[str, str]) -> str | None:
    prefix = next((old for old in renamed if key.startswith(old)), None)
    return None if prefix is None else renamed[prefix] + key.removeprefix(prefix)


def _refuse(name: str, found: Mapping[str, str]) -> None:
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
