"""Refuses, by its config alone, a model that can't be served; no weight is read."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import torch
from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, AutoModelForCausalLM, PreTrainedConfig

from specstream.errors import ModelBroken, ModelUnsupported
from specstream.model.kv.transformers import check_supported
from specstream.model.places import WEIGHTS
from specstream.model.positions import declared_positions

__all__ = ["check_config", "parameters_of"]

_PACKAGES = {
    "awq": ("gptqmodel",),
    "bitsandbytes": ("bitsandbytes", "accelerate"),
    "compressed-tensors": ("compressed-tensors",),
    "gptq": ("gptqmodel", "optimum"),
    "hqq": ("hqq",),
    "torchao": ("torchao",),
}
"""Packages that transformers needs to read quantised weights, by their ``quant_method``."""


def check_config(name: str, config: PreTrainedConfig) -> None:
    """Refuse a model by the config of its folder, Hub id or GGUF file.

    Raises:
        ModelUnsupported: the model is not decoder-only, keeps state that can't be rolled back, or has
            quantised weights whose packages are not installed.
        ModelBroken: its context has no positions, or its weight files can't hold its parameters.
    """
    nbytes = _weight_bytes(name)
    text = config.get_text_config()
    layers, width = (getattr(text, size, None) for size in ("num_hidden_layers", "hidden_size"))
    if nbytes and isinstance(layers, int) and isinstance(width, int):
        # One norm a layer, before anything that takes time or memory for each layer.
        _check_size(name, config, nbytes, layers * width)
    try:
        check_supported(config)
    except ModelUnsupported as error:
        raise ModelUnsupported(f"{name}: {error}") from None
    if type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        raise ModelUnsupported(
            f"{name}: transformers has no causal language model of type {config.model_type!r}; "
            "choose a decoder-only model"
        )
    _check_package(name, config)
    if declared_positions(config) < 1:
        raise ModelBroken(
            f"{name}: its config's max_position_embeddings is {declared_positions(config)}; it must be "
            "the length of the model's context"
        )
    if nbytes:
        _check_size(name, config, nbytes, parameters_of(config))


def _check_package(name: str, config: PreTrainedConfig) -> None:
    """Refuse quantised weights if the packages that transformers reads them with are not installed.

    With those packages the model loads, and runs through its own forward instead of `Decoder`.
    """
    scheme = getattr(config, "quantization_config", None)
    method = scheme.get("quant_method") if isinstance(scheme, dict) else None
    packages = _PACKAGES.get(str(method), ())
    if any(importlib.util.find_spec(one.replace("-", "_")) is None for one in packages):
        raise ModelUnsupported(
            f"{name}: its weights are quantised ({method}), and reading them needs "
            f"{' and '.join(packages)}: pip install {' '.join(packages)}"
        )


def parameters_of(config: PreTrainedConfig) -> int:
    """Return how many parameters the model of a config has; allocates no memory for them."""
    factory: Any = AutoModelForCausalLM
    with torch.device("meta"):
        model: Any = factory.from_config(config)
    return sum(parameter.numel() for parameter in model.parameters())


def _weight_bytes(name: str) -> int:
    """Return the size of a folder's weight files or of a GGUF file; 0 for a Hub id."""
    path = Path(name)
    files = [path] if path.is_file() else [file for kind in WEIGHTS for file in path.glob(kind)]
    return sum(file.stat().st_size for file in files)


def _check_size(name: str, config: PreTrainedConfig, nbytes: int, described: int) -> None:
    """Refuse a model whose weights are too small for its config.

    transformers takes default sizes for those that a config doesn't give, and would allocate the whole
    model, which may be many times the machine's memory, before it reported missing weights.

    Args:
        name: Folder or GGUF file.
        config: Its config.
        nbytes: Size of its weights, in bytes.
        described: How many parameters the config describes at least.

    Raises:
        ModelBroken: there is less than a byte of weights per parameter (a bit if they are quantised).
    """
    packed = Path(name).is_file() or getattr(config, "quantization_config", None) is not None
    if nbytes * (8 if packed else 1) < described:
        raise ModelBroken(
            f"{name}: its config describes a model of at least {described:,} parameters, but its "
            f"weights are {nbytes:,} bytes; correct the sizes in the config (those it doesn't give have "
            "defaults), or take the files of the right model"
        )
